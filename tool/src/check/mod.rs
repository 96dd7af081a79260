//! Finds what would make a reader of a jitdump or perf map fail: `jitsym check`, and the tests of what the library writes.
//!
//! The rules are facts about the readers: linux tools/perf/util/jitdump.c, genelf.c, symbol.c; linux-perf-data and samply;
//! blazesym, bcc, ddprof, parca, CodSpeed, magic-trace, simpleperf. Findings go to a [`Report`] one by one, so that no file is
//! too odd for the memory.

mod file;
mod frames;
mod header;
mod jitdump;
mod lines;
mod perf_map;
mod places;
pub mod report;
pub mod rules;
mod unwinding;

pub use file::Facts;
pub use frames::Frames;
use jitsym::format::jitdump::raw::RawHeader;
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

/// Takes what is found.
pub trait Report {
    /// Something was found.
    fn finding(&mut self, finding: Finding);

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

/// What a file was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `jit-PID.dump`
    Jitdump,
    /// `perf-PID.map`
    PerfMap,
}

impl Kind {
    /// By the first bytes, or else by the name.
    pub fn of(file: &[u8], facts: &Facts) -> Kind {
        let named = facts.path.as_deref().and_then(|path| path.extension()).is_some_and(|end| end == "dump");
        if RawHeader::has_magic(file) || named {
            Kind::Jitdump
        } else {
            Kind::PerfMap
        }
    }

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Jitdump => "jitdump",
            Kind::PerfMap => "perf map",
        }
    }
}

/// Checks one file.
pub fn check(file: &[u8], facts: &Facts, report: &mut dyn Report) -> Kind {
    let kind = Kind::of(file, facts);
    file::check(kind, file, facts, report);
    match kind {
        Kind::Jitdump => jitdump::check(file, report),
        Kind::PerfMap => perf_map::check(file, report),
    }
    report.progress(file.len() as u64);
    kind
}
