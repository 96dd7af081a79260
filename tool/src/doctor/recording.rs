//! What a recording has: its clock, jitdumps seen and worked in, names and whole stacks of compiled code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::log::Log;
use super::process::count;
use super::stacks::Quality;
use super::{machine, Rank, Report};
use crate::open;
use crate::record::contents::{self, dump_of, Contents, Dump};
use crate::record::perf::{Perf, Unwinder};
use crate::record::stacks::percent;
use crate::record::{command_line, quoted, script, unfinished};
use crate::text::{printable, Shown};

/// Fewer samples say nothing.
const ENOUGH: u64 = 10;
/// A share in percent below which something is wrong: a few stacks are cut off while a frame is made or removed.
const FEW: f64 = 90.0;
const RECORD: &str = "jitsym record -- COMMAND";

/// What is known of the run that was recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run<'a> {
    pub variables: machine::Variables,
    /// What the command has said with `JITSYM_DEBUG`, if it was run for this.
    pub log: Option<&'a Log>,
    /// It was run for this, whether its words were kept or not.
    pub is_own: bool,
}

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
    /// Those that are there.
    paths: Vec<PathBuf>,
    codes: usize,
    with_tables: usize,
    gone: Vec<String>,
    unreadable: Vec<String>,
}

/// Looks at a recording.
pub fn look(perf: &Perf, data: &Path, run: Run<'_>, report: &mut Report) -> Result<(), String> {
    look_inside(perf, data, run, report)?;
    run.log.inspect(|log| log.explain(report));
    Ok(())
}

fn look_inside(perf: &Perf, data: &Path, run: Run<'_>, report: &mut Report) -> Result<(), String> {
    let shown = quoted(data);
    if report.command.is_none() {
        report.command = command_line::command(data);
    }
    report.part(format!("recording {}", data.shown()));
    report.usual = Some(format!("perf report -i {shown} --no-children"));
    if let Some(writer) = unfinished(data) {
        not_finished(data, writer, report);
        return Ok(());
    }
    if let Some(log) = run.log {
        log.tell(report);
    }
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
    let dumps = dumps(&contents, run.variables, report);
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
            "it was recorded without -k 1: perf inject refuses it, because its times are not those of the jitdump. Record \
             again, with -k 1 in your `perf record`, or by the command below",
            RECORD,
        );
    } else {
        report.note("the clock is not that of the jitdump, and no jitdump is in it");
    }
    if injected {
        report.good("perf inject has put objects in for compiled code");
        objects(perf, data, &contents, &dumps, report)?;
    } else {
        not_injected(data, monotonic, &dumps, report);
    }
    let mut quality = Quality::default();
    let mut command = perf.command("script");
    command.arg("-i").arg(data).args(["--no-inline", "-F", script::FIELDS]);
    contents::with_output(perf, &mut command, |output| script::samples(output, &mut |sample| quality.add(sample)))?;
    if quality.jit == 0 {
        report.note("no sample is in compiled code");
        // A program that compiles nothing needs no session.
        return Ok(());
    }
    names(&contents, &quality, &dumps, injected, run, report);
    if quality.jit < ENOUGH {
        let samples = count(quality.jit as usize, "sample");
        report.cause(
            format!("{samples} in compiled code, {} with names, {} with whole stacks", quality.named, quality.whole),
            Rank::Quality,
            format!("too few samples to tell ({samples} in compiled code): record for longer"),
            format!("jitsym record -F 4999 -- {}", super::COMMAND),
        );
        return Ok(());
    }
    // Without perf inject, and without names, there are no whole stacks either.
    if !injected && dumps.codes > 0 || percent(quality.named, quality.jit) < FEW {
        return Ok(());
    }
    if graph == Graph::None {
        report.note("no call stacks were recorded");
    } else {
        stacks(perf, &quality, graph, &dumps, regions, run.variables, report);
    }
    Ok(())
}

fn dumps(contents: &Contents, variables: machine::Variables, report: &mut Report) -> Dumps {
    let mut dumps = Dumps::default();
    // perf inject leaves no trace of the jitdump but the objects beside it.
    let injected = contents.processes.iter().flat_map(|(&pid, process)| {
        process.injected.iter().filter_map(move |(.., object)| Some((pid, jitdump_of(object)?)))
    });
    let injected: BTreeSet<(u32, String)> = injected.collect();
    for (pid, path) in contents.dumps().map(|(pid, path)| (pid, path.to_owned())).chain(injected.iter().cloned()) {
        match dump_of(pid, &path) {
            Dump::Here { codes, with_tables, path: here } => {
                let line = format!("{path}: {} of code, {with_tables} with unwind tables", count(codes, "piece"));
                match with_tables {
                    0 if codes > 0 && variables.no_unwind => report.cause(
                        line,
                        Rank::Recording,
                        "JITSYM_UNWIND=0 is in the environment: no unwind tables are written",
                        format!("unset JITSYM_UNWIND; {RECORD}"),
                    ),
                    0 => report.note(line),
                    _ => report.good(line),
                }
                dumps.paths.push(here);
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

/// A recording that the program which wrote it has not completed.
fn not_finished(data: &Path, writer: &str, report: &mut Report) {
    let line = format!("{writer} has not finished this file");
    if writer == "perf record" {
        report.cause(line.clone(), Rank::Recording, format!("{line}: was it killed?"), RECORD);
        return;
    }
    let before = source_of(data);
    let before = before.as_deref().map_or("perf.data".into(), quoted);
    let text = format!("{line}: the recording that it was made from says why");
    report.cause(line, Rank::Recording, text, format!("jitsym doctor {before}"));
}

/// The names of what perf inject makes of a recording, as the documents have them: `jit.data`, and `NAME.jit.data` of `NAME.data`.
fn names_of_made(data: &Path) -> [PathBuf; 2] {
    [data.with_file_name("jit.data"), data.with_extension("jit.data")]
}

/// What perf inject has made of a recording after it.
fn made_of(data: &Path) -> Option<PathBuf> {
    let written = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let before = written(data)?;
    let is_made = |path: &PathBuf| path != data && unfinished(path).is_none() && written(path) >= Some(before);
    names_of_made(data).into_iter().find(is_made)
}

/// The recording that perf inject was to work something into.
fn source_of(made: &Path) -> Option<PathBuf> {
    let start = made.file_name()?.to_str()?.strip_suffix("jit.data")?;
    let name = if start.is_empty() { "perf.data".into() } else { format!("{start}data") };
    Some(made.with_file_name(name)).filter(|path| path.is_file())
}

/// Nothing was worked in: is there anything to work in?
fn not_injected(data: &Path, monotonic: bool, dumps: &Dumps, report: &mut Report) {
    let shown = quoted(data);
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
    } else if let Some(made) = made_of(data).filter(|_| dumps.codes > 0 && monotonic) {
        let made = quoted(&made);
        // There is nothing wrong with it.
        report.note(format!("the jitdump is in {made}"));
        report.because(
            Rank::Recording,
            format!("perf inject was run into {made}: look at that, this recording is as it was before"),
            format!("jitsym doctor {made}"),
        );
    } else if dumps.codes > 0 && monotonic {
        report.cause(
            "the jitdump is not in the recording yet",
            Rank::Recording,
            "perf inject --jit has not been run: the recording has a jitdump, and nothing of it but what a perf map has too",
            format!("perf inject --jit -i {shown} -o jit.data && perf report -i jit.data --no-children"),
        );
    }
}

/// The objects that were put in must be those that lie there now.
fn objects(perf: &Perf, data: &Path, contents: &Contents, dumps: &Dumps, report: &mut Report) -> Result<(), String> {
    let output = perf.output(perf.command("buildid-list").arg("-i").arg(data))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let recorded: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.trim().split_once(' ')).map(|(id, path)| (path, id)).collect();
    let (mut missing, mut other) = (Vec::new(), Vec::new());
    let all = contents.processes.values().flat_map(|process| &process.injected);
    let paths: BTreeSet<&String> = all.map(|(_, _, path)| path).collect();
    for path in paths {
        match (open::named(Path::new(path)).and_then(|file| open::read(&file)), recorded.get(&**path)) {
            (Err(_), _) => missing.push(path),
            (Ok(bytes), Some(id)) if build_id(&bytes).is_some_and(|there| there != *id) => other.push(path),
            _ => {}
        }
    }
    // Again, if all that it needs is there.
    let next = match source_of(data).filter(|_| dumps.codes > 0 && dumps.gone.is_empty()) {
        Some(source) => format!("perf inject --jit -i {} -o {}", quoted(&source), quoted(data)),
        None => RECORD.into(),
    };
    if let Some(path) = other.first() {
        report.cause(
            format!("{path} is another one than was put in"),
            Rank::Recording,
            format!(
                "the objects are those of another run of perf inject (such as {path}): names and lines may be wrong or missing"
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
    if share < FEW {
        return Some(line);
    }
    report.good(line);
    None
}

fn names(contents: &Contents, quality: &Quality, dumps: &Dumps, injected: bool, run: Run<'_>, report: &mut Report) {
    let nothing = dumps.codes == 0 && dumps.gone.is_empty() && dumps.unreadable.is_empty() && !injected;
    // Few samples tell nothing of code that is named, but there is none.
    if quality.jit < ENOUGH && !(nothing && quality.named == 0) {
        return;
    }
    let Some(line) = too_few(quality, quality.named, "names", report) else { return };
    let next = if run.is_own { "JITSYM_DEBUG=1 COMMAND" } else { "jitsym doctor -- COMMAND" };
    let has_library = contents.processes.values().any(|process| process.library);
    if nothing && machine::room(Path::new("/tmp")).is_some_and(|room| room.noexec) {
        report.bad(line);
    } else if let Some(why) = run.log.and_then(Log::why_nothing).filter(|_| nothing && has_library) {
        report.cause(line, Rank::Nothing, why, next);
    } else if nothing && has_library {
        report.cause(line, Rank::Nothing, "the program has libjitsym, and has named no code", next);
    } else if nothing {
        report.cause(
            line,
            Rank::Nothing,
            "nothing names the compiled code: no process of the recording has libjitsym, or a jitdump or perf map with code",
            next,
        );
    } else {
        let text =
            "some compiled code has no name: it is not in the jitdump, as code is whose registration was refused";
        report.cause(line, Rank::Quality, text, next);
    }
}

fn stacks(
    perf: &Perf,
    quality: &Quality,
    graph: Graph,
    dumps: &Dumps,
    regions: usize,
    variables: machine::Variables,
    report: &mut Report,
) {
    let Some(line) = too_few(quality, quality.whole, "whole stacks", report) else { return };
    let worst = quality.worst(5);
    let cut = |(name, count): &(&str, u64)| match count {
        1 => format!("1 stack ends at {}", printable(name.as_bytes())),
        _ => format!("{count} stacks end at {}", printable(name.as_bytes())),
    };
    let first = worst.first().map_or("compiled code".into(), |(name, _)| printable(name.as_bytes()).to_string());
    let (text, next) = match graph {
        Graph::FramePointers if dumps.codes > 0 && dumps.with_tables == 0 => (
            format!(
                "the program describes no frames (jitsym_code.unwind), and some code keeps no frame pointers either. Change the \
                 program, then look again: stacks end at {first}"
            ),
            "jitsym doctor -- COMMAND".to_owned(),
        ),
        Graph::FramePointers => (
            format!(
                "stacks were recorded by frame pointers, and some code has none. Record with --call-graph dwarf in place of -g, \
                 or by the command below: they end at {first}"
            ),
            RECORD.to_owned(),
        ),
        _ if dumps.codes > 0 && dumps.with_tables == 0 => (
            format!(
                "the program describes no frames (jitsym_code.unwind). Until it does, stacks by frame pointers may be whole, if all \
                 of its code keeps them: they end at {first}"
            ),
            "jitsym record -g fp -- COMMAND".to_owned(),
        ),
        _ if dumps.codes > 0 && regions == 0 && perf.unwinder() == Ok(Unwinder::Libunwind) => (
            format!("perf with libunwind needs a gap after code (free_after), or regions: stacks end at {first}"),
            // Memory that was to be adopted, and was not.
            if variables.adopts { "jitsym record -g fp -- COMMAND" } else { "jitsym record --adopt -- COMMAND" }
                .to_owned(),
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
    fn what_perf_inject_was_run_into() {
        let [usual, other] = names_of_made(Path::new("d/run.data"));
        assert_eq!((usual, other), ("d/jit.data".into(), "d/run.jit.data".into()));
        assert_eq!(made_of(Path::new("/nowhere/perf.data")), None);
        assert_eq!(source_of(Path::new("/nowhere/jit.data")), None);
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
