//! Determines whether the code of jitdumps was put into a recording, by `jitsym inject` or by `perf inject`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::dumps::Dumps;
use super::{Rank, Report, RECORD};
use crate::inject::usual;
use crate::open;
use crate::record::contents::Contents;
use crate::record::perf::Perf;
use crate::record::script::Injector;
use crate::record::{quoted, unfinished};
use crate::text::count;

/// Reports a recording that was not completed by the program that wrote it.
pub fn not_finished(data: &Path, writer: &str, report: &mut Report) {
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

/// The default names of a recording with the code of its jitdumps: `jit.data`, or `NAME.jit.data` for `NAME.data`.
fn names_of_made(data: &Path) -> [PathBuf; 2] {
    [data.with_file_name("jit.data"), data.with_extension("jit.data")]
}

/// The recording with the code of the jitdumps, if it is newer than the recording without this code.
fn made_of(data: &Path) -> Option<PathBuf> {
    let written = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let before = written(data)?;
    let is_made = |path: &PathBuf| path != data && unfinished(path).is_none() && written(path) >= Some(before);
    names_of_made(data).into_iter().find(is_made)
}

/// The recording from which a recording with the code of its jitdumps was made.
fn source_of(made: &Path) -> Option<PathBuf> {
    let start = made.file_name()?.to_str()?.strip_suffix("jit.data")?;
    let name = if start.is_empty() { "perf.data".into() } else { format!("{start}data") };
    Some(made.with_file_name(name)).filter(|path| path.is_file())
}

/// The command that makes this recording again, if all files that the command needs exist.
pub fn again(data: &Path, dumps: &Dumps) -> Option<String> {
    let source = source_of(data).filter(|_| dumps.codes > 0 && dumps.gone.is_empty())?;
    let inject = format!("jitsym inject -i {}", quoted(&source));
    Some(if usual(&source) == data { inject } else { format!("{inject} -o {}", quoted(data)) })
}

/// Reports that nothing was injected into the recording. `is_raw` is true if there is code to inject.
pub fn not_injected(data: &Path, is_raw: bool, dumps: &Dumps, report: &mut Report) {
    if let Some(path) = dumps.gone.first() {
        report.cause(
            format!("{path} is gone"),
            Rank::Recording,
            format!("the jitdump {path} was removed before its code was put into the recording (JITSYM_REMOVE=1, or by somebody)"),
            RECORD,
        );
    } else if let Some(problem) = dumps.unreadable.first() {
        report.cause(
            problem.clone(),
            Rank::Recording,
            format!("a jitdump cannot be read: {problem}"),
            "id; ls -l /tmp/jit-*.dump",
        );
    } else if let Some(made) = made_of(data).filter(|_| is_raw) {
        let made = quoted(&made);
        // The recording itself is valid.
        report.note(format!("the jitdump is in {made}"));
        report.because(
            Rank::Recording,
            format!("the code of the jitdump was put into {made}: look at that, this recording is as it was before"),
            format!("jitsym doctor {made}"),
        );
    } else if is_raw {
        report.cause(
            "the jitdump is not in the recording yet",
            Rank::Recording,
            "jitsym inject has not been run: the recording has a jitdump, and nothing of it but what a perf map has too",
            format!("jitsym inject -i {} && perf report -i {} --no-children", quoted(data), quoted(&usual(data))),
        );
    }
}

/// Checks that the injected objects are the files that exist now.
pub fn objects(
    perf: &Perf,
    data: &Path,
    contents: &Contents,
    dumps: &Dumps,
    is_good: bool,
    report: &mut Report,
) -> Result<(), String> {
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
    let next = again(data, dumps).unwrap_or_else(|| RECORD.into());
    let by = contents.injector().map_or("", Injector::program);
    if let Some(path) = other.first() {
        report.cause(
            format!("{path} is another one than was put in"),
            Rank::Recording,
            format!(
                "the objects are those of another run of {by} (such as {path}): names and lines may be wrong or missing"
            ),
            next,
        );
    } else if let Some(path) = missing.first().filter(|_| is_good) {
        let objects = count(missing.len(), "object");
        report.note(format!(
            "{objects} of {by} not there (such as {path}): perf has copies in its cache of build-ids (~/.debug)"
        ));
    } else if let Some(path) = missing.first() {
        report.cause(
            format!("{} that {by} has made are gone", count(missing.len(), "object")),
            Rank::Recording,
            format!("objects that {by} has made were removed (such as {path}): reports need them"),
            next,
        );
    }
    Ok(())
}

/// The build-id in a small ELF file, in hexadecimal.
fn build_id(file: &[u8]) -> Option<String> {
    // A note has the lengths of name and description, the type, and the name.
    let note = [4u32, 20, 3].map(u32::to_ne_bytes).concat();
    let note = [&note[..], b"GNU\0"].concat();
    let at = file.windows(note.len()).position(|bytes| bytes == note)? + note.len();
    Some(file.get(at..at + 20)?.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_recordings() {
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
