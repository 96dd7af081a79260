//! Programs that a profiler comes to when they are there already, and that stay until it has looked at them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::program::Scenario;
use crate::run;

/// A program that waits for a word at its beginning or its end. It does not outlive this.
pub struct Held(Child);

impl Held {
    /// Starts it, and waits until it is ready.
    pub fn start(program: &Path, scenario: &Scenario) -> Result<Self> {
        let mut command = run::command(program);
        command.args(scenario.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut held = Held(command.spawn().with_context(|| format!("cannot start {}", program.display()))?);
        held.wait_for("ready\n")?;
        Ok(held)
    }

    /// Its process id as seen from here; it may run in a namespace, as a child of the one that was started.
    pub fn pid(scenario: &Scenario) -> Result<u32> {
        let truth = fs::read_to_string(&scenario.truth).with_context(|| format!("{}", scenario.truth.display()))?;
        let pid = truth.lines().find_map(|line| line.strip_prefix("pid\t")).context("no process id in the truth")?;
        pid.parse().context("process id")
    }

    /// Lets it run.
    pub fn go(&mut self) -> Result<()> {
        Ok(self.0.stdin.as_mut().context("no standard input")?.write_all(b"\n")?)
    }

    /// Until it has printed that line.
    pub fn wait_for(&mut self, line: &str) -> Result<()> {
        let output = self.0.stdout.as_mut().context("no standard output")?;
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(line.as_bytes()) {
            if output.read(&mut byte)? == 0 {
                let mut message = String::new();
                self.0.stderr.as_mut().context("no standard error")?.read_to_string(&mut message)?;
                bail!("the program ended: {message}");
            }
            read.push(byte[0]);
        }
        Ok(())
    }

    /// Whether it says something, or ends, within that time.
    pub fn has_said_more(&self, within: Duration) -> Result<bool> {
        let output = self.0.stdout.as_ref().context("no standard output")?;
        Ok(run::is_readable(output, within.as_millis() as i32))
    }

    /// Until it has ended by itself.
    pub fn end(mut self) -> Result<()> {
        let status = self.0.wait()?;
        if !status.success() {
            bail!("the program: {status}");
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The end of its input lets it go on, and end; a program that was stopped in the middle may have a child.
        drop(self.0.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another child that does not outlive an error here.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// The program first, then perf; the program goes on when perf says that it counts. Returns the program if it is to be held.
pub fn record(mut record: Command, program: &Path, scenario: &Scenario, dir: &Path) -> Result<Option<Held>> {
    let mut program = Held::start(program, scenario)?;
    let (control, answer, log) = (dir.join("control"), dir.join("answer"), dir.join("record.log"));
    for fifo in [&control, &answer] {
        run::success(run::command("mkfifo").arg(fifo))?;
    }
    record.arg(format!("--control=fifo:{},{}", control.display(), answer.display())).args(["-D", "-1"]);
    record.args(["-p", &Held::pid(scenario)?.to_string()]).stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut perf = Killed(record.spawn().context("cannot start perf")?);
    // Opened for both directions, so that a perf that has failed does not leave this waiting.
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let (mut control, mut answer) = (open(&control)?, open(&answer)?);
    let mut say = |perf: &mut Child, word: &[u8]| -> Result<()> {
        control.write_all(word)?;
        let deadline = Instant::now() + Duration::from_secs(600);
        while !run::is_readable(&answer, 50) {
            if perf.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("perf did not attach: {}", fs::read_to_string(&log)?);
            }
        }
        let _ = answer.read(&mut [0; 16])?;
        Ok(())
    };
    say(&mut perf.0, b"enable\n")?;
    program.go()?;
    let program = if scenario.hold {
        program.wait_for("done\n")?;
        say(&mut perf.0, b"stop\n")?;
        Some(program)
    } else {
        program.end()?;
        None
    };
    let status = perf.0.wait()?;
    if !status.success() {
        bail!("perf: {status}\n{}", fs::read_to_string(&log)?);
    }
    Ok(program)
}
