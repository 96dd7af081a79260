//! The matrix in print: a line a cell while it runs, the table at the end, and the same in the documentation.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{bail, Context, Result};

use crate::lost::LOST;
use crate::matrix::{Cell, Column, Measured, Outcome, Verdict, What, WANTED};
use crate::program;

const BEGIN: &str = "<!-- cargo xtask matrix --write: begin -->";
const END: &str = "<!-- cargo xtask matrix --write: end -->";

/// A cell in a few words.
pub fn shown(measured: &Measured) -> String {
    match measured {
        Measured::Unavailable(_) => "not available".into(),
        Measured::Failed(_) => "error".into(),
        Measured::Shares(Outcome { shares, .. }) => {
            let mut text = String::new();
            for (what, share) in shares {
                let percent = share.percent();
                let _ = match what {
                    What::Names => write!(text, "{percent:.1}"),
                    What::Stacks => write!(text, " / {percent:.1}"),
                    What::Report if percent < WANTED => write!(text, ", report {percent:.1}"),
                    What::Annotate if percent < WANTED => write!(text, ", annotate {percent:.1}"),
                    What::Lines if percent < WANTED => write!(text, ", lines {percent:.1}"),
                    What::Objects if percent < WANTED => write!(text, ", objects {percent:.1}"),
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
        Measured::Shares(Outcome { shares, wrong }) => {
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

/// One table a reader, a row a scenario, a column a way of use.
pub fn markdown(columns: &[Column], scenarios: &[String], cells: &[Cell]) -> String {
    let mut text = String::new();
    let mut readers: Vec<&str> = columns.iter().map(|column| column.reader.as_str()).collect();
    readers.dedup();
    for reader in readers {
        let of_reader: Vec<usize> = (0..columns.len()).filter(|&index| columns[index].reader == reader).collect();
        let modes: Vec<&str> = of_reader.iter().map(|&index| columns[index].mode.as_str()).collect();
        let _ = writeln!(text, "**{reader}**\n");
        let _ = writeln!(text, "| scenario | {} |", modes.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(modes.len()));
        for scenario in scenarios {
            let cell = |&column: &usize| {
                let cell = cells.iter().find(|cell| cell.column == column && cell.scenario == *scenario)?;
                let samples = match counted(&cell.measured) {
                    0 => String::new(),
                    samples => format!(" ({samples})"),
                };
                Some(format!("{}{}{samples}", shown(&cell.measured), mark(cell.verdict)))
            };
            let row: Vec<Option<String>> = of_reader.iter().map(cell).collect();
            if row.iter().any(Option::is_some) {
                let row: Vec<String> = row.into_iter().map(|cell| cell.unwrap_or_default()).collect();
                let _ = writeln!(text, "| {scenario} | {} |", row.join(" | "));
            }
        }
        text.push('\n');
    }
    if cells.iter().any(|cell| cell.lost.is_some()) {
        text.push_str("Cells with × cannot be won by any producer:\n\n| reader | scenarios | why | what to do |\n|---|---|---|---|\n");
        for lost in
            LOST.iter().filter(|lost| cells.iter().any(|cell| cell.lost.is_some_and(|l| std::ptr::eq(l, *lost))))
        {
            let scenarios = lost.scenarios.join(", ");
            let _ = writeln!(text, "| {} | {scenarios} | {} | {} |", lost.reader, lost.reason, lost.instead);
        }
    }
    text
}

/// Puts the table between the marks in the documentation.
pub fn write(table: &str) -> Result<()> {
    let path = program::root().join("docs/compatibility.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    std::fs::write(&path, between(&text, table)?)?;
    Ok(())
}

fn between(text: &str, table: &str) -> Result<String> {
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else { bail!("no marks {BEGIN} and {END}") };
    Ok(format!("{}\n\n{}\n\n{}", &text[..begin + BEGIN.len()], table.trim(), &text[end..]))
}
