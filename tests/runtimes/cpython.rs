//! CPython, whose compiled code is a trampoline for each Python function: under perf and gdb, and its own tests.

mod ends;
mod own_tests;
mod stock;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::recording::{at_least, built, STACKS};
use crate::perf;
use crate::support::{artifacts, root, run, scratch_dir, serial, stdout, until_enough, TmpFiles};

/// Samples that each phase has to have.
const ENOUGH: usize = 40;

fn python() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    // Its own tests want the program that was built, not a link to it.
    BUILT.get_or_init(|| built("cpython", "python3").canonicalize().expect("python3"))
}

/// A later version, which has other trampolines and frees them at other moments.
fn newer() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("newer-cpython", "python3").canonicalize().expect("python3"))
}

fn guest(name: &str) -> String {
    root().join("tests/runtimes").join(name).display().to_string()
}

/// Gives a command, which runs CPython, the library.
fn with_library(command: &mut Command) -> &mut Command {
    command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"))
}

/// How the user asks for names.
struct Way {
    name: &'static str,
    /// Of CPython.
    option: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// Of `perf record`.
    stacks: &'static [&'static str],
    inject: bool,
}

const MAP: Way = Way { name: "map", option: "perf", variables: &[], stacks: &["--call-graph", "fp"], inject: false };
const JITDUMP: Way = Way { name: "jitdump", option: "perf_jit", variables: &[], stacks: STACKS, inject: true };
const REGIONS: Way =
    Way { name: "regions", option: "perf", variables: &[("JITSYM", "region")], stacks: STACKS, inject: false };

/// What one process did from when to when.
struct Phase {
    pid: u32,
    name: String,
    from: f64,
    to: f64,
}

struct Sample {
    pid: u32,
    time: f64,
    /// The innermost first.
    symbols: Vec<String>,
    /// Whether the thread is the guest's, and not the library's.
    is_guest: bool,
}

impl Sample {
    /// The Python functions, without the file.
    fn functions(&self) -> Vec<&str> {
        let functions = self.symbols.iter().filter_map(|symbol| symbol.strip_prefix("py::"));
        functions.map(|function| function.split(':').next().unwrap_or_default()).collect()
    }

    /// Whether the stack goes down to where CPython begins, and each trampoline lies between the two functions in C that it
    /// connects. With frame pointers, perf misses a caller of the function that runs, if this function has not yet pushed or
    /// has already popped a frame pointer.
    fn is_whole(&self) -> bool {
        let is_between = |at: usize| {
            (at < 2 || self.symbols[at - 1] == "_PyEval_EvalFrameDefault")
                && (at == 0 || self.symbols.get(at + 1).is_some_and(|symbol| symbol == "py_trampoline_evaluator"))
        };
        let mut trampolines = (0..self.symbols.len()).filter(|&at| self.symbols[at].starts_with("py::"));
        self.symbols.iter().rev().take(5).any(|symbol| symbol == "Py_BytesMain") && trampolines.all(is_between)
    }

    /// Whether it may be of a function in C that has just popped its caller's frame pointer: perf copies the stack from the stack
    /// pointer up. The next function in C needs this frame pointer, trampolines between the two do not.
    fn is_cut(&self) -> bool {
        let [leaf, between @ .., last] = &self.symbols[..] else { return false };
        let is_trampoline = |symbol: &String| symbol.starts_with("py::");
        let is_in_c = |symbol: &String| !is_trampoline(symbol) && symbol != "[unknown]";
        is_in_c(leaf) && between.iter().all(is_trampoline) && is_in_c(last)
    }
}

struct Recording {
    phases: Vec<Phase>,
    samples: Vec<Sample>,
    _files: Vec<TmpFiles>,
}

impl Recording {
    /// Records a guest. The lines of its output are phases: process, if there are several, name, begin and end.
    fn of(python: &Path, way: &Way, guest: &str, seconds: f64) -> Recording {
        let data = scratch_dir("recordings").join("perf.data");
        let (output, files) = perf::whole(&data, || {
            let mut record = perf::perf("record");
            with_library(&mut record).envs(way.variables.iter().copied());
            record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999"]).args(way.stacks).arg("-o").arg(&data);
            record.arg(python).args(["-X", way.option, guest, &seconds.to_string()]);
            let output = {
                let _serial = serial();
                stdout(&run(&mut record))
            };
            let pids = stdout(&run(perf::perf("script").args(["-G", "-F", "pid", "-i"]).arg(&data)));
            let mut pids: Vec<u32> = pids.lines().filter_map(|line| line.trim().parse().ok()).collect();
            pids.sort_unstable();
            pids.dedup();
            (output, pids.into_iter().map(TmpFiles).collect::<Vec<_>>())
        });
        let phases = output.lines().map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let (pid, rest) = if fields.len() == 4 { (fields[0], &fields[1..]) } else { ("0", &fields[..]) };
            let pid = if pid == "0" { files[0].0 } else { pid.parse().expect("process") };
            let number = |at: usize| rest[at].parse().unwrap_or_else(|_| panic!("the guest printed {line:?}"));
            Phase { pid, name: rest[0].into(), from: number(1), to: number(2) }
        });
        let phases = phases.collect();
        let data = if way.inject {
            let injected = data.with_extension("injected");
            run(perf::perf("inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&injected));
            injected
        } else {
            data
        };
        let script = run(perf::perf("script").args(["--no-inline", "-F", "comm,pid,time,ip,sym", "-i"]).arg(&data));
        Recording { phases, samples: samples(&stdout(&script)), _files: files }
    }

    /// One in which each phase has enough samples.
    fn long_enough(python: &Path, way: &Way, guest: &str) -> Recording {
        until_enough(ENOUGH, |pace| {
            let recording = Recording::of(python, way, guest, 0.2 * f64::from(pace));
            let fewest = recording.phases.iter().map(|phase| recording.during(phase).count()).min();
            (recording, fewest.unwrap_or(0))
        })
    }

    fn during(&self, phase: &Phase) -> impl Iterator<Item = &Sample> {
        let (pid, during) = (phase.pid, phase.from..phase.to);
        let samples = self.samples.iter().filter(|sample| sample.is_guest && !sample.is_cut());
        samples.filter(move |sample| sample.pid == pid && during.contains(&sample.time))
    }

    /// That nearly all samples of a phase are right.
    fn check(&self, what: &str, phase: &Phase, is_right: impl Fn(&Sample) -> bool) {
        let all: Vec<&Sample> = self.during(phase).collect();
        let right = all.iter().filter(|sample| is_right(sample)).count();
        let wrong = || format!("{:?}", all.iter().find(|sample| !is_right(sample)).map(|sample| &sample.symbols));
        at_least(&format!("{what}, {} of {}", phase.name, phase.pid), right, all.len(), ENOUGH, 98, wrong);
    }
}

/// The samples that `perf script` prints: a line with command, process and time, and a line for each frame.
fn samples(script: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in script.lines().filter(|line| !line.is_empty()) {
        if let Some(time) = line.trim_end().strip_suffix(':') {
            let fields: Vec<&str> = time.split_whitespace().collect();
            let [command, pid, time] = fields[..] else { panic!("perf script printed {line:?}") };
            let (pid, time) = (pid.parse().expect("process"), time.parse().expect("time"));
            samples.push(Sample { pid, time, symbols: Vec::new(), is_guest: !command.starts_with("jitsym") });
        } else {
            let symbol = line.trim().split_once(' ').unwrap_or_else(|| panic!("perf script printed {line:?}")).1;
            samples.last_mut().expect("a sample").symbols.push(symbol.into());
        }
    }
    samples
}

/// The stacks of `hot.py`: names, callers, and down to where CPython begins.
fn check_stacks(way: &Way) {
    let recording = Recording::long_enough(python(), way, &guest("hot.py"));
    assert_eq!(recording.phases.len(), 4);
    for phase in &recording.phases {
        let (stack, is_main): (&[&str], bool) = match &*phase.name {
            "first" => (&["burn", "first_inner", "first_outer", "main", "<module>"], true),
            "second" => (&["burn", "second_inner", "Second.outer", "main", "<module>"], true),
            "library" => (&["library", "main", "<module>"], true),
            _ => (&["burn", "first_inner", "first_outer", "Thread.run"], false),
        };
        // The C library has no frame pointers.
        if phase.name == "library" && !way.stacks.contains(&"dwarf,16384") {
            continue;
        }
        recording.check(way.name, phase, |sample| {
            let functions = sample.functions();
            // `now`, too, is called by these.
            let from = functions.iter().position(|function| *function == stack[0]);
            from.is_some_and(|from| functions[from..].starts_with(stack)) && (!is_main || sample.is_whole())
        });
    }
    // Not only the function, but where it is.
    let named = format!("py::burn:{}", guest("hot.py"));
    assert!(recording.samples.iter().any(|sample| sample.symbols.contains(&named)), "no {named}");
}

#[test]
fn cpython_with_a_map() {
    check_stacks(&MAP);
}

#[test]
fn cpython_with_a_jitdump() {
    check_stacks(&JITDUMP);
}

#[test]
fn cpython_in_regions() {
    check_stacks(&REGIONS);
}

/// Parent, child and grandchild have names for what they have compiled and for what they have inherited.
fn check_forks(python: &Path, way: &Way) {
    let recording = Recording::long_enough(python, way, &guest("forks.py"));
    assert_eq!(recording.phases.len(), 8);
    for phase in &recording.phases {
        recording.check(way.name, phase, |sample| {
            let functions = sample.functions();
            let from = functions.iter().position(|function| *function == "burn");
            from.is_some_and(|from| functions[from + 1..].starts_with(&[&phase.name, "phase"])) && sample.is_whole()
        });
    }
}

#[test]
fn cpython_forks_with_a_map() {
    check_forks(python(), &MAP);
}

#[test]
fn cpython_forks_with_a_jitdump() {
    check_forks(python(), &JITDUMP);
}

#[test]
fn cpython_forks_in_regions() {
    check_forks(python(), &REGIONS);
}

#[test]
fn newer_cpython_forks_with_a_jitdump() {
    check_forks(newer(), &JITDUMP);
}

#[test]
fn newer_cpython_forks_in_regions() {
    check_forks(newer(), &REGIONS);
}

/// The Python functions, with their lines, in gdb's stacks at each call of `os.getppid`. Each lies between functions in C.
fn stacks_in_gdb(options: &[&str], guest: &str, calls: usize) -> Vec<Vec<String>> {
    let mut gdb = perf::command("gdb");
    with_library(&mut gdb).args(["-batch", "-nx", "-ex", "set debuginfod enabled off"]);
    gdb.args(["-ex", "break os_getppid", "-ex", "run", "-ex", "echo \\nstack\\n", "-ex", "bt"]);
    for _ in 1..calls {
        gdb.args(["-ex", "continue", "-ex", "echo \\nstack\\n", "-ex", "bt"]);
    }
    gdb.arg("--args").arg(python()).args(options).arg(guest);
    let text = stdout(&run(&mut gdb));
    let stacks = text.split("\nstack\n").skip(1).map(|stack| {
        let frames: Vec<&str> = stack.lines().filter(|line| line.starts_with('#')).collect();
        assert!(frames.iter().any(|frame| frame.contains(" in Py_BytesMain (")), "{text}");
        assert!(!frames.iter().any(|frame| frame.contains(" ?? ")), "{text}");
        let is_function = |at: &usize| frames[*at].contains(" py::");
        let functions: Vec<usize> = (0..frames.len()).filter(is_function).collect();
        for at in &functions {
            assert!(frames[at - 1].contains(" _PyEval_EvalFrameDefault ("), "{text}");
            assert!(frames[at + 1].contains(" py_trampoline_evaluator ("), "{text}");
        }
        functions.iter().map(|at| frames[*at].split_once(" py::").expect("a function").1.replace(guest, "")).collect()
    });
    stacks.collect()
}

/// gdb shows the Python functions, with their lines, between those of CPython, from C code down to where CPython begins.
#[test]
fn cpython_in_gdb() {
    let stacks = stacks_in_gdb(&["-X", "perf_jit"], &guest("called.py"), 1);
    assert_eq!(stacks, [["inner: () at :6", "Middle.__call__: () at :11", "outer: () at :15", "<module>: () at :1"]]);
}

/// Functions have trampolines while these are on: also functions that ran before, and those that had trampolines earlier.
#[test]
fn cpython_switches_in_gdb() {
    let (inner, outer, new) = ("inner: () at :6", "outer: () at :10", "new: () at :14");
    let expected = [vec![], vec![inner, outer], vec![], vec![inner, outer], vec![new]];
    assert_eq!(stacks_in_gdb(&[], &guest("switched.py"), expected.len()), expected);
}
