//! The matrix in print: a line a cell while it runs, the table at the end, and the same in the documentation.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{bail, Context, Result};

use crate::lost::LOST;
use crate::matrix::{Cell, Column, Measured, Outcome, Verdict, What};
use crate::program::{self, Written};

/// A cell in a few words.
pub fn shown(measured: &Measured) -> String {
    match measured {
        Measured::Unavailable(_) => "not available".into(),
        Measured::Failed(_) => "error".into(),
        Measured::Shares(outcome) => {
            let mut text = String::new();
            for (what, share) in &outcome.shares {
                // 100.0 is all of them.
                let percent = (share.percent() * 10.0).floor() / 10.0;
                let is_missed = || outcome.missed().any(|(missed, _)| missed == *what);
                let _ = match what {
                    What::Names => write!(text, "{percent:.1}"),
                    What::Stacks => write!(text, " / {percent:.1}"),
                    _ if is_missed() => write!(text, ", {} {percent:.1}", name(*what)),
                    _ => Ok(()),
                };
            }
            text
        }
    }
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
    let titles: Vec<&str> = of_reader.iter().map(title).collect();
    let _ = writeln!(text, "{}\n", heading(key));
    let reader = if has_readers { String::new() } else { format!("{}, ", columns[of_reader[0]].reader) };
    let _ = writeln!(text, "{reader}Linux {}\n", kernel());
    let _ = writeln!(text, "| scenario | {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(titles.len()));
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
        let row: Vec<String> = row.into_iter().map(|cell| cell.map(in_table).unwrap_or_default()).collect();
        let _ = writeln!(text, "| {scenario} | {} |", row.join(" | "));
    }
    if let Some(reason) = unavailable {
        let _ = writeln!(text, "\nNot available here: {reason}");
    }
    text
}

fn in_table(cell: &Cell) -> String {
    let samples = match counted(&cell.measured) {
        0 => String::new(),
        samples => format!(" ({samples})"),
    };
    format!("{}{}{samples}", shown(&cell.measured), mark(cell.verdict))
}

fn heading(key: &str) -> String {
    format!("### {key}")
}

/// Without what a distributor adds.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().split(['-', '+']).next().unwrap_or_default().to_string()
}

/// The cells that cannot be won.
fn lost() -> String {
    let mut text = "| reader | scenarios | lost | why | what to do |\n|---|---|---|---|---|\n".to_string();
    for lost in LOST {
        let (readers, scenarios) = (lost.readers.join(", "), lost.scenarios.join(", "));
        let what = lost.what.iter().map(|what| name(*what)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "| {readers} | {scenarios} | {what} | {} | {} |", lost.reason, lost.instead);
    }
    text
}

fn name(what: What) -> &'static str {
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

/// Puts the tables between the marks in the documentation; those of other readers stay as they are. `some`: and so do other rows
/// and columns.
pub fn write(sections: &[(String, String)], some: bool) -> Result<()> {
    let path = program::root().join("docs/compatibility.md");
    let mut text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let mut all = split(inner(&text, TABLES)?);
    for (key, section) in sections {
        match all.iter_mut().find(|(other, _)| other == key) {
            Some(old) if some => old.1 = with_cells(&old.1, section),
            Some(old) => old.1.clone_from(section),
            None => all.push((key.clone(), section.clone())),
        }
    }
    let joined: Vec<&str> = all.iter().map(|(_, section)| section.trim()).collect();
    text = between(&text, TABLES, &joined.join("\n\n"))?;
    text = between(&text, "lost", &lost())?;
    Ok(std::fs::write(&path, text)?)
}

/// What is in a table: by scenario and way of use.
fn cells(section: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let row =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect() };
    let mut rows = section.lines().filter(|line| line.starts_with("| ")).map(row);
    (rows.next().unwrap_or_default(), rows.collect())
}

/// A table with some of its cells replaced: those of rows and columns that the new one has. Those that it does not have yet are added.
fn with_cells(old: &str, new: &str) -> String {
    let ((mut titles, mut rows), (new_titles, new_rows)) = (cells(old), cells(new));
    for (number, title) in new_titles.iter().enumerate() {
        let column = titles.iter().position(|other| other == title).unwrap_or_else(|| {
            titles.push(title.clone());
            rows.iter_mut().for_each(|row| row.push(String::new()));
            titles.len() - 1
        });
        for new in &new_rows {
            let at = rows.iter().position(|row| row[0] == new[0]).unwrap_or_else(|| {
                rows.push(vec![String::new(); titles.len()]);
                rows.len() - 1
            });
            rows[at][column].clone_from(&new[number]);
        }
    }
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let above = old.split("| scenario |").next().unwrap_or_default();
    let table = format!("{}|---|{}\n", line(&titles), "---|".repeat(titles.len() - 1));
    let below = old.rsplit("|\n").next().unwrap_or_default();
    format!("{above}{table}{}{below}", rows.iter().map(line).collect::<String>())
}

const TABLES: &str = "tables";

fn marks(name: &str) -> (String, String) {
    let mark = |end: &str| format!("<!-- {name}: {end} of what `cargo xtask matrix --write` writes -->");
    (mark("begin"), mark("end"))
}

fn inner<'t>(text: &'t str, name: &str) -> Result<&'t str> {
    let (begin, end) = marks(name);
    let (Some(from), Some(to)) = (text.find(&begin), text.find(&end)) else { bail!("no marks {begin} and {end}") };
    text.get(from + begin.len()..to).with_context(|| format!("{end} comes first"))
}

fn between(text: &str, name: &str, new: &str) -> Result<String> {
    let old = inner(text, name)?;
    let from = old.as_ptr() as usize - text.as_ptr() as usize;
    Ok(format!("{}\n\n{}\n\n{}", &text[..from], new.trim(), &text[from + old.len()..]))
}

/// The sections by their headings.
fn split(text: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(key) = line.strip_prefix("### ") {
            sections.push((key.into(), String::new()));
        }
        if let Some((_, section)) = sections.last_mut() {
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_what_is_lost() {
        let path = program::root().join("docs/compatibility.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (shown, lost) = (inner(&text, "lost").unwrap().trim(), lost());
        assert!(shown == lost.trim(), "the table in docs/compatibility.md ought to be\n{lost}");
    }

    #[test]
    fn some_cells_are_replaced() {
        let old = "### x\n\nreader\n\n| scenario | a | b |\n|---|---|---|\n| one | 1 |  |\n| two | 2 | 9 |\n\nbelow\n";
        let new = |title: &str, row: &str| format!("### x\n\n| scenario | {title} |\n|---|---|\n| {row} |\n");
        assert_eq!(with_cells(old, &new("a", "two | 3")), old.replace('2', "3"));
        assert_eq!(with_cells(old, &new("b", "one | 4")), old.replace("1 |  |", "1 | 4 |"));
        let wider = with_cells(old, &new("c", "one | 5"));
        assert!(
            wider.contains("| scenario | a | b | c |\n|---|---|---|---|\n| one | 1 |  | 5 |\n| two | 2 | 9 |  |\n\nb")
        );
        assert!(with_cells(old, &new("a", "three | 3")).contains("| two | 2 | 9 |\n| three | 3 |  |\n\nb"));
    }

    #[test]
    fn one_table_is_replaced_and_the_others_stay() {
        let (begin, end) = marks("x");
        let text = format!("before\n{begin}\n\n### a\none\n\n### b\ntwo\n\n{end}\nbehind\n");
        let sections = split(inner(&text, "x").unwrap());
        assert_eq!(sections.len(), 2);
        assert_eq!((sections[1].0.as_str(), sections[1].1.trim()), ("b", "### b\ntwo"));
        let new = between(&text, "x", "new\n").unwrap();
        assert_eq!(new, format!("before\n{begin}\n\nnew\n\n{end}\nbehind\n"));
        assert!(inner("nothing", "x").is_err());
    }
}
