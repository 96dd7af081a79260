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

/// What the line of an FDE contains: its first address, with as many digits as the file's addresses have.
fn begin(output: &str, start: u64) -> String {
    let (wide, narrow) = (format!(" pc={start:016x}.."), format!(" pc={start:08x}.."));
    if output.contains(&wide) {
        wide
    } else {
        narrow
    }
}

/// The rows that readelf prints for an FDE, with offsets from its start in place of addresses.
pub fn rows(path: &Path, start: u64) -> Vec<String> {
    let output = tool("readelf", "--debug-dump=frames-interp", path);
    let rows = lines_from(&output, &begin(&output, start));
    let rows = rows.into_iter().take_while(|line| !line.is_empty()).map(|line| match line.split_once(' ') {
        Some((addr, rest)) if addr != "LOC" => {
            format!("{:#x} {rest}", u64::from_str_radix(addr, 16).expect("an address") - start)
        }
        _ => line,
    });
    without_kept(rows.collect())
}

/// The offsets in the code of an FDE at which readelf shows that the signing of the return address begins or ends.
pub fn negations(path: &Path, start: u64) -> Vec<u64> {
    let output = tool("readelf", "--debug-dump=frames", path);
    let (mut at, mut found) = (start, Vec::new());
    for line in lines_from(&output, &begin(&output, start)).iter().take_while(|line| !line.is_empty()) {
        if let Some((_, to)) = line.strip_prefix("DW_CFA_advance_loc").and_then(|rest| rest.split_once(" to ")) {
            at = u64::from_str_radix(to, 16).expect("an address");
        } else if line == "DW_CFA_AARCH64_negate_ra_state" {
            found.push(at - start);
        }
    }
    found
}

/// The augmentation string of the CIE of an FDE, as readelf prints it.
pub fn augmentation(path: &Path, start: u64) -> String {
    let output = tool("readelf", "--debug-dump=frames", path);
    let fde = output.lines().find(|line| line.contains(&begin(&output, start))).expect("an FDE");
    let cie = fde.split_once(" cie=").expect("its CIE").1.split(' ').next().expect("an offset");
    let cie = output.lines().skip_while(|line| !(line.starts_with(cie) && line.ends_with(" CIE")));
    let string = cie.skip(1).find_map(|line| line.trim().strip_prefix("Augmentation:")).expect("an augmentation");
    string.trim().to_owned()
}
