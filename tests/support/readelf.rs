//! Unwind tables in the words of `readelf`.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

use super::{run, stdout};

/// What a tool prints about a file, without any complaint.
pub fn tool(program: &str, option: &str, path: &Path) -> String {
    let output = run(Command::new(program).env("LC_ALL", "C").arg(option).arg(path));
    assert!(output.stderr.is_empty(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// The lines of an output with single spaces, and only those behind the line that contains `from`.
pub fn lines_from(output: &str, from: &str) -> Vec<String> {
    let lines = output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.skip_while(|line| !line.contains(from)).skip(1).collect()
}

/// Rows of readelf without what they say of rbx where it keeps its value: every CIE for x86-64 says that.
pub fn without_kept(rows: Vec<String>) -> Vec<String> {
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.split(' ').collect()).collect();
    let column = rows.first().and_then(|head| head.iter().position(|&word| word == "rbx"));
    let kept = |row: &Vec<&str>| column.is_some_and(|column| row[column] == "s");
    let always = !rows.is_empty() && rows[1..].iter().all(kept);
    let words = |row: &Vec<&str>| -> String {
        let words = row.iter().enumerate().filter(|(index, _)| !always || Some(*index) != column);
        let words = words.map(|(index, &word)| if Some(index) == column && word == "s" { "u" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    rows.iter().map(words).collect()
}

/// The rows that readelf prints for an FDE, with offsets from its start in place of addresses.
pub fn rows(path: &Path, start: u64) -> Vec<String> {
    let output = tool("readelf", "--debug-dump=frames-interp", path);
    let rows = lines_from(&output, &format!(" pc={start:016x}.."));
    let rows = rows.into_iter().take_while(|line| !line.is_empty()).map(|line| match line.split_once(' ') {
        Some((addr, rest)) if addr != "LOC" => {
            format!("{:#x} {rest}", u64::from_str_radix(addr, 16).expect("an address") - start)
        }
        _ => line,
    });
    without_kept(rows.collect())
}
