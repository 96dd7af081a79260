//! Removes files that were made from jitdumps for recordings.
//!
//! The files are objects of `perf inject` (`jitted-PID-N.so` beside the jitdump), objects of `jitsym inject`
//! (`jitcode-PID-BUILDID.so`), and entries of perf's build-id cache (`~/.debug`). A file is removed only if it certainly is
//! such a file, belongs to this user, and belongs to a dead process.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jitsym::format::file_names::{is_pid, parse, FileKind};
use jitsym::sys::held_dir::Dir;
use jitsym::sys::process;
use jitsym::Cleaned;

use crate::objects::pid_of;
use crate::open::read_sparse;
use crate::record::script::Injector;
use crate::region::Region;

/// Sections of the objects that `perf inject` (linux tools/perf/util/genelf.c) and `jitsym inject` make.
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
    ".debug_aranges",
    ".debug_ranges",
];
/// Files of an entry of the cache (linux tools/perf/util/build-id.c).
const PARTS: &[&str] = &["elf", "debug", "probes", "vdso"];
/// The directory of links by build-id.
const LINKS: &str = ".build-id";
/// Larger objects are not examined.
const SIZE_MAX: u64 = 256 << 20;
/// The maximum depth of directories in the cache that are searched.
const DEPTH: u32 = 40;

/// Which files are removed.
pub struct Clean {
    /// If this is true, nothing is removed, and the files are only printed.
    pub dry_run: bool,
    /// If this is given, only files that were last written before this time are removed.
    pub before: Option<SystemTime>,
    /// The files that living processes have open. `None` if they cannot be determined.
    used: Option<BTreeSet<(u64, u64)>>,
}

impl Clean {
    /// Determines which files are in use now.
    pub fn new(dry_run: bool, before: Option<SystemTime>) -> Self {
        Clean { dry_run, before, used: process::files_in_use() }
    }

    /// Removes the objects in a directory.
    pub fn objects(&self, dir: &Path) -> io::Result<Vec<Cleaned>> {
        let mut found = Vec::new();
        if let Some(place) = Place::open(dir)? {
            for name in place.names()? {
                let Some((pid, What::Object(by))) = pid_and_kind(&name) else { continue };
                let Ok(data) = place.dir.look(&name) else { continue };
                if self.is_old(&data) {
                    let kept = self.object(&place, &name, &data, pid, by).err().map(|error| error.to_string());
                    found.push(Cleaned { bytes: bytes(&data), kept, path: place.path.join(&name) });
                }
            }
        }
        Ok(found)
    }

    fn object(&self, place: &Place, name: &OsStr, data: &Metadata, pid: u32, by: Injector) -> io::Result<()> {
        self.check(data, pid)?;
        check_object(&place.dir, name, by)?;
        if self.dry_run {
            Ok(())
        } else {
            place.dir.remove(name)
        }
    }

    /// Removes entries of a build-id cache.
    pub fn cache(&self, cache: &Path) -> io::Result<Vec<Cleaned>> {
        let mut found = Vec::new();
        // A link in the cache is followed only if this user made it.
        let is_anothers = |data: Metadata| data.is_symlink() && data.uid() != process::user() && data.uid() != 0;
        if fs::symlink_metadata(cache).is_ok_and(is_anothers) {
            return refuse("it is a link of another user");
        }
        if let Some(place) = Place::open(cache)? {
            self.walk(&place, &place, DEPTH, &mut found)?;
        }
        Ok(found)
    }

    fn walk(&self, cache: &Place, place: &Place, depth: u32, found: &mut Vec<Cleaned>) -> io::Result<()> {
        for name in place.names()? {
            // Enters only directories, and follows no link.
            let Ok(below) = place.below(&name) else { continue };
            if name == LINKS && place.path == cache.path {
                continue;
            }
            match pid_and_kind(&name) {
                Some((pid, what)) => {
                    self.entries(cache, &below, pid, what, found)?;
                    if !self.dry_run {
                        // Fails if the directory is not empty, as intended.
                        let _ = place.dir.remove_dir(&name);
                    }
                }
                _ if depth > 0 => self.walk(cache, &below, depth - 1, found)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// All versions of one file.
    fn entries(&self, cache: &Place, place: &Place, pid: u32, what: What, found: &mut Vec<Cleaned>) -> io::Result<()> {
        for name in place.names()? {
            let path = place.path.join(&name);
            let entry = place.below(&name).and_then(|entry| Ok((entry.dir.look(OsStr::new("elf"))?, entry)));
            let Ok((data, entry)) = entry else {
                let kept = Some("it is no entry with a file".to_owned());
                found.push(Cleaned { path, kept, bytes: 0 });
                continue;
            };
            if self.is_old(&data) {
                let result = self.check(&data, pid).and_then(|()| self.entry(cache, &entry, &name, what));
                let result = result.and_then(|()| if self.dry_run { Ok(()) } else { place.dir.remove_dir(&name) });
                found.push(Cleaned { bytes: bytes(&data), kept: result.err().map(|error| error.to_string()), path });
            }
        }
        Ok(())
    }

    fn entry(&self, cache: &Place, entry: &Place, id: &OsStr, what: What) -> io::Result<()> {
        let id = id.to_str().unwrap_or_default();
        if id.len() < 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return refuse("its name is no build-id");
        }
        let parts = entry.names()?;
        if parts.iter().any(|part| !part.to_str().is_some_and(|name| PARTS.contains(&name))) {
            return refuse("there are files in it that perf does not make");
        }
        // The file of a region may be as large as the region, so only its name is checked.
        if let What::Object(by) = what {
            check_object(&entry.dir, OsStr::new("elf"), by)?;
        }
        if self.dry_run {
            return Ok(());
        }
        // The links to the entry are removed first.
        let (start, rest) = id.split_at(2);
        let (start, rest) = (OsStr::new(start), OsStr::new(rest));
        if let Ok(links) = cache.below(OsStr::new(LINKS)) {
            if let Ok(some) = links.below(start) {
                let leads_there =
                    || io::Result::Ok(fs::canonicalize(some.path.join(rest))? == fs::canonicalize(&entry.path)?);
                if some.dir.look(rest).is_ok_and(|data| data.is_symlink()) && leads_there().unwrap_or(false) {
                    some.dir.remove(rest)?;
                    let _ = links.dir.remove_dir(start);
                }
            }
        }
        parts.iter().try_for_each(|part| entry.dir.remove(part))
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

/// An open directory, and its path for messages.
struct Place {
    dir: Dir,
    path: PathBuf,
}

impl Place {
    /// `None` if the directory does not exist.
    fn open(path: &Path) -> io::Result<Option<Place>> {
        match Dir::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            dir => Ok(Some(Place { dir: dir?, path: path.to_owned() })),
        }
    }

    fn below(&self, name: &OsStr) -> io::Result<Place> {
        Ok(Place { dir: self.dir.below(name)?, path: self.path.join(name) })
    }

    /// The names in the directory, sorted.
    fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = self.dir.names()?;
        names.sort();
        Ok(names)
    }
}

/// The bytes of a file, divided by the number of its names.
fn bytes(data: &Metadata) -> u64 {
    data.blocks() * 512 / data.nlink().max(1)
}

/// The kind of a file with a certain name.
#[derive(Clone, Copy)]
enum What {
    Object(Injector),
    Region,
}

fn pid_and_kind(name: &OsStr) -> Option<(u32, What)> {
    if let Some(pid) = name.to_str().and_then(pid_of) {
        return Some((pid, What::Object(Injector::Jitsym)));
    }
    match parse(name).filter(|&(pid, _)| is_pid(pid))? {
        (pid, FileKind::Injected { .. }) => Some((pid, What::Object(Injector::Perf))),
        (pid, FileKind::Region { .. }) => Some((pid, What::Region)),
        _ => None,
    }
}

fn check_object(dir: &Dir, name: &OsStr, by: Injector) -> io::Result<()> {
    if is_object(dir, name, by)? {
        return Ok(());
    }
    refuse(&format!("`{}` makes no such objects", by.program()))
}

/// Whether a file has functions, and only the sections that the program writes. An object of perf has one function.
fn is_object(dir: &Dir, name: &OsStr, by: Injector) -> io::Result<bool> {
    let file = dir.open_to_read(name)?;
    let data = file.metadata()?;
    if bytes(&data) > SIZE_MAX {
        return Ok(false);
    }
    // The tables may lie far behind the code, with a hole between them.
    let bytes = read_sparse(&file, data.len())?;
    let Ok(region) = Region::read(&bytes) else { return Ok(false) };
    let is_number_right = match by {
        Injector::Perf => region.functions.len() == 1,
        Injector::Jitsym => !region.functions.is_empty(),
    };
    let names: Vec<String> = region.sections().map(|(name, _)| name).filter(|name| !name.is_empty()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let known = names.iter().all(|name| SECTIONS.contains(&name.as_str()));
    Ok(known && has(".text") && has(".note.gnu.build-id") && is_number_right)
}
