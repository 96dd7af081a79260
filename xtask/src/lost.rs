//! The cells that no producer can win: which they are, what is wrong in them, why, and what to do instead.

use crate::matrix::What;

/// Cells that are lost, whatever the library writes.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Ids of columns, or how they begin or end.
    pub readers: &'static [&'static str],
    pub scenarios: &'static [&'static str],
    /// What is lost; all else has to be right. Without names nothing can be right.
    pub what: &'static [What],
    pub reason: &'static str,
    pub instead: &'static str,
}

pub const LOST: &[Lost] = &[
    Lost {
        readers: &["/map"],
        scenarios: &["moves", "cache-flush", "reuse", "reuse-other-frames", "overwrite"],
        what: &[What::Names],
        reason: "a perf map has no time: an address has the name of the code that lay there last",
        instead: "a jitdump and `perf inject --jit`, or samply",
    },
    Lost {
        readers: &["perf-bookworm/map", "perf-trixie/map", "perf-sid/map", "samply/", "blazesym/map"],
        scenarios: &["memfd"],
        what: &[What::Names],
        reason: "a memfd is a file to these readers, and they look for symbols in it and nowhere else",
        instead: "a jitdump and `perf inject --jit`, or bpftrace",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-trixie/dwarf"],
        scenarios: &["packed-up", "packed-down", "ends-with-call"],
        what: &[What::Stacks],
        reason: "libunwind reads the tables in memory behind the code, where the next function is",
        instead: "leave `jitsym_unwind_size` bytes free behind the code and say so in `free_after`; or say `JITSYM_CODE_PACKED`; or perf 7, or frame pointers",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-trixie/dwarf"],
        scenarios: &["cache-flush"],
        what: &[What::Stacks],
        reason: "libunwind remembers for an address how it has unwound there first, also when other code is there later",
        instead: "frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/dwarf", "perf-bookworm/fp"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        reason: "perf 6.1 demangles a name that begins like a mangled one as far as it can: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`; `perf report --no-demangle`; the perf map has the name as it is",
    },
    Lost {
        readers: &["/dwarf", "/fp", "perf-bookworm/region", "perf-trixie/region", "perf-sid/region", "/adopted"],
        scenarios: &["java-ocaml-names"],
        what: &[What::Names],
        reason: "perf demangles names like those of Java and OCaml: `Lcom/foo/Bar;baz(I)V` becomes `com.foo.Bar.baz(int)`, and `camlFoo__bar_1` becomes `Foo.bar_1`",
        instead: "names of another form; `perf report --no-demangle`; the perf map has the name as it is",
    },
    Lost {
        readers: &["perf-trixie/dwarf", "perf-trixie/fp", "perf-trixie/region", "perf-trixie/adopted"],
        scenarios: &["one-byte"],
        what: &[What::Annotate],
        reason: "`perf annotate` of perf 6.12 crashes on the function with the loop; names and stacks are right",
        instead: "`perf annotate` of another perf",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["odd-names"],
        what: &[What::Stacks],
        reason: "samply takes a name like `py::fib:/src/fib.py` for one of CPython, and shows a second frame for it",
        instead: "do not begin names with `py::`",
    },
    Lost {
        readers: &["samply/jitdump", "samply/map"],
        scenarios: &["after-library"],
        what: &[What::Names],
        reason: "perf tells nobody that a library is unloaded, and samply takes code at its addresses for the library's",
        instead: "regions, or perf",
    },
    Lost {
        readers: &["bpftrace/map"],
        scenarios: &["threads"],
        what: &[What::Names],
        reason: "bpftrace 0.17 looks for names late, and finds none any more for a thread that has ended",
        instead: "threads that live as long as bpftrace looks, or perf",
    },
    Lost {
        readers: &["samply/"],
        scenarios: &["namespace"],
        what: &[What::Names],
        reason: "samply opens the files of a process by the names that they have in its namespace, outside of it",
        instead: "run samply in the container, or give it the directory with `--aux-file-dir`",
    },
    Lost {
        readers: &["perf-sid/dwarf", "perf-sid/fp", "perf-sid/attach"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        reason: "perf 7 does not find the jitdump of a process in another pid namespace, so that only the perf map is left: no tables, no code",
        instead: "run perf in the container; or frame pointers, for names and stacks",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["ends-with-call"],
        what: &[What::Stacks],
        reason: "a function whose last instruction is a call has the return address of what follows, and perf 7 loses frames of some stacks through it",
        instead: "an instruction after the call, regions, or frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/dwarf"],
        scenarios: &["moves", "moves-overlapping", "cache-flush", "reuse-other-frames", "overwrite"],
        what: &[What::Stacks],
        reason: "perf 7 goes on with the tables of the code that it met first at an address",
        instead: "frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &[
            "perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/region", "perf-trixie/adopted",
        ],
        scenarios: &["moves", "cache-flush"],
        what: &[What::Stacks],
        reason: "libunwind remembers for an address how it has unwound there first, also when other code is there later",
        instead: "frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["moves-overlapping", "reuse-other-frames", "region-reused"],
        what: &[What::Stacks],
        reason: "perf 7 goes on with the tables that it met first where an object begins, and code that moves over its own bytes begins no generation; some stacks of code that has just been replaced are lost too",
        instead: "frame pointers; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/adopted"],
        scenarios: &["moves-overlapping", "cache-flush", "reuse-other-frames"],
        what: &[What::Stacks],
        reason: "perf 7 goes on with the tables that it met first where an object begins, and memory whose protection changes begins where it does",
        instead: "regions of the library's own; or frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &["perf-sid/region"],
        scenarios: &["region-windows"],
        what: &[What::Stacks],
        reason: "where mappings of single functions are used again, windows lie over one another, and libdw reads no objects that overlap",
        instead: "a jitdump; or frame pointers, or a perf with libunwind; names are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/adopted"],
        scenarios: &["region-automatic", "cache-flush"],
        what: &[What::Annotate],
        reason: "the header page takes the place of the first page of code in the file of adopted memory right after other executable memory",
        instead: "a page without rights below the memory; names and stacks are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["moves", "moves-overlapping", "cache-flush"],
        what: &[What::Annotate],
        reason: "the file of a region of two views is the memory itself: when the next generation begins, other code is there already, and the bytes of what died are nowhere",
        instead: "a jitdump; names, stacks and lines are right in any case",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted"],
        scenarios: &["mangled-lookalikes"],
        what: &[What::Names],
        reason: "perf 6.1 demangles a name that begins like a mangled one as far as it can: `_Zoom_in` becomes `operator||`",
        instead: "do not begin names with `_Z` or `_R`; `perf report --no-demangle`",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-bookworm/adopted", "perf-trixie/region", "perf-trixie/adopted"],
        scenarios: &["namespace"],
        what: &[What::Annotate],
        reason: "`perf annotate` looks for the file of a process in another mount namespace outside of it",
        instead: "run perf in the container, or copy the file and use `--symfs`",
    },
    Lost {
        readers: &["perf-sid/region", "perf-sid/adopted"],
        scenarios: &["namespace"],
        what: &[What::Stacks, What::Annotate],
        reason: "perf 7 looks for tables and code of a process in another mount namespace outside of it",
        instead: "run perf in the container, or copy the file and use `--symfs`; or frame pointers",
    },
    Lost {
        readers: &["perf-bookworm/region", "perf-trixie/region", "perf-sid/region"],
        scenarios: &["region-large"],
        what: &[What::Annotate],
        reason: "in memory of more than 256 KiB the file of an old generation has no bytes of code that lived on",
        instead: "a jitdump; names, stacks and lines are right in any case",
    },
    Lost {
        readers: &["blazesym/region"],
        scenarios: &[
            "moves", "cache-flush", "reuse", "reuse-other-frames", "overwrite", "region-automatic", "region-released",
            "region-reused", "region-flips-reused", "region-large", "region-discarded", "region-forked",
            "region-windows",
        ],
        what: &[What::Names],
        reason: "blazesym is asked about the process as it is at the end, and so knows neither what lay there before, nor its children",
        instead: "ask it while the code lives; or perf or samply",
    },
    Lost {
        readers: &["/stops"],
        scenarios: &["threads"],
        what: &[What::Names, What::Stacks],
        reason: "when objects are put together they go before the one that takes their place comes, because debuggers have no rule for two of one address; other threads that are stopped between the two have frames without names",
        instead: "go on for some milliseconds and stop again; nothing is lost once a program has registered its code",
    },
];

impl Lost {
    /// Whether that may be wrong in these cells.
    pub fn covers(&self, what: What) -> bool {
        self.what.contains(&What::Names) || self.what.contains(&what)
    }
}

/// What is lost in a cell.
pub fn find(id: &str, scenario: &str) -> Vec<&'static Lost> {
    let is_meant = |reader: &&str| id.starts_with(*reader) || id.ends_with(*reader);
    let is_there = |lost: &&Lost| lost.readers.iter().any(is_meant) && lost.scenarios.contains(&scenario);
    LOST.iter().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::{find, What};

    #[test]
    fn cells_are_found_by_reader_and_scenario() {
        let [lost] = find("blazesym/map", "memfd")[..] else { panic!("one reason") };
        assert!(lost.reason.contains("memfd") && lost.covers(What::Names) && lost.covers(What::Stacks));
        assert!(find("perf-sid/dwarf", "memfd").is_empty() && find("perf-bookworm/dwarf", "moves").is_empty());
        let [lost] = find("perf-sid/dwarf", "moves")[..] else { panic!("one reason") };
        assert!(lost.covers(What::Stacks) && !lost.covers(What::Names) && !lost.covers(What::Annotate));
    }
}
