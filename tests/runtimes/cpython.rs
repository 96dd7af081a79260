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
    Way { name: "regions", option: "perf", variables: &[("JITSYM_ADOPT", "1")], stacks: STACKS, inject: false };

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

    fn is_whole(&self) -> bool {
        self.symbols.iter().rev().take(5).any(|symbol| symbol == "Py_BytesMain")
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
    assert_eq!(recording.phases.len(), 7);
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

/// gdb shows the Python functions, with their lines, between those of CPython, from C code down to where CPython begins.
#[test]
fn cpython_in_gdb() {
    let guest = guest("called.py");
    let mut gdb = perf::command("gdb");
    with_library(&mut gdb).args(["-batch", "-nx", "-ex", "set debuginfod enabled off"]);
    gdb.args(["-ex", "break os_getppid", "-ex", "run", "-ex", "bt"]);
    gdb.arg("--args").arg(python()).args(["-X", "perf_jit", &guest]);
    let text = stdout(&run(&mut gdb));
    let stack: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let mut at = 0;
    for (function, line) in [("inner", 6), ("Middle.__call__", 11), ("outer", 15), ("<module>", 1)] {
        let wanted = format!(" py::{function}:{guest} () at {guest}:{line}");
        let found = stack[at..].iter().position(|frame| frame.ends_with(&wanted));
        at += found.unwrap_or_else(|| panic!("no {wanted}: {text}"));
    }
    assert!(stack[at..].iter().any(|frame| frame.contains(" in Py_BytesMain (")), "{text}");
    assert!(!stack.iter().any(|frame| frame.contains(" ?? ")), "{text}");
}
