//! `jitsym recover`

use std::io::Write;
use std::path::PathBuf;

use jitsym_tool::text::{printable, Shown};

use crate::{complain, process, written, Outcome};

/// Complete the perf maps and jitdumps of killed processes
///
/// A killed process leaves a spool, a file with registered code that is not in the other files yet. The command adds this code
/// to the perf map and the jitdump. The command can be run at any time and repeatedly.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym recover 4711")]
pub struct Recover {
    /// Complete the files of these processes (default: all dead processes of this user)
    #[arg(value_name = "PID", value_parser = pid)]
    pids: Vec<u32>,
    /// Read the spools in this directory (default: JITSYM_SPOOL_DIR, or /dev/shm if the variable is not set)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn pid(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "it is no pid".into())
}

/// Completes the files of dead processes of this user that left a spool: of all, or of those that are named.
pub fn recover(asked: Recover, out: &mut dyn Write) -> Outcome {
    let Recover { pids, dir } = asked;
    let dir = &dir.unwrap_or_else(jitsym::spool_dir);
    let wanted = |pid| pids.is_empty() || pids.contains(&pid);
    let reports = match jitsym::recover(dir, &wanted) {
        Ok(reports) => reports,
        Err(error) => {
            complain(dir, &error);
            return Outcome::Found;
        }
    };
    let mut outcome = Outcome::Good;
    for report in &reports {
        // The paths come from the spools, so they are escaped.
        let problem = |problem: &String| format!("; {}", printable(problem.as_bytes()));
        let problems: String = report.problems.iter().map(problem).collect();
        outcome = outcome.max(written(writeln!(out, "{}: {} records completed{problems}", report.pid, report.records)));
        if report.kept {
            outcome = outcome.max(Outcome::Found);
        }
    }
    if outcome == Outcome::Found {
        crate::say("some files are not complete; their spools are kept");
    }
    for pid in pids.iter().filter(|pid| !reports.iter().any(|report| report.pid == **pid)) {
        if process::is_alive(*pid) {
            crate::say(format_args!("{pid}: it lives, and writes its files itself"));
        } else if process::files(*pid).is_ok() {
            crate::say(format_args!("{pid}: it has left no spool, its files are complete"));
        } else {
            crate::say(format_args!(
                "{pid}: there is no such process, and it has left neither a spool in {} nor files",
                dir.shown()
            ));
            outcome = Outcome::Failed;
        }
    }
    outcome
}
