//! Puts the jitdumps that a recording names into the recording, and reports what was found.

use std::path::{Path, PathBuf};

use super::contents::{open_dump, Contents, Dump};
use super::inject::Copies;
use super::perf::{Perf, Unwinder};
use super::Step;
use crate::private::PrivateDir;

/// The command that injects, for messages.
pub const INJECTOR: &str = "perf inject --jit";
/// The most processes that are reported one by one.
const TOLD: usize = 6;

/// Injects the jitdumps if there are any. Returns the path of the recording to keep, and the directories of the objects.
pub fn put_in(
    perf: &Perf,
    out: &Path,
    raw: &Path,
    work: &PrivateDir,
    contents: &Contents,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<(PathBuf, Vec<PrivateDir>), String> {
    let say = |tell: &mut dyn FnMut(Step<'_>), line: &str| tell(Step::Line(line));
    let (mut copies, mut lines, mut problems) = (Copies::default(), Vec::new(), Vec::new());
    for (&pid, process) in contents.with_jit() {
        for path in &process.dumps {
            let problem = match open_dump(pid, path) {
                (Dump::Here { codes: 0, .. }, _) => {
                    lines.push(format!("process {pid}: no code in {path}"));
                    continue;
                }
                (Dump::Here { codes, .. }, Some(file)) => match copies.add(pid, path, &file, out) {
                    Ok(()) => {
                        let pieces = if codes == 1 { "piece" } else { "pieces" };
                        lines.push(format!("process {pid}: {codes} {pieces} of code in {path}"));
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
                (Dump::Unreadable(error), _) => error,
                _ => "is gone".into(),
            };
            problems.push(format!("process {pid}: {path} {problem}"));
        }
        if !process.regions.is_empty() {
            let count = process.regions.len();
            let files = if count == 1 { "file" } else { "files" };
            lines.push(format!("process {pid}: {count} {files} of regions, which perf reads as they are"));
        }
    }
    if !copies.is_empty() {
        lines.extend(problems.iter().map(|problem| format!("left out: {problem}")));
    }
    let more = lines.len().saturating_sub(TOLD);
    lines.iter().take(TOLD).for_each(|line| say(tell, line));
    if more > 0 {
        say(tell, &format!("and {more} more"));
    }
    if !copies.is_empty() {
        let injected = work.path().join("injected");
        tell(Step::Injecting);
        let made = inject(copies, perf, raw, work, contents, &injected);
        tell(Step::Injected);
        match made {
            Ok(objects) => {
                let done = !objects.is_empty();
                say(tell, &format!("{INJECTOR} has put {} in", if done { "that" } else { "nothing" }));
                return Ok((injected, objects));
            }
            Err(cause) => tell(Step::Problem(&format!("{INJECTOR} has failed: {cause}"))),
        }
    } else if let Some(problem) = problems.pop() {
        tell(Step::Problem(&format!("there is nothing to put in: {problem}")));
    } else if contents.with_jit().next().is_none() {
        say(tell, "no process had compiled code in memory: is it the right one, and did it run for long enough?");
    }
    Ok((raw.to_owned(), Vec::new()))
}

/// Injects copies of jitdumps: reads the recording `raw`, and writes the recording `to`. Returns the directories of the objects that
/// readers of the new recording need, or none if nothing was added. No other function calls an injector.
fn inject(
    copies: Copies,
    perf: &Perf,
    raw: &Path,
    work: &PrivateDir,
    contents: &Contents,
    to: &Path,
) -> Result<Vec<PrivateDir>, String> {
    // A perf with libdw finds the tables of packed code by itself.
    if perf.unwinder().is_ok_and(|unwinder| unwinder == Unwinder::Libunwind) {
        copies.give_frame_loads(raw, &contents.mapped);
    }
    copies.inject(perf, raw, work, to)
}
