//! Removes perf maps, jitdumps, files of regions and spools of dead processes of this user, and nothing else.
//!
//! `/tmp` is full of other people's files. A pid may be in use by another process, or by a process that is not visible here. So
//! a file is removed only if its name has exactly the form, and the file belongs to this user. It must have no other name,
//! unless it is a region's file. It must have the library's mark or begin as a spool does, because files of other runtimes and
//! of the user may have such names. Besides, no process with its pid may be alive, nobody may have it locked, and no visible
//! process may have it open or mapped.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::sys::dir::Dir;
use crate::sys::sort::sort;
use crate::sys::{file, process, spool};

/// A file with the name of a map, a jitdump, a region's file or a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// The file.
    pub path: PathBuf,
    /// Why the file is still there; `None` if it is gone.
    pub kept: Option<String>,
    /// How much space its end gives back. Each name of a file with several names counts as an equal part.
    pub bytes: u64,
}

/// Removes the files of dead processes from a directory. With `dry_run` only lists them. With `before`, only files that nobody
/// has written to since that time.
pub fn clean(dir: &Path, dry_run: bool, before: Option<SystemTime>) -> io::Result<Vec<Cleaned>> {
    let held = Dir::open(dir)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(pid) = pid_in(&name) else { continue };
        let Ok(data) = held.look(&name) else { continue };
        let written = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if before.is_none_or(|before| written < before) {
            names.push((name, pid, data.blocks() * 512 / data.nlink().max(1)));
        }
    }
    sort(&mut names);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let used = process::files_in_use();
    let clean = |(name, pid, bytes): (std::ffi::OsString, u32, u64)| {
        let result =
            check(&held, &name, pid, used.as_ref()).and_then(|()| if dry_run { Ok(()) } else { held.remove(&name) });
        Cleaned { path: dir.join(name), kept: result.err().map(|error| error.to_string()), bytes }
    };
    Ok(names.into_iter().map(clean).collect())
}

fn check(dir: &Dir, name: &OsStr, pid: u32, used: Option<&BTreeSet<(u64, u64)>>) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    let data = dir.look(name)?;
    match std::str::from_utf8(name.as_bytes()).is_ok_and(|text| region_pid(text).is_some()) {
        // Generations share a file. Removing one name does not affect the others.
        true => file::check_ours(&data)?,
        false => file::check_plain(&data)?,
    }
    let is_made_by_us = match spool::pid_in(&name.to_string_lossy()) {
        Some(_) => spool::starts_as_one(dir, name),
        None => data.mode() & file::OURS != 0,
    };
    if !is_made_by_us {
        return refuse("it is not marked as a file of libjitsym");
    }
    if process::is_alive(pid) {
        return refuse("a process with this pid lives");
    }
    if file::is_locked(dir, name) || spool::is_locked_by_owner(dir, name) {
        return refuse("a living process has locked it");
    }
    match used {
        Some(used) if used.contains(&(data.dev(), data.ino())) => refuse("a living process has it open"),
        Some(_) => Ok(()),
        None => refuse("without /proc nobody knows whether it is open"),
    }
}

/// The pid in the name of a map, a jitdump, a map or jitdump that is being rewritten, a region's file or a spool.
fn pid_in(name: &OsStr) -> Option<u32> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    if let Some(pid) = spool::pid_in(text) {
        return Some(pid);
    }
    if let Some(digits) = region_pid(text) {
        return pid_of(digits);
    }
    let text = if text.starts_with('.') { file::name_from_new(text)? } else { text };
    let between = |prefix, suffix| text.strip_prefix(prefix)?.strip_suffix(suffix);
    pid_of(between("perf-", ".map").or_else(|| between("jit-", ".dump"))?)
}

/// The text of the pid in `jit-PID-N.so`, in `jit-PID-vN.so` for valgrind, and in `jitted-PID-rN.so`, the form in `/tmp`. After
/// N may follow a dot and the number of a generation, or a dot, an f and the pid of the process that forked this one.
/// (`jitted-PID-N.so` is made by `perf inject`.)
fn region_pid(text: &str) -> Option<&str> {
    let text = text.strip_suffix(".so")?;
    let (pid, rest) = match text.strip_prefix("jitted-") {
        Some(text) => text.split_once("-r")?,
        None => text.strip_prefix("jit-")?.split_once('-')?,
    };
    let is_number = |text: &str| text.parse::<u32>().is_ok_and(|number| number.to_string() == text);
    let rest = rest.strip_prefix('v').filter(|rest| is_number(rest) && !text.starts_with("jitted-")).unwrap_or(rest);
    let (number, generation) = rest.split_once('.').unwrap_or((rest, "1"));
    (is_number(number) && is_number(generation.strip_prefix('f').unwrap_or(generation))).then_some(pid)
}

fn pid_of(digits: &str) -> Option<u32> {
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&pid: &u32| are_digits && pid > 0 && pid <= i32::MAX as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_exact_form_count() {
        let good = [
            "perf-17.map",
            "jit-17.dump",
            "jit-017.dump",
            ".perf-17.map.new",
            ".jit-17.dump.new",
            ".perf-17.map.0123456789abcdef.new",
            ".jit-017.dump.00000000000000ff.new",
            "jitsym-17-2af-1c.spool",
            "jit-17-0.so",
            "jit-17-4711.so",
            "jit-17-v4711.so",
            "jit-17-0.1.so",
            "jit-17-0.f4711.so",
            "jitted-17-r0.f4711.so",
            "jit-17-12.345.so",
            "jitted-17-r0.so",
            "jitted-17-r12.345.so",
        ];
        for name in good {
            assert_eq!(pid_in(OsStr::new(name)), Some(17), "{name}");
        }
        let bad = [
            "perf-17.map.bak",
            "perf-+17.map",
            "perf-.map",
            "perf-0.map",
            "perf-17a.map",
            "xperf-17.map",
            "perf-17.dump",
            "perf-17.map.new",
            "perf-17.map.0123456789abcdef",
            ".perf-17.map.0123456789abcdef",
            ".perf-17.map.0123456789abcde.new",
            ".perf-17.map.0123456789ABCDEF.new",
            ".perf-17.map.0123456789abcdef.0123456789abcdef.new",
            ".perf-17.map",
            "perf-99999999999.map",
            "jitted-17-1.so",
            "jitted-17-r.so",
            "jitted-17-r1.so.so",
            "jitted-x-r1.so",
            "jitted-17-rr1.so",
            "jit-17-r1.so",
            "jit-17-v1.2.so",
            "jit-17-vv1.so",
            "jitted-17-rv1.so",
            "jit-17.so",
            "jit-17-.so",
            "jit-17-1",
            "jit-17-01.so",
            "jit-17-+1.so",
            "jit-17-1..so",
            "jit-17-1.f.so",
            "jit-17-1.ff2.so",
            "jit-17-1.2.3.so",
            "jit-17-1.x.so",
            "jit-17-1-2.so",
            "jit--17-1.so",
            "jit-0-1.so",
            "jit-17-99999999999.so",
            ".jit-17-1.so.new",
            "jitsym-17.spool",
            "perf.data",
        ];
        for name in bad {
            assert_eq!(pid_in(OsStr::new(name)), None, "{name}");
        }
    }
}
