//! What is printed of a run.

use std::path::Path;

use anyhow::{Context, Result};

use super::jobs::{End, Ended};

/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 15;
/// A test that takes so many seconds has a line of its own.
const SLOW: f64 = 1.0;

/// Says how one test has ended, if that is of interest.
pub fn line(number: usize, all: usize, test: &Ended) {
    let seconds = test.took.as_secs_f64();
    let text = match &test.end {
        End::Passed if seconds < SLOW => return,
        End::Passed => "ok".to_string(),
        End::Skipped(reason) => format!("skipped: {reason}"),
        End::Failed(reason) => format!("FAILED: {reason}"),
    };
    println!("[{number}/{all}] {} {text}", times_and_name(test));
}

fn times_and_name(test: &Ended) -> String {
    format!("{:6.1} s, {:6.1} of a processor: {}", test.took.as_secs_f64(), test.busy.as_secs_f64(), test.name)
}

/// Writes a line for each test: its name, its seconds, and the seconds that processors worked for it.
pub fn write(ended: &[Ended], path: &Path) -> Result<()> {
    let line =
        |test: &Ended| format!("{}\t{:.2}\t{:.2}\n", test.name, test.took.as_secs_f64(), test.busy.as_secs_f64());
    let text: String = ended.iter().map(line).collect();
    std::fs::write(path, text).with_context(|| format!("{}", path.display()))
}

/// Prints the output of those that have failed, the slowest, and the counts. Whether all is well.
pub fn print(ended: &[Ended]) -> bool {
    let failed = || ended.iter().filter(|test| matches!(test.end, End::Failed(_)));
    for test in failed() {
        let text = std::fs::read(&test.output).unwrap_or_default();
        println!("\n---- {}\n{}", test.name, String::from_utf8_lossy(&text));
    }
    let mut slowest: Vec<&Ended> = ended.iter().collect();
    slowest.sort_by_key(|test| std::cmp::Reverse(test.took));
    let busy: f64 = ended.iter().map(|test| test.busy.as_secs_f64()).sum();
    println!("\nThe slowest tests; all together took {busy:.0} s of a processor:");
    for test in slowest.iter().take(SLOWEST) {
        println!("    {}", times_and_name(test));
    }
    for test in ended {
        if let End::Skipped(reason) = &test.end {
            println!("skipped: {}: {reason}", test.name);
        }
    }
    for test in failed() {
        let End::Failed(reason) = &test.end else { continue };
        println!("FAILED: {}: {}", test.name, reason);
    }
    let failed = failed().count();
    let skipped = ended.iter().filter(|test| matches!(test.end, End::Skipped(_))).count();
    println!("\n{} passed, {failed} failed, {skipped} skipped", ended.len() - failed - skipped);
    failed == 0
}
