//! eu-stack of elfutils as a reader: the stacks of a process that lives, through the files of its regions alone.

use std::time::Duration;

use anyhow::{bail, Context, Result};

use crate::attach::Held;
use crate::matrix::{Outcome, Task};
use crate::perf::{Graph, Mode};
use crate::program::{Leftovers, Program, Scenario, Written};
use crate::score::{self, Frame, Kind, Sample, Score};
use crate::truth::{Truth, Unwind};
use crate::{run, script};

pub const MODES: &[Mode] = &[Mode::new("region", Graph::Dwarf, Written::Region)];

/// It takes one sample of each thread at a time, and so much time for it that it is asked in these alone.
const SCENARIOS: &[&str] =
    &["packed-up", "row-tables", "deep-recursion-rows", "callbacks", "threads", "region-adopted"];

pub fn is_about(scenario: &str) -> bool {
    SCENARIOS.contains(&scenario)
}

pub fn version() -> Result<String> {
    let text = run::stdout(run::command("eu-stack").arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().replace(['(', ')'], ""))
}

/// What it printed at one time: between when and when.
pub struct Snapshot {
    pub from: u64,
    pub to: u64,
    pub text: String,
}

pub fn measure(program: &Program, task: &Task, mode: &Mode) -> Result<Outcome> {
    let scenario = Scenario {
        name: task.scenario,
        written: mode.written,
        count: task.count,
        seconds: 8.0 * task.seconds,
        truth: task.dir.join("truth"),
        wait: true,
        hold: true,
        step: false,
    };
    let mut held = Held::start(&program.by_tables, &scenario)?;
    let pid = Held::pid(&scenario)?;
    let _leftovers = Leftovers::of(&scenario.truth);
    held.go()?;
    let mut snapshots = Vec::new();
    while !held.has_said_more(Duration::from_millis(3))? {
        let from = run::now();
        let mut command = run::command("eu-stack");
        // Names as they are, call sites, and object files. It fails if there is one thread whose stack is not whole.
        command.args(["-r", "-a", "-m", "-n", "0", "-p", &pid.to_string()]);
        let text = String::from_utf8_lossy(&run::output(&mut command)?.stdout).into_owned();
        snapshots.push(Snapshot { from, to: run::now(), text });
    }
    held.wait_for("done\n")?;
    let truth = scenario.truth()?;
    let whole = truth.unwind()? != Unwind::Neither;
    let mut samples = Vec::new();
    for snapshot in &snapshots {
        samples.extend(parse(snapshot, &truth, whole)?);
    }
    Ok(Outcome::of(score::score(&truth, &samples, whole)))
}

/// A line `TID N:` a thread, and below it a line a frame.
fn parse(snapshot: &Snapshot, truth: &Truth, whole: bool) -> Result<Vec<Sample>> {
    let mut threads: Vec<(u32, Vec<Shown>)> = Vec::new();
    for line in snapshot.text.lines() {
        if let Some(tid) = line.strip_prefix("TID ") {
            threads.push((tid.trim_end_matches(':').parse().with_context(|| format!("{line:?}"))?, Vec::new()));
        } else if let (true, Some((_, frames))) = (line.starts_with('#'), threads.last_mut()) {
            frames.push(parse_frame(line).with_context(|| format!("{line:?}"))?);
        } else if !line.starts_with("PID ") {
            bail!("{line:?}");
        }
    }
    Ok(threads.iter().filter_map(|(tid, frames)| sample(snapshot, truth, *tid, frames, whole)).collect())
}

/// A frame as printed.
pub struct Shown {
    /// Of callers one in the call.
    pub address: u64,
    pub name: Option<String>,
    pub module: Option<String>,
}

/// `#N ADDRESS    NAME - OBJECT` of the innermost frame, `#N ADDRESS - 1 NAME - OBJECT` of others. Names may hold anything.
fn parse_frame(line: &str) -> Result<Shown> {
    let (_, rest) = line.split_once(' ').context("no address")?;
    let rest = rest.trim_start().strip_prefix("0x").context("no address")?;
    let (address, rest) = rest.split_at_checked(16).context("no address")?;
    let address = u64::from_str_radix(address, 16)?;
    let (address, rest) = match rest.strip_prefix(" - 1") {
        Some(rest) => (address - 1, rest),
        None => (address, rest),
    };
    let (name, module) = match [" - /", " - ["].iter().filter_map(|mark| rest.rfind(mark)).max() {
        Some(at) => (&rest[..at], Some(rest[at + 3..].to_string())),
        None => (rest, None),
    };
    let name = name.trim();
    Ok(Shown { address, name: (!name.is_empty()).then(|| name.to_string()), module })
}

/// The thread was stopped at some time of these. It is held against each stack that was run then.
pub fn sample(snapshot: &Snapshot, truth: &Truth, tid: u32, shown: &[Shown], whole: bool) -> Option<Sample> {
    let innermost = shown.first()?;
    let at = |time: u64| Sample {
        tid,
        time,
        ip: innermost.address,
        name: innermost.name.clone(),
        frames: shown.iter().map(|frame| frame_at(frame, truth, time)).collect(),
    };
    let rightness = |sample: &Sample| {
        let Score { names, stacks, .. } = score::score(truth, std::slice::from_ref(sample), whole);
        (stacks.right, names.right, names.counted)
    };
    let times = truth.runs_between(tid, snapshot.from, snapshot.to).map(|run| run.from.max(snapshot.from));
    times.map(at).max_by_key(rightness)
}

fn frame_at(shown: &Shown, truth: &Truth, time: u64) -> Frame {
    let guest = match &shown.module {
        Some(module) => script::is_region(module),
        None => truth.code_at(shown.address, time).is_some(),
    };
    // As the linker has it: `qsort@GLIBC_2.2.5`, which the comparison knows.
    Frame { name: shown.name.clone(), kind: if guest { Kind::Guest } else { Kind::Native } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "PID 7 - process\nTID 7:\n\
        #0  0x0000000000001004     leaf - of two - /tmp/jit-7-1.so\n\
        #1  0x0000000000002005 - 1 mid - /tmp/jit-7-1.so\n\
        #2  0x00007f0000003000 - 1 main@@GLIBC_2.34 - /bin/vm\n\
        #3  0x00007f0000004000 - 1 - /bin/vm\n\
        TID 8:\n#0  0x0000000000001004    \n#1  0x0000000000001006 - 1\n";

    #[test]
    fn stacks_of_eu_stack_are_read() {
        let text = "pid\t7\ncode\t1\t1000\t10\t0\t0\tleaf - of two\ncode\t2\t2000\t10\t0\t0\tmid\n\
            run\t7\t10\t20\t2,?\nrun\t7\t30\t40\t1,2,*main,?\nrun\t8\t10\t40\t1,?\nend\n";
        let truth = Truth::parse(text).unwrap();
        let samples = |from, to| {
            let snapshot = Snapshot { from, to, text: TEXT.into() };
            parse(&snapshot, &truth, true).unwrap()
        };
        let found = samples(15, 35);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].tid, found[0].time, found[0].ip), (7, 30, 0x1004), "the stack that was run then");
        let score = score::score(&truth, &found, true);
        assert_eq!((score.names.right, score.names.counted), (1, 2));
        assert_eq!((score.stacks.right, score.stacks.counted), (1, 2));
        let kinds: Vec<Kind> = found[1].frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [Kind::Guest, Kind::Guest], "code without a name");
        assert_eq!(score::score(&truth, &samples(12, 20), true).stacks.right, 0, "the stack is of another time");
        assert!(samples(50, 60).is_empty(), "nothing is known of that time");
        let wrong = Snapshot { from: 1, to: 2, text: "what\n".into() };
        assert!(parse(&wrong, &truth, true).is_err());
    }
}
