//! Runtimes with an own support of perf, which `jitsym record` turns on: unmodified Node.js, and a newer Python than the system's.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{fetched, fresh_dir, run, run_to_its_end, scratch_dir, serial, stdout, until_enough};
use crate::{jitsym, perf, said};

const JAVASCRIPT: &str = "function leaf(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
function middle(n) { return leaf(n) ^ leaf(n + 1); }
const end = Date.now() + 1000 * process.argv[2];
let s = 0;
while (Date.now() < end) s ^= middle(5000);
console.log(process.env.NODE_OPTIONS);
";

const PYTHON: &str = "import os, sys, time
def leaf(n):
    s = 0
    for i in range(n): s = (s * 31 + i) & 0xffffff
    return s
def middle(n): return leaf(n) ^ leaf(n + 1)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: middle(500)
print(os.environ.get('PYTHON_PERF_JIT_SUPPORT'))
";

/// The result of a recording: the output of the command, the lines of `jitsym record`, and the hottest functions.
struct Recorded {
    output: String,
    said: String,
    top: String,
}

/// Records a script in a directory of its own, in which some runtimes write.
fn record(dir: &Path, program: &Path, script: &Path, seconds: f64, options: &[&str]) -> Recorded {
    let data = dir.join("perf.data");
    let mut command = jitsym(&["record", "-e", "cpu-clock", "-o"]);
    command.current_dir(dir).arg(&data).args(options).arg("--").arg(program).arg(script).arg(seconds.to_string());
    for name in ["NODE_OPTIONS", "PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT"] {
        command.env_remove(name);
    }
    let output = run_to_its_end(&mut command);
    assert!(output.status.success(), "{output:?}");
    let top = stdout(&run_to_its_end(jitsym(&["top"]).arg(&data)));
    Recorded { output: stdout(&output), said: said(&output), top }
}

fn script(name: &str, text: &str) -> PathBuf {
    let path = scratch_dir("runtimes").join(name);
    fs::write(&path, text).expect("script");
    path
}

/// The share of samples in compiled code that have whole stacks, in percent.
fn share(said: &str, what: &str) -> f64 {
    let line = said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {said}"));
    let (_, share) = line.rsplit_once('(').expect("a share");
    share.trim_end_matches(" %)").parse().expect("a number")
}

/// Optimised functions and those that V8 interprets have names, and stacks are whole. Without the setup, no name is there.
#[test]
fn node() {
    let _alone = serial();
    let script = script("hot.js", JAVASCRIPT);
    let found = until_enough(1, |pace| {
        let dir = fresh_dir("node");
        let found = record(&dir, Path::new("node"), &script, pace.into(), &[]);
        let enough = usize::from(["leaf", "middle"].iter().all(|name| found.top.contains(name)));
        (found, enough)
    });
    assert_eq!(found.output, "--perf-prof --interpreted-frames-native-stack\n");
    let said = &found.said;
    for part in [
        "set for Node.js: NODE_OPTIONS=",
        "V8 writes jit-PID.dump",
        "--no-runtime-setup",
        "stacks by frame pointers",
        "have samples: put in, with files in",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(share(said, "have names") >= 99.0 && share(said, "have whole stacks") >= 90.0, "{said}");
    assert!(found.top.contains("leaf ") && found.top.contains("hot.js:1:14  [JIT]"), "{}", found.top);

    let found = record(&fresh_dir("node-alone"), Path::new("node"), &script, 0.5, &["--no-runtime-setup"]);
    assert_eq!(found.output, "undefined\n");
    assert!(!found.said.contains("Node.js") && !found.top.contains("leaf"), "{} {}", found.said, found.top);
    assert!(found.said.contains("stacks by unwind tables"), "{}", found.said);
}

/// The choice of the user stays: here, a perf map and stacks by unwind tables.
#[test]
fn node_as_the_user_wants_it() {
    let _alone = serial();
    let (dir, script) = (fresh_dir("node-map"), script("map.js", JAVASCRIPT));
    let mut command = jitsym(&["record", "-e", "cpu-clock", "-g", "none", "-o"]);
    command.current_dir(&dir).arg(dir.join("perf.data")).args(["--", "env", "node", "--perf-basic-prof"]).arg(script);
    let output = run_to_its_end(command.arg("0.5").env_remove("NODE_OPTIONS"));
    assert_eq!(stdout(&output), "undefined\n", "{output:?}");
    assert!(said(&output).contains("Node.js: the command or the environment already says"), "{output:?}");
    assert!(said(&output).contains("no stacks") && !said(&output).contains("put in"), "{output:?}");
    assert!(names(&dir).iter().any(|name| name.starts_with("isolate")), "the user has asked for these files");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A runtime that refuses what would be set for it runs as it would without this program. A failure names the option that sets
/// nothing.
#[test]
fn a_runtime_that_refuses() {
    let _alone = serial();
    let dir = fresh_dir("refusing");
    let program = dir.join("node");
    for (refused, status) in [("*--perf-prof*", 0), ("nothing", 0), ("nothing", 3)] {
        let cases = format!("case \"$NODE_OPTIONS\" in\n{refused}) exit 9 ;;\nesac\n");
        let text = format!("#!/bin/sh\n{cases}[ \"$1\" = --version ] || exit {status}\n");
        fs::write(&program, text).expect("script");
        run(perf::command("chmod").arg("+x").arg(&program));
        let mut command = jitsym(&["record", "-e", "cpu-clock", "-o"]);
        command.arg(dir.join("perf.data")).arg("--").arg(&program).arg("x").env_remove("NODE_OPTIONS");
        let output = run_to_its_end(&mut command);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        let is_set = refused == "nothing";
        assert_eq!(text.contains("set for Node.js"), is_set, "{text}");
        assert_eq!(text.contains("Node.js: it does not start with its support of perf turned on"), !is_set, "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert_eq!(last.contains("--no-runtime-setup"), status != 0, "{text}");
    }
    // perf itself fails.
    let mut command = jitsym(&["record", "-e", "no-such-event", "-o"]);
    let output = run_to_its_end(command.arg(dir.join("perf.data")).arg("--").arg(&program).env_remove("NODE_OPTIONS"));
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said(&output).lines().last().is_some_and(|line| line.contains("--no-runtime-setup")), "{output:?}");
}

/// A Python that writes jitdumps.
#[test]
fn python() {
    let _alone = serial();
    let (program, script) = (fetched("python3.13"), script("hot.py", PYTHON));
    let (found, stacks) = until_enough(1, |pace| {
        let dir = fresh_dir("python");
        let found = record(&dir, &program, &script, pace.into(), &[]);
        let stacks = stdout(&run(perf::perf("script").args(["-F", "ip,sym", "-i"]).arg(dir.join("perf.data"))));
        let enough = usize::from(found.said.contains("have names"));
        ((found, stacks), enough)
    });
    assert_eq!(found.output, "1\n");
    let said = &found.said;
    assert!(said.contains("PYTHONPERFSUPPORT=1 PYTHON_PERF_JIT_SUPPORT=1"), "{said}");
    assert!(said.contains("have samples: put in, with files in") && share(said, "have names") >= 99.0, "{said}");
    assert!(share(said, "have whole stacks") >= 90.0, "{said}");
    assert!(found.top.contains("py::leaf:") && stacks.contains("py::middle:"), "{}", found.top);
}
