//! Removes files that dead processes of this user have left: perf maps, jitdumps, spools, files of regions, and files for
//! valgrind.
//!
//! `/tmp` is full of other people's files. The pid in a name may belong to another process, or to a process that is not visible
//! here. So a file is removed only under all of these conditions:
//! - The file's name has exactly the right form, and the file belongs to this user.
//! - The file has only one link, unless it is a file of a region or a file for valgrind.
//! - The file has the library's mark, or begins like a spool. This condition protects files of other runtimes and of the user.
//! - No process with the pid in the name is alive.
//! - Nobody holds a lock on the file, and no visible process has the file open or mapped.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::format::file_names::{is_pid, parse, replaced_by, FileKind};
use crate::queue::spool::file as spool;
use crate::sys::held_dir::Dir;
use crate::sys::sort::sort;
use crate::sys::{file, process};

/// A file with the name of a perf map, a jitdump, a spool, a file of a region, or a file for valgrind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// The path of the file.
    pub path: PathBuf,
    /// Why the file was kept. `None` if the file was removed, or if only `dry_run` prevented the removal.
    pub kept: Option<String>,
    /// How many bytes of disk space the removal frees. If a file has several names, its disk space is divided equally among the
    /// names.
    pub bytes: u64,
}

/// Removes the files of dead processes from a directory. If `dry_run` is set, only lists the files. If `before` is given,
/// skips files that somebody has written to since that time.
pub fn clean(dir: &Path, dry_run: bool, before: Option<SystemTime>) -> io::Result<Vec<Cleaned>> {
    let held = Dir::open(dir)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some((pid, kind)) = named(&name) else { continue };
        let Ok(data) = held.look(&name) else { continue };
        let written = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if before.is_none_or(|before| written < before) {
            names.push((name, (pid, kind), data.blocks() * 512 / data.nlink().max(1)));
        }
    }
    sort(&mut names);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let used = process::files_in_use();
    let clean = |(name, parsed, bytes): (OsString, (u32, FileKind), u64)| {
        let result =
            check(&held, &name, parsed, used.as_ref()).and_then(|()| if dry_run { Ok(()) } else { held.remove(&name) });
        Cleaned { path: dir.join(name), kept: result.err().map(|error| error.to_string()), bytes }
    };
    Ok(names.into_iter().map(clean).collect())
}

fn check(dir: &Dir, name: &OsStr, (pid, kind): (u32, FileKind), used: Option<&BTreeSet<(u64, u64)>>) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    let data = dir.look(name)?;
    match kind {
        // The names of several epochs of a region may be hard links to one file. The removal of one link does not affect the
        // other links.
        FileKind::Region { .. } | FileKind::ForValgrind { .. } => file::check_ours(&data)?,
        _ => file::check_plain(&data)?,
    }
    let is_spool = matches!(kind, FileKind::Spool { .. });
    let is_made_by_us = if is_spool { spool::starts_as_one(dir, name) } else { data.mode() & file::OURS != 0 };
    if !is_made_by_us {
        return refuse("it is not marked as a file of libjitsym");
    }
    if process::is_alive(pid) {
        return refuse("a process with this pid lives");
    }
    if file::is_locked(dir, name) || is_spool && spool::is_locked_by_owner(dir, name) {
        return refuse("a living process has locked it");
    }
    match used {
        Some(used) if used.contains(&(data.dev(), data.ino())) => refuse("a living process has it open"),
        Some(_) => Ok(()),
        None => refuse("without /proc nobody knows whether it is open"),
    }
}

/// The pid and the kind that a file name stands for. A replacement file has the pid and the kind of the file that it is to
/// replace. `None` if no process leaves files with this name.
fn named(name: &OsStr) -> Option<(u32, FileKind)> {
    // Files of the kind `Injected` are made by `perf inject`.
    let parsed = parse(name).filter(|(_, kind)| !matches!(kind, FileKind::Injected { .. }));
    parsed.or_else(|| replaced_by(name)).filter(|&(pid, _)| is_pid(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_processes_leave_count() {
        for name in ["perf-17.map", "jit-017.dump", ".perf-17.map.new", "jitsym-17-2af-1c.spool", "jitted-17-r0.so"] {
            assert_eq!(named(OsStr::new(name)).map(|(pid, _)| pid), Some(17), "{name}");
        }
        for name in ["jitted-17-1.so", "perf-0.map", ".jit-17-1.so.new", "perf.data"] {
            assert_eq!(named(OsStr::new(name)), None, "{name}");
        }
    }
}
