//! Examines a running process: its entries in /proc, and the data that it publishes about itself.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jitsym::format::file_names::{parse, FileKind};

use super::producers::{self, Hidden};
use super::{debuggers, machine, published, size, strays, Rank, Report};
use crate::record::command_line;
use crate::record::script::{file_name, is_region, jitdump_pid};
use crate::record::watch::{inner, mappings, Mapping};
use crate::text::{count, Shown};

/// The mappings and open files of a process.
#[derive(Default)]
pub struct Seen {
    /// Whether the shared library is mapped. A program may contain the static library instead.
    library: bool,
    /// Jitdumps that are mapped executable, and jitdumps that are mapped otherwise.
    markers: BTreeSet<String>,
    unmarked: BTreeSet<String>,
    pub maps: BTreeSet<String>,
    regions: BTreeSet<String>,
    pub spools: BTreeSet<String>,
    /// Bytes of executable memory without a file, and the reason why readers ignore a perf map for it.
    memory: u64,
    hidden: Hidden,
}

impl Seen {
    fn add(&mut self, path: &str, executable: bool, bytes: u64) {
        let parsed = parse(file_name(path));
        if file_name(path).starts_with("libjitsym.so") {
            self.library = true;
        } else if jitdump_pid(path).is_some() {
            let set = if executable { &mut self.markers } else { &mut self.unmarked };
            set.insert(path.into());
        } else if matches!(parsed, Some((_, FileKind::PerfMap))) {
            self.maps.insert(path.into());
        } else if is_region(path) {
            self.regions.insert(path.into());
        } else if matches!(parsed, Some((_, FileKind::Spool { .. }))) {
            self.spools.insert(path.into());
        } else if (path.is_empty() || path.starts_with("[anon") || path.starts_with("/memfd:")) && executable {
            self.memory += bytes;
            self.hidden.add(path);
        }
    }

    /// Reads the mappings and open files of the process with this directory in `/proc`.
    pub fn read(dir: &Path) -> io::Result<Seen> {
        let mut seen = Seen::default();
        let maps = fs::read(dir.join("maps"))?;
        for Mapping { range, executable, path } in mappings(&String::from_utf8_lossy(&maps)) {
            seen.add(&path, executable, range.end - range.start);
        }
        // The library's thread has a separate descriptor table.
        let threads = fs::read_dir(dir.join("task"))?.flatten().map(|thread| fs::read_dir(thread.path().join("fd")));
        for entry in threads.flatten().flatten().flatten() {
            if let Ok(path) = fs::read_link(entry.path()) {
                seen.add(&path.to_string_lossy(), false, 0);
            }
        }
        seen.unmarked = seen.unmarked.difference(&seen.markers).cloned().collect();
        Ok(seen)
    }

    /// Whether the library can be detected in the process. The static library cannot be recognised.
    fn has_library(&self, dir: &Path) -> bool {
        let thread = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let tasks = fs::read_dir(dir.join("task"));
        self.library
            || !self.spools.is_empty()
            || tasks.is_ok_and(|tasks| tasks.flatten().any(|entry| thread(entry).starts_with("jitsym")))
    }
}

/// The environment that a process was started with.
fn environment(dir: &Path) -> io::Result<Vec<(OsString, OsString)>> {
    let bytes = fs::read(dir.join("environ"))?;
    let pairs = bytes.split(|&byte| byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        Some((OsStr::from_bytes(&pair[..at]).to_owned(), OsStr::from_bytes(&pair[at + 1..]).to_owned()))
    });
    Ok(pairs.collect())
}

/// The command that a process runs, quoted for a shell.
fn command_line(dir: &Path) -> Option<String> {
    let bytes = fs::read(dir.join("cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let words = text.strip_suffix('\0').unwrap_or(&text);
    (!words.is_empty()).then(|| command_line::shown(words.split('\0')))
}

pub fn look(pid: u32, proc: &Path, report: &mut Report) -> Result<(), String> {
    let dir = proc.join(pid.to_string());
    let command = fs::read(dir.join("comm")).map_err(|_| format!("there is no process {pid}"))?;
    report.part(format!("process {pid} ({})", crate::text::printable(command.trim_ascii_end())));
    let denied = |error: io::Error| format!("process {pid}: {error}: look at it as its user, or as root");
    let seen = Seen::read(&dir).map_err(denied)?;
    let environment = environment(&dir).map_err(denied)?;
    let again = "jitsym record -- COMMAND";
    report.command = command_line(&dir);
    report.usual = Some(format!("jitsym record -p {pid} --seconds 10"));
    let variables = machine::environment(environment.iter().cloned(), again, report);
    let inside = namespace(pid, &dir, report);

    let shown = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
    if !seen.markers.is_empty() {
        report.good(format!("jitdump {}, where perf finds it", shown(&seen.markers)));
    }
    if !seen.maps.is_empty() {
        report.good(format!("perf map {}", shown(&seen.maps)));
    }
    if !seen.regions.is_empty() {
        report.good(format!("{} of regions: {}", count(seen.regions.len(), "file"), shown(&seen.regions)));
    }
    if seen.memory > 0 {
        report.note(format!("{} of executable memory without a file", size(seen.memory)));
    }
    if seen.markers.is_empty() && seen.regions.is_empty() {
        seen.hidden.note(report);
        producers::dialect(pid, proc, report);
        producers::perforator(environment.iter().any(|(name, _)| name == "__PERFORATOR_ENABLE_PERFMAP"), proc, report);
    }
    if !seen.markers.is_empty() {
        strays::in_memory(pid, report);
    }
    debuggers::look(&dir.join("exe"), report);
    let mut runs = false;
    for spool in &seen.spools {
        runs |= published::look(spool, &dir.join("root"), [pid, inside.unwrap_or(pid)], again, report);
    }
    if seen.spools.is_empty() && seen.has_library(&dir) {
        report.note(
            "it has no spool in which it could say what it does: no sink runs, there was no room, or JITSYM_SPOOL=off",
        );
    }
    if seen.markers.is_empty() && !seen.unmarked.is_empty() {
        report.cause(
            format!("jitdump {} is not mapped", shown(&seen.unmarked)),
            Rank::Files,
            "the jitdump has no executable mapping, by which perf finds it: a perf that comes now will not see it",
            again,
        );
    }
    let set = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| PathBuf::from(value));
    let files = set("JITSYM_DIR").unwrap_or_else(|| "/tmp".into());
    let in_its_root = dir.join("root").join(files.strip_prefix("/").unwrap_or(&files));
    let has_files = !seen.markers.is_empty() || !seen.maps.is_empty() || !seen.regions.is_empty();
    if !seen.has_library(&dir) && !has_files && seen.unmarked.is_empty() {
        report.cause(
            "no libjitsym in it",
            Rank::Off,
            format!("process {pid} has no libjitsym: it is not linked with it, and has not loaded it (JITSYM_LIB names the file)"),
            format!("jitsym record -g fp -p {pid} --seconds 10"),
        );
    } else if variables.is_off && !has_files && !runs {
        report.bad("libjitsym is there, and writes nothing");
    } else if seen.markers.is_empty()
        && seen.regions.is_empty()
        && machine::room(&in_its_root).is_some_and(|room| room.noexec)
    {
        report.cause(
            format!("{} is mounted noexec", files.shown()),
            Rank::Files,
            format!(
                "{} is mounted noexec for process {pid}: it has no jitdump and no region, only the perf map",
                files.shown()
            ),
            format!("JITSYM_DIR=/var/tmp {again}"),
        );
    } else if !has_files && !runs && !seen.spools.is_empty() {
        report.bad("libjitsym is there, and writes nothing");
        if report.causes().is_empty() {
            report.cause(
                "no sink runs",
                Rank::Nothing,
                format!("no sink runs in process {pid}, which has opened a session: JITSYM_DEBUG=1 says why"),
                "JITSYM_DEBUG=1 COMMAND",
            );
        }
    } else if !has_files && !runs && seen.unmarked.is_empty() {
        report.cause(
            "libjitsym is there, and writes nothing",
            Rank::Off,
            match variables.is_on {
                true => format!("process {pid} has opened no session (jitsym_init): run it under doctor, which says whether it tries to"),
                false => format!(
                    "process {pid} has opened no session (jitsym_init), or was started without JITSYM=on: run it under doctor, which \
                     says which"
                ),
            },
            "jitsym doctor -- COMMAND",
        );
    } else if let Some(inside) = inside.filter(|_| report.causes().is_empty()) {
        report.cause(
            format!("its files have the number {inside}"),
            Rank::Minor,
            format!(
                "process {pid} is {inside} in a pid namespace of its own, and its files are in its own /tmp: perf 6 finds them \
                 while it lives, perf 7 has to run inside"
            ),
            format!("jitsym record -p {pid} --seconds 10"),
        );
    }
    Ok(())
}

/// The pid in the process's own pid namespace, if that is a different namespace.
fn namespace(pid: u32, dir: &Path, report: &mut Report) -> Option<u32> {
    let inside = inner(dir)?;
    (inside != pid).then(|| report.note(format!("it is process {inside} in a pid namespace of its own")))?;
    Some(inside)
}
