//! Finds the files of a process: mapped files, and files with the usual names.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jitsym::format::file_names::{parse, FileKind};
use jitsym::sys::other_writers;
use jitsym_tool::record::watch;

/// The pid that a word of the command line stands for. A file with this name comes first.
pub fn pid_of(word: &Path) -> Option<u32> {
    let digits = word.to_str().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|_| !word.exists())
}

/// Whether there is a process with this pid.
pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The jitdump, the perf map and the files of the regions of a process, made by any library. Fails if there are none. An earlier
/// process may have had the same pid: files with this number that are older than the process are left out, unless the process has
/// mapped them. Whoever can write to the directories chose these files, so they must be opened with [`jitsym_tool::open::of_process`].
pub fn files(pid: u32) -> io::Result<Vec<PathBuf>> {
    let mut found = mapped(pid);
    let began = other_writers::start_of(&pid.to_string());
    let is_older = |path: &Path| {
        let written = fs::symlink_metadata(path).and_then(|data| data.modified()).ok();
        began.zip(written).is_some_and(|(began, written)| written < began)
    };
    let mut older = 0;
    let mut places = vec![(PathBuf::from("/tmp"), pid)];
    places.extend(jitsym::clean_dirs().into_iter().map(|dir| (dir, pid)));
    // In a container, the process has a different pid and a different /tmp.
    let inner = watch::inner(Path::new(&format!("/proc/{pid}")));
    places.push((PathBuf::from(format!("/proc/{pid}/root/tmp")), inner.unwrap_or(pid)));
    for (dir, pid) in places {
        let mut here: Vec<PathBuf> =
            fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        here.retain(|path| is_of(path, pid));
        let count = here.len();
        here.retain(|path| !is_older(path));
        older += count - here.len();
        here.sort();
        found.extend(here);
    }
    let mut seen = BTreeSet::new();
    found.retain(|path| fs::symlink_metadata(path).is_ok_and(|data| seen.insert((data.dev(), data.ino()))));
    if found.is_empty() {
        let text = match (is_alive(pid), older) {
            (true, 0) => "the process has no jitdump, perf map or region",
            (true, _) => {
                "the process has no jitdump, perf map or region: the files with its number are older than the process"
            }
            (false, _) => "there is no such file, and no process that has left one",
        };
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(found)
}

/// The mapped files with such names.
fn mapped(pid: u32) -> Vec<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let mut paths: Vec<PathBuf> = paths.filter(|path| is_dump_or_region(path)).collect();
    paths.dedup();
    paths
}

fn is_dump_or_region(path: &Path) -> bool {
    let is_one = |(_, kind): (_, _)| !matches!(kind, FileKind::PerfMap | FileKind::Spool { .. });
    path.file_name().and_then(parse).is_some_and(is_one)
}

fn is_of(path: &Path, pid: u32) -> bool {
    let is_one = |(of, kind)| of == pid && !matches!(kind, FileKind::Spool { .. } | FileKind::Injected { .. });
    path.file_name().and_then(parse).is_some_and(is_one)
}
