//! `jitsym top`: the counters of a process, or the hottest functions of a recording.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jitsym_tool::record::PROC;
use jitsym_tool::top::Look;

use crate::process::pid_of;
use crate::{view, written, Outcome};

const EVERY: Duration = Duration::from_secs(1);
/// Clears the terminal. Other output must not contain such sequences.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

/// Show once a second the code that a process registers, or print the hottest functions of a recording
///
/// For a process, the counters have the names of the fields of `jitsym_stats`, and the command stops when the process or its
/// last session of libjitsym ends. For a recording of perf, jitsym prints the 10 hottest functions, each with its 3 most
/// frequent callers. If the jitdumps of the recording are not in it, jitsym injects them into a private copy first.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym top 4711\n  jitsym top perf.data")]
pub struct Top {
    /// Show the process with this PID, or this recording of perf
    #[arg(value_name = "PID|FILE")]
    what: PathBuf,
    /// Stop after S seconds, such as 0.5 (above 0; default: when the process or its last session ends)
    #[arg(long, value_name = "S", value_parser = crate::record::seconds)]
    seconds: Option<f64>,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
}

/// Shows a process or a recording.
pub fn run(asked: &Top, out: &mut dyn Write) -> Outcome {
    match (pid_of(&asked.what), asked.seconds) {
        (Some(pid), seconds) => watch(pid, seconds, out),
        (None, None) => view::top(&asked.what, &asked.perf, out),
        (None, Some(_)) => {
            crate::say("jitsym: --seconds is for a process, and a recording has its own times");
            Outcome::Failed
        }
    }
}

/// Shows the counters until the process or the time ends.
fn watch(pid: u32, seconds: Option<f64>, out: &mut dyn Write) -> Outcome {
    let (begin, on_terminal) = (Instant::now(), io::stdout().is_terminal());
    let mut last: Option<(Look, Instant)> = None;
    loop {
        let look = match Look::at(pid, Path::new(PROC)) {
            Ok(look) => look,
            // The process may have ended in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return last.map_or_else(|| refuse(pid, "there is no such process"), |_| Outcome::Good);
            }
            Err(error) => return refuse(pid, &error.to_string()),
        };
        let now = Instant::now();
        if !look.has_said() {
            // A zombie is still listed, but has no counters.
            return match last {
                Some(_) => Outcome::Good,
                None => refuse(pid, "it has no spool in which it says what it does; `jitsym doctor` says why"),
            };
        }
        if on_terminal {
            let _ = io::stdout().write_all(CLEAR);
        }
        let before = last.as_ref().map(|(look, when)| (look, now - *when));
        let shown = writeln!(out, "process {}\n{}", pid, look.show(before)).and_then(|()| out.flush());
        // Writing also fails if the reader has closed the pipe.
        if shown.is_err() {
            return written(shown);
        }
        last = Some((look, now));
        let left = seconds.map_or(EVERY, |seconds| Duration::from_secs_f64(seconds).saturating_sub(begin.elapsed()));
        if left.is_zero() {
            return Outcome::Good;
        }
        std::thread::sleep(EVERY.min(left));
    }
}

fn refuse(pid: u32, why: &str) -> Outcome {
    crate::say(format_args!("jitsym: process {pid}: {why}"));
    Outcome::Failed
}
