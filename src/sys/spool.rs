//! The spool file of a process, which keeps the file locked as long as it lives.

use std::cell::LazyCell;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::clock::{monotonic_ns, tick_ns, TimeNamespace};
use super::dir::Dir;
use super::listing;
use super::process::{is_alive, user};
use super::sort::sort;
use super::{range_lock, rights};

/// The first bytes of every spool.
pub const START: [u8; 8] = *b"jitspool";

const PREFIX: &str = "jitsym-";
const SUFFIX: &str = ".spool";

/// An open spool, locked.
#[derive(Debug)]
pub struct SpoolFile {
    file: File,
    path: PathBuf,
}

/// A spool of this process that has no descriptor. Its mapping keeps the file locked until the process ends or executes another
/// program. A forked child does not hold the lock.
#[derive(Debug)]
pub struct NamedSpool {
    path: PathBuf,
    /// Device and inode of the file and of its directory.
    file: (u64, u64),
    dir: (u64, u64),
}

impl NamedSpool {
    /// Whether somebody has removed the spool or given its name to another file. False if its directory is another one than
    /// before: the process may have changed its root.
    pub fn is_lost(&self) -> bool {
        let is_there = fs::symlink_metadata(&self.path).is_ok_and(|data| number_of(&data) == self.file);
        !is_there && directory_of(&self.path).is_ok_and(|dir| dir == self.dir)
    }

    /// Removes the file's name, unless it is lost.
    pub fn remove(&self) {
        if !self.is_lost() {
            // A failure is ignored: nothing can be done about it, and the file's content is right.
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

/// Which process a spool belongs to. The pid alone does not tell: pids are used again, and each pid namespace has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub pid: u32,
    /// Clock ticks between the host's boot and the start of the process; 0 if not known.
    pub start_time: u64,
    /// Number of the pid namespace; 0 if not known.
    pub pid_namespace: u64,
    /// Number of the mount namespace; 0 if not known. In another mount namespace, the owner's paths mean other files.
    pub mount_namespace: u64,
}

impl Owner {
    /// This process.
    pub fn this_process() -> Owner {
        let pid = std::process::id();
        Owner {
            pid,
            start_time: start_time("self").unwrap_or(0),
            pid_namespace: namespace("pid"),
            mount_namespace: namespace("mnt"),
        }
    }

    /// Whether the owner runs or may run, as far as this process can see. False if the owner is in another pid namespace, where
    /// only the lock tells.
    pub fn is_visibly_alive(&self) -> bool {
        let here = namespace("pid");
        if self.pid_namespace != here && self.pid_namespace != 0 && here != 0 {
            return false;
        }
        let stat = if self.is_visible() && shows_our_numbers() { stat(&self.pid.to_string()) } else { None };
        match stat {
            // Another time namespace may round the start time differently.
            Some(stat) => start_in(&stat).is_some_and(|time| time.abs_diff(self.start_time) <= 1),
            // The start time cannot be looked up, so a later process with the same pid counts as the owner.
            None => is_alive(self.pid),
        }
    }

    /// Whether this process would see the owner if the owner ran.
    pub fn is_visible(&self) -> bool {
        self.start_time != 0 && self.pid_namespace != 0 && self.pid_namespace == namespace("pid")
    }

    /// Whether the owner's paths mean the same files in this process.
    pub fn has_our_paths(&self) -> bool {
        self.mount_namespace == namespace("mnt")
    }
}

/// Clock ticks between the host's boot and the start of a process; `None` if the process is gone or only waits to be reaped.
pub(super) fn start_time(process: &str) -> Option<u64> {
    start_in(&stat(process)?)
}

fn stat(process: &str) -> Option<String> {
    let mut stat = [0; 1024];
    let len = File::open(format!("/proc/{process}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    // The name of the program, in the second field, may hold any bytes.
    Some(String::from_utf8_lossy(&stat[..len]).into_owned())
}

/// Whether `/proc` shows the numbers of this pid namespace.
fn shows_our_numbers() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == OsStr::new(&std::process::id().to_string()))
}

/// The start time in the text of `/proc/PID/stat`: field 22 (proc(5)). If the first thread has ended while others run, the state
/// is that of a process that waits to be reaped. Only the number of threads differs.
fn start_in(stat: &str) -> Option<u64> {
    // The name in parentheses may itself contain a parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    if matches!(state, "Z" | "X") && threads <= 1 {
        return None;
    }
    // The kernel adds the offset of this thread's time namespace.
    let ahead = TimeNamespace::of_this_thread().unwrap_or_default().boottime / tick_ns();
    fields.nth(1)?.parse::<i64>().ok()?.checked_sub(ahead)?.try_into().ok()
}

/// The number of a namespace of the calling thread. A first thread that has ended has none, so `/proc/self` would not do.
fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/thread-self/ns/{kind}")).map_or(0, |data| data.ino())
}

impl SpoolFile {
    /// Makes the spool of this process in `dir`, `len` bytes long, without any memory allocated to it yet.
    pub fn create(dir: &Path, owner: &Owner, len: usize) -> io::Result<SpoolFile> {
        if rights::are_more() {
            return Err(io::Error::other(rights::WHY_NO_FILE));
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

    /// `None` if another process took the new spool for that of a dead process before it was locked.
    fn create_locked(dir: &Path, owner: &Owner) -> io::Result<Option<SpoolFile>> {
        // The time makes the name unique: a process may contain several copies of this library.
        let path = dir.join(format!("{}{:x}{SUFFIX}", prefix(owner), monotonic_ns()));
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

    /// Whether the name is still that of this file.
    fn is_named(&self) -> bool {
        let named = fs::symlink_metadata(&self.path);
        named.is_ok_and(|named| self.file.metadata().is_ok_and(|own| number_of(&own) == number_of(&named)))
    }

    /// Opens what may be the spool of a dead process of this user, and locks it against all others who would recover it. `None`
    /// if somebody else has locked it.
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

    /// Opens what may be a spool for reading. Follows no link, and does not wait if the file is a pipe.
    pub fn open_to_look(path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
    }

    /// What has to be known when the spool is mapped and has no descriptor.
    pub fn named(&self) -> io::Result<NamedSpool> {
        let (file, dir) = (number_of(&self.file.metadata()?), directory_of(&self.path)?);
        Ok(NamedSpool { path: self.path.clone(), file, dir })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes by a system call: through a mapping this would raise SIGBUS if somebody has cut the file.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// Removes the file's name.
    pub fn remove(&self) {
        // A failure is ignored: nothing can be done about it, and the file's content is right.
        let _ = fs::remove_file(&self.path);
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}

/// What the names of all spools of a process begin with.
fn prefix(owner: &Owner) -> String {
    format!("{PREFIX}{}-{:x}-", owner.pid, owner.start_time)
}

/// What the name of a spool in a directory says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// When the spool was made (`monotonic_ns`). The first field, because lists are in the order of this time.
    pub made: u64,
    pub pid: u32,
    /// Whether the spool belongs to this process, or to the program that this process ran before it executed this one.
    pub is_own: bool,
    pub path: PathBuf,
}

impl Listed {
    /// Whether the spool was made within the last second by another process that seems to live. Opens no file: when many
    /// processes start at once, each looks at the spools of all others.
    pub fn is_fresh(&self) -> bool {
        const FRESH: u64 = 1_000_000_000;
        self.pid != std::process::id() && monotonic_ns().abs_diff(self.made) < FRESH && is_alive(self.pid)
    }
}

/// The spools in a directory, oldest first.
pub fn list(dir: &Path) -> io::Result<Vec<Listed>> {
    let own_start = LazyCell::new(|| start_time("self").unwrap_or(0));
    let is_own = |pid, start: u64| pid == std::process::id() && start != 0 && start.abs_diff(*own_start) <= 1;
    let mut found = Vec::new();
    for name in listing::names_that(dir, |name| name.as_bytes().starts_with(PREFIX.as_bytes()))? {
        if let Some((pid, start, made)) = name.to_str().and_then(parse_name) {
            found.push(Listed { pid, made, is_own: is_own(pid, start), path: dir.join(name) });
        }
    }
    sort(&mut found);
    Ok(found)
}

/// The pid in the name of a spool.
pub fn pid_in(name: &str) -> Option<u32> {
    parse_name(name).map(|(pid, ..)| pid)
}

/// Whether the process to which a spool belongs holds its lock.
pub fn is_locked_by_owner(dir: &Dir, name: &OsStr) -> bool {
    let is_spool = name.to_str().is_some_and(|name| parse_name(name).is_some());
    let opened = dir.open_file(name, OFlags::RDWR | OFlags::NONBLOCK, 0);
    is_spool && opened.is_ok_and(|file| range_lock::is_locked(&file, range_lock::WHOLE))
}

/// Whether a file begins as a spool does. A new spool has zeros there, or is empty.
pub fn starts_as_one(dir: &Dir, name: &OsStr) -> bool {
    let mut start = [0; START.len()];
    let read = dir.open_to_read(name).and_then(|file| file.read_at(&mut start, 0));
    read.is_ok() && (start == START || start == [0; START.len()])
}

/// The pid in the name of a spool, when that process started, and when the spool was made.
fn parse_name(name: &str) -> Option<(u32, u64, u64)> {
    let (pid, times) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let (start, made) = times.split_once('-')?;
    let time = |digits| u64::from_str_radix(digits, 16).ok();
    Some((pid.parse().ok()?, time(start)?, time(made)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::Region;

    #[test]
    fn names_tell_the_process() {
        assert_eq!(parse_name("jitsym-17-2af-1c.spool"), Some((17, 0x2af, 0x1c)));
        for name in
            ["jitsym-17.spool", "jitsym-17-1.spool", "jitsym-x-1-2.spool", "jitsym-17-2af-1c", "perf-17-1-1.spool"]
        {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn processes_are_told_apart() {
        let own = Owner::this_process();
        assert!(own.is_visibly_alive());
        let earlier = Owner { start_time: own.start_time - 2, ..own };
        assert!(!earlier.is_visibly_alive(), "an earlier process with the same pid");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let dead = Owner { pid: child.id(), start_time: start_time(&child.id().to_string()).unwrap(), ..own };
        assert!(dead.is_visibly_alive());
        child.kill().unwrap();
        while dead.is_visibly_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!dead.is_visibly_alive());
    }

    #[test]
    fn spools_of_processes_that_have_just_started_are_passed_over() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let listed = |pid, made| Listed { pid, made, is_own: false, path: PathBuf::new() };
        let now = monotonic_ns();
        assert!(listed(child.id(), now).is_fresh());
        assert!(!listed(std::process::id(), now).is_fresh(), "of an earlier process with this pid");
        assert!(!listed(child.id(), now - 2_000_000_000).is_fresh());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!listed(child.id(), monotonic_ns()).is_fresh());
    }

    #[test]
    fn one_process_recovers_and_never_the_living() {
        let dir = std::env::temp_dir().join(format!("jitsym-spool-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let owner = Owner::this_process();
        let spool = SpoolFile::create(&dir, &owner, 8192).unwrap();
        assert_eq!(spool.file().metadata().unwrap().mode() & 0o777, 0o600);
        assert!(list(&dir).unwrap()[0].is_own);
        assert!(SpoolFile::open_dead(spool.path()).unwrap().is_none(), "it is locked against its own process too");
        let path = dir.join("jitsym-1-1-1.spool");
        fs::write(&path, [0; 100]).unwrap();
        assert!(SpoolFile::open_dead(&path).is_err(), "others may read it");
        fs::remove_file(&path).unwrap();
        fs::rename(spool.path(), &path).unwrap();
        assert_eq!(list(&dir).unwrap(), [Listed { pid: 1, made: 1, is_own: false, path: path.clone() }]);
        assert!(SpoolFile::open_dead(&path).unwrap().is_none(), "its owner lives");
        // A mapping keeps the lock, without any descriptor.
        let mapped = Region::closed_file(spool.file(), 8192).unwrap();
        drop(spool);
        assert!(SpoolFile::open_dead(&path).unwrap().is_none(), "its owner lives");
        drop(mapped);
        // Children of other tests have a copy of the lock until they execute their programs.
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
