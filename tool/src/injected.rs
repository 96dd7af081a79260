//! What perf has made of jitdumps and keeps: the objects of `perf inject` (`jitted-PID-N.so` beside the dump), and entries of the
//! cache of build-ids (`~/.debug`). Only what certainly is that, is this user's, and is of a dead process, is removed.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jitsym::sys::process;
use jitsym::Cleaned;

use crate::region::Region;

/// Sections of the objects that `perf inject` makes (linux tools/perf/util/genelf.c).
const SECTIONS: &[&str] = &[
    ".text",
    ".eh_frame",
    ".eh_frame_hdr",
    ".shstrtab",
    ".symtab",
    ".strtab",
    ".note.gnu.build-id",
    ".debug_line",
    ".debug_info",
    ".debug_abbrev",
];
/// Files of an entry of the cache (linux tools/perf/util/build-id.c).
const PARTS: &[&str] = &["elf", "debug", "probes", "vdso"];
/// The directory of links by build-id.
const LINKS: &str = ".build-id";
/// Larger objects hold no single function.
const SIZE_MAX: u64 = 256 << 20;
/// Directories below each other in the cache that are gone into.
const DEPTH: u32 = 40;

/// What is to be removed.
pub struct Clean {
    /// Only names it.
    pub dry_run: bool,
    /// Only what nobody has written to since then.
    pub before: Option<SystemTime>,
    /// What living processes have open; `None` if nobody knows.
    used: Option<BTreeSet<(u64, u64)>>,
}

impl Clean {
    /// Looks which files are in use now.
    pub fn new(dry_run: bool, before: Option<SystemTime>) -> Self {
        Clean { dry_run, before, used: process::files_in_use() }
    }

    /// The objects of `perf inject` in a directory.
    pub fn objects(&self, dir: &Path) -> io::Result<Vec<Cleaned>> {
        let mut found = Vec::new();
        for path in paths(dir)? {
            let Some(pid) = name_of(&path).and_then(object_pid) else { continue };
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            if self.is_old(&data) {
                let result = self.object(&path, &data, pid);
                found.push(Cleaned { bytes: bytes(&data), kept: result.err().map(|error| error.to_string()), path });
            }
        }
        Ok(found)
    }

    fn object(&self, path: &Path, data: &Metadata, pid: u32) -> io::Result<()> {
        self.check(data, pid)?;
        if !is_perfs(path)? {
            return refuse("`perf inject` makes no such objects");
        }
        if self.dry_run {
            Ok(())
        } else {
            fs::remove_file(path)
        }
    }

    /// The entries of a cache of build-ids.
    pub fn cache(&self, cache: &Path) -> io::Result<Vec<Cleaned>> {
        let mut found = Vec::new();
        self.walk(cache, cache, DEPTH, &mut found)?;
        Ok(found)
    }

    fn walk(&self, cache: &Path, dir: &Path, depth: u32, found: &mut Vec<Cleaned>) -> io::Result<()> {
        for path in paths(dir)? {
            // Not through links.
            if !fs::symlink_metadata(&path).is_ok_and(|data| data.is_dir()) || path == cache.join(LINKS) {
                continue;
            }
            match name_of(&path).and_then(|name| object_pid(name).or_else(|| entry_pid(name))) {
                Some(pid) => found.extend(self.entries(cache, &path, pid)?),
                None if depth > 0 => self.walk(cache, &path, depth - 1, found)?,
                None => {}
            }
        }
        Ok(())
    }

    /// All versions of one file, and its directory when that is empty.
    fn entries(&self, cache: &Path, dir: &Path, pid: u32) -> io::Result<Vec<Cleaned>> {
        let mut found = Vec::new();
        for path in paths(dir)? {
            let Ok(data) = fs::symlink_metadata(path.join("elf")) else {
                let kept = Some("it is no entry with a file".to_owned());
                found.push(Cleaned { path, kept, bytes: 0 });
                continue;
            };
            if self.is_old(&data) {
                let result = self.entry(cache, &path, &data, pid);
                found.push(Cleaned { bytes: bytes(&data), kept: result.err().map(|error| error.to_string()), path });
            }
        }
        if !self.dry_run {
            // Not if there is anything left.
            let _ = fs::remove_dir(dir);
        }
        Ok(found)
    }

    fn entry(&self, cache: &Path, dir: &Path, data: &Metadata, pid: u32) -> io::Result<()> {
        self.check(data, pid)?;
        let id = name_of(dir).unwrap_or_default();
        if id.len() < 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return refuse("its name is no build-id");
        }
        let parts = paths(dir)?;
        if parts.iter().any(|part| !name_of(part).is_some_and(|name| PARTS.contains(&name))) {
            return refuse("there are files in it that perf does not make");
        }
        // A region's file is no smaller than it, so that the name has to do.
        if dir.parent().and_then(name_of).and_then(object_pid).is_some() && !is_perfs(&dir.join("elf"))? {
            return refuse("`perf inject` makes no such objects");
        }
        if self.dry_run {
            return Ok(());
        }
        // First what leads there.
        let (start, rest) = id.split_at(2);
        let link = cache.join(LINKS).join(start).join(rest);
        if fs::symlink_metadata(&link).is_ok_and(|data| data.is_symlink())
            && fs::canonicalize(&link)? == fs::canonicalize(dir)?
        {
            fs::remove_file(&link)?;
            let _ = fs::remove_dir(cache.join(LINKS).join(start));
        }
        for part in parts {
            fs::remove_file(part)?;
        }
        fs::remove_dir(dir)
    }

    fn is_old(&self, data: &Metadata) -> bool {
        self.before.is_none_or(|before| data.modified().is_ok_and(|written| written < before))
    }

    fn check(&self, data: &Metadata, pid: u32) -> io::Result<()> {
        if !data.is_file() {
            return refuse("it is not a regular file");
        }
        if data.uid() != process::user() {
            return refuse("it belongs to another user");
        }
        if process::is_alive(pid) {
            return refuse("a process with this pid lives");
        }
        match &self.used {
            Some(used) if used.contains(&(data.dev(), data.ino())) => refuse("a living process has it open"),
            Some(_) => Ok(()),
            None => refuse("without /proc nobody knows whether it is open"),
        }
    }
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

/// What is in a directory, in order; nothing if it is not there.
fn paths(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Of a file with several names, each has its part.
fn bytes(data: &Metadata) -> u64 {
    data.blocks() * 512 / data.nlink().max(1)
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn pid_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&pid: &u32| is_number(text) && pid > 0 && pid <= i32::MAX as u32)
}

/// The pid in `jitted-PID-N.so`, which `perf inject` makes.
fn object_pid(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix("jitted-")?.strip_suffix(".so")?.split_once('-')?;
    pid_of(pid).filter(|_| is_number(number))
}

/// The pid in the name of a region's file: `jit-PID-N.so`, `jitted-PID-rN.so`, with a generation or without.
fn entry_pid(name: &str) -> Option<u32> {
    let text = name.strip_suffix(".so")?;
    let (pid, rest) = match text.strip_prefix("jitted-") {
        Some(text) => text.split_once("-r")?,
        None => text.strip_prefix("jit-")?.split_once('-')?,
    };
    let (number, generation) = rest.split_once('.').unwrap_or((rest, "0"));
    let is_region = is_number(number) && is_number(generation.strip_prefix('f').unwrap_or(generation));
    pid_of(pid).filter(|_| is_region)
}

/// Whether a file has one function, the sections that perf writes, and no others.
fn is_perfs(path: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    file.take(SIZE_MAX).read_to_end(&mut bytes)?;
    let Ok(region) = Region::read(&bytes) else { return Ok(false) };
    let names: Vec<String> = region.sections().map(|(name, _)| name).filter(|name| !name.is_empty()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let known = names.iter().all(|name| SECTIONS.contains(&name.as_str()));
    Ok(known && has(".text") && has(".note.gnu.build-id") && region.functions.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(object_pid("jitted-17-4.so"), Some(17));
        assert_eq!(entry_pid("jitted-17-r4.1.so"), Some(17));
        assert_eq!(entry_pid("jit-17-4.f9.so"), Some(17));
        for name in [
            "jitted-17-r4.so",
            "jitted-17.so",
            "jitted--1.so",
            "jitted-0-1.so",
            "jitted-17-4.so.old",
            "jitted-1x-1.so",
            "jitted-99999999999-1.so",
        ] {
            assert_eq!(object_pid(name), None, "{name}");
        }
        for name in ["jit-17.dump", "jit-17-4.x.so", "libjit-17-4.so", "jit-17-.so", "libc.so"] {
            assert_eq!(entry_pid(name), None, "{name}");
        }
    }
}
