//! The library as a collector for Intel's JIT profiling API: programs that never heard of it, and what the real perf shows of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::cfi;
use crate::guests::{
    check_adopted, check_lines, check_names, check_stacks, guest, library, python, record, LLVMLITE, NUMBA, WASMTIME,
};
use crate::perf;
use crate::support::{checker, fresh_dir, once, root, run, scratch_dir, shared_dir, stdout};

const VARIABLE: &str = "INTEL_JIT_PROFILER64";

/// Functions of WebAssembly keep frame pointers, so that stacks are whole.
#[test]
fn wasmtime() {
    for (name, adopt) in [("wasmtime", "0"), ("wasmtime-adopted", "1")] {
        let stacks = record(name, adopt == "0", |record, seconds| {
            record.env(VARIABLE, library()).env("JITSYM_ADOPT", adopt);
            record.arg(python(WASMTIME)).arg(guest("wasm.py")).args([seconds, "vtune"]);
        });
        let is_right = |symbol: &str| {
            symbol.starts_with("first_") || symbol.starts_with("second_") || symbol.contains("trampoline")
        };
        check_names(name, &stacks, is_right);
        check_stacks(name, &stacks, &["middle", "outer"]);
        if adopt == "1" {
            check_adopted(name, &stacks);
        }
    }
}

/// oneDNN's kernels have no frame pointers and no tables: names alone.
#[test]
#[cfg(target_arch = "x86_64")]
fn one_dnn() {
    let program = scratch_dir("bin").join("dnnl");
    run(Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra"])
        .arg(guest("dnnl.c"))
        .arg("-o")
        .arg(&program)
        .arg("-ldnnl"));
    let library = library();
    let set = (VARIABLE, library.to_str().expect("UTF-8"));
    let recorded = |name: &str, variables: &[(&str, &str)], inject: bool| {
        record(name, inject, |record, seconds| {
            record.envs(variables.iter().copied()).env("OMP_NUM_THREADS", "1").arg(&program).arg(seconds);
        })
    };
    let is_right = |symbol: &str| symbol.starts_with("jit_") && symbol.len() > 8;
    check_names("oneDNN, map", &recorded("dnnl-map", &[set], false), is_right);
    check_names("oneDNN, jitdump", &recorded("dnnl-dump", &[set], true), is_right);
    let adopted = recorded("dnnl-adopted", &[set, ("JITSYM_ADOPT", "1")], false);
    check_names("oneDNN, adopted", &adopted, is_right);
    check_adopted("oneDNN", &adopted);
    // The control: nothing has a name without the library.
    let without = recorded("dnnl-without", &[], false);
    assert!(!without.stacks.iter().any(|stack| is_right(&stack[0].sym)));
}

/// LLVM's listener is asked for by a variable of its own; the names alone come this way.
#[test]
fn llvm() {
    let stacks = record("llvm", true, |record, seconds| {
        record.env(VARIABLE, library()).env("INTEL_JIT_BACKWARD_COMPATIBILITY", "1");
        record.arg(python(LLVMLITE)).arg(guest("llvm.py")).arg(seconds);
    });
    let is_right = |symbol: &str| symbol.starts_with("first_") || symbol.starts_with("second_");
    // libffi has code in anonymous memory that calls back into Python, which is not compiled by LLVM.
    check_names("llvmlite", &stacks, is_right);
}

/// numba has a variable of its own, by which it asks LLVM. With `debug` its functions have lines.
#[test]
fn numba() {
    let stacks = record("numba", true, |record, seconds| {
        record.env(VARIABLE, library()).env("INTEL_JIT_BACKWARD_COMPATIBILITY", "1").env("NUMBA_ENABLE_PROFILING", "1");
        record.arg(python(NUMBA)).arg(guest("numba_hot.py")).args([seconds, "debug"]);
    });
    check_names("numba", &stacks, |symbol| symbol.contains("first_") || symbol.contains("second_"));
    check_lines("numba", "numba_hot.py", |function| (format!("def {function}("), "    return a"));
}

/// What two runtimes tell at random. `options`: more for the compiler.
fn runtimes(name: &str, options: &[&str]) -> (PathBuf, [PathBuf; 2]) {
    let dir = shared_dir(name);
    let flags = [&["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"], options].concat();
    let sources = root().join("c-tests/sources");
    let gcc = |source: &str, more: &[&str], out: &Path| {
        let mut gcc = Command::new("gcc");
        run(gcc.args(&flags).args(more).arg(sources.join(source)).arg("-o").arg(out).arg("-ldl"));
    };
    let libraries = ["a", "b"].map(|name| dir.join(format!("{name}.so")));
    let program = dir.join("collector");
    once(&program, "", || {
        libraries.iter().for_each(|library| gcc("runtime.c", &["-shared", "-fPIC"], library));
        gcc("collector.c", &[], &program);
    });
    (program, libraries)
}

fn events(dir: &Path, seed: u64, complete: impl FnOnce(&mut Command)) -> String {
    static BUILT: OnceLock<(PathBuf, [PathBuf; 2])> = OnceLock::new();
    let (program, libraries) = BUILT.get_or_init(|| runtimes("runtimes", &[]));
    let mut command = perf::command(program);
    command.arg(seed.to_string()).args(libraries).env("JITSYM_DIR", dir).env(VARIABLE, library());
    complete(&mut command);
    stdout(&run(&mut command))
}

fn dumped(dir: &Path, pid: &str) -> Vec<cfi::Dumped> {
    cfi::read_dump(File::open(dir.join(format!("jit-{pid}.dump"))).expect("jitdump"))
}

/// A line of the guest says which bytes and lines a method has at last, and so does the jitdump.
fn check_dumped(truth: &str, dumped: &[cfi::Dumped]) {
    let [addr, _, name, rows, bytes] = truth.split(' ').collect::<Vec<_>>()[..] else { panic!("{truth:?}") };
    let addr = u64::from_str_radix(addr, 16).expect("number");
    let found = dumped.iter().rfind(|code| code.addr == addr && code.name == name);
    let found = found.unwrap_or_else(|| panic!("{name} is not in the jitdump"));
    let hex: String = found.code.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes, "bytes of {name}");
    // Rows end at offsets 4, 9 and 20, and the last line goes on.
    let inlined = (77, "/src/inlined.toy");
    for offset in 0..found.code.len() as u64 {
        let row = match rows {
            "0" => None,
            "9" => Some(inlined),
            count => {
                let at = [4, 9, 20].iter().filter(|&&end| end <= offset).count() as u32;
                Some((11 + at.min(count.parse::<u32>().expect("number") - 1), "/src/guest.toy"))
            }
        };
        let line = found.lines.iter().rfind(|(from, _, _)| *from <= addr + offset);
        assert_eq!(line.map(|(_, line, file)| (*line, &**file)), row, "line of {name} at {offset}, {rows} rows");
    }
}

/// A method has the lines of all its inlined functions, and is not written once for each of them.
fn check_many_inlined(dumped: &[cfi::Dumped]) {
    let written: Vec<_> = dumped.iter().filter(|code| code.name == "with_many_inlined").collect();
    let last = written.last().expect("the method");
    // A last row says where the last line ends.
    for (at, row) in last.lines[..last.code.len()].iter().enumerate() {
        assert_eq!((row.0 - last.addr, row.1 as usize), (at as u64, 100 + at));
    }
    assert!(written.len() * 10 < last.code.len(), "written {} times", written.len());
}

/// All versions of all events, with numbers that both runtimes use, code that takes the place of other code, and a forked child.
#[test]
fn events_at_random() {
    let fixed = std::env::var("JITSYM_COLLECTOR_SEED").ok().map(|seed| seed.parse().expect("number"));
    let first = fixed.unwrap_or_else(|| u64::from(std::process::id()));
    for seed in first..first + if fixed.is_some() { 1 } else { 3 } {
        println!("JITSYM_COLLECTOR_SEED={seed}");
        let dir = fresh_dir("events");
        // The child's files are to be complete.
        let text = events(&dir, seed, |command| _ = command.env("JITSYM_FORK", "on"));
        let (truth, child) = text.trim_end().rsplit_once("\nchild ").expect("child");
        let (truth, parent) = truth.rsplit_once("\nparent ").expect("parent");
        assert_eq!(checker::assert_all_sound(&dir, &[]), 4, "maps and jitdumps of parent and child");
        check_many_inlined(&dumped(&dir, parent));
        let map = std::fs::read(dir.join(format!("perf-{child}.map"))).expect("map of the child");
        let mut found: Vec<_> =
            perf::parse_map(&map).expect("map").into_iter().map(|line| (line.start, line.end, line.name)).collect();
        found.retain(|(_, _, name)| name != "with_many_inlined");
        let at = found.iter().position(|(_, _, name)| name == "of_the_child").expect("the child's own method");
        let own = found.remove(at);
        let of_child = dumped(&dir, child);
        for line in truth.lines().filter(|line| !line.starts_with(&format!("{:x} ", own.0))) {
            check_dumped(line, &of_child);
        }
        let live = truth.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| u64::from_str_radix(words[at], 16).expect("number");
            (number(0), number(0) + number(1), words[2].to_string())
        });
        // It has taken the place of the first one, if there was one.
        let mut live: Vec<_> = live.filter(|(start, _, _)| *start != own.0).collect();
        live.sort();
        found.sort();
        let wrong = found.iter().zip(&live).find(|(found, live)| found != live);
        assert!(
            found.len() == live.len() && wrong.is_none(),
            "seed {seed}: {wrong:?}, {} and {}",
            found.len(),
            live.len()
        );
        assert!(live.len() > 50, "seed {seed}: {} live", live.len());
    }
}

/// LeakSanitizer, which looks for pointers in the heap alone, finds what the library keeps of many methods.
#[test]
fn no_leaks() {
    let (program, libraries) = runtimes("no-leaks", &["-fsanitize=address"]);
    let mut command = perf::command(program);
    command.arg("1").args(libraries).arg("5000").env("JITSYM_DIR", fresh_dir("leaks")).env(VARIABLE, library());
    assert_eq!(stdout(&run(command.env("ASAN_OPTIONS", "detect_leaks=1"))), "5000 methods\n");
}

/// `JITSYM` decides as everywhere, and a runtime hears whether anything wants its events.
#[test]
fn off() {
    let dir = fresh_dir("off");
    assert_eq!(events(&dir, 1, |command| _ = command.env("JITSYM", "off")), "off\n");
    assert_eq!(std::fs::read_dir(&dir).expect("directory").count(), 0);
    let dir = fresh_dir("map");
    events(&dir, 1, |command| _ = command.env("JITSYM", "map"));
    assert_eq!(checker::assert_all_sound(&dir, &[]), 2, "maps alone");
}
