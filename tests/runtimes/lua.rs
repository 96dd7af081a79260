//! Stock Lua, whose interpreter enters each Lua function through a trampoline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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

fn with_library(command: &mut Command, sinks: &str, dir: &Path) {
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

/// Where Lua's virtual machine goes on with its next instruction: offsets in `luaV_execute`.
fn dispatches(lua: &Path) -> BTreeSet<u64> {
    let mut objdump = Command::new("objdump");
    let text = stdout(&run(objdump.args(["-d", "--no-show-raw-insn", "--disassemble=luaV_execute"]).arg(lua)));
    let number = |hex: &str| u64::from_str_radix(hex.trim(), 16).expect("an address");
    let begin = text.lines().find_map(|line| line.strip_suffix(" <luaV_execute>:")).map(number).expect("luaV_execute");
    let jumps = text.lines().filter(|line| line.contains("jmp ") && line.contains('*'));
    jumps.map(|line| number(line.split_once(':').expect("an instruction").0) - begin).collect()
}

/// Each instruction of the processor that the interpreter executes for a script is a sample of perf. Lua's hook tells which
/// function is current at each instruction of the virtual machine. There, the innermost function of perf's stack is the same,
/// so each function has as many of these samples as Lua counts. Between two of these samples, all stacks are of the first
/// function, and then of the second, except where C code returns to its caller in the script between its calls of the two.
#[test]
fn perf_counts_what_the_interpreter_counts() {
    let (dir, lua) = (fresh_dir("lua-counted"), lua());
    let mut counted = Command::new(&lua);
    with_library(counted.arg(guest("counted.lua")).arg("count"), "off", &dir);
    let line = |text: &str| text.parse::<u32>().expect("a line");
    let expected: Vec<u32> = stdout(&run(&mut counted)).split_whitespace().map(line).collect();

    let (mut program, data) = (perf::command(&lua), dir.join("perf.data"));
    with_library(program.arg(guest("counted.lua")), "region", &dir);
    let recorded = jitsym_step::record(jitsym_step::Plan {
        program,
        perf: perf::perf("record"),
        graph: jitsym_step::Graph::Stack(8192),
        enter: &["luaB_pcall"],
        every: true,
        hold: None,
        data: &data,
    });
    let recorded = recorded.unwrap_or_else(|error| panic!("{error:#}"));
    let mut script = perf::perf("script");
    let text = stdout(&run(script.args(["--ns", "--no-inline", "-F", script::FIELDS, "-i"]).arg(&data)));
    let printed = script::parse(&text).expect("what perf script prints");
    let by_time: BTreeMap<u64, _> = printed.iter().map(|sample| (sample.time, sample)).collect();
    let line_of = |symbol: &str| {
        let at = symbol.split_once("counted.lua:")?.1;
        Some(if symbol.starts_with("chunk ") { 0 } else { line(at) })
    };
    let interpreter = recorded.symbols.address("luaV_execute").expect("luaV_execute");
    let dispatches = dispatches(&lua);
    let (mut found, mut between, mut last) = (Vec::new(), Vec::new(), 0);
    for moment in &recorded.moments {
        let symbols: Vec<&str> = by_time[&moment.time].frames.iter().filter_map(|frame| frame.sym.as_deref()).collect();
        assert!(symbols.contains(&"main"), "{symbols:?}");
        let lines: Vec<u32> = symbols.iter().filter_map(|symbol| line_of(symbol)).collect();
        let is_dispatch = moment.ip >= interpreter && dispatches.contains(&(moment.ip - interpreter));
        between.push(lines[0]);
        if is_dispatch && lines.len() > 1 {
            // C functions of Lua call several functions of the script, one after the other.
            between.dedup();
            let direct = if last == lines[0] { vec![last] } else { vec![last, lines[0]] };
            assert!(between == direct || between == [last, lines[1], lines[0]], "{last}, {between:?}, {symbols:?}");
            found.push(lines[0]);
            last = lines[0];
            between.clear();
        }
    }
    assert_eq!(found, expected);
    let counts = found.iter().fold(BTreeMap::new(), |mut counts: BTreeMap<u32, usize>, line| {
        *counts.entry(*line).or_default() += 1;
        counts
    });
    println!("{} samples; instructions of the virtual machine by line: {counts:?}", recorded.moments.len());
    assert!(counts.len() >= 10 && found.len() > 200, "{counts:?}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}
