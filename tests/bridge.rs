//! The bridge from debuggers' lists: what programs that never heard of the library tell gdb, and the real perf shows.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitsym::format::jitdump::id;
use jitsym::format::jitdump::raw::{RawHeader, RawRecords};

use crate::guests::{
    self, check_lines, check_names, check_stacks, guest, library, python, record, Stacks, LLVMLITE, NUMBA, WASMTIME,
};
use crate::perf::{self, Verdict};
use crate::support::{
    checker, fresh_dir, is_root, root, run, scratch_dir, serial, spaceless, stdout, tool, until_enough, TmpFiles,
};

/// nobody, and its group.
const NOBODY: u32 = 65534;

fn bridged(record: &mut Command) -> &mut Command {
    record.env("JITSYM", "bridge").env("LD_PRELOAD", spaceless(&library()))
}

fn is_way(symbol: &str) -> bool {
    symbol.contains("first_") || symbol.contains("second_")
}

#[test]
fn wasmtime() {
    let stacks = record("wasmtime", true, |record, seconds| {
        bridged(record).arg(python(WASMTIME)).arg(guest("wasm.py")).args([seconds, "debug"]);
    });
    check_names("wasmtime", &stacks, |symbol| is_way(symbol) || symbol.contains("trampoline"));
    check_stacks("wasmtime", &stacks, &["middle", "outer"]);
}

/// Code without frame pointers: callers are found by the object's own tables.
#[test]
fn llvmlite() {
    let stacks = record("llvmlite", true, |record, seconds| {
        bridged(record).arg(python(LLVMLITE)).arg(guest("llvm.py")).arg(seconds);
    });
    check_names("llvmlite", &stacks, is_way);
    check_stacks("llvmlite", &stacks, &["outer"]);
    // The control: without the option nothing happens, though the library is there.
    let stacks = record("llvmlite-without", false, |record, seconds| {
        record.env("LD_PRELOAD", spaceless(&library())).arg(python(LLVMLITE)).arg(guest("llvm.py")).arg(seconds);
    });
    assert!(!stacks.stacks.iter().any(|stack| is_way(&stack[0].sym)));
}

#[test]
fn numba() {
    let stacks = record("numba", true, |record, seconds| {
        bridged(record).arg(python(NUMBA)).arg(guest("numba_hot.py")).args([seconds, "debug"]);
    });
    check_names("numba", &stacks, is_way);
    check_stacks("numba", &stacks, &[]);
}

/// Both linkers of LLVM, names, stacks, and the lines of the source.
#[test]
fn lli() {
    let program = scratch_dir("lli").join("hot.ll");
    let mut clang = Command::new("clang");
    clang.args(["-O1", "-g", "-fomit-frame-pointer", "-S", "-emit-llvm"]).arg(guest("hot.c"));
    run(clang.arg("-o").arg(&program));
    for kind in ["mcjit", "orc"] {
        let name = format!("lli-{kind}");
        let stacks = record(&name, true, |record, seconds| {
            // lli writes a jitdump of its own, without unwind tables, unless it has no place for that. perf takes the later of two.
            bridged(record).env("JITSYM_DIR", "/tmp").env("JITDUMPDIR", "/proc/nowhere");
            record.arg("lli").arg(format!("--jit-kind={kind}")).arg(&program).arg(seconds);
        });
        check_names(&name, &stacks, |symbol| is_way(symbol) || symbol == "main");
        check_stacks(&name, &stacks, &["outer"]);
        check_lines(&name, "hot.c", |function| (format!("{function}(uint64_t n) {{"), "}"));
    }
}

/// A server that forks a process for each connection, which then loads LLVM.
#[test]
fn postgresql() {
    if !is_root("run a server as another user") {
        return;
    }
    let bin = ["15", "16", "17"].map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    let bin = bin.iter().find(|bin| bin.join("postgres").exists()).expect("PostgreSQL");
    // Where the other user may be.
    let dir = PathBuf::from(format!("/tmp/jitsym-postgres-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    std::fs::copy(library(), dir.join("libjitsym.so")).expect("copy");
    std::fs::copy(tool(), dir.join("jitsym")).expect("copy");
    std::fs::copy(guest("postgres.sh"), dir.join("postgres.sh")).expect("copy");
    chown(&dir, Some(NOBODY), Some(NOBODY)).expect("give the directory away");
    let stacks = until_enough(200, |pace| {
        let mut shell = perf::command("setpriv");
        shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]).arg(dir.join("postgres.sh"));
        shell.arg(&dir).arg(bin).arg(dir.join("libjitsym.so")).arg(pace.to_string());
        let text = perf::whole(&dir.join("perf.data"), || {
            let _alone = serial();
            stdout(&run(shell.env("HOME", &dir).current_dir(&dir)))
        });
        let pid = text.lines().find_map(|line| line.strip_prefix("pid ")).expect("pid").parse().expect("number");
        let files = TmpFiles(pid);
        let text = std::fs::read_to_string(dir.join("script.txt")).expect("script");
        let stacks = Stacks::parse(&text, files);
        let count = stacks.stacks.iter().filter(|stack| guests::is_compiled(&stack[0])).count();
        (stacks, count)
    });
    check_names("postgresql", &stacks, |symbol| symbol.starts_with("evalexpr_") || symbol.starts_with("deform_"));
    let mut whole = Verdict::new("postgresql: stacks");
    for stack in stacks.stacks.iter().filter(|stack| guests::is_compiled(&stack[0])) {
        let names: Vec<&str> = stack.iter().map(|frame| &*frame.sym).collect();
        let is_whole = names.contains(&"PostgresMain") && names.last().is_some_and(|last| *last == "_start");
        whole.check(is_whole, || names.join(" < "));
    }
    whole.decide(200, 1.0);
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// Objects with the functions of lists.c, in a directory.
fn objects(name: &str) -> PathBuf {
    let dir = scratch_dir(name);
    for variant in 0..VARIANTS {
        let mut gcc = Command::new("gcc");
        gcc.args(["-c", "-g", "-O2", "-fomit-frame-pointer"]).arg(format!("-DVARIANT=v{variant}"));
        run(gcc.arg(source("object.c")).arg("-o").arg(dir.join(format!("{variant}.o"))));
    }
    dir
}

const VARIANTS: u32 = 8;

fn source(file: &str) -> PathBuf {
    root().join("c-tests/sources").join(file)
}

fn gcc() -> Command {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]);
    gcc
}

/// A shared library that calls its function through the dynamic linker calls that of this one: no object is missed, however soon it
/// is gone. Without that, most are.
#[test]
fn lists_of_a_shared_library() {
    let dir = objects("lists-shared");
    let (library, program, main) = (dir.join("liblists.so"), dir.join("lists"), dir.join("main.c"));
    run(gcc().args(["-DSHARED", "-shared", "-fPIC"]).arg(source("lists.c")).arg("-o").arg(&library));
    let text = "int lists_main(int, char **); int main(int count, char **words) { return lists_main(count, words); }";
    std::fs::write(&main, text).expect("write");
    run(gcc().args([&main, &library]).arg("-o").arg(&program));
    let files = fresh_dir("lists-shared-files");
    let mut command = perf::command(&program);
    command.arg("1").arg(&dir).arg(VARIANTS.to_string()).env("JITSYM_DIR", &files).env("JITSYM_ADOPT", "1");
    let text = stdout(&run(bridged(&mut command)));
    assert!(!are_regions(&files), "nothing is adopted, because nobody knows who writes to the memory meanwhile");
    let total = text.lines().find_map(|line| line.strip_prefix("total ")?.split_once(" of ")).expect("total");
    checker::assert_all_sound(&files, &[]);
    let dump = std::fs::read(files.join(format!("jit-{}.dump", total.1))).expect("jitdump");
    let header = RawHeader::read(&dump).expect("header");
    let count = RawRecords::new(&dump, &header).filter(|record| record.id == id::LOAD).count();
    assert_eq!(count.to_string(), total.0, "functions in the jitdump, and those that were told of");
}

/// Whether memory was adopted.
fn are_regions(files: &Path) -> bool {
    let names = std::fs::read_dir(files).expect("directory").map(|entry| entry.expect("entry").path());
    names.into_iter().any(|path| path.extension().is_some_and(|extension| extension == "so"))
}

/// Objects that come and go at random, whose memory is unmapped at once, and a forked child.
#[test]
fn lists_at_random() {
    let dir = objects("lists");
    let program = dir.join("lists");
    run(gcc().arg(source("lists.c")).arg("-o").arg(&program));
    let fixed = std::env::var("JITSYM_LISTS_SEED").ok().map(|seed| seed.parse().expect("number"));
    let first: u64 = fixed.unwrap_or_else(|| u64::from(std::process::id()));
    for seed in first..first + if fixed.is_some() { 1 } else { 3 } {
        println!("JITSYM_LISTS_SEED={seed}");
        let files = fresh_dir("lists-files");
        let mut command = perf::command(&program);
        command.arg(seed.to_string()).arg(&dir).arg(VARIANTS.to_string());
        // The child's files are to be complete.
        command.env("JITSYM_DIR", &files).env("JITSYM_ADOPT", "1").env("JITSYM_FORK", "on");
        let text = stdout(&run(bridged(&mut command)));
        let child = text.lines().find_map(|line| line.strip_prefix("pid ")).expect("pid");
        assert!(!are_regions(&files));
        assert_eq!(checker::assert_all_sound(&files, &[]), 4, "maps and jitdumps of parent and child");
        let map = std::fs::read(files.join(format!("perf-{child}.map"))).expect("map of the child");
        let lines = perf::parse_map(&map).expect("map").into_iter();
        let mut found: Vec<_> = lines.map(|line| (line.start, line.end, line.name)).collect();
        let function = |line: &str| {
            let words: Vec<&str> = line.strip_prefix("child ").unwrap_or(line).split(' ').collect();
            let number = |at: usize| u64::from_str_radix(words.get(at)?, 16).ok();
            Some((number(0)?, number(0)? + number(1)?, words.get(2)?.to_string()))
        };
        let mut live: Vec<_> = text.lines().filter_map(function).collect();
        live.sort();
        found.sort();
        let wrong = found.iter().zip(&live).find(|(found, live)| found != live);
        let counts = (found.len(), live.len());
        assert!(counts.0 == counts.1 && wrong.is_none(), "seed {seed}: {wrong:x?}, {counts:?}");
        assert!(live.len() > 20, "seed {seed}: {} live", live.len());
    }
}
