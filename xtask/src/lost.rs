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
        instead: "use a jitdump and `perf inject --jit`, or samply",
    },
    Lost {
        readers: &["perf-bookworm/map", "perf-trixie/map", "perf-sid/map", "samply/", "blazesym/map"],
        scenarios: &["memfd"],
        what: &[What::Names],
        at: None,
        reason: "these readers treat a memfd as a file, and look for symbols only in this file",
        instead: "use a jitdump and `perf inject --jit`, or bpftrace",
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
        reason: "for each address, libunwind keeps the form of the first frame, even if other code is there later",
        instead: "use frame pointers",
    },
    Lost {
        readers: &[
            "perf-bookworm/dwarf", "perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/dwarf", "perf-trixie/region",
            "perf-trixie/adopted",
        ],
        scenarios: &["ends-with-call"],
        what: &[What::Stacks],
        at: Some(&[0]),
        reason: "a function ends with a call, and the next function begins directly after this call. libunwind treats the first instruction of the next function as a return address, and uses the tables of the function that ends with the call",
        instead: "put an instruction after the call, or use frame pointers",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-bookworm/fp"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        at: None,
        reason: "perf 6.1 demangles, as far as possible, every name that begins like a mangled name: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`. Or use `perf report --no-demangle`, or a perf map, which leaves the name unchanged",
    },
    Lost {
        readers: &["/dwarf", "/fp", "perf-bookworm/region", "perf-trixie/region", "perf-sid/region", "/adopted"],
        scenarios: &["java-ocaml-names"],
        what: &[What::Names],
        at: None,
        reason: "perf demangles names like those of Java and OCaml: `Lcom/foo/Bar;baz(I)V` becomes `com.foo.Bar.baz(int)`, and `camlFoo__bar_1` becomes `Foo.bar_1`",
        instead: "give names another form. Or use `perf report --no-demangle`, or a perf map, which leaves the name unchanged",
    },
    Lost {
        readers: &["perf-trixie/"],
        scenarios: &["*"],
        what: &[What::Annotate],
        at: None,
        reason: "`perf annotate` of perf 6.12 crashes on some functions that call other functions",
        instead: "use `perf annotate` of another perf",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["odd-names"],
        what: &[What::Stacks],
        at: None,
        reason: "samply takes a name like `py::fib:/src/fib.py` for a name of CPython, and shows a second frame for the function",
        instead: "do not begin names with `py::`, except for Python code",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["after-library"],
        what: &[What::Names],
        at: None,
        reason: "perf does not record the unloading of libraries. samply attributes later code at the addresses of an unloaded library to the library",
        instead: "use regions, or perf",
    },
    Lost {
        readers: &["bpftrace/map"],
        scenarios: &["threads"],
        what: &[What::Names],
        at: None,
        reason: "bpftrace 0.17 looks up names late, and finds no names for a thread that has ended",
        instead: "let threads live until bpftrace has looked up the names, or use perf",
    },
    Lost {
        readers: &["samply/"],
        scenarios: &["namespace"],
        what: &[What::Names],
        at: None,
        reason: "samply takes file names from the namespace of the process, but opens these names in the namespace of samply",
        instead: "run samply in the container, or give samply the directory with `--aux-file-dir`",
    },
    Lost {
        readers: &["perf-sid/dwarf", "perf-sid/fp", "perf-sid/attach"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        at: None,
        reason: "perf 7 does not find the jitdump of a process in another pid namespace, and uses only the perf map. A perf map has no tables and no code",
        instead: "run perf in the container, or use frame pointers, which suffice for names and stacks",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["ends-with-call"],
        what: &[What::Sampled],
        at: None,
        reason: "if a function ends with a call, the return address lies in the next function. perf 7 then finds the calling function only if an earlier sample was in the calling function",
        instead: "put an instruction after the call, or use regions or frame pointers",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["moves", "moves-overlapping", "cache-flush", "reuse-other-frames", "overwrite"],
        what: &[What::Stacks],
        at: None,
        reason: "for each address, perf 7 uses the tables of the first code that it found there",
        instead: "use frame pointers, or a perf with libunwind",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["moves-overlapping", "reuse-other-frames", "region-reused", "region-replaced-in-pairs"],
        what: &[What::Stacks],
        at: None,
        reason: "for all objects that begin at one address, perf 7 uses the tables of the first object. Code that moves over its own bytes begins no [epoch](regions.md#epochs). perf 7 also loses some stacks of code that has just been replaced",
        instead: "use frame pointers",
    },
    Lost {
        readers: &["perf-sid/adopted"],
        scenarios: &["moves-overlapping", "cache-flush", "reuse-other-frames"],
        what: &[What::Stacks],
        at: None,
        reason: "for all objects that begin at one address, perf 7 uses the tables of the first object. If the protection of memory changes, the next object begins at the same address as the object before",
        instead: "use regions that the library creates, frame pointers, or a perf with libunwind",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["region-windows"],
        what: &[What::Stacks],
        at: None,
        reason: "each function has its own mapping. If such mappings are reused, their objects overlap, and libdw does not read objects that overlap",
        instead: "use a jitdump, frame pointers, or a perf with libunwind",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region", "perf-sid/adopted"],
        scenarios: &["region-automatic", "cache-flush"],
        what: &[What::Annotate],
        at: None,
        reason: "adopted memory lies directly after other executable memory. The [header page](regions.md#the-file) then replaces the first page of code in the file",
        instead: "keep an inaccessible page (`PROT_NONE`) directly below the memory",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["moves", "moves-overlapping", "cache-flush", "region-allocated", "region-allocated-forked"],
        what: &[What::Annotate],
        at: None,
        reason: "in a region with two views, memory and file have the same bytes. When the next [epoch](regions.md#epochs) begins, new code has already replaced the bytes of the dead code",
        instead: "use a jitdump",
    },
    Lost {
        readers: &["/adopted"],
        scenarios: &["moves", "moves-overlapping"],
        what: &[What::Annotate],
        at: None,
        reason: "for some code that was moved, the file of the earlier [epoch](regions.md#epochs) has wrong bytes at the address of the code",
        instead: "use a jitdump",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        at: None,
        reason: "perf 6.1 demangles, as far as possible, every name that begins like a mangled name: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`, or use `perf report --no-demangle`",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/region", "perf-trixie/adopted"],
        scenarios: &["namespace"],
        what: &[What::Annotate],
        at: None,
        reason: "the process is in another mount namespace. `perf annotate` looks for the file of the process in the namespace of perf",
        instead: "run perf in the container, or copy the file and use `--symfs`",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-bookworm/fp"],
        scenarios: &["namespace"],
        what: &[What::Annotate],
        at: None,
        reason: "stepped recordings have no build-ids. Without build-ids, `perf annotate` finds no objects of another mount namespace",
        instead: "record by `perf record`",
    },
    Lost {
        readers: &["perf-sid/region", "perf-sid/adopted"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        at: None,
        reason: "the process is in another mount namespace. perf 7 looks for tables and code of the process in the namespace of perf",
        instead: "run perf in the container, copy the file and use `--symfs`, or use frame pointers",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["region-large"],
        what: &[What::Annotate],
        at: None,
        reason: "for memory of more than 256 KiB, the file of an earlier [epoch](regions.md#epochs) lacks the bytes of code that stayed live",
        instead: "use a jitdump",
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
        reason: "the matrix asks blazesym only at the end of the process. Then blazesym knows neither earlier code nor child processes",
        instead: "ask blazesym while the code is live, or use perf or samply",
    },
    Lost {
        readers: &["/stops"],
        scenarios: &["threads"],
        what: &[What::Names, What::Stacks],
        at: None,
        reason: "to merge objects for debuggers, the library removes the old objects, and then adds the merged object. Debuggers have no rule for two objects at one address. If a debugger stops the program between the two steps, other threads have frames without names",
        instead: "continue the program for some milliseconds, and stop again. After the program has registered all code, nothing is lost",
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
