//! perf as a reader: record, inject, script, report and annotate, as a user would call them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::attach::{self, Held};
use crate::matrix::{Outcome, Task, What};
use crate::program::{self, Leftovers, Program, Scenario, Written};
use crate::score::{self, Sample, Share};
use crate::suites::{self, Cache};
use crate::truth::{Truth, Unwind};
use crate::{annotate, mirror, report, run, script};

/// A perf, and where it finds its objdump.
pub struct Perf {
    pub version: String,
    path: PathBuf,
    objdump: PathBuf,
}

/// How frames are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Graph {
    FramePointers,
    Dwarf,
}

/// A way to use perf.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub name: &'static str,
    pub graph: Graph,
    pub written: Written,
    /// perf comes when the process is there already.
    pub attach: bool,
}

impl Mode {
    /// Whether there is anything to learn: attaching differs from starting in what perf finds at its beginning.
    pub fn is_about(&self, scenario: &str) -> bool {
        let found = ["gaps", "frame-pointers", "many", "threads", "attach-late", "namespace", "region-adopted"];
        self.written.is_about(scenario) && (!self.attach || found.contains(&scenario))
    }

    pub const fn new(name: &'static str, graph: Graph, written: Written) -> Mode {
        Mode { name, graph, written, attach: false }
    }
}

pub const MODES: &[Mode] = &[
    Mode::new("dwarf", Graph::Dwarf, Written::Jitdump),
    Mode::new("fp", Graph::FramePointers, Written::Jitdump),
    Mode { attach: true, ..Mode::new("attach", Graph::Dwarf, Written::Jitdump) },
    Mode::new("map", Graph::FramePointers, Written::Map),
    Mode::new("region", Graph::Dwarf, Written::Region),
    Mode { attach: true, ..Mode::new("region-attach", Graph::Dwarf, Written::Region) },
    Mode::new("adopted", Graph::Dwarf, Written::Adopted),
];

/// A run of the program under `perf record`, or stepped, with the files that it has left.
pub struct Recording {
    /// Lives until this is dropped, if that was asked for; its files go after it.
    pub _program: Lives,
    pub truth: Truth,
    pub data: PathBuf,
    pub _leftovers: Leftovers,
}

/// Who keeps a program alive, if anybody does.
#[allow(dead_code, reason = "they are there to be dropped")]
pub enum Lives {
    Not,
    Started(Held),
    Stepped(jitsym_step::Held),
}

/// How often samples are taken; no divisor of anything.
const FREQUENCY: &str = "1499";
/// How much of the stack is copied.
const STACK_SIZE: &str = "dwarf,16384";

impl Perf {
    fn new(path: PathBuf, objdump: PathBuf) -> Result<Self> {
        let version = run::stdout(run::command(&path).arg("--version"))?;
        let version = version.trim().trim_start_matches("perf version ").to_string();
        Ok(Perf { version, path, objdump })
    }

    /// That of a Debian suite, which is fetched if it is not this machine's own.
    pub fn of_suite(cache: &Cache, suite: &str) -> Result<Self> {
        if mirror::own_suite().as_deref() == Some(suite) {
            return Perf::new("perf".into(), "objdump".into());
        }
        let bin = cache.commands(suite, &suites::PERF)?;
        Perf::new(bin.join("perf"), bin.join("objdump"))
    }

    pub fn command(&self, dir: &Path, subcommand: &str) -> Command {
        let mut command = run::command("env");
        if subcommand == "script" {
            // perf 6.1 writes to an addr2line that may have ended: it cannot read a mapping such as `//anon`.
            command.arg("--ignore-signal=PIPE");
        }
        command.arg(&self.path).current_dir(dir).arg("--buildid-dir").arg(dir.join("buildid")).arg(subcommand);
        command
    }

    /// Records a scenario.
    pub fn record(&self, program: &Program, task: &Task, mode: &Mode) -> Result<Recording> {
        let scenario = task.run(mode.written);
        let scenario = Scenario { wait: mode.attach || scenario.hold, ..scenario };
        let program = program.of(mode.graph);
        let data = task.dir.join("perf.data");
        let mut record = self.command(task.dir, "record");
        record.args(["-e", "cpu-clock", "-k", "CLOCK_MONOTONIC", "-F", FREQUENCY, "-m", "4M", "-o"]).arg(&data);
        record.args(["--call-graph", if mode.graph == Graph::Dwarf { STACK_SIZE } else { "fp" }]);
        let program = if scenario.wait {
            attach::record(record, program, &scenario, task.dir)
        } else {
            record.arg("--").arg(program).args(scenario.arguments());
            run::success(&mut record).map(|_| None)
        };
        // Its files are to go even if it has failed.
        let leftovers = Leftovers::of(&scenario.truth);
        let program = program?.map_or(Lives::Not, Lives::Started);
        Ok(Recording { _program: program, truth: scenario.truth()?, data, _leftovers: leftovers })
    }

    /// Scores what perf makes of a recording.
    pub fn measure(&self, recording: &Recording, dir: &Path, mode: &Mode) -> Result<Outcome> {
        let truth = &recording.truth;
        let is_jitdump = mode.written == Written::Jitdump;
        let data = match is_jitdump {
            true if truth.options.get("gap").is_some_and(|gap| gap == "yes") => self.inject(dir, &recording.data)?,
            true => self.inject_with(&program::build_tool()?, dir, &recording.data)?,
            false => recording.data.clone(),
        };
        let flat = script::parse(&self.script(dir, &data, &["-G", "-F", script::FIELDS])?)?;
        let stacks = script::parse(&self.script(dir, &data, &["-F", script::FIELDS])?)?;
        let samples = script::samples(truth, &flat, &stacks)?;
        let whole = match truth.unwind()? {
            Unwind::Both => true,
            Unwind::FramePointers => mode.graph == Graph::FramePointers,
            Unwind::Dwarf => mode.graph == Graph::Dwarf,
            Unwind::Neither => false,
        };
        let score = score::score(truth, &samples, whole);
        let mut outcome = Outcome::of(score);
        outcome.shares.push((What::Report, self.report(dir, &data, &samples)?));
        if mode.written != Written::Map {
            // With the perf map there is no code to show.
            if let Some((name, taken)) = annotate::hottest(truth, &samples) {
                // It is the one command of perf that was seen to crash; what the others have shown counts all the same.
                let shown = self.annotate(dir, &data, &name).unwrap_or_else(|error| {
                    outcome.wrong.push(format!("{error:#}"));
                    BTreeMap::new()
                });
                outcome.shares.push((What::Annotate, annotate::compare(&taken, &shown)));
            }
            if truth.codes.iter().any(|code| !code.lines.is_empty()) {
                let fields = format!("{},srcline", script::FIELDS);
                let lines = script::parse(&self.script(dir, &data, &["-G", "-F", &fields])?)?;
                outcome.shares.push((What::Lines, script::lines(truth, &lines)));
            }
        }
        Ok(outcome)
    }

    pub fn inject(&self, dir: &Path, data: &Path) -> Result<PathBuf> {
        let injected = dir.join("injected.data");
        run::success(self.command(dir, "inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected))?;
        Ok(injected)
    }

    /// The same by `jitsym inject`, the program `tool`.
    pub fn inject_with(&self, tool: &Path, dir: &Path, data: &Path) -> Result<PathBuf> {
        let injected = dir.join("injected.data");
        run::success(run::command(tool).current_dir(dir).arg("inject").arg("-i").arg(data).arg("-o").arg(&injected))?;
        Ok(injected)
    }

    pub fn script(&self, dir: &Path, data: &Path, options: &[&str]) -> Result<String> {
        let mut script = self.command(dir, "script");
        script.arg("-i").arg(data).args(["--ns", "--no-inline"]).args(options);
        run::stdout(&mut script)
    }

    /// How many of the samples `perf report` gives to the symbols that `perf script` gives them to.
    fn report(&self, dir: &Path, data: &Path, samples: &[Sample]) -> Result<Share> {
        let mut report = self.command(dir, "report");
        report.arg("-i").arg(data).args(["--stdio", "-q", "--no-children", "-g", "none", "-s", "sym"]);
        report.args(["-F", "sample,sym", "-t", report::SEPARATOR, "--percent-limit", "0"]);
        let reported = report::parse(&run::stdout(&mut report)?)?;
        let mut scripted: HashMap<String, usize> = HashMap::new();
        for sample in samples {
            *scripted.entry(sample.name.clone().unwrap_or_default()).or_default() += 1;
        }
        Ok(report::compare(&scripted, &reported))
    }

    /// At which offsets of a function `perf annotate` shows how many samples.
    fn annotate(&self, dir: &Path, data: &Path, name: &str) -> Result<BTreeMap<u64, usize>> {
        let mut annotate = self.command(dir, "annotate");
        annotate.arg("-i").arg(data).args(["--stdio", "--stdio-color", "never", "--objdump"]).arg(&self.objdump);
        annotate::parse(&run::stdout(annotate.args(["-s", name]))?)
    }
}
