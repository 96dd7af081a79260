//! The cells that no producer can win: which they are, what is wrong in them, why, and what to do instead.

use std::collections::BTreeSet;

use crate::matrix::What;

/// Cells that are lost, whatever the library writes.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Ids of columns, or how they begin or end.
    pub readers: &'static [&'static str],
    /// `*`: in some runs of any.
    pub scenarios: &'static [&'static str],
    /// What is lost; all else has to be right. Without names nothing can be right.
    pub what: &'static [What],
    /// At which offsets in its code a stack may be wrong; `None`: at any.
    pub at: Option<&'static [u64]>,
    pub reason: &'static str,
    pub instead: &'static str,
}

pub const LOST: &[Lost] = &[
    Lost {
        readers: &["/map"],
        scenarios: &["moves", "cache-flush", "reuse", "reuse-other-frames", "overwrite"],
        what: &[What::Names],
        at: None,
        reason: "a perf map contains no times: each address has the name of the code that was there last",
        instead: "a jitdump and `perf inject --jit`, or samply",
    },
    Lost {
        readers: &["perf-bookworm/map", "perf-trixie/map", "perf-sid/map", "samply/", "blazesym/map"],
        scenarios: &["memfd"],
        what: &[What::Names],
        at: None,
        reason: "a memfd is a file to these readers, and they look for symbols in it and nowhere else",
        instead: "a jitdump and `perf inject --jit`, or bpftrace",
    },
    Lost {
        readers: &[
            "perf-bookworm/dwarf", "perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/dwarf",
            "perf-trixie/region", "perf-trixie/adopted",
        ],
        scenarios: &[
            "moves-overlapping", "cache-flush", "reuse-other-frames", "overwrite", "region-reused", "region-windows",
        ],
        what: &[What::Stacks],
        at: None,
        reason: "for each address, libunwind remembers how it unwound there first, even if other code is there later",
        instead: "frame pointers; names are right in any case",
    },
    Lost {
        readers: &[
            "perf-bookworm/dwarf", "perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/dwarf", "perf-trixie/region",
            "perf-trixie/adopted",
        ],
        scenarios: &["ends-with-call"],
        what: &[What::Stacks],
        at: Some(&[0]),
        reason: "the first instruction of code directly after a call that ends other code: libunwind treats it as a return address, and uses the tables of the other code",
        instead: "an instruction after the call; frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-bookworm/fp"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        at: None,
        reason: "perf 6.1 demangles a name that begins like a mangled one as far as it can: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`; `perf report --no-demangle`; the perf map has the name as it is",
    },
    Lost {
        readers: &["/dwarf", "/fp", "perf-bookworm/region", "perf-trixie/region", "perf-sid/region", "/adopted"],
        scenarios: &["java-ocaml-names"],
        what: &[What::Names],
        at: None,
        reason: "perf demangles names like those of Java and OCaml: `Lcom/foo/Bar;baz(I)V` becomes `com.foo.Bar.baz(int)`, and `camlFoo__bar_1` becomes `Foo.bar_1`",
        instead: "names of another form; `perf report --no-demangle`; the perf map has the name as it is",
    },
    Lost {
        readers: &["perf-trixie/"],
        scenarios: &["*"],
        what: &[What::Annotate],
        at: None,
        reason: "`perf annotate` of perf 6.12 crashes on some functions that call others; names and stacks are right",
        instead: "`perf annotate` of another perf",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["odd-names"],
        what: &[What::Stacks],
        at: None,
        reason: "samply takes a name like `py::fib:/src/fib.py` for one of CPython, and shows a second frame for it",
        instead: "do not begin names with `py::`, except for Python code",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["after-library"],
        what: &[What::Names],
        at: None,
        reason: "perf does not record that a library is unloaded, and samply attributes code at its addresses to the library",
        instead: "regions, or perf",
    },
    Lost {
        readers: &["bpftrace/map"],
        scenarios: &["threads"],
        what: &[What::Names],
        at: None,
        reason: "bpftrace 0.17 looks up names late, and finds no names for a thread that has ended",
        instead: "threads that live as long as bpftrace looks, or perf",
    },
    Lost {
        readers: &["samply/"],
        scenarios: &["namespace"],
        what: &[What::Names],
        at: None,
        reason: "samply opens the files of a process by their names in the process's namespace, but in its own namespace",
        instead: "run samply in the container, or give it the directory with `--aux-file-dir`",
    },
    Lost {
        readers: &["perf-sid/dwarf", "perf-sid/fp", "perf-sid/attach"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        at: None,
        reason: "perf 7 does not find the jitdump of a process in another pid namespace; only the perf map is used, without tables and code",
        instead: "run perf in the container; or frame pointers, for names and stacks",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["ends-with-call"],
        what: &[What::Sampled],
        at: None,
        reason: "if the last instruction of a function is a call, the return address belongs to the next code; perf 7 then loses the caller, unless an earlier sample was in the function",
        instead: "an instruction after the call, regions, or frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["moves", "moves-overlapping", "cache-flush", "reuse-other-frames", "overwrite"],
        what: &[What::Stacks],
        at: None,
        reason: "for each address, perf 7 uses the tables of the first code that it found there",
        instead: "frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["moves-overlapping", "reuse-other-frames", "region-reused", "region-replaced-in-pairs"],
        what: &[What::Stacks],
        at: None,
        reason: "for each start of an object, perf 7 uses the first tables that it found, and code that moves over its own bytes starts no new generation; some stacks of code that has just been replaced are lost too",
        instead: "frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/adopted"],
        scenarios: &["moves-overlapping", "cache-flush", "reuse-other-frames"],
        what: &[What::Stacks],
        at: None,
        reason: "for each start of an object, perf 7 uses the first tables that it found, and memory whose protection changes keeps its start",
        instead: "regions of the library's own; or frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["region-windows"],
        what: &[What::Stacks],
        at: None,
        reason: "if mappings of single functions are reused, windows overlap, and libdw does not read objects that overlap",
        instead: "a jitdump; or frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region", "perf-sid/adopted"],
        scenarios: &["region-automatic", "cache-flush"],
        what: &[What::Annotate],
        at: None,
        reason: "in the file of adopted memory directly after other executable memory, the header page replaces the first page of code",
        instead: "a page without rights below the memory; names and stacks are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["moves", "moves-overlapping", "cache-flush", "region-allocated", "region-allocated-forked"],
        what: &[What::Annotate],
        at: None,
        reason: "the file of a region with two views is the memory itself: when the next generation starts, the memory already has other code, and the bytes of the dead code are lost",
        instead: "a jitdump; names, stacks and lines are right in any case",
    },
    Lost {
        readers: &["/adopted"],
        scenarios: &["moves", "moves-overlapping"],
        what: &[What::Annotate],
        at: None,
        reason: "the file of an old generation has other bytes at the address of some code that was moved",
        instead: "a jitdump; names, stacks and lines are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        at: None,
        reason: "perf 6.1 demangles a name that begins like a mangled one as far as it can: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`; `perf report --no-demangle`",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/region", "perf-trixie/adopted"],
        scenarios: &["namespace"],
        what: &[What::Annotate],
        at: None,
        reason: "`perf annotate` looks for the file of a process in another mount namespace in its own namespace",
        instead: "run perf in the container, or copy the file and use `--symfs`",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-bookworm/fp"],
        scenarios: &["namespace"],
        what: &[What::Annotate],
        at: None,
        reason: "recordings by stepping have no build-ids, and `perf annotate` needs them to find objects of another mount namespace",
        instead: "`perf record`",
    },
    Lost {
        readers: &["perf-sid/region", "perf-sid/adopted"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        at: None,
        reason: "perf 7 looks for tables and code of a process in another mount namespace in its own namespace",
        instead: "run perf in the container, or copy the file and use `--symfs`; or frame pointers",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["region-large"],
        what: &[What::Annotate],
        at: None,
        reason: "for memory of more than 256 KiB, the file of an old generation lacks the bytes of code that stayed live",
        instead: "a jitdump; names, stacks and lines are right in any case",
    },
    Lost {
        readers: &["blazesym/region"],
        scenarios: &[
            "moves", "moves-overlapping", "cache-flush", "reuse", "reuse-other-frames", "overwrite", "region-automatic", "region-released",
            "region-reused", "region-flips-reused", "region-large", "region-discarded", "region-forked",
            "region-windows", "region-replaced-in-pairs", "region-grown-reused", "region-allocated",
            "region-allocated-forked",
        ],
        what: &[What::Names],
        at: None,
        reason: "blazesym is asked about the process at its end, so it does not know earlier code or child processes",
        instead: "ask it while the code lives; or perf or samply",
    },
    Lost {
        readers: &["/stops"],
        scenarios: &["threads"],
        what: &[What::Names, What::Stacks],
        at: None,
        reason: "when objects are merged, they are removed before the merged object is added, because debuggers have no rule for two objects at one address; other threads that are stopped in between have frames without names",
        instead: "go on for some milliseconds and stop again; nothing is lost once a program has registered its code",
    },
];

impl Lost {
    /// Whether that may be wrong in these cells, with stacks wrong at these offsets.
    pub fn covers(&self, what: What, offsets: &BTreeSet<u64>) -> bool {
        let is_there = self.at.is_none_or(|at| offsets.iter().all(|offset| at.contains(offset)));
        match what {
            _ if self.what.contains(&What::Names) => true,
            What::Stacks => self.what.contains(&what) && is_there,
            // Names and stacks of samples that were taken by chance.
            What::Sampled => self.what.contains(&what) || self.what.contains(&What::Stacks),
            _ => self.what.contains(&what),
        }
    }

    /// Whether it may be in any scenario, so that each of them may be right.
    pub fn is_everywhere(&self) -> bool {
        self.scenarios == ["*"]
    }
}

/// What is lost in a cell.
pub fn find(id: &str, scenario: &str) -> Vec<&'static Lost> {
    let is_meant = |reader: &&str| id.starts_with(*reader) || id.ends_with(*reader);
    let is_there = |lost: &&Lost| {
        lost.readers.iter().any(is_meant) && (lost.is_everywhere() || lost.scenarios.contains(&scenario))
    };
    LOST.iter().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{find, Lost, What};

    fn covers(lost: &Lost, what: What) -> bool {
        lost.covers(what, &BTreeSet::from([0, 4]))
    }

    #[test]
    fn cells_are_found_by_reader_and_scenario() {
        let [lost] = find("blazesym/map", "memfd")[..] else { panic!("one reason") };
        assert!(lost.reason.contains("memfd") && covers(lost, What::Names) && covers(lost, What::Stacks));
        assert!(find("perf-sid/dwarf", "memfd").is_empty() && find("perf-bookworm/dwarf", "moves").is_empty());
        let [lost] = find("perf-sid/dwarf", "moves")[..] else { panic!("one reason") };
        assert!(covers(lost, What::Stacks) && !covers(lost, What::Names) && !covers(lost, What::Annotate));
    }
}
