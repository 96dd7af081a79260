//! What a recording has: its clock, jitdumps seen and worked in, names and whole stacks of compiled code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::process::count;
use super::stacks::Quality;
use super::{machine, Rank, Report};
use crate::record::contents::{self, dump_of, Contents, Dump};
use crate::record::perf::{Perf, Unwinder};
use crate::record::stacks::percent;
use crate::record::{quoted, script};
use crate::text::printable;

/// Fewer samples say nothing.
const ENOUGH: u64 = 10;
/// A share in percent below which something is wrong: a few stacks are cut off while a frame is made or removed.
const FEW: f64 = 90.0;
const RECORD: &str = "jitsym record -- COMMAND";

/// How call stacks were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Graph {
    Dwarf,
    FramePointers,
    None,
}

/// What the jitdumps of a recording are now.
#[derive(Default)]
struct Dumps {
    codes: usize,
    with_tables: usize,
    gone: Vec<String>,
    unreadable: Vec<String>,
}

/// Looks at a recording.
pub fn look(perf: &Perf, data: &Path, report: &mut Report) -> Result<(), String> {
    let shown = quoted(data);
    report.part(format!("recording {}", data.display()));
    report.usual = Some(format!("perf report -i {shown} --no-children"));
    let output = perf.output(perf.command("evlist").arg("-v").arg("-i").arg(data))?;
    let events = String::from_utf8_lossy(&output.stdout).into_owned();
    let contents = Contents::read(perf, data)?;
    let monotonic = events.lines().filter(|line| line.contains("type: ")).all(|line| {
        line.contains("use_clockid: 1") && line.split("clockid: ").last().is_some_and(|id| id.starts_with('1'))
    });
    let graph = match (events.contains("STACK_USER"), events.contains("CALLCHAIN")) {
        (true, _) => Graph::Dwarf,
        (false, true) => Graph::FramePointers,
        (false, false) => Graph::None,
    };
    report.good(count(contents.samples as usize, "sample"));
    let dumps = dumps(&contents, report);
    let regions: usize = contents.processes.values().map(|process| process.regions.len()).sum();
    if regions > 0 {
        report.good(format!("{} of regions, which perf reads as they are", count(regions, "file")));
    }
    let injected = contents.is_injected();
    if monotonic {
        report.good("the clock is that of the jitdump (-k 1)");
    } else if dumps.codes > 0 || !dumps.gone.is_empty() {
        report.cause(
            "the clock is not that of the jitdump",
            Rank::Recording,
            "it was recorded without -k 1: perf inject refuses it, because its times are not those of the jitdump",
            RECORD,
        );
    } else {
        report.note("the clock is not that of the jitdump, and no jitdump is in it");
    }
    if injected {
        report.good("perf inject has put objects in for compiled code");
        objects(perf, data, &contents, report)?;
    } else {
        not_injected(&shown, monotonic, &dumps, report);
    }
    let mut quality = Quality::default();
    let mut command = perf.command("script");
    command.arg("-i").arg(data).args(["--no-inline", "-F", script::FIELDS]);
    contents::with_output(perf, &mut command, |output| script::samples(output, &mut |sample| quality.add(sample)))?;
    if quality.jit == 0 {
        report.note("no sample is in compiled code");
        return Ok(());
    }
    names(&contents, &quality, &dumps, injected, report);
    if graph == Graph::None {
        report.note("no call stacks were recorded");
    } else {
        stacks(perf, &quality, graph, &dumps, regions, report);
    }
    Ok(())
}

fn dumps(contents: &Contents, report: &mut Report) -> Dumps {
    let mut dumps = Dumps::default();
    // perf inject leaves no trace of the jitdump but the objects beside it.
    let injected = contents.processes.iter().flat_map(|(&pid, process)| {
        process.injected.iter().filter_map(move |(.., object)| Some((pid, jitdump_of(object)?)))
    });
    let injected: BTreeSet<(u32, String)> = injected.collect();
    for (pid, path) in contents.dumps().map(|(pid, path)| (pid, path.to_owned())).chain(injected.iter().cloned()) {
        match dump_of(pid, &path) {
            Dump::Here { codes, with_tables, .. } => {
                report
                    .good(format!("{path}: {}, {with_tables} with unwind tables", count(codes, "piece") + " of code"));
                dumps.codes += codes;
                dumps.with_tables += with_tables;
            }
            _ if injected.contains(&(pid, path.clone())) => {}
            Dump::Gone => dumps.gone.push(path),
            Dump::Unreadable(error) => dumps.unreadable.push(format!("{path}: {error}")),
        }
    }
    for process in contents.processes.values() {
        for path in process.unexecutable_dumps.difference(&process.dumps) {
            report.bad(format!("{path} is mapped without execution: perf does not take that for a jitdump"));
        }
    }
    dumps
}

/// The jitdump that `DIR/jitted-PID-INDEX.so` is made of.
fn jitdump_of(object: &str) -> Option<String> {
    let (dir, name) = object.rsplit_once('/')?;
    let (pid, _) = name.strip_prefix("jitted-")?.split_once('-')?;
    Some(format!("{dir}/jit-{pid}.dump"))
}

/// Nothing was worked in: is there anything to work in?
fn not_injected(shown: &str, monotonic: bool, dumps: &Dumps, report: &mut Report) {
    if let Some(path) = dumps.gone.first() {
        report.cause(
            format!("{path} is gone"),
            Rank::Recording,
            format!("the jitdump {path} was removed before perf inject has read it (JITSYM_REMOVE=1, or by somebody)"),
            RECORD,
        );
    } else if let Some(problem) = dumps.unreadable.first() {
        report.cause(
            problem.clone(),
            Rank::Recording,
            format!("a jitdump cannot be read: {problem}"),
            "id; ls -l /tmp/jit-*.dump",
        );
    } else if dumps.codes > 0 && monotonic {
        report.cause(
            "the jitdump is not in the recording yet",
            Rank::Recording,
            "perf inject --jit has not been run: the recording has a jitdump, and nothing of it",
            format!("perf inject --jit -i {shown} -o jit.data && perf report -i jit.data --no-children"),
        );
    }
}

/// The objects that were put in must be those that lie there now.
fn objects(perf: &Perf, data: &Path, contents: &Contents, report: &mut Report) -> Result<(), String> {
    let output = perf.output(perf.command("buildid-list").arg("-i").arg(data))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let recorded: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.trim().split_once(' ')).map(|(id, path)| (path, id)).collect();
    let (mut missing, mut other) = (Vec::new(), Vec::new());
    let all = contents.processes.values().flat_map(|process| &process.injected);
    for (_, _, path) in all {
        match (fs::read(path), recorded.get(&**path)) {
            (Err(_), _) => missing.push(path),
            (Ok(bytes), Some(id)) if build_id(&bytes).is_some_and(|there| there != **id) => other.push(path),
            _ => {}
        }
    }
    let next = "jitsym record -- COMMAND";
    if let Some(path) = other.first() {
        report.cause(
            format!("{path} is another one than was put in"),
            Rank::Recording,
            format!(
                "the objects are those of another run of perf inject (such as {path}): names and lines may be wrong"
            ),
            next,
        );
    } else if let Some(path) = missing.first() {
        report.cause(
            format!("{} that perf inject has made are gone", count(missing.len(), "object")),
            Rank::Recording,
            format!("objects that perf inject has made were removed (such as {path}): reports need them"),
            next,
        );
    }
    Ok(())
}

/// The build-id in a small ELF file, in hexadecimal.
fn build_id(file: &[u8]) -> Option<String> {
    // A note: lengths of name and description, type, name.
    let note = [4u32, 20, 3].map(u32::to_ne_bytes).concat();
    let note = [&note[..], b"GNU\0"].concat();
    let at = file.windows(note.len()).position(|bytes| bytes == note)? + note.len();
    Some(file.get(at..at + 20)?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How many samples in compiled code have something. Returns what to say if these are too few.
fn too_few(quality: &Quality, number: u64, what: &str, report: &mut Report) -> Option<String> {
    let (share, samples) = (percent(number, quality.jit), count(quality.jit as usize, "sample"));
    let line = format!("{number} of {samples} in compiled code have {what} ({share:.0} %)");
    if share < FEW && quality.jit >= ENOUGH {
        return Some(line);
    }
    report.good(line);
    None
}

fn names(contents: &Contents, quality: &Quality, dumps: &Dumps, injected: bool, report: &mut Report) {
    let Some(line) = too_few(quality, quality.named, "names", report) else { return };
    let nothing = dumps.codes == 0 && dumps.gone.is_empty() && dumps.unreadable.is_empty() && !injected;
    let has_library = contents.processes.values().any(|process| process.library);
    if nothing && machine::room(Path::new("/tmp")).is_some_and(|room| room.noexec) {
        report.bad(line);
    } else if nothing && has_library {
        report.cause(
            line,
            Rank::Off,
            "the program has libjitsym, and has written nothing: it was not turned on",
            format!("JITSYM=on {RECORD}"),
        );
    } else if nothing {
        report.cause(
            line,
            Rank::Off,
            "nothing names the compiled code: no process of the recording has libjitsym, a jitdump or a perf map",
            "jitsym doctor PID",
        );
    } else {
        report.cause(
            line,
            Rank::Quality,
            "some compiled code has no name: it is not in the jitdump",
            "jitsym check /tmp/jit-*.dump",
        );
    }
}

fn stacks(perf: &Perf, quality: &Quality, graph: Graph, dumps: &Dumps, regions: usize, report: &mut Report) {
    let Some(line) = too_few(quality, quality.whole, "whole stacks", report) else { return };
    let worst = quality.worst(5);
    let cut = |(name, count): &(&str, u64)| format!("{count} stacks end at {}", printable(name.as_bytes()));
    let first = worst.first().map_or("compiled code".into(), |(name, _)| printable(name.as_bytes()).to_string());
    let (text, next) = match graph {
        Graph::FramePointers => (
            format!("stacks were recorded by frame pointers, and some code has none: they end at {first}"),
            RECORD.to_owned(),
        ),
        _ if dumps.codes > 0 && dumps.with_tables == 0 => (
            format!("the program describes no frames (jitsym_code.unwind): stacks end at {first}"),
            "jitsym record -g fp -- COMMAND".to_owned(),
        ),
        _ if dumps.codes > 0 && regions == 0 && perf.unwinder() == Ok(Unwinder::Libunwind) => (
            format!("perf with libunwind needs a gap after code (free_after), or regions: stacks end at {first}"),
            "jitsym record --adopt -- COMMAND".to_owned(),
        ),
        _ => (
            format!("frames are described wrongly, or stacks are deeper than was copied: they end at {first}"),
            "jitsym record -g dwarf,32768 -- COMMAND".to_owned(),
        ),
    };
    report.cause(line, Rank::Quality, text, next);
    worst.iter().for_each(|one| report.note(cut(one)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jitdump_of_an_object() {
        assert_eq!(jitdump_of("/tmp/jitted-12-34.so").as_deref(), Some("/tmp/jit-12.dump"));
        assert_eq!(jitdump_of("/tmp/x-12-34.so"), None);
    }

    #[test]
    fn build_ids() {
        let mut file = vec![1; 7];
        assert_eq!(build_id(&file), None);
        file.extend([4u32, 20, 3].map(u32::to_ne_bytes).concat());
        file.extend(b"GNU\0");
        assert_eq!(build_id(&file), None, "cut off");
        file.extend([0xab; 20]);
        assert_eq!(build_id(&file), Some("ab".repeat(20)));
    }
}
