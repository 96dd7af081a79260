//! The matrix in print: a line a cell while it runs, and the tables at the end.

use std::fmt::Write as _;
use std::time::Duration;

use crate::matrix::{Cell, Column, Measured, Outcome, Verdict, What};
use crate::program::Written;
use crate::score::Share;

/// A cell in a few words.
pub fn shown(measured: &Measured) -> String {
    match measured {
        Measured::Unavailable(_) => "not available".into(),
        Measured::Failed(_) => "error".into(),
        Measured::Shares(outcome) => {
            let of = |wanted| outcome.shares.iter().find(|(what, _)| *what == wanted).map(|(_, share)| percent(share));
            let names = of(What::Names).unwrap_or_default();
            let stacks = of(What::Stacks).map(|stacks| format!(" / {stacks}")).unwrap_or_default();
            names + &stacks + &others(outcome)
        }
    }
}

/// 100.0 is all of them.
fn percent(share: &Share) -> String {
    format!("{:.1}", (share.percent() * 10.0).floor() / 10.0)
}

/// What is missed beside names and stacks.
fn others(outcome: &Outcome) -> String {
    let others = outcome.missed().filter(|(what, _)| ![What::Names, What::Stacks].contains(what));
    others.map(|(what, share)| format!(", {} {}", name(what), percent(share))).collect()
}

fn counted(measured: &Measured) -> usize {
    match measured {
        Measured::Shares(Outcome { shares, .. }) => shares.first().map_or(0, |(_, share)| share.counted),
        _ => 0,
    }
}

fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Right => "",
        Verdict::Wrong => " **wrong**",
        Verdict::Lost => " ×",
        Verdict::Won => " × (won)",
        Verdict::Unavailable => "",
    }
}

/// One line for a cell that has just been measured.
pub fn line(cell: &Cell, column: &Column, took: Duration) -> String {
    let (text, samples) = (shown(&cell.measured), counted(&cell.measured));
    let took = took.as_secs_f64();
    format!("{:22} {:22} {text}{} ({samples} samples, {took:.1} s)", cell.scenario, column.id, mark(cell.verdict))
}

/// What is wrong in a cell, for those who look for the cause.
pub fn details(cell: &Cell) {
    match &cell.measured {
        Measured::Shares(Outcome { shares, wrong, .. }) => {
            for (what, share) in shares {
                eprintln!("    {what:?}: {} of {} right", share.right, share.counted);
            }
            for text in wrong {
                eprintln!("    {text}");
            }
        }
        Measured::Unavailable(text) | Measured::Failed(text) => {
            for line in text.lines() {
                eprintln!("    {line}");
            }
        }
    }
}

/// The tables with a column a reader.
const OTHERS: &str = "other readers, code in regions";
const DEBUGGERS: &str = "debuggers";

fn reader(column: &Column) -> &str {
    column.id.split('/').next().unwrap_or_default()
}

/// The table that a column is in. Debuggers are in one, with a column each. Those of code in regions are tables of their own: one for
/// each perf, and one for all others, which have a column each.
fn key(column: &Column) -> String {
    match (column.mode.written, reader(column)) {
        (_, reader) if reader.starts_with("gdb-") || reader.starts_with("lldb-") => DEBUGGERS.into(),
        (Written::Map | Written::Jitdump, reader) => reader.into(),
        (_, reader) if reader.starts_with("perf-") => format!("{reader}, code in regions"),
        _ => OTHERS.into(),
    }
}

/// Tables with a row a scenario and a column a way of use.
pub fn sections(columns: &[Column], scenarios: &[String], cells: &[Cell]) -> Vec<(String, String)> {
    let mut keys: Vec<String> = Vec::new();
    for key in columns.iter().map(key) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter()
        .map(|wanted| {
            let of_reader: Vec<usize> = (0..columns.len()).filter(|&index| key(&columns[index]) == wanted).collect();
            let text = section(&wanted, columns, &of_reader, scenarios, cells);
            (wanted, text)
        })
        .collect()
}

fn section(key: &str, columns: &[Column], of_reader: &[usize], scenarios: &[String], cells: &[Cell]) -> String {
    let mut text = String::new();
    let has_readers = [OTHERS, DEBUGGERS].contains(&key);
    let title = |&index: &usize| if has_readers { columns[index].reader.as_str() } else { columns[index].mode.name };
    let titles: Vec<&str> = std::iter::once(SCENARIOS).chain(of_reader.iter().map(title)).collect();
    let _ = writeln!(text, "{}\n", heading(key));
    let reader = if has_readers { String::new() } else { format!("{}, ", columns[of_reader[0]].reader) };
    let _ = writeln!(text, "{reader}Linux {}\n", kernel());
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut unavailable: Option<&str> = None;
    for scenario in scenarios {
        let row: Vec<Option<&Cell>> = of_reader
            .iter()
            .map(|&column| cells.iter().find(|cell| cell.column == column && cell.scenario == *scenario))
            .collect();
        if row.iter().all(Option::is_none) {
            continue;
        }
        for cell in row.iter().flatten() {
            if let Measured::Unavailable(reason) = &cell.measured {
                unavailable = Some(reason);
            }
        }
        let row = row.into_iter().map(|cell| cell.map(in_table).unwrap_or_default());
        rows.push(std::iter::once(scenario.clone()).chain(row).collect());
    }
    text.push_str(&table(&titles, &rows));
    if let Some(reason) = unavailable {
        let _ = writeln!(text, "\nNot available here: {reason}");
    }
    text
}

/// The title of the column of scenarios.
pub const SCENARIOS: &str = "scenarios";
/// Names and stacks reach what is wanted; names do, and there is no stack.
const RIGHT: &str = "right";
const NAMES: &str = "names";

/// Numbers only where they say more than that all is right, so that scenarios of which nothing else is to be said have equal rows.
fn in_table(cell: &Cell) -> String {
    let mark = mark(cell.verdict);
    if let Measured::Shares(outcome) = &cell.measured {
        let is_missed = outcome.missed().any(|(what, _)| [What::Names, What::Stacks].contains(&what));
        // Too few samples are wrong, even if all of them are right.
        if !is_missed && cell.verdict != Verdict::Wrong {
            let has_stacks = outcome.shares.iter().any(|(what, _)| *what == What::Stacks);
            return format!("{}{}{mark}", if has_stacks { RIGHT } else { NAMES }, others(outcome));
        }
    }
    let samples = match counted(&cell.measured) {
        0 => String::new(),
        samples => format!(" ({samples})"),
    };
    format!("{}{mark}{samples}", shown(&cell.measured))
}

/// A table of rows that begin with a scenario. Scenarios whose cells are equal share a row, and rows that are right come first.
pub fn table(titles: &[impl AsRef<str>], rows: &[Vec<String>]) -> String {
    let mut shared: Vec<(String, &[String])> = Vec::new();
    for row in rows {
        let (scenario, cells) = (&row[0], &row[1..]);
        match shared.iter_mut().find(|(_, other)| *other == cells) {
            Some((scenarios, _)) => scenarios.extend([", ", scenario]),
            None => shared.push((scenario.clone(), cells)),
        }
    }
    let is_right = |cell: &String| ["", RIGHT, NAMES].contains(&cell.as_str());
    shared.sort_by_key(|(_, cells)| !cells.iter().all(is_right));
    let titles: Vec<&str> = titles.iter().map(AsRef::as_ref).collect();
    let mut text = format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    for (scenarios, cells) in shared {
        let _ = writeln!(text, "| {scenarios} | {} |", cells.join(" | "));
    }
    text
}

fn heading(key: &str) -> String {
    format!("### {key}")
}

/// Without what a distributor adds.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().split(['-', '+']).next().unwrap_or_default().to_string()
}

pub fn name(what: What) -> &'static str {
    match what {
        What::Names => "names",
        What::Stacks => "stacks",
        What::Report => "report",
        What::Annotate => "annotate",
        What::Lines => "lines",
        What::Objects => "objects",
        What::Sampled => "sampled",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_in_cells_that_miss_something() {
        let shown = |wanted, names, others: &[(What, usize)], verdict| {
            let share = |right| Share { counted: 1000, right };
            let mut shares = vec![(What::Names, share(names))];
            shares.extend(others.iter().map(|(what, right)| (*what, share(*right))));
            let outcome = Outcome { shares, wanted, wrong_offsets: BTreeSet::new(), wrong: Vec::new() };
            in_table(&Cell { column: 0, scenario: String::new(), measured: Measured::Shares(outcome), verdict })
        };
        assert_eq!(shown(100.0, 1000, &[(What::Stacks, 1000), (What::Report, 1000)], Verdict::Right), "right");
        assert_eq!(shown(99.0, 990, &[], Verdict::Right), "names");
        assert_eq!(shown(99.0, 990, &[(What::Stacks, 990)], Verdict::Won), "right × (won)");
        let lost = [(What::Stacks, 1000), (What::Annotate, 214)];
        assert_eq!(shown(100.0, 1000, &lost, Verdict::Lost), "right, annotate 21.4 ×");
        assert_eq!(shown(100.0, 1000, &[(What::Stacks, 999)], Verdict::Lost), "100.0 / 99.9 × (1000)");
        assert_eq!(shown(100.0, 1000, &[(What::Stacks, 1000)], Verdict::Wrong), "100.0 / 100.0 **wrong** (1000)");
    }
}
