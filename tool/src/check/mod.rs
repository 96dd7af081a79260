//! Finds defects that make readers of jitdumps and perf maps fail, for `jitsym check` and for tests of the library's files.
//!
//! The rules are based on the code of the readers: linux tools/perf/util/jitdump.c, genelf.c, symbol.c; linux-perf-data and
//! samply; blazesym, bcc, ddprof, parca, CodSpeed, magic-trace, simpleperf. Findings are passed to a [`Report`] one by one,
//! so memory suffices for any number of findings.

mod file;
pub(crate) mod frames;
mod header;
mod inlines;
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

/// The position of a finding in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The whole file.
    File,
    /// At this byte offset.
    Offset(u64),
    /// In this line, counted from 1.
    Line(u64),
}

/// One violation of a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The place.
    pub place: Place,
    /// The record, such as `LOAD fib`; may be empty.
    pub subject: String,
    /// The problem.
    pub text: String,
}

/// Counts the code in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Pieces of code.
    pub pieces: u64,
    /// Pieces with unwind tables.
    pub with_tables: u64,
    /// Pieces whose unwind tables `perf inject` maps after the code (`mapped_size`).
    pub with_mapped: u64,
    /// Pieces with source lines.
    pub with_lines: u64,
}

/// Receives the findings.
pub trait Report {
    /// Called when a rule is broken.
    fn finding(&mut self, finding: Finding);

    /// Called once with the counts, if the file can be read.
    fn summary(&mut self, _summary: Summary) {}
    /// Called when the unwind tables of one piece of code were compared with the code.
    fn frames(&mut self, _frames: Frames) {}

    /// Called when this number of bytes of the file are checked. Returns whether to continue.
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
