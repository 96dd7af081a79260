//! Code beside code, children with the jitdump of their parent, and libraries in the place of code: perf shows each sample as
//! what the program says that it ran.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{inject, perf};
use crate::support::*;

/// A function that has run, and when.
#[derive(Debug)]
struct Ran {
    pid: u32,
    name: String,
    from: u64,
    len: u64,
    time: std::ops::Range<u64>,
}

fn ran(line: &str) -> Option<Ran> {
    let fields: Vec<&str> = line.strip_prefix("ran ")?.split(' ').collect();
    let number = |at: usize| fields[at].parse().expect("a number");
    let from = u64::from_str_radix(fields[2], 16).expect("an address");
    Some(Ran { pid: number(0) as u32, name: fields[1].into(), from, len: number(3), time: number(4)..number(5) })
}

/// A sample: process, time, address and name.
type Sample = (u32, u64, u64, String);

fn samples(data: &Path) -> Vec<Sample> {
    let text = stdout(&run(perf::perf("script").args(["--ns", "-G", "-F", "pid,time,ip,sym", "-i"]).arg(data)));
    let sample = |line: &str| {
        let mut words = line.split_whitespace();
        let (pid, time) = (words.next()?.parse().ok()?, words.next()?.trim_end_matches(':').replace('.', ""));
        let addr = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((pid, time.parse().ok()?, addr, words.collect::<Vec<_>>().join(" ")))
    };
    text.lines().filter_map(sample).collect()
}

/// Records the program, and checks the name of each sample in code. Returns the names that were seen and what inject said.
fn check(name: &str, words: &[&str]) -> (BTreeSet<String>, String) {
    let program = compile("gcc", &["tool/tests/inject/shapes.c"], Link::None, &["-std=gnu99"], "shapes");
    let _alone = serial();
    let dir = fresh_dir(name);
    let (data, new) = (dir.join("perf.data"), dir.join("jit.data"));
    let mut record = perf::perf("record");
    // The pipe ends with the last process.
    record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "-o"]).arg(&data).args([
        "--",
        "sh",
        "-c",
        "\"$@\" | cat",
        "sh",
    ]);
    let all: Vec<Ran> = stdout(&run(record.arg(program).arg(&dir).args(words))).lines().filter_map(ran).collect();
    let said = stdout(&run(&mut inject(&data, &new)));
    let files: Vec<TmpFiles> = all.iter().map(|ran| TmpFiles(ran.pid)).collect();
    let mut seen = BTreeSet::new();
    for (pid, time, addr, found) in samples(&new) {
        let is_here =
            |ran: &&Ran| ran.pid == pid && (ran.from..ran.from + ran.len).contains(&addr) && ran.time.contains(&time);
        if let Some(ran) = all.iter().find(is_here) {
            assert_eq!(found, ran.name, "process {pid}, {addr:#x} at {time}: {all:#?}");
            seen.insert(found);
        }
    }
    let expected: BTreeSet<String> = all.iter().map(|ran| ran.name.clone()).collect();
    assert_eq!(seen, expected, "each has samples");
    drop(files);
    (seen, said)
}

/// Objects cover only the code of the jitdump.
#[test]
fn code_that_only_a_map_names() {
    let (seen, _) = check("neighbours", &["neighbours"]);
    assert_eq!(seen.len(), 7, "{seen:?}");
}

/// A record can have the pid of the child, or the pid that the runtime remembers: then the thread tells, or the parent's end.
#[test]
fn children_that_go_on_with_a_jitdump() {
    for kind in ["child", "thread", "orphan"] {
        let (seen, said) = check(kind, &[kind]);
        assert!(seen.contains("of_the_child") && seen.contains("common"), "{kind}: {seen:?}");
        // No count is larger than that of which it is a part.
        let count = seen.len();
        assert!(
            said.contains(&format!("{count} functions, {count} of them in samples of 2 processes")),
            "{kind}: {said}"
        );
    }
}

/// A library whose function is the first in its text.
fn library() -> PathBuf {
    let source = scratch_dir("shapes").join("library.c");
    let text =
        "__asm__(\".globl in_library\\n.type in_library,@function\\nin_library: dec %rdi\\njnz in_library\\nret\\n\
                .nops 8\\n.size in_library, .-in_library\");\n";
    std::fs::write(&source, text).expect("source");
    let path = scratch_dir("shapes").join("libin.so");
    run(perf::command("gcc").args(["-shared", "-nostdlib", "-Wl,-z,separate-code", "-o"]).arg(&path).arg(&source));
    path
}

#[test]
fn a_library_in_the_place_of_code() {
    let path = library();
    let (seen, _) = check("library", &["library", path.to_str().expect("UTF-8")]);
    assert_eq!(seen.len(), 7, "{seen:?}");
}
