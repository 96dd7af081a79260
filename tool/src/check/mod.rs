//! Finds what would make a reader of a jitdump or perf map fail: `jitsym check`, and the tests of what the library writes.
//!
//! The rules are facts about the readers: linux tools/perf/util/jitdump.c, genelf.c, symbol.c; linux-perf-data and samply;
//! blazesym, bcc, ddprof, parca, CodSpeed, magic-trace, simpleperf. Findings go to a [`Report`] one by one, so that no file is
//! too odd for the memory.

mod file;
pub(crate) mod frames;
mod header;
mod jitdump;
mod lines;
mod perf_map;
mod places;
mod region;
pub mod report;
pub mod rules;
mod unwinding;
pub mod verdict;

pub use crate::kind::Kind;
pub use file::Facts;
pub use frames::Frames;
pub use rules::{Rule, Severity};

/// Where something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// From this byte.
    Offset(u64),
    /// In this line, counted from 1.
    Line(u64),
}

/// One thing that was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it breaks.
    pub rule: &'static Rule,
    /// Where.
    pub place: Place,
    /// The record, such as `LOAD fib`; may be empty.
    pub subject: String,
    /// What there is.
    pub text: String,
}

/// How much code a file has, and with what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Pieces of code.
    pub pieces: u64,
    /// Of these, with unwind tables.
    pub with_tables: u64,
    /// With unwind tables that the process's memory has place for too (`mapped_size`, or a frame load).
    pub with_mapped: u64,
    /// With source lines.
    pub with_lines: u64,
}

/// Takes what is found.
pub trait Report {
    /// Something was found.
    fn finding(&mut self, finding: Finding);

    /// What there is in all; once, unless the file cannot be read at all.
    fn summary(&mut self, _summary: Summary) {}
    /// One piece of code with unwind tables has been compared with them.
    fn frames(&mut self, _frames: Frames) {}

    /// So many bytes of the file are done. Whether to go on.
    fn progress(&mut self, _done: u64) -> bool {
        true
    }
}

impl Report for Vec<Finding> {
    fn finding(&mut self, finding: Finding) {
        self.push(finding);
    }
}

/// Checks one file.
pub fn check(file: &[u8], facts: &Facts, report: &mut dyn Report) -> Kind {
    let kind = Kind::of(file, facts);
    file::check(kind, file, facts, report);
    match kind {
        Kind::Jitdump => jitdump::check(file, report),
        Kind::PerfMap => perf_map::check(file, report),
        Kind::Region => region::check(file, report),
    }
    report.progress(file.len() as u64);
    kind
}
