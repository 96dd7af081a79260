//! `jitsym recover`

use std::path::PathBuf;

use jitsym_tool::text::printable;

/// Completes the files of processes that were killed
///
/// Puts what was still on its way into the files: of these processes, or of all of this user's. It can be run at any time and
/// as often as you like.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym recover 4711")]
pub struct Recover {
    /// Processes; without any, all dead ones of this user
    #[arg(value_name = "PID", value_parser = pid)]
    pids: Vec<u32>,
    /// Where the spools are; else JITSYM_SPOOL_DIR, else /dev/shm
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn pid(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "it is no pid".into())
}

/// Completes the files of all dead processes of this user that left a spool, or of those that are asked for.
pub fn recover(asked: Recover) -> Result<(), String> {
    let Recover { pids, dir } = asked;
    let dir = &dir.unwrap_or_else(jitsym::spool_dir);
    let wanted = |pid| pids.is_empty() || pids.contains(&pid);
    let reports = jitsym::recover(dir, &wanted).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut failed = false;
    for report in reports {
        // The paths in them are those in the spools.
        let problem = |problem: &String| format!("; {}", printable(problem.as_bytes()));
        let problems: String = report.problems.iter().map(problem).collect();
        println!("{}: {} records completed{problems}", report.pid, report.records);
        failed |= report.kept;
    }
    if failed {
        return Err("some files are not complete; their spools are kept".into());
    }
    Ok(())
}
