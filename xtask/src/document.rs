//! The tables of the matrix in docs/compatibility.md, which is also where earlier results are kept.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};

use crate::lost::LOST;
use crate::program;
use crate::table::{name, table, SCENARIOS};

const TABLES: &str = "tables";

/// Puts the tables between the marks in the documentation; those of other readers stay as they are. `some`: and so do other rows
/// and columns.
pub fn write(sections: &[(String, String)], some: bool) -> Result<()> {
    let mut text = read()?;
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
    Ok(std::fs::write(path(), text)?)
}

fn path() -> PathBuf {
    program::root().join("docs/compatibility.md")
}

fn read() -> Result<String> {
    std::fs::read_to_string(path()).with_context(|| format!("{}", path().display()))
}

/// What is in a table: by scenario, with a row for each, and way of use.
fn cells(section: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let row =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect() };
    let mut rows = section.lines().filter(|line| line.starts_with("| ")).map(row);
    let titles = rows.next().unwrap_or_default();
    let of_one = |row: Vec<String>| {
        let (scenarios, cells) = (row[0].clone(), row[1..].to_vec());
        let one = |scenario: &str| [&[scenario.to_string()], cells.as_slice()].concat();
        scenarios.split(", ").map(one).collect::<Vec<_>>()
    };
    (titles, rows.flat_map(of_one).collect())
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
    let above = old.split(&format!("| {SCENARIOS} |")).next().unwrap_or_default();
    let below = old.rsplit("|\n").next().unwrap_or_default();
    format!("{above}{}{below}", table(&titles, &rows))
}

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

/// The cells that cannot be won.
fn lost() -> String {
    let mut text = "| reader | scenarios | lost | why | what to do |\n|---|---|---|---|---|\n".to_string();
    for lost in LOST {
        let (readers, scenarios) = (lost.readers.join(", "), lost.scenarios.join(", "));
        let what = lost.what.iter().map(|what| name(*what)).collect::<Vec<_>>().join(", ");
        let [reason, instead] = [lost.reason, lost.instead].map(|text| text.replace('|', "\\|"));
        let _ = writeln!(text, "| {readers} | {scenarios} | {what} | {reason} | {instead} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_documentation_lists_what_is_lost() {
        let text = read().unwrap();
        let (shown, lost) = (inner(&text, "lost").unwrap().trim(), lost());
        assert!(shown == lost.trim(), "the table in docs/compatibility.md ought to be\n{lost}");
    }

    #[test]
    fn some_cells_are_replaced() {
        let old = "### x\n\nreader\n\n| scenarios | a | b |\n|---|---|---|\n| one | 1 |  |\n| two | 2 | 9 |\n\nbelow\n";
        let new = |title: &str, row: &str| format!("### x\n\n| scenarios | {title} |\n|---|---|\n| {row} |\n");
        assert_eq!(with_cells(old, &new("a", "two | 3")), old.replace('2', "3"));
        assert_eq!(with_cells(old, &new("b", "one | 4")), old.replace("1 |  |", "1 | 4 |"));
        let wider = with_cells(old, &new("c", "one | 5"));
        assert!(
            wider.contains("| scenarios | a | b | c |\n|---|---|---|---|\n| one | 1 |  | 5 |\n| two | 2 | 9 |  |\n\nb")
        );
        assert!(with_cells(old, &new("a", "three | 3")).contains("| two | 2 | 9 |\n| three | 3 |  |\n\nb"));
        assert!(with_cells(old, &new("a", "one, three | 3")).contains("| one, three | 3 |  |\n| two | 2 | 9 |\n\nb"));
    }

    #[test]
    fn scenarios_with_equal_cells_share_a_row() {
        let of = |rows: &str| format!("| scenarios | a | b |\n|---|---|---|\n{rows}");
        let old = of("| one, two, three | right | names |\n| four | right |  |\n| five | 0.0 × (9) | names |\n");
        let with = |cell: &str| with_cells(&old, &format!("| scenarios | a |\n|---|---|\n| {cell} |\n"));
        assert_eq!(with("two | right"), old);
        assert_eq!(
            with("two | 0.0 × (9)"),
            of("| one, three | right | names |\n| four | right |  |\n| two, five | 0.0 × (9) | names |\n")
        );
        assert_eq!(with("five | right"), of("| one, two, three, five | right | names |\n| four | right |  |\n"));
        let wrong = of("| one | right |  |\n| two | 7.0 **wrong** (30) | names |\n| three | not available |  |\n");
        assert_eq!(with_cells(&wrong, &wrong), wrong);
    }

    #[test]
    fn tables_of_the_documentation_are_as_this_writes_them() {
        let text = read().unwrap();
        let sections = split(inner(&text, TABLES).unwrap());
        assert!(!sections.is_empty());
        for (_, section) in sections {
            assert_eq!(with_cells(&section, &section), section);
        }
    }

    #[test]
    fn the_documentation_says_of_each_scenario_what_it_is() {
        let text = read().unwrap();
        let sections = split(inner(&text, TABLES).unwrap());
        let scenarios: BTreeSet<String> =
            sections.iter().flat_map(|(_, section)| cells(section).1).map(|row| row[0].clone()).collect();
        let listed = text.split("## ").find(|part| part.starts_with("Scenarios\n")).unwrap();
        let missing: Vec<_> = scenarios.iter().filter(|name| !listed.contains(&format!("`{name}`"))).collect();
        assert!(!scenarios.is_empty() && missing.is_empty(), "{missing:?}");
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
