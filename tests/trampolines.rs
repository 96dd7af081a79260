//! Trampolines: calls through them, and what perf, gdb and the unwinder see of them.
//!
//! The interpreter (`c-tests/trampolines/interpreter.c`) has a stack that is known. Its functions are stepped through, so that
//! each instruction is a sample, and each stack has to be right.
#![cfg(target_arch = "x86_64")]

pub mod signatures;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perf;
use crate::script::{self, Printed};
use crate::support::{checker, compile, describe, fresh_dir, run, stdout, try_run, Link, TmpFiles};
use jitsym_step::{Graph, Moment, Symbols};

const INTERPRETER: &str = "c-tests/trampolines/interpreter.c";
const FLAGS: &[&str] = &["-O2", "-fno-optimize-sibling-calls"];

pub fn interpreter(frame: &str) -> PathBuf {
    compile("gcc", &[INTERPRETER], Link::Shared, &[FLAGS, &[frame]].concat(), "interpreter")
}

/// With tables alone, or with frame pointers.
pub const TABLES: &str = "-fomit-frame-pointer";
pub const POINTERS: &str = "-fno-omit-frame-pointer";

/// The interpreter's trampolines, by where they begin: their ends and names.
struct Trampolines(BTreeMap<u64, (u64, String)>);

impl Trampolines {
    fn parse(printed: &str) -> Trampolines {
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let lines = printed.lines().filter_map(|line| line.strip_prefix("TRAMPOLINE "));
        let one = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            (number(words[1]), (number(words[1]) + number(words[2]), words[0].to_owned()))
        };
        let found = Trampolines(lines.map(one).collect());
        assert_eq!(found.0.len(), 4, "{printed}");
        found
    }

    fn name(&self, addr: u64) -> Option<&str> {
        let (_, (end, name)) = self.0.range(..=addr).next_back()?;
        (addr < *end).then_some(name)
    }
}

/// A function as perf names it: without file and line.
pub fn bare(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

// ------------------------------------------------------------------------------------------------ calls

/// What a program in C sees.
#[test]
fn calls() {
    for (link, flags, name) in [
        (Link::Shared, &["-O1"][..], "trampolines-shared"),
        (Link::Static, &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "trampolines-sanitized"),
    ] {
        let program = compile("gcc", &["c-tests/trampolines/calls.c"], link, flags, name);
        let dir = fresh_dir(name);
        let mut command = perf::command(&program);
        command.arg(&dir).args((link == Link::Static).then_some("light"));
        let output = try_run(&mut command);
        let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
        assert!(clean, "{}", describe(&command, &output));
        checker::assert_all_sound(&dir, &[]);
        std::fs::remove_dir_all(&dir).expect("remove the directory");
    }
}

// ------------------------------------------------------------------------------------------------ perf

/// The interpreter, stepped.
struct Stepped {
    dir: PathBuf,
    data: PathBuf,
    moments: Vec<Moment>,
    symbols: Symbols,
    trampolines: Trampolines,
    _files: TmpFiles,
}

fn step(frame: &str, graph: Graph, sinks: &str, name: &str) -> Stepped {
    let dir = fresh_dir(name);
    let data = dir.join("perf.data");
    let mut command = perf::command(interpreter(frame));
    command.arg(&dir).arg("once").env("JITSYM", sinks);
    // perf looks for maps in /tmp.
    if sinks != "map" {
        command.env("JITSYM_DIR", &dir);
    }
    let plan = jitsym_step::Plan {
        program: command,
        perf: perf::perf("record"),
        graph,
        enter: &["run"],
        every: false,
        hold: None,
        data: &data,
    };
    let recorded = jitsym_step::record(plan).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let printed = std::fs::read_to_string(dir.join("program.out")).expect("what it prints");
    assert!(printed.ends_with("ok\n"), "{printed}");
    let pid = recorded.moments.first().expect("moments").pid;
    let trampolines = Trampolines::parse(&printed);
    Stepped { dir, data, moments: recorded.moments, symbols: recorded.symbols, trampolines, _files: TmpFiles(pid) }
}

impl Stepped {
    /// What perf prints of a recording has the right stack at each instruction. All instructions of all trampolines are among
    /// these.
    fn check(&self, data: &Path, of_module: usize) {
        let text =
            stdout(&run(perf::perf("script").args(["--ns", "--no-inline", "-F", script::FIELDS, "-i"]).arg(data)));
        let printed = script::parse(&text).expect("what perf script prints");
        let by_time: BTreeMap<u64, &Printed> = printed.iter().map(|sample| (sample.time, sample)).collect();
        let name = |addr: &u64| self.trampolines.name(*addr).or(self.symbols.name(*addr)).map(str::to_owned);
        let mut places = BTreeMap::new();
        for moment in &self.moments {
            let sample = by_time[&moment.time];
            let found: Vec<&str> =
                sample.frames.iter().map(|frame| bare(frame.sym.as_deref().unwrap_or("?"))).collect();
            let Some(callers) = &moment.callers else { continue };
            // Down to `run`, whose caller is known.
            let mut expected: Vec<String> = [moment.ip].iter().chain(callers).map_while(name).collect();
            assert_eq!(expected.last().map(String::as_str), Some("run"), "{moment:x?}");
            expected.push("main".into());
            assert!(
                found.starts_with(&expected.iter().map(String::as_str).collect::<Vec<_>>()),
                "{expected:?}: {found:?}"
            );
            if let Some(name) = self.trampolines.name(moment.ip) {
                places.entry(name.to_owned()).or_insert_with(BTreeSet::new).insert(moment.ip);
                assert!(sample.frames[0].sym.as_deref().unwrap_or_default().contains("/script.toy:"), "{sample:?}");
            }
        }
        // With no words, seven instructions. Each word takes two, and their room one.
        let counts: Vec<(&str, usize)> = places.iter().map(|(name, places)| (&**name, places.len())).collect();
        assert_eq!(counts, [("inner", 12), ("middle", 14), ("module", of_module), ("outer", 12)]);
    }

    fn injected(&self) -> PathBuf {
        perf::inject_by_jitsym(&self.data)
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

#[test]
fn every_instruction_by_tables_in_a_region() {
    let stepped = step(TABLES, Graph::Stack(16384), "region", "trampolines-region");
    stepped.check(&stepped.data, 7);
}

#[test]
fn every_instruction_by_tables_in_a_jitdump() {
    let stepped = step(TABLES, Graph::Stack(16384), "jitdump", "trampolines-jitdump");
    stepped.check(&stepped.injected(), 7);
    checker::assert_all_sound(&stepped.dir, &[]);
    // There is room for the tables that `perf inject` maps after each trampoline.
    let injected = stepped.dir.join("injected.data");
    run(perf::perf("inject").arg("--jit").arg("-i").arg(&stepped.data).arg("-o").arg(&injected));
    stepped.check(&injected, 7);
}

#[test]
fn every_instruction_by_frame_pointers() {
    let stepped = step(POINTERS, Graph::FramePointers, "region", "trampolines-pointers");
    // Where the frame pointer is not that of `module`, it hides `run`, where the steps begin.
    stepped.check(&stepped.data, 3);
}

/// The stack of a sample is one of those that the script has. `stack` begins with `main`. Returns the innermost function if it is
/// one of those in which the interpreter spends time. `hides`: whether frame pointers hide the innermost function's caller at the
/// first and the last instructions.
pub fn check_stack<'n>(stack: &[&'n str], hides: bool) -> Option<&'n str> {
    let mut chain = vec!["main", "run", "module", "enter", "outer", "interpret", "middle", "interpret"];
    chain.extend(["inner", "interpret"].repeat(3));
    let (leaf, callers) = stack.split_last().expect("a frame");
    let function = leaf.strip_prefix("work_")?;
    let hidden = [callers, &["interpret"]].concat();
    let callers = if hides && !callers.ends_with(&["interpret"]) { &hidden } else { callers };
    // The function that works is that whose trampoline is below `interpret`.
    assert!(chain.starts_with(callers), "{stack:?}");
    assert_eq!(callers[callers.len() - 2..], [function, "interpret"], "{stack:?}");
    Some(leaf)
}

#[test]
fn every_instruction_by_frame_pointers_in_a_map() {
    let stepped = step(POINTERS, Graph::FramePointers, "map", "trampolines-map");
    stepped.check(&stepped.data, 3);
}

/// perf samples the interpreter. Each stack is one of those that the script has, in the right order.
fn sampled(frame: &str, graph: &str, name: &str) {
    let dir = fresh_dir(name);
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999", "-m", "4M", "--call-graph", graph, "-o"]).arg(&data).arg("--");
    record.arg(interpreter(frame)).arg(&dir).args(["spin", "1000"]);
    record.env("JITSYM", "region").env("JITSYM_DIR", &dir);
    perf::whole(&data, || run(&mut record));
    let text = stdout(&run(perf::perf("script").args(["--ns", "--no-inline", "-F", script::FIELDS, "-i"]).arg(&data)));
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for sample in script::parse(&text).expect("what perf script prints") {
        let names: Vec<&str> = sample.frames.iter().map(|frame| bare(frame.sym.as_deref().unwrap_or("?"))).collect();
        let Some(main) = names.iter().rposition(|name| *name == "main") else { continue };
        let stack: Vec<&str> = names[..=main].iter().rev().copied().collect();
        let Some(work) = check_stack(&stack, graph == "fp") else { continue };
        *seen.entry(work.to_owned()).or_default() += 1;
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen.values().sum::<usize>() > 100, "{seen:?}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

#[test]
fn sampled_with_tables() {
    sampled(TABLES, "dwarf,16384", "trampolines-dwarf");
}

#[test]
fn sampled_with_frame_pointers() {
    sampled(POINTERS, "fp", "trampolines-fp");
}

// ------------------------------------------------------------------------------------------------ other readers

/// gdb shows the functions of the script with their lines, and finishes one after the other.
#[test]
fn in_gdb() {
    let dir = fresh_dir("trampolines-gdb");
    let chain = ["reached", "interpret", "inner", "interpret", "inner", "interpret", "inner", "interpret", "middle"];
    let mut gdb = perf::command("gdb");
    gdb.args([
        "-q",
        "-nx",
        "-batch",
        "-ex",
        "set pagination off",
        "-ex",
        "set width 0",
        "-ex",
        "set style enabled off",
    ]);
    gdb.args(["-ex", "set debuginfod enabled off", "-ex", "break reached", "-ex", "run", "-ex", "bt"]);
    for _ in 0..4 {
        gdb.args(["-ex", "echo FINISHED\\n", "-ex", "finish", "-ex", "bt"]);
    }
    gdb.args(["-ex", "delete", "-ex", "continue", "--args"]).arg(interpreter(TABLES)).arg(&dir).arg("once");
    let text = stdout(&run(gdb.env("JITSYM_DIR", &dir)));
    let functions = |text: &str| -> Vec<String> {
        let last = text.rfind("\n#0 ").unwrap_or_else(|| panic!("no stack: {text}"));
        let frames = text[last..].lines().filter(|line| line.starts_with('#'));
        let name = |line: &str| {
            let rest = line.split_once(' ').expect("a number").1.trim_start();
            let rest = rest.split_once(" in ").map_or(rest, |(_, rest)| rest);
            rest.split([' ', '(']).next().unwrap_or_default().to_owned()
        };
        frames.map(name).collect()
    };
    let parts: Vec<&str> = text.split("FINISHED\n").collect();
    assert_eq!(parts.len(), 5, "{text}");
    for (finished, part) in parts.iter().enumerate() {
        let found = functions(part);
        assert!(
            found.iter().map(String::as_str).collect::<Vec<_>>().starts_with(&chain[finished..]),
            "{found:?}: {text}"
        );
        assert!(found.ends_with(&["outer", "enter", "module", "run", "main"].map(String::from)), "{found:?}");
    }
    for place in ["/script.toy:30", "/script.toy:20", "/script.toy:10", "/script.toy:1\n", "exited normally"] {
        assert!(text.contains(place), "{place}: {text}");
    }
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// A C++ exception from the script is caught by the caller of the script, if the unwinder has the tables.
#[test]
fn exceptions() {
    let sources = [INTERPRETER, "c-tests/unwinder/exceptions.cc", "-lstdc++"];
    let flags = [FLAGS, &["-DTHROWS", "-fexceptions", TABLES]].concat();
    let program = compile("gcc", &sources, Link::Shared, &flags, "throwing-interpreter");
    let dir = fresh_dir("trampolines-throw");
    let mut command = Command::new(program);
    command.arg(&dir).arg("throw").env("JITSYM_DIR", &dir);
    let output = run(command.env("JITSYM", "region,unwinder"));
    assert!(stdout(&output).ends_with("ok\n"), "{output:?}");
    // Without the tables, the exception ends the program.
    let output = try_run(command.env("JITSYM", "region"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("terminate called"), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}
