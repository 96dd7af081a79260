//! Injects the code of the jitdumps to which a recording refers, and reports the results.

use std::io;

use super::contents::Contents;
use super::{children, Step};
use crate::inject::{inject, Options, Problem, Summary};
use crate::text::{count as counted, printable, Shown};

/// The maximum number of processes that are reported one by one.
const TOLD: usize = 6;

/// Injects the jitdumps of the recording `options.input`, if there are any. Returns whether the recording `options.output`
/// exists, with objects of compiled code. If the result is false, the recording that was read is complete.
pub fn put_in(options: &Options, contents: &Contents, tell: &mut dyn FnMut(Step<'_>)) -> bool {
    let has_dumps = contents.dumps().next().is_some();
    let mut lines = Vec::new();
    for (pid, process) in contents.with_jit().filter(|(_, process)| !process.regions.is_empty()) {
        let count = process.regions.len();
        let files = if count == 1 { "file" } else { "files" };
        // The injection replaces the files with objects.
        let end = if has_dumps { "" } else { ", which perf reads as they are" };
        lines.push(format!("process {pid}: {count} {files} of regions{end}"));
    }
    if !has_dumps {
        say(&lines, tell);
        if contents.with_jit().next().is_none() {
            let text = "no process had compiled code in memory: is it the right one, and did it run for long enough?";
            tell(Step::Line(text));
        }
        return false;
    }
    let made = inject(options, &mut |done, total| {
        tell(Step::Injecting(done, total));
        match children::is_asked() {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    });
    tell(Step::Injected);
    match made {
        Ok(summary) => {
            lines.splice(0..0, lines_of(&summary));
            say(&lines, tell);
            report(&summary, tell);
            summary.dir.is_some()
        }
        // The caller reports the signal.
        Err(_) if children::is_asked() => false,
        Err((path, error)) => {
            say(&lines, tell);
            tell(Step::Problem(&format!("jitdumps cannot be put in: {}: {error}", path.shown())));
            false
        }
    }
}

/// A line for each jitdump.
fn lines_of(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    for read in &summary.read {
        let code = match read.pieces {
            0 => "no code".into(),
            1 => "1 piece of code".into(),
            pieces => format!("{pieces} pieces of code"),
        };
        lines.push(format!("process {}: {code} in {}", read.pid, printable(read.path.as_bytes())));
    }
    // If nothing can be used, the first problem is reported at the end.
    for problem in summary.problems.iter().skip(usize::from(summary.good() == 0)) {
        let is_used = |problem: &Problem| {
            summary.read.iter().any(|read| (read.pid, &read.path) == (problem.pid, &problem.path) && read.pieces > 0)
        };
        lines.push(if is_used(problem) { text_of(problem) } else { format!("left out: {}", text_of(problem)) });
    }
    lines
}

fn text_of(problem: &Problem) -> String {
    let Problem { pid, path, why } = problem;
    format!("process {pid}: {} {}", printable(path.as_bytes()), printable(why.as_bytes()))
}

/// Reports what was injected, or why nothing was injected.
fn report(summary: &Summary, tell: &mut dyn FnMut(Step<'_>)) {
    let Summary { used, pieces, left_out, .. } = summary;
    match (&summary.dir, summary.problems.first()) {
        (Some(dir), _) => {
            let in_regions = match summary.used_in_regions {
                0 => String::new(),
                count => format!(" and {} in regions", counted(count, "function")),
            };
            let text = format!(
                "{used} of {pieces} pieces of code{in_regions} have samples: put in, with files in {}",
                dir.shown()
            );
            tell(Step::Line(&text));
        }
        (None, Some(problem)) if summary.good() == 0 => {
            tell(Step::Problem(&format!("there is nothing to put in: {}", text_of(problem))));
        }
        (None, _) if *pieces > 0 => tell(Step::Line("no sample is in code of a jitdump")),
        _ => {}
    }
    if *left_out > 0 {
        let text = format!("{left_out} uses of code have no name: addresses were used again too often");
        tell(Step::Problem(&text));
    }
}

fn say(lines: &[String], tell: &mut dyn FnMut(Step<'_>)) {
    lines.iter().take(TOLD).for_each(|line| tell(Step::Line(line)));
    if lines.len() > TOLD {
        tell(Step::Line(&format!("and {} more", lines.len() - TOLD)));
    }
}
