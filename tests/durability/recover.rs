//! The command `jitsym recover`, and file systems of a test's own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::perf;
use crate::support::{describe, may_unshare, run, run_to_its_end, stdout, tool};

/// `jitsym recover`, without anything that the environment may want of it.
pub fn recover_command(spool: &Path, pids: &[u32]) -> Command {
    let mut command = perf::command(tool());
    command.arg("recover").arg("--dir").arg(spool).args(pids.iter().map(u32::to_string));
    command.stdin(Stdio::null());
    command
}

/// Runs `jitsym recover`; it must end by itself.
pub fn recover(spool: &Path, pids: &[u32]) -> Output {
    let mut command = recover_command(spool, pids);
    let output = run_to_its_end(&mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    let ended = matches!(output.status.code(), Some(0..=2)) && !text.contains("panicked");
    assert!(ended, "{}", describe(&command, &output));
    output
}

/// A line that `jitsym recover` prints.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    pub pid: u32,
    pub records: u64,
    /// What could not be done, for instance `jitdump: it is gone`.
    pub complaints: Vec<String>,
}

impl Report {
    pub fn parse(output: &Output) -> Vec<Report> {
        let line = |line: &str| {
            let (pid, rest) = line.split_once(": ")?;
            let mut parts = rest.split("; ");
            let (records, what) = parts.next()?.split_once(' ')?;
            let complaints = parts.map(String::from).collect();
            let report = Report { pid: pid.parse().ok()?, records: records.parse().ok()?, complaints };
            matches!(what, "records completed" | "record completed").then_some(report)
        };
        let text = stdout(output);
        text.lines().map(|text| line(text).unwrap_or_else(|| panic!("line {text:?} in {output:?}"))).collect()
    }
}

/// Runs a shell script in a mount namespace of its own, with the words behind it as `$1` and on; none if that is not
/// allowed here.
pub fn in_namespace(script: &str, words: &[String], environment: &[(&str, String)]) -> Option<Output> {
    if !may_unshare(&["-m"]) {
        return None;
    }
    let mut command = perf::command("unshare");
    command.args(["-m", "sh", "-euc", script, "sh"]).args(words);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Some(run(&mut command))
}
