//! Tools that print stacks from within the process: which of them name compiled code, and which do so with
//! `examples/inprocess_names.c` (`docs/crash-handlers.md`).
//!
//! The program (`c-tests/stack/reported.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perf;
use crate::support::*;

const PROGRAM: &str = "c-tests/stack/reported.c";
/// The compiled functions, the innermost first, and their callers.
const STACK: [&str; 6] = ["called_by_code", "jit_add", "jit_map", "jit_script", "run_compiled_code", "main"];
const REGIONS: [&str; 2] = ["region", "adopted"];

/// Compiles `examples/inprocess_names.c`, without the flags of the program.
fn names(flags: &[&str], name: &str) -> PathBuf {
    let out = scratch_dir("names").join(name);
    let mut gcc = Command::new("gcc");
    gcc.current_dir(root()).args(["-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude", "examples/inprocess_names.c"]);
    run(gcc.args(flags).arg("-o").arg(&out));
    out
}

fn object() -> PathBuf {
    names(&["-c"], "names.o")
}

fn preloaded() -> PathBuf {
    spaceless(&names(&["-shared", "-fPIC"], "names.so"))
}

fn program(flags: &[&str], name: &str) -> PathBuf {
    compile("gcc", &[PROGRAM], Link::Shared, &[&["-O1", "-fomit-frame-pointer"], flags].concat(), name)
}

/// The program, whose regions are in a directory of the test.
fn start(program: &Path, memory: &str, what: &str) -> Command {
    let mut command = perf::command(program);
    command.args([memory, what]).env("JITSYM_DIR", fresh_dir("regions"));
    command
}

/// The frames of the text contain the whole stack without a gap.
#[track_caller]
fn assert_stack(text: &str, frame: impl Fn(&str) -> Option<&str>) {
    let frames: Vec<&str> = text.lines().filter_map(frame).collect();
    let found = frames.windows(STACK.len()).any(|frames| frames.iter().zip(STACK).all(|(line, name)| *line == name));
    assert!(found, "{frames:?}\n{text}");
}

/// The function in a line such as `#1 0x7f0000000010 in jit_add prog.js:12`.
fn sanitizer_frame(line: &str) -> Option<&str> {
    line.trim().strip_prefix('#')?.split(' ').nth(3)
}

#[test]
fn address_sanitizer() {
    let linked = object();
    let program = program(&["-fsanitize=address", linked.to_str().expect("UTF-8")], "reported-asan");
    for memory in REGIONS {
        let output = try_run(&mut start(&program, memory, "overread"));
        assert!(!output.status.success());
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_stack(&report, sanitizer_frame);
        assert!(report.contains(" in jit_add prog.js:12\n"), "{report}");
    }
}

#[test]
fn backtraces_of_rust() {
    let dir = scratch_dir("rust");
    let (source, library) = (dir.join("backtrace.rs"), dir.join("libbacktrace.a"));
    let text = "#[no_mangle]\npub extern \"C\" fn print_backtrace() {\n\
                println!(\"{}\", std::backtrace::Backtrace::force_capture());\n}\n";
    std::fs::write(&source, text).expect("write the source");
    run(Command::new("rustc").args(["-O", "--crate-type", "staticlib"]).arg(&source).arg("-o").arg(&library));
    let linked = [library, object()].map(|path| path.to_str().expect("UTF-8").to_owned());
    let program = program(&["-Wl,-u,print_backtrace", &linked[0], &linked[1], "-lm"], "reported-rust");
    for memory in REGIONS {
        let output = stdout(&run(&mut start(&program, memory, "rust")));
        assert_stack(&output, |line| Some(line.trim().split_once(": ")?.1));
        assert!(output.contains("at prog.js:12"), "{output}");
    }
}

/// Code in any memory has a name, and functions of libraries keep theirs.
#[test]
fn dladdr() {
    let program = program(&[], "reported");
    for memory in ["plain", "region", "adopted"] {
        let output = stdout(&run(start(&program, memory, "dladdr").env("LD_PRELOAD", preloaded())));
        let compiled = ["jit_add", "jit_map", "jit_script"].map(|name| format!("{name} in [compiled code]\n"));
        assert_eq!(output, compiled.concat() + "malloc\n");
    }
}

/// heaptrack writes to a descriptor from each thread that allocates, so the library must have no thread.
#[test]
fn heaptrack() {
    let program = program(&[], "reported");
    let data = scratch_dir("heaptrack").join("data.zst");
    for memory in REGIONS {
        let mut heaptrack = perf::command("heaptrack");
        heaptrack.env("JITSYM_DIR", fresh_dir("regions")).env("JITSYM_THREADS", "0").env("LD_PRELOAD", preloaded());
        run(heaptrack.arg("-o").arg(data.with_extension("")).arg(&program).args([memory, "allocate"]));
        let mut print = Command::new("heaptrack_print");
        let report = stdout(&run(print.args(["-m0", "-p0", "-a0", "-T0", "-l1", "-f"]).arg(&data)));
        std::fs::remove_file(&data).expect("remove the data");
        assert_stack(&report, |line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    }
}

/// gperftools read the files of regions themselves, and unwind with nongnu libunwind.
#[test]
fn heap_profiles_of_gperftools() {
    let program = program(&[], "reported");
    for memory in REGIONS {
        let profile = fresh_dir("gperftools").join("heap");
        let mut command = start(&program, memory, "allocate");
        run(command.env("LD_PRELOAD", "libtcmalloc.so.4").env("HEAPPROFILE", &profile));
        let mut print = perf::command("google-pprof");
        print.args(["--text", "--cum", "--focus=called_by_code"]).arg(&program);
        let report = stdout(&run(print.arg(profile.with_extension("0001.heap"))));
        let names: Vec<&str> = report.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
        assert!(STACK.iter().all(|name| names.contains(name)), "{report}");
    }
}
