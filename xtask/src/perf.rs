//! perf as a reader: record, inject, script, report and annotate, as a user would call them.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{bail, Context, Result};

use crate::program::{Leftovers, Program, Scenario};
use crate::score::{self, Sample, Score, Share};
use crate::script;
use crate::truth::{Truth, Unwind};
use crate::{annotate, report, run};

/// A perf, and where it finds its objdump.
pub struct Perf {
    pub version: String,
    path: PathBuf,
    objdump: PathBuf,
}

/// How frames are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graph {
    FramePointers,
    Dwarf,
}

/// A way to use perf.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub name: &'static str,
    pub graph: Graph,
    /// With a jitdump, and `perf inject --jit`; else with the perf map alone.
    pub inject: bool,
    /// perf comes when the process is there already.
    pub attach: bool,
}

pub const MODES: &[Mode] = &[
    Mode { name: "dwarf", graph: Graph::Dwarf, inject: true, attach: false },
    Mode { name: "fp", graph: Graph::FramePointers, inject: true, attach: false },
    Mode { name: "attach", graph: Graph::Dwarf, inject: true, attach: true },
    Mode { name: "map", graph: Graph::FramePointers, inject: false, attach: false },
];

/// What perf made of a scenario.
pub struct Outcome {
    pub score: Score,
    /// The samples whose symbol `perf report` counts as `perf script` does.
    pub report: Share,
    /// The samples of the hottest function that `perf annotate` shows at the instruction where they were taken. With the
    /// perf map there is no code to show.
    pub annotate: Option<Share>,
}

/// How often samples are taken; no divisor of anything.
const FREQUENCY: &str = "1499";
/// How much of the stack is copied.
const STACK_SIZE: &str = "dwarf,16384";

impl Perf {
    pub fn new(path: PathBuf, objdump: PathBuf) -> Result<Self> {
        let version = run::stdout(run::command(&path).arg("--version"))?;
        let version = version.trim().trim_start_matches("perf version ").to_string();
        Ok(Perf { version, path, objdump })
    }

    fn command(&self, dir: &Path, subcommand: &str) -> Command {
        let mut command = run::command(&self.path);
        command.current_dir(dir).arg("--buildid-dir").arg(dir.join("buildid")).arg(subcommand);
        command
    }

    /// Records a scenario, and scores what perf makes of it.
    pub fn measure(&self, program: &Program, scenario: &str, mode: &Mode, seconds: f64, dir: &Path) -> Result<Outcome> {
        let scenario = Scenario {
            name: scenario,
            sinks: if mode.inject { "both" } else { "map" },
            seconds,
            truth: dir.join("truth"),
            wait: mode.attach,
            hold: false,
        };
        let program = match mode.graph {
            Graph::Dwarf => &program.by_tables,
            Graph::FramePointers => &program.by_frame_pointers,
        };
        let mut leftovers = Leftovers::default();
        let data = dir.join("perf.data");
        let mut record = self.command(dir, "record");
        record.args(["-e", "cpu-clock", "-k", "CLOCK_MONOTONIC", "-F", FREQUENCY, "-o"]).arg(&data);
        record.args(["--call-graph", if mode.graph == Graph::Dwarf { STACK_SIZE } else { "fp" }]);
        let recorded = if mode.attach {
            record_attached(record, program, &scenario, dir)
        } else {
            record.arg("--").arg(program).args(scenario.arguments());
            run::success(&mut record).map(drop)
        };
        // Its files are to go even if it has failed.
        let truth = scenario.truth();
        if let Ok(truth) = &truth {
            leftovers.of(truth);
        }
        recorded?;
        let truth = truth?;

        let data = if mode.inject {
            let injected = dir.join("injected.data");
            run::success(self.command(dir, "inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&injected))?;
            injected
        } else {
            data
        };
        let flat = script::parse(&self.script(dir, &data, &["-G"])?)?;
        let stacks = script::parse(&self.script(dir, &data, &[])?)?;
        leftovers.pids.extend(stacks.iter().map(|sample| sample.pid).filter(|&pid| pid != u32::MAX));
        let samples = script::samples(&truth, &flat, &stacks)?;
        let whole = match truth.unwind()? {
            Unwind::Both => true,
            Unwind::FramePointers => mode.graph == Graph::FramePointers,
            Unwind::Dwarf => mode.graph == Graph::Dwarf,
            Unwind::Neither => false,
        };
        let score = score::score(&truth, &samples, whole);
        let report = self.report(dir, &data, &samples)?;
        let annotate = if mode.inject { self.annotate(dir, &data, &truth, &samples)? } else { None };
        Ok(Outcome { score, report, annotate })
    }

    fn script(&self, dir: &Path, data: &Path, options: &[&str]) -> Result<String> {
        let mut script = self.command(dir, "script");
        script.arg("-i").arg(data).args(["--ns", "--no-inline", "-F", script::FIELDS]).args(options);
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

    /// How many of the samples of the hottest function `perf annotate` shows where they were taken.
    fn annotate(&self, dir: &Path, data: &Path, truth: &Truth, samples: &[Sample]) -> Result<Option<Share>> {
        let Some((name, offsets)) = annotate::hottest(truth, samples) else { return Ok(None) };
        let mut annotate = self.command(dir, "annotate");
        annotate.arg("-i").arg(data).args(["--stdio", "--stdio-color", "never", "--objdump"]).arg(&self.objdump);
        annotate.args(["-s", &name]);
        let shown = annotate::parse(&run::stdout(&mut annotate)?)?;
        Ok(Some(annotate::compare(&offsets, &shown)))
    }
}

/// The program first, then perf; the program goes on when perf says that it counts.
fn record_attached(mut record: Command, program: &Path, scenario: &Scenario, dir: &Path) -> Result<()> {
    let mut program = run::command(program);
    let program = program.args(scenario.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Killed(program.spawn().context("cannot start the program")?);
    wait_for(&mut program.0, b"ready\n")?;

    let (control, answer) = (dir.join("control"), dir.join("answer"));
    for fifo in [&control, &answer] {
        let _ = fs::remove_file(fifo);
        run::success(run::command("mkfifo").arg(fifo))?;
    }
    record.arg(format!("--control=fifo:{},{}", control.display(), answer.display())).args(["-D", "-1"]);
    let log = dir.join("record.log");
    record.args(["-p", &program.0.id().to_string()]).stderr(fs::File::create(&log)?).stdout(Stdio::null());
    let mut record = Killed(record.spawn().context("cannot start perf")?);
    // Opened for both, so that a perf that has failed does not leave this waiting.
    let open = |path: &Path| fs::File::options().read(true).write(true).open(path);
    let (mut control, mut answer) = (open(&control)?, open(&answer)?);
    control.write_all(b"enable\n")?;
    let mut ack = [0; 4];
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !readable(&answer) {
        if record.0.try_wait()?.is_some() || std::time::Instant::now() > deadline {
            bail!("perf did not attach: {}", fs::read_to_string(&log)?);
        }
    }
    answer.read_exact(&mut ack)?;
    program.0.stdin.take().context("no standard input")?.write_all(b"\n")?;
    let status = program.0.wait()?;
    let recorded = record.0.wait()?;
    if !status.success() || !recorded.success() {
        bail!("the program: {status}; perf: {recorded}\n{}", fs::read_to_string(&log)?);
    }
    Ok(())
}

/// Whether there is something to read within 50 ms.
fn readable(file: &fs::File) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 50) == 1 }
}

/// Reads the program's standard output up to that line.
pub fn wait_for(program: &mut Child, line: &[u8]) -> Result<()> {
    let output = program.stdout.as_mut().context("no standard output")?;
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(line) {
        if output.read(&mut byte)? == 0 {
            bail!("the program ended: {}", String::from_utf8_lossy(&read));
        }
        read.push(byte[0]);
    }
    Ok(())
}

/// A child that does not outlive an error here.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
