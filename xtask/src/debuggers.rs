//! gdb and lldb as readers: the program is started in them, interrupted again and again, and all threads' stacks are compared with
//! what was run at that moment.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::attach::{Held, Killed};
use crate::eu_stack::{Shown, Snapshot};
use crate::matrix::{Outcome, Task};
use crate::perf::{Graph, Mode};
use crate::program::{Leftovers, Program, Scenario, Written};
use crate::score::{self, Sample};
use crate::suites::{self, Cache};
use crate::truth::{Truth, Unwind};
use crate::{eu_stack, mirror, run};

pub const MODES: &[Mode] = &[Mode::new("stops", Graph::Dwarf, Written::Map)];

/// What differs for debuggers: frames, names, and what becomes of code while they listen.
const SCENARIOS: &[&str] = &[
    "packed-up",
    "memfd",
    "row-tables",
    "fixed-frame",
    "ready-eh-frame",
    "leaf-functions",
    "deep-recursion-rows",
    "callbacks",
    "host-calls",
    "moves",
    "moves-overlapping",
    "reuse",
    "reuse-other-frames",
    "odd-names",
    "threads",
];

pub fn is_about(scenario: &str) -> bool {
    SCENARIOS.contains(&scenario)
}

/// So many times the program is stopped for each second. After that it runs to its end.
const STOPS: f64 = 300.0;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Gdb,
    Lldb,
}

/// The words by which what a debugger prints is told apart. They are printed when the program is stopped, and when it goes on.
struct Marks {
    stopped: &'static str,
    goes_on: &'static str,
}

const GDB: Marks = Marks { stopped: "@stopped", goes_on: "@goes on" };
/// Its own echo of what it is told.
const LLDB: Marks = Marks { stopped: "(lldb) bt all", goes_on: "(lldb) process continue" };

pub struct Debugger {
    pub which: Which,
    pub version: String,
    path: PathBuf,
}

impl Debugger {
    /// That of a Debian suite, which is fetched if it is not this machine's own.
    pub fn of_suite(cache: &Cache, suite: &str, which: Which) -> Result<Self> {
        let name = which.name();
        let path = match mirror::own_suite().as_deref() == Some(suite) {
            true => name.into(),
            false => cache.commands(suite, &suites::DEBUGGERS)?.join(name),
        };
        let text = run::stdout(run::command(&path).arg("--version"))?;
        let version = text.lines().next().and_then(|line| line.split(' ').next_back()).context("version")?.into();
        Ok(Debugger { which, version, path })
    }

    pub fn measure(&self, program: &Program, task: &Task, mode: &Mode) -> Result<Outcome> {
        let scenario = Scenario {
            name: task.scenario,
            written: mode.written,
            count: task.count,
            seconds: 2.0 * task.seconds,
            truth: task.dir.join("truth"),
            wait: false,
            hold: false,
            step: false,
        };
        let count = (STOPS * task.seconds) as usize;
        let mut command = self.command(&program.by_tables, &scenario, count);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut debugger = Killed(command.spawn().with_context(|| format!("cannot start {}", self.path.display()))?);
        let output = BufReader::new(debugger.0.stdout.take().context("no standard output")?);
        let stops = stop_often(output, self.which.marks(), &scenario, count);
        debugger.0.wait()?;
        let _leftovers = Leftovers::of(&scenario.truth);
        let stops = stops?;
        let truth = scenario.truth()?;
        let whole = truth.unwind()? != Unwind::Neither;
        let samples: Vec<Sample> = stops.iter().flat_map(|stop| self.which.samples(stop, &truth, whole)).collect();
        Ok(Outcome::of(score::score(&truth, &samples, whole)))
    }

    /// Starts the program, and shows all stacks whenever it has stopped.
    fn command(&self, program: &Path, scenario: &Scenario, count: usize) -> Command {
        let mut command = run::command(&self.path);
        match self.which {
            Which::Gdb => {
                command.args(["-q", "-nx", "-batch"]);
                for setting in [
                    "set pagination off",
                    "set width 0",
                    "set style enabled off",
                    "set debuginfod enabled off",
                    "set print frame-info location-and-address",
                    "set print frame-arguments none",
                    "set print demangle off",
                    "echo @goes on\\n",
                ] {
                    command.args(["-ex", setting]);
                }
                let arguments =
                    scenario.arguments().iter().map(|argument| format!("'{argument}'")).collect::<Vec<_>>().join(" ");
                command.args(["-ex", &format!("run {arguments} >/dev/null")]);
                for word in ["echo @stopped\\n", "thread apply all bt", "echo @goes on\\n", "continue"]
                    .iter()
                    .cycle()
                    .take(4 * count)
                {
                    command.args(["-ex", word]);
                }
                command.arg(program);
            }
            Which::Lldb => {
                command.args(["-b", "--no-lldbinit"]);
                for setting in [
                    "settings set thread-stop-format \"TID ${thread.id}\\n\"",
                    "settings set stop-disassembly-display never",
                    "settings set stop-line-count-before 0",
                    "settings set stop-line-count-after 0",
                    "settings set frame-format \"#${frame.index} ${frame.pc} ${function.name}\\n\"",
                    // An interrupt at the beginning, so that what is told next is to go on.
                    "process launch -s -o /dev/null",
                ] {
                    command.args(["-o", setting]);
                }
                for word in ["process continue", "bt all"].iter().cycle().take(2 * count + 1) {
                    command.args(["-o", word]);
                }
                command.arg("--").arg(program).args(scenario.arguments());
            }
        }
        command
    }
}

/// Interrupts the program some time after it goes on, and collects what is printed while it stands still. Lines are read some time
/// after they were printed, so that it stopped at some time between the interrupt and now.
fn stop_often(mut output: impl BufRead, marks: &Marks, scenario: &Scenario, count: usize) -> Result<Vec<Snapshot>> {
    let (mut stops, mut line, mut is_stopped) = (Vec::<Snapshot>::new(), Vec::new(), false);
    let (mut pid, mut from) = (None, 0);
    while output.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line).into_owned();
        if text.trim_end() == marks.stopped {
            is_stopped = true;
            stops.push(Snapshot { from, to: run::now(), text: String::new() });
        } else if text.trim_end() == marks.goes_on {
            is_stopped = false;
            if stops.len() < count {
                let pid = match pid {
                    Some(pid) => pid,
                    None => *pid.insert(wait_for_pid(scenario)?),
                };
                std::thread::sleep(Duration::from_micros(1500 + 977 * (stops.len() as u64 % 7)));
                from = run::now();
                // SAFETY: no memory is passed. The debugger's child has not been waited for, or has ended just now.
                unsafe { libc::kill(pid as i32, libc::SIGINT) };
            }
        } else if let (true, Some(stop)) = (is_stopped, stops.last_mut()) {
            stop.text += &text;
        }
        line.clear();
    }
    Ok(stops)
}

/// The program prints its process id when it has begun.
fn wait_for_pid(scenario: &Scenario) -> Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match Held::pid(scenario) {
            Ok(pid) => return Ok(pid),
            Err(error) if Instant::now() > deadline => bail!("the program does not begin: {error:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

impl Which {
    pub fn name(self) -> &'static str {
        match self {
            Which::Gdb => "gdb",
            Which::Lldb => "lldb",
        }
    }

    fn marks(self) -> &'static Marks {
        match self {
            Which::Gdb => &GDB,
            Which::Lldb => &LLDB,
        }
    }

    /// One for each thread that runs something then.
    fn samples(self, stop: &Snapshot, truth: &Truth, whole: bool) -> Vec<Sample> {
        let mut threads: Vec<(u32, Vec<Shown>)> = Vec::new();
        for line in stop.text.lines() {
            if let Some(tid) = self.thread(line) {
                threads.push((tid, Vec::new()));
            } else if let (Some((_, frames)), Some((address, name))) = (threads.last_mut(), self.frame(line)) {
                let address = if frames.is_empty() { address } else { address.saturating_sub(1) };
                frames.push(Shown { address, name, module: None });
            }
        }
        threads.iter().filter_map(|(tid, frames)| eu_stack::sample(stop, truth, *tid, frames, whole)).collect()
    }

    /// The id in the heading of a thread: `Thread 2 (Thread 0x7ffff (LWP 123) "name"):`, or as the format above has it.
    fn thread(self, line: &str) -> Option<u32> {
        let id = match self {
            Which::Gdb if line.starts_with("Thread ") => line.split_once("LWP ")?.1,
            Which::Gdb => return None,
            Which::Lldb => line.trim_start_matches(['*', ' ']).strip_prefix("TID ")?,
        };
        match id.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex.trim(), 16).ok(),
            None => id.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok(),
        }
    }

    /// Address and name: `#1  0x0000000000001004 in NAME (...) at FILE:LINE`, or as the format above has it.
    fn frame(self, line: &str) -> Option<(u64, Option<String>)> {
        let line = line.trim_start_matches(['*', ' ']).strip_prefix('#')?;
        let (_, rest) = line.split_once("0x")?;
        let (address, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let address = u64::from_str_radix(address, 16).ok()?;
        let name = match self {
            Which::Gdb => {
                let name = rest.strip_prefix("in ")?;
                name.rfind(" (").map_or(name, |at| &name[..at])
            }
            Which::Lldb => rest,
        };
        Some((address, (!name.is_empty() && name != "??").then(|| name.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GDB_SAYS: &str = "\nThread 2 (Thread 0x7ffff6a3d740 (LWP 8) \"jitsym-host\"):\n\
        #0  0x00007ffff7cfb829 in syscall () from /lib/x86_64-linux-gnu/libc.so.6\n\n\
        Thread 1 (LWP 7 \"matrix_jit\" (id 1)):\n\
        #0  0x0000000000001004 in leaf (of two) () at a.toy:3\n\
        #1  0x0000000000002005 in mid ()\n\
        #2  0x00005555555568ff in main (...) at main.c:156\n\
        #3  0x00005555555568ff in ?? ()\nBacktrace stopped\n";
    const LLDB_SAYS: &str = "* TID 0x7\n  * #0 0x0000000000001004 leaf (of two)\n    #1 0x0000000000002005 mid\n    \
        #2 0x00005555555568ff main\n    #3 0x00005555555568ff \n  TID 0x8\n    #0 0x00007ffff7cfb829 syscall\n";

    /// The same stack as both print it, compared with what was run.
    #[test]
    fn stacks_of_debuggers_are_read() {
        let text = "pid\t7\ncode\t1\t1000\t10\t0\t0\tleaf (of two)\ncode\t2\t2000\t10\t0\t0\tmid\n\
            run\t7\t10\t20\t2,?\nrun\t7\t30\t40\t1,2,*main,?\nend\n";
        let truth = Truth::parse(text).unwrap();
        for (which, text) in [(Which::Gdb, GDB_SAYS), (Which::Lldb, LLDB_SAYS)] {
            let stop = |from, to| Snapshot { from, to, text: text.into() };
            let found = which.samples(&stop(15, 35), &truth, true);
            let [sample] = &found[..] else { panic!("{found:?}") };
            assert_eq!((sample.tid, sample.time, sample.ip), (7, 30, 0x1004), "the stack that was run then");
            assert_eq!((sample.frames.len(), &sample.frames[3].name), (4, &None));
            let score = score::score(&truth, &found, true);
            assert_eq!((score.names.right, score.stacks.right), (1, 1), "{score:?}");
            let others = which.samples(&stop(12, 20), &truth, true);
            assert_eq!(score::score(&truth, &others, true).stacks.right, 0, "the stack is of another time");
            assert!(which.samples(&stop(50, 60), &truth, true).is_empty(), "nothing is known of that time");
        }
    }

    /// Lines that are printed while the program runs are no stack.
    #[test]
    fn stops_are_told_apart() {
        let said = "begin\n@goes on\nnoise\n@stopped\none\ntwo\n@goes on\nnoise\n@stopped\nthree\n";
        let scenario = Scenario {
            name: "",
            written: Written::Map,
            count: 0,
            seconds: 0.0,
            truth: PathBuf::new(),
            wait: false,
            hold: false,
            step: false,
        };
        let stops = stop_often(said.as_bytes(), &GDB, &scenario, 0).unwrap();
        let texts: Vec<&str> = stops.iter().map(|stop| &*stop.text).collect();
        assert_eq!(texts, ["one\ntwo\n", "three\n"]);
    }
}
