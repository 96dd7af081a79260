//! The spool file of a process, which the process keeps locked as long as it runs.

use std::cell::LazyCell;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::format::file_names::{parse, FileKind};
use crate::sys::clock::monotonic_ns;
use crate::sys::file::leaves_room;
use crate::sys::held_dir::Dir;
use crate::sys::owner_process::{start_time, Owner};
use crate::sys::process::{is_alive, user};
use crate::sys::sort::sort;
use crate::sys::{listing, privileges, range_lock};

/// The first bytes of every spool.
pub const START: [u8; 8] = *b"jitspool";

/// An open and locked spool.
#[derive(Debug)]
pub struct SpoolFile {
    file: File,
    path: PathBuf,
}

/// A spool of this process that has no descriptor. The mapping of the spool keeps the file locked until the process ends or
/// executes another program. A forked child does not hold the lock.
#[derive(Debug)]
pub struct NamedSpool {
    path: PathBuf,
    /// Device and inode of the file and of its directory.
    file: (u64, u64),
    dir: (u64, u64),
}

impl NamedSpool {
    /// Whether the spool was removed, or its name now belongs to another file. The result is false if the path of the spool now
    /// leads to another directory. The process may have changed its root directory, so the spool may still have its name in the
    /// old directory.
    pub fn is_lost(&self) -> bool {
        let is_there = fs::symlink_metadata(&self.path).is_ok_and(|data| number_of(&data) == self.file);
        !is_there && directory_of(&self.path).is_ok_and(|dir| dir == self.dir)
    }

    /// Whether the spool may use `len` more bytes. Enough free space in the file system must remain for other users.
    pub fn may_take(&self, len: usize) -> bool {
        self.path.parent().is_none_or(|dir| leaves_room(dir, len))
    }

    /// Removes the file's name. Does nothing if the spool is lost (`is_lost`).
    pub fn remove(&self) {
        if !self.is_lost() {
            // An error is ignored, because the contents of the file are valid even if the file stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn number_of(data: &Metadata) -> (u64, u64) {
    (data.dev(), data.ino())
}

fn directory_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path.parent().unwrap_or(Path::new("/"))).map(|data| number_of(&data))
}

impl SpoolFile {
    /// Makes the spool of this process in `dir`. The file is `len` bytes long, and has no memory yet.
    pub fn create(dir: &Path, owner: &Owner, len: usize) -> io::Result<SpoolFile> {
        if privileges::are_more() {
            return Err(io::Error::other(privileges::WHY_NO_FILE));
        }
        for _ in 0..10 {
            if let Some(spool) = SpoolFile::create_locked(dir, owner)? {
                if let Err(error) = spool.file.set_len(len as u64) {
                    spool.remove();
                    return Err(error);
                }
                return Ok(spool);
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "is taken away again and again"))
    }

    /// Makes a spool and locks it. Returns `None` if another process has locked or removed the new spool before this process
    /// could lock it. Another process may lock or remove the new spool because it assumes that the spool belongs to a dead
    /// process.
    fn create_locked(dir: &Path, owner: &Owner) -> io::Result<Option<SpoolFile>> {
        // A process may contain several copies of this library, so the pid and the start time are not unique. The time of
        // creation makes the name unique.
        let name = FileKind::Spool { start: owner.start_time, made: monotonic_ns() };
        let path = dir.join(name.name(owner.pid));
        let file = options().create_new(true).mode(0o600).open(&path)?;
        let spool = SpoolFile { file, path };
        match range_lock::lock(&spool.file, range_lock::WHOLE) {
            Err(error) if range_lock::is_taken(&error) => return Ok(None),
            Err(error) => {
                spool.remove();
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(spool.is_named().then_some(spool))
    }

    /// Whether the name still belongs to this file.
    fn is_named(&self) -> bool {
        let named = fs::symlink_metadata(&self.path);
        named.is_ok_and(|named| self.file.metadata().is_ok_and(|own| number_of(&own) == number_of(&named)))
    }

    /// Opens a file that may be the spool of a dead process of this user, and locks it against other processes that would
    /// recover it. Returns `None` if another process has locked or removed the file.
    pub fn open_dead(path: &Path) -> io::Result<Option<SpoolFile>> {
        let file = options().open(path)?;
        let spool = SpoolFile { file, path: path.to_owned() };
        let data = spool.file.metadata()?;
        if !data.is_file() || data.uid() != user() || data.mode() & 0o077 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "is not a file of this user alone"));
        }
        match range_lock::lock(&spool.file, range_lock::WHOLE) {
            Err(error) if range_lock::is_taken(&error) => return Ok(None),
            other => other?,
        }
        // The previous holder of the lock may have removed the file.
        Ok(spool.is_named().then_some(spool))
    }

    /// Opens, for reading, a file that may be a spool. Follows no link, and does not wait if the file is a pipe.
    pub fn open_to_look(path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
    }

    /// Returns the path and the identity of the spool. The caller needs the path and the identity after it has mapped the spool
    /// and closed the descriptor.
    pub fn named(&self) -> io::Result<NamedSpool> {
        let (file, dir) = (number_of(&self.file.metadata()?), directory_of(&self.path)?);
        Ok(NamedSpool { path: self.path.clone(), file, dir })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes bytes with a system call, not through a mapping. If the file was truncated, a write through a mapping would raise
    /// SIGBUS.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    pub fn remove(&self) {
        // An error is ignored, because the contents of the file are valid even if the file stays.
        let _ = fs::remove_file(&self.path);
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}

/// A spool that was found in a directory, with the data from the spool's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The time at which the spool was made (`monotonic_ns`). This is the first field because lists are sorted by it.
    pub made: u64,
    pub pid: u32,
    /// Whether the spool belongs to this process, or to a program that ran in this process before an `execve`.
    pub is_own: bool,
    pub path: PathBuf,
}

impl Listed {
    /// Whether a process with the pid from the spool's name exists. The check opens no file.
    pub fn seems_alive(&self) -> bool {
        is_alive(self.pid)
    }

    /// Whether the file belongs to the user of this process. The check opens no file.
    pub fn is_of_this_user(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|data| data.uid() == user())
    }

    /// Whether the spool was made within the last second. Many processes may start at once, and a spool that was just made may
    /// not be locked yet.
    pub fn is_fresh(&self) -> bool {
        const FRESH: u64 = 1_000_000_000;
        monotonic_ns().abs_diff(self.made) < FRESH
    }
}

/// The spools in a directory, oldest first.
pub fn list(dir: &Path) -> io::Result<Vec<Listed>> {
    let own_start = LazyCell::new(|| start_time("self").unwrap_or(0));
    let is_own = |pid, start: u64| pid == std::process::id() && start != 0 && start.abs_diff(*own_start) <= 1;
    let mut found = Vec::new();
    for name in listing::names_that(dir, |name| matches!(parse(name), Some((_, FileKind::Spool { .. }))))? {
        if let Some((pid, FileKind::Spool { start, made })) = parse(&name) {
            found.push(Listed { pid, made, is_own: is_own(pid, start), path: dir.join(name) });
        }
    }
    sort(&mut found);
    Ok(found)
}

/// Whether the process to which a spool belongs holds the spool's lock.
pub fn is_locked_by_owner(dir: &Dir, name: &OsStr) -> bool {
    let opened = dir.open_file(name, OFlags::RDWR | OFlags::NONBLOCK, 0);
    opened.is_ok_and(|file| range_lock::is_locked(&file, range_lock::WHOLE))
}

/// Whether a file begins like a spool. A new spool is empty or begins with zeros.
pub fn starts_as_one(dir: &Dir, name: &OsStr) -> bool {
    let mut start = [0; START.len()];
    let read = dir.open_to_read(name).and_then(|file| file.read_at(&mut start, 0));
    read.is_ok() && (start == START || start == [0; START.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::{page_size, Region};

    #[test]
    fn one_process_recovers_and_never_the_living() {
        let dir = std::env::temp_dir().join(format!("jitsym-spool-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let owner = Owner::this_process();
        let spool = SpoolFile::create(&dir, &owner, 8192).unwrap();
        assert_eq!(spool.file().metadata().unwrap().mode() & 0o777, 0o600);
        assert!(list(&dir).unwrap()[0].is_own);
        assert!(SpoolFile::open_dead(&spool.path).unwrap().is_none(), "it is locked against its own process too");
        let path = dir.join("jitsym-1-1-1.spool");
        fs::write(&path, [0; 100]).unwrap();
        assert!(SpoolFile::open_dead(&path).is_err(), "others may read it");
        fs::remove_file(&path).unwrap();
        fs::rename(&spool.path, &path).unwrap();
        assert_eq!(list(&dir).unwrap(), [Listed { pid: 1, made: 1, is_own: false, path: path.clone() }]);
        assert!(SpoolFile::open_dead(&path).unwrap().is_none(), "its owner lives");
        // A mapping keeps the lock, even without a descriptor.
        let mapped = Region::closed(8192).unwrap();
        mapped.renew(Some(spool.file()), page_size()).unwrap();
        drop(spool);
        assert!(SpoolFile::open_dead(&path).unwrap().is_none(), "its owner lives");
        drop(mapped);
        // Children of other tests hold a copy of the lock until they execute their programs.
        let open = || loop {
            if let Some(spool) = SpoolFile::open_dead(&path).unwrap() {
                return spool;
            }
            std::thread::yield_now();
        };
        let first = open();
        assert!(SpoolFile::open_dead(&path).unwrap().is_none(), "somebody recovers it");
        drop(first);
        let last = open();
        last.remove();
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
