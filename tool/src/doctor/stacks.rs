//! Counts samples in compiled code that have names and whole stacks, and finds the functions at which stacks end.

use std::collections::HashMap;

use crate::record::script::{Kind, Sample};

/// The functions in which threads begin.
const ROOTS: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "main",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "start_thread",
    "thread_start",
    "_dl_start_user",
    "runtime.goexit",
    "ret_from_fork",
    // The first frame of a process of Erlang, in a jitdump and in a perf map.
    "erts_beamasm:normal_exit/0",
    "$erts_beamasm:normal_exit/0",
];
/// The number of outermost frames that are searched for such a function. In a program without symbols, the first function has
/// no name.
const OUTERMOST: usize = 3;

/// How many samples with compiled code have names and whole stacks.
#[derive(Default)]
pub struct Quality {
    /// All samples.
    pub samples: u64,
    /// Samples with compiled code anywhere in the stack.
    pub jit: u64,
    /// Samples whose innermost compiled frame has a name.
    pub named: u64,
    /// Samples whose stack extends to the start of the thread.
    pub whole: u64,
    /// The number of stacks that end in each function.
    cut: HashMap<String, u64>,
    /// Stacks that end because their code was not registered yet.
    pub late: u64,
    /// Whether a perf map names any compiled code.
    pub map: bool,
    /// Samples in memory that is unknown to perf.
    pub nowhere: u64,
}

impl Quality {
    /// Adds a sample. `is_late` is true if the code was registered after the sample, and so had no unwind tables yet.
    pub fn add(&mut self, sample: &Sample, is_late: bool) {
        self.samples += 1;
        let Some(outermost) = sample.frames.last() else { return };
        self.nowhere += u64::from(sample.frames[0].kind() == Kind::Nowhere);
        let Some(first) = sample.compiled() else { return };
        self.map |= first.kind() == Kind::Map;
        self.jit += 1;
        self.named += u64::from(first.symbol.is_some());
        let is_root = |symbol: &str| ROOTS.contains(&symbol.split('@').next().unwrap_or_default());
        let ends = sample.frames.iter().rev().take(OUTERMOST);
        if ends.filter_map(|frame| frame.symbol.as_deref()).any(is_root) {
            self.whole += 1;
        } else if is_late {
            self.late += 1;
        } else {
            // If the outermost frame has no name, the unwinder has failed in the last frame that has a name.
            let last = sample.frames.iter().rev().find(|frame| frame.symbol.is_some()).unwrap_or(outermost);
            *self.cut.entry(last.shown()).or_default() += 1;
        }
    }

    /// The functions at which most stacks end, and the number of stacks for each.
    pub fn worst(&self, most: usize) -> Vec<(&str, u64)> {
        let mut cut: Vec<(&str, u64)> = self.cut.iter().map(|(name, &count)| (&**name, count)).collect();
        cut.sort_by(|(a, count), (b, other)| other.cmp(count).then(a.cmp(b)));
        cut.truncate(most);
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_stacks_begin_where_the_thread_does() {
        let jit = "/tmp/jitted-7-1.so";
        let mut quality = Quality::default();
        quality.add(&Sample::of(&[("leaf", jit), ("main", "/vm"), ("", "/libc"), ("", "/vm")]), false);
        quality.add(&Sample::of(&[("leaf", jit), ("__libc_start_main@@GLIBC_2.34", "/libc"), ("", "/vm")]), false);
        quality.add(&Sample::of(&[("memcpy", "/libc"), ("leaf", jit), ("", "[unknown]")]), false);
        quality.add(&Sample::of(&[("", "//anon")]), false);
        quality.add(&Sample::of(&[("", "[unknown]")]), false);
        quality.add(&Sample::of(&[("work", "/vm"), ("main", "/vm")]), false);
        quality.add(&Sample::of(&[]), false);
        quality.add(&Sample::of(&[("early", "//anon"), ("", "[unknown]")]), true);
        assert_eq!((quality.samples, quality.jit, quality.named, quality.whole, quality.nowhere), (8, 6, 4, 2, 1));
        assert_eq!(quality.late, 1);
        assert_eq!(quality.worst(5), [("[unknown]", 2), ("leaf", 1)]);
    }
}
