//! Stock Lua, whose interpreter enters each Lua function through a trampoline.

use std::path::PathBuf;
use std::process::Command;

use super::recording::built;
use crate::perf;
use crate::script;
use crate::support::{artifacts, fresh_dir, root, run, spaceless, stdout, until_enough};

/// The functions of `chain.lua`, the outermost first.
const CHAIN: [&str; 4] = ["chunk", "outer", "middle", "burn"];

fn lua() -> PathBuf {
    built("lua", "lua")
}

fn guest(name: &str) -> PathBuf {
    root().join("tests/runtimes").join(name)
}

fn with_library(command: &mut Command, sinks: &str, dir: &std::path::Path) {
    let library = artifacts().shared_dir.join("libjitsym.so");
    command.env("JITSYM_LIB", spaceless(&library)).env("JITSYM", sinks).env("JITSYM_DIR", dir);
}

/// Calls, errors, coroutines, deep recursion and the end of functions work as without trampolines.
#[test]
fn scripts_do_the_same() {
    let dir = fresh_dir("lua-same");
    let output = |sinks: &str| {
        let mut command = Command::new(lua());
        command.arg(guest("hot.lua"));
        with_library(&mut command, sinks, &dir);
        stdout(&run(&mut command))
    };
    let expected = "111846\t150000\t42\t24\n";
    for sinks in ["off", "region", "jitdump"] {
        let found = output(sinks);
        assert!(
            found.starts_with(expected) && found.trim_end().ends_with("hot.lua:11: stack overflow"),
            "{sinks}: {found}"
        );
    }
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// The functions of the script among the frames of C, the outermost first.
fn chain<'n>(names: impl DoubleEndedIterator<Item = &'n str>) -> Vec<&'n str> {
    names.rev().map(|name| name.split(' ').next().unwrap_or_default()).filter(|name| CHAIN.contains(name)).collect()
}

#[test]
fn perf_sees_the_functions_of_a_script() {
    let dir = fresh_dir("lua-perf");
    let data = dir.join("perf.data");
    let samples = until_enough(100, |pace| {
        let mut record = perf::perf("record");
        record.args(["-e", "cpu-clock", "-F", "999", "-m", "4M", "--call-graph", "dwarf", "-o"]).arg(&data).arg("--");
        record.arg(lua()).arg(guest("chain.lua")).arg(format!("{}", 0.3 * f64::from(pace)));
        with_library(&mut record, "region", &dir);
        perf::whole(&data, || run(&mut record));
        let mut script = perf::perf("script");
        let text = stdout(&run(script.args(["--ns", "--no-inline", "-F", script::FIELDS, "-i"]).arg(&data)));
        let mut inside = 0;
        for sample in script::parse(&text).expect("what perf script prints") {
            let names: Vec<&str> = sample.frames.iter().map(|frame| frame.sym.as_deref().unwrap_or("?")).collect();
            // The first samples are of the program's start.
            if names.first() != Some(&"luaV_execute") || !names.contains(&"main") {
                continue;
            }
            let found = chain(names.iter().copied());
            assert!(CHAIN.starts_with(&found) && !found.is_empty(), "{names:?}");
            inside += usize::from(found == CHAIN);
        }
        (inside, inside)
    });
    assert!(samples >= 100, "{samples}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// A stack at a breakpoint in a C function that the innermost function calls.
#[test]
fn gdb_sees_the_functions_of_a_script() {
    let dir = fresh_dir("lua-gdb");
    let mut gdb = perf::command("gdb");
    gdb.args([
        "-q",
        "-nx",
        "-batch",
        "-ex",
        "set debuginfod enabled off",
        "-ex",
        "break str_rep",
        "-ex",
        "run",
        "-ex",
        "bt",
    ]);
    gdb.args(["-ex", "delete", "-ex", "continue", "--args"]).arg(lua()).arg(guest("chain.lua")).arg("0");
    with_library(&mut gdb, "gdb", &dir);
    let text = stdout(&run(&mut gdb));
    let frames = text.lines().filter(|line| line.starts_with('#'));
    let names: Vec<String> = frames
        .map(|line| {
            let rest = line.split_once(' ').expect("a number").1.trim_start();
            let rest = rest.split_once(" in ").map_or(rest, |(_, rest)| rest);
            rest.split([' ', '(']).next().unwrap_or_default().to_owned()
        })
        .collect();
    assert_eq!(chain(names.iter().map(String::as_str)), CHAIN, "{text}");
    assert!(text.contains("chain.lua:2") && text.lines().any(|line| line == "ok"), "{text}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}
