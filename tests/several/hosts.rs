//! The real CPython and the real Node.js, each with a passenger: a runtime of its own in a thread of their process. Both write
//! the same files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{samples, Recording, ENOUGH};
use crate::perf;
use crate::support::{
    compile, fetched, run, scratch_dir, serial, spaceless, stdout, thorough, until_enough, Link, PACE,
};

/// Burns in code that the runtime names `pyburn`, until the passenger has arrived.
const PYTHON: &str = r#"
import ctypes, os, sys, time

def pyburn():
    total = 0
    for number in range(20000):
        total += number
    return total

def arrived(path):
    try:
        return open(path).read().endswith("end\n")
    except FileNotFoundError:
        return False

library, out, backend = sys.argv[1:4]
ctypes.CDLL(library)
start = time.monotonic()
while not arrived(out) and time.monotonic() < start + 600:
    pyburn()
    if backend and time.monotonic() > start + 0.2:
        sys.activate_stack_trampoline(backend)
        backend = ""
"#;

const NODE: &str = r#"
const fs = require("fs");
function jsburn(rounds) {
  let total = 0;
  for (let i = 0; i < rounds; i++) total = (total * 31 + i) | 0;
  return total;
}
const out = process.argv[2], end = Date.now() + 600000;
const arrived = () => fs.existsSync(out) && fs.readFileSync(out, "utf8").endsWith("end\n");
// Also if Node.js has taken as long to start as its passenger to arrive.
for (let round = 0; round < 30 || !arrived() && Date.now() < end; round++) for (let i = 0; i < 50; i++) jsburn(100000);
"#;

fn passenger() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        compile("gcc", &["c-tests/several/passenger.c"], Link::Shared, &["-O1", "-fPIC", "-shared"], "passenger.so")
    })
}

/// CPython of a newer suite of Debian: older ones cannot tell perf of their functions.
fn python() -> &'static Path {
    static FETCHED: OnceLock<PathBuf> = OnceLock::new();
    FETCHED.get_or_init(|| fetched("python3.13"))
}

/// A scenario's directory, with the program in it.
fn prepare(name: &str, program: &str) -> (PathBuf, PathBuf, PathBuf) {
    let dir = scratch_dir(name);
    let (script, out) = (dir.join("script"), dir.join("out"));
    std::fs::write(&script, program).expect("script");
    (dir.join("perf.data"), script, out)
}

fn record(mut command: Command, data: PathBuf, out: &Path) -> Recording {
    until_enough(ENOUGH, |pace| {
        command.env(PACE, pace.to_string());
        let recording = perf::whole(&data, || {
            let _ = std::fs::remove_file(out);
            {
                let _alone = serial();
                run(&mut command);
            }
            let said = std::fs::read_to_string(out).expect("the passenger's words");
            Recording::of(&said, data.clone())
        });
        recording.with_fewest()
    })
}

fn record_python(name: &str, options: &[&str], late: &str) -> Recording {
    let (data, script, out) = prepare(name, PYTHON);
    let mut command = perf::perf("record");
    command
        .args(["-e", "cpu-clock", "-F", "999", "-k", "1", "--call-graph", "dwarf,8192", "-m", "4M", "-o"])
        .arg(&data)
        .arg("--");
    command.env("PASSENGER", format!("0 {}", out.display())).arg(python()).args(options);
    command.arg(script).arg(passenger()).arg(&out).arg(late);
    record(command, data, &out)
}

/// How many frames have a name with this in it.
fn frames(data: &Path, part: &str) -> usize {
    let mut script = perf::perf("script");
    stdout(&run(script.arg("-i").arg(data).args(["-F", "ip,sym"]))).lines().filter(|line| line.contains(part)).count()
}

/// The stacks with a frame of this name in them, innermost frame first.
fn stacks_with(data: &Path, part: &str) -> Vec<Vec<String>> {
    let mut script = perf::perf("script");
    let text = stdout(&run(script.arg("-i").arg(data).args(["--no-inline", "-F", "ip,sym"])));
    let stacks = text.split("\n\n").map(|stack| stack.lines().map(|line| line.trim().to_owned()).collect());
    stacks.filter(|stack: &Vec<String>| stack.iter().any(|frame| frame.contains(part))).collect()
}

/// Both have a jitdump.
#[test]
fn cpython_with_a_jitdump() {
    let recording = record_python("python-dump", &["-X", "perf_jit"], "");
    let injected = recording.injected();
    recording.check_names(&recording.data, "-");
    recording.check_names(&injected, "-");
    let named = frames(&injected, "py::pyburn");
    assert!(named >= ENOUGH, "{named} frames of pyburn\n{:?}", recording.told);
    let mut names = perf::Verdict::new("names of Python's functions");
    let mut script = perf::perf("script");
    let text = stdout(&run(script.arg("-i").arg(&injected).args(["--no-inline", "-F", "ip,sym,dso"])));
    for frame in text.lines().filter(|line| line.contains("/jitted-") && !line.contains("passenger_code")) {
        names.check(frame.split_whitespace().nth(1).is_some_and(|name| name.starts_with("py::")), || frame.into());
    }
    names.decide(ENOUGH, 1.0);
    // Debian's newer C library has no names for what calls the thread's function.
    for (part, end) in [("py::pyburn", "_start"), ("passenger_code", "ride")] {
        let mut whole = perf::Verdict::new(&format!("stacks with {part}"));
        for stack in stacks_with(&injected, part) {
            let is_whole = stack.iter().rev().take(3).any(|frame| frame.split(' ').nth(1) == Some(end));
            whole.check(is_whole, || stack.join(" < "));
        }
        whole.decide(ENOUGH, 1.0);
    }
    assert_eq!(recording.told.dumps().len(), 2);
    recording.told.check_dumps("-");
}

/// Both write to the map, which CPython opens before the library or after it.
#[test]
fn cpython_with_a_map() {
    for (name, options, late) in [("early", &["-X", "perf"][..], ""), ("late", &[], "perf")] {
        let recording = record_python(&format!("python-map-{name}"), options, late);
        recording.check_names(&recording.data, "-");
        recording.told.check_map("-");
        let lines = recording.told.map_lines();
        assert!(lines.iter().any(|line| line.name.starts_with("py::pyburn")), "{name}: {lines:?}");
    }
}

fn record_node(name: &str, option: &str, delay_ms: u32) -> Recording {
    let (data, script, out) = prepare(name, NODE);
    let mut command = Recording::perf(&data);
    // It puts its jitdump into the working directory.
    command.current_dir("/tmp").env("PASSENGER", format!("{delay_ms} {}", out.display()));
    command
        .arg("env")
        .arg(format!("LD_PRELOAD={}", spaceless(passenger()).display()))
        .args(["node", option])
        .arg(script)
        .arg(&out);
    record(command, data, &out)
}

/// That the runtime's own function has its name too.
fn check_jsburn(data: &Path, recording: &Recording) {
    let named = samples(data).iter().filter(|(_, _, sym)| sym.contains("jsburn")).count();
    assert!(named >= ENOUGH, "{named} samples in jsburn\n{:?}", recording.told);
}

/// The library is there before Node.js opens its files as if they were nobody's, and after it has: once with each kind of file, and
/// in a thorough run with both.
#[test]
fn node() {
    for (delay_ms, map, dump) in [(0, true, thorough()), (500, thorough(), true)] {
        if map {
            let recording = record_node(&format!("node-map-{delay_ms}"), "--perf-basic-prof", delay_ms);
            recording.check_names(&recording.data, "-");
            recording.told.check_map("-");
            check_jsburn(&recording.data, &recording);
        }
        if dump {
            let recording = record_node(&format!("node-dump-{delay_ms}"), "--perf-prof", delay_ms);
            let injected = recording.injected();
            recording.check_names(&injected, "-");
            recording.told.check_dumps("-");
            check_jsburn(&injected, &recording);
            assert_eq!(recording.told.dumps().len(), 2);
        }
    }
}
