//! Files that other people can read and nobody else can plant: created new, never through a link, written in whole.

use std::collections::hash_map::RandomState;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::hash::BuildHasher;
use std::io::{self, IoSlice, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use super::company;
use super::descriptors::Table;
use super::dir::Dir;

/// Which file on which file system: what stays the same when a name is given to another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// When it was made, in nanoseconds; 0 where the file system does not say. The number of an inode is used again at once
    /// when a file is removed.
    pub born: u64,
}

impl Identity {
    /// Whether both are of one file, as far as is known.
    pub fn is(&self, other: &Identity) -> bool {
        let born_alike = self.born == other.born || self.born == 0 || other.born == 0;
        self.device == other.device && self.inode == other.inode && born_alike
    }

    /// Whether both are of one file for certain: whoever makes up an identity can guess the other two numbers.
    fn is_surely(&self, other: &Identity) -> bool {
        self.born != 0 && self == other
    }
}

/// The identity of an open file.
pub fn look_at(file: &File) -> io::Result<Identity> {
    identity_and_len(file).map(|(identity, _)| identity)
}

/// The identity of an open file, and its length.
pub fn identity_and_len(file: &File) -> io::Result<(Identity, u64)> {
    match file.metadata() {
        Ok(data) => {
            let born = data.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let born = born.map_or(0, |time| time.as_nanos() as u64);
            Ok((Identity { device: data.dev(), inode: data.ino(), born }, data.len()))
        }
        // A sandbox may allow the older call only.
        Err(_) => identity_without_birth(file),
    }
}

fn identity_without_birth(file: &File) -> io::Result<(Identity, u64)> {
    let mut data = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is valid; whether the descriptor is open is for the kernel to find out.
    if unsafe { libc::fstat(file.as_raw_fd(), data.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled in, as the call has not failed.
    let data = unsafe { data.assume_init() };
    Ok((Identity { device: data.st_dev, inode: data.st_ino, born: 0 }, data.st_size as u64))
}

/// Whether the file has been removed since it was opened.
pub fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.nlink() == 0)
}

/// Appending keeps whole records whole even if something else writes to the file.
const APPEND: libc::c_int = libc::O_RDWR | libc::O_APPEND;

/// Says that a file is the work of this library. It means nothing else on a file.
const OURS: u32 = libc::S_ISVTX;

/// Creates a file that does not exist yet; a link of that name counts as existing.
fn create_with(dir: &Dir, name: &OsStr, mode: u32, flags: libc::c_int) -> io::Result<File> {
    dir.open_file(name, flags | libc::O_CREAT | libc::O_EXCL, mode | OURS)
}

/// Creates a file, in place of one that an earlier process with our pid has left there.
///
/// Refuses to touch anything else: a link, a file of somebody else, one with a second name, one that another library in
/// this process is writing or has written (`TAKEN`), or one of a living process that has the same pid in another namespace.
/// Such processes are known by a lock, which the system releases when the last of their descriptors is closed.
pub fn claim(dir: &Dir, name: &OsStr, mode: u32) -> io::Result<File> {
    claim_with(dir, name, mode, APPEND)
}

/// The same for a file that is written to at any place.
pub fn claim_to_place(dir: &Dir, name: &OsStr, mode: u32) -> io::Result<File> {
    claim_with(dir, name, mode, libc::O_RDWR)
}

/// Whether a file could not be had because its name is that of another one, which stays: another name may do.
pub fn is_anothers(error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::AlreadyExists | TAKEN => true,
        // Another user's file, and not a directory in which nothing may be made.
        io::ErrorKind::PermissionDenied => error.raw_os_error().is_none(),
        _ => false,
    }
}

fn claim_with(dir: &Dir, name: &OsStr, mode: u32, flags: libc::c_int) -> io::Result<File> {
    for _ in 0..3 {
        match create_with(dir, name, mode, flags) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(dir, name)?,
            Err(error) => return Err(error),
            Ok(file) => {
                // A file system without locks is no reason to go without symbols.
                let _ = lock(&file);
                company::note(&file, true);
                return Ok(file);
            }
        }
    }
    Err(refuse(io::ErrorKind::AlreadyExists, "is created again and again by somebody else"))
}

/// The same for the file that is to replace the one of this name, under its own, which is returned.
///
/// The first choice is always the same, so that what a process leaves there that is killed is replaced by the next one with its pid.
/// Others may have taken that name, to have nothing replaced; so the next ones cannot be known beforehand.
pub fn claim_fresh(dir: &Dir, name: &OsStr, mode: u32) -> io::Result<(OsString, File)> {
    const ATTEMPTS: usize = 4;
    let mut fresh = name_of_new(name, "");
    let mut attempt = 1;
    loop {
        match claim(dir, &fresh, mode) {
            Ok(file) => return Ok((fresh, file)),
            Err(error) if attempt == ATTEMPTS || !is_anothers(&error) => {
                let text = format!("cannot create {}: {error}", Path::new(&fresh).display());
                return Err(io::Error::new(error.kind(), text));
            }
            Err(_) => fresh = name_of_new(name, &format!(".{:016x}", RandomState::new().hash_one(attempt))),
        }
        attempt += 1;
    }
}

/// Locks a file for as long as it is open. False if somebody else has.
fn lock(file: &File) -> bool {
    // SAFETY: flock takes a descriptor, which is open.
    let failed = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
    !(failed && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock)
}

/// Whether a file is one that this user has made and nobody has a second name for; else what is wrong with it.
pub fn check_plain(data: &Metadata) -> io::Result<()> {
    // SAFETY: geteuid only answers.
    let user = unsafe { libc::geteuid() };
    if !data.file_type().is_file() {
        return Err(refuse(io::ErrorKind::AlreadyExists, "exists and is not a regular file"));
    }
    if data.uid() != user {
        return Err(refuse(io::ErrorKind::PermissionDenied, "belongs to another user"));
    }
    if data.nlink() != 1 {
        return Err(refuse(io::ErrorKind::AlreadyExists, "has a second name (hard link)"));
    }
    Ok(())
}

/// Whether somebody who lives has locked a file.
pub fn is_locked(dir: &Dir, name: &OsStr) -> bool {
    let opened = dir.open_file(name, libc::O_RDONLY | libc::O_NONBLOCK, 0);
    opened.is_ok_and(|file| !lock(&file))
}

fn remove_stale(dir: &Dir, name: &OsStr) -> io::Result<()> {
    let found = dir.open_file(name, libc::O_PATH, 0);
    let file = match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let data = file.metadata()?;
    check_plain(&data)?;
    let identity = look_at(&file)?;
    drop(file);
    let taken = || Err(refuse(TAKEN, "is written by another library in this process"));
    if company::uses(dir, name, identity) {
        return taken();
    }
    // Until it is gone: another copy of this library may be about to replace it too.
    let opened = dir.open_file(name, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok();
    if opened.as_ref().is_some_and(|file| !lock(file)) {
        return Err(refuse(io::ErrorKind::AlreadyExists, "is written by a living process with the same pid"));
    }
    // One of ours that nobody here uses is that of the program before, if the process has executed another one.
    if data.mode() & OURS == 0 {
        match company::has_written(&data) {
            Some(false) => {}
            Some(true) => return taken(),
            None => {
                return Err(refuse(
                    TAKEN,
                    "may be of another library in this process: /proc does not say when that began",
                ))
            }
        }
    }
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match dir.identity_of(name) {
        Ok(found) if found.is(&identity) => {
            dir.remove(name).or_else(|error| if gone(&error) { Ok(()) } else { Err(error) })
        }
        Ok(_) => Ok(()),
        Err(error) if gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The kind of error that says that a file belongs to somebody else in this process.
pub const TAKEN: io::ErrorKind = io::ErrorKind::ResourceBusy;

/// Opens a file that somebody else in this process has made, to append to it, as from now on all in this process do. It gets our
/// mark, without which it would not be completed if the process is killed.
pub fn join(dir: &Dir, name: &OsStr) -> io::Result<File> {
    let file = dir.open_file(name, APPEND | libc::O_NONBLOCK, 0)?;
    let data = file.metadata()?;
    check_plain(&data)?;
    let _ = file.set_permissions(Permissions::from_mode(data.mode() | OURS));
    company::note(&file, true);
    company::make_appending(look_at(&file)?, &file);
    Ok(file)
}

/// Opens a file that we wrote before, if it still is that file.
pub fn reopen(dir: &Dir, name: &OsStr, expected: Identity) -> io::Result<File> {
    reopen_with(dir, name, expected, APPEND)
}

/// The same for a file that is written to at any place.
pub fn reopen_to_place(dir: &Dir, name: &OsStr, expected: Identity) -> io::Result<File> {
    reopen_with(dir, name, expected, libc::O_RDWR)
}

fn reopen_with(dir: &Dir, name: &OsStr, expected: Identity, flags: libc::c_int) -> io::Result<File> {
    let file = dir.open_file(name, flags | libc::O_NONBLOCK, 0)?;
    if !look_at(&file)?.is(&expected) {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    let _ = lock(&file);
    company::note(&file, true);
    Ok(file)
}

/// Opens a file that this library has written in a process that is dead, to append to it: one of these. Returns which one.
///
/// Whoever says so is not believed. It has to be a plain file with our mark, and known for certain. `may_be_locked`: whoever has locked
/// it is not the process that writes it.
pub fn take_over(dir: &Dir, name: &OsStr, known: &[Identity], may_be_locked: bool) -> io::Result<(File, Identity)> {
    let refuse = |why| Err(refuse(io::ErrorKind::InvalidData, why));
    let found = dir.open_file(name, libc::O_PATH, 0)?;
    let (data, identity) = (found.metadata()?, look_at(&found)?);
    check_plain(&data).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if !known.iter().any(|known| known.is(&identity)) {
        return refuse("has been replaced");
    }
    if !known.iter().any(|known| known.is_surely(&identity)) {
        return refuse("may be another file: it is not known when it was made");
    }
    if data.mode() & OURS == 0 {
        return refuse("has not been made by this library");
    }
    let file = dir.open_file(name, APPEND | libc::O_NONBLOCK, 0)?;
    if look_at(&file)? != identity {
        return refuse("has been replaced");
    }
    if !lock(&file) && !may_be_locked {
        return Err(self::refuse(io::ErrorKind::WouldBlock, "is written by a living process"));
    }
    Ok((file, identity))
}

/// How the file is called that is to replace another one: hidden, so that nobody takes it for that.
fn name_of_new(name: &OsStr, variant: &str) -> OsString {
    let mut fresh = OsString::from(".");
    for part in [name, OsStr::new(variant), OsStr::new(".new")] {
        fresh.push(part);
    }
    fresh
}

/// The name of the file that one of this name is to replace.
pub fn name_from_new(fresh: &str) -> Option<&str> {
    let name = fresh.strip_prefix('.')?.strip_suffix(".new")?;
    let is_variant =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    Some(name.rsplit_once('.').filter(|(_, variant)| is_variant(variant)).map_or(name, |(name, _)| name))
}

/// Gives a new file its name. A rename replaces whatever has the name: that must be the file that we made, or nothing.
pub fn put_in_place(dir: &Dir, fresh: &OsStr, name: &OsStr, ours: Option<Identity>) -> io::Result<()> {
    match dir.identity_of(name) {
        Ok(found) if ours.is_some_and(|ours| ours.is(&found)) => {}
        Ok(_) => return Err(refuse(io::ErrorKind::AlreadyExists, "has been replaced by somebody else")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    dir.rename(fresh, name)
}

/// Removes a file that we made, and no other one that has its name.
pub fn remove_ours(dir: &Dir, name: &OsStr, ours: Option<Identity>) {
    let is_ours = |file: &File| look_at(file).is_ok_and(|found| ours.is_some_and(|ours| ours.is(&found)));
    let opened = dir.open_file(name, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok().filter(is_ours);
    if opened.is_some_and(|file| !ours.is_some_and(|ours| company::writes(ours, Some(&file)))) {
        // Nothing can be done about a failure, and nothing is wrong in the file.
        let _ = dir.remove(name);
    }
}

/// Whether writing to room that was provided ahead pays: measured on ext4, down to a third of the time. On a file system in
/// memory the pages would be cleared first, which costs as much as filling them.
pub fn gains_by_reserve(file: &File) -> bool {
    file_system(file) == Some(EXT4)
}

/// Whether the pages of a file are copies of what is on a disk, and not all there is of them. False if that is not known.
pub fn is_on_disk(file: &File) -> bool {
    file_system(file).is_some_and(|found| [EXT4, XFS, BTRFS].contains(&found))
}

/// What the kernel calls file systems (linux include/uapi/linux/magic.h).
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

fn file_system(file: &File) -> Option<u64> {
    let mut data = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and the pointer valid.
    let failed = unsafe { libc::fstatfs(file.as_raw_fd(), data.as_mut_ptr()) } != 0;
    // SAFETY: filled in, as the call has not failed. (C libraries differ in whether it has a sign.)
    (!failed).then(|| unsafe { data.assume_init() }.f_type as u32 as u64)
}

/// How many bytes this user can still have in the file system of a directory.
pub fn free_space(dir: &Path) -> Option<u64> {
    let dir = CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut data = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a NUL, and the pointer is valid.
    let failed = unsafe { libc::statvfs(dir.as_ptr(), data.as_mut_ptr()) } != 0;
    // SAFETY: filled in, as the call has not failed.
    let data = (!failed).then(|| unsafe { data.assume_init() })?;
    // One without a bound has no blocks at all.
    (data.f_blocks > 0).then(|| data.f_bavail as u64 * data.f_frsize as u64)
}

/// Has the file system provide room behind the end of a file, which stays where it is. That is advice: if it cannot be followed
/// nothing is wrong.
pub fn reserve(file: &File, offset: u64, len: u64) {
    // SAFETY: fallocate takes a descriptor, which is open.
    unsafe {
        libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, offset as libc::off_t, len as libc::off_t);
    }
}

/// Lets a file be written to at any place: with `O_APPEND`, `pwrite` writes behind its end, wherever it is told to.
pub fn allow_any_place(file: &File) -> io::Result<()> {
    // SAFETY: fcntl takes a descriptor, which is open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: the same.
    if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_APPEND) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn refuse(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}

/// The kind of error that says that a descriptor is not that of the file any more.
pub const CLOSED: io::ErrorKind = io::ErrorKind::NotConnected;

/// A file that is kept open for long.
///
/// In a table of descriptors that is ours alone nobody else can close it. In the host's, which daemons close as a whole, the number
/// may be that of another file later, even of the same one that the host has opened itself. So the opened file is marked there, and
/// without its mark a descriptor is neither used nor closed.
#[derive(Debug)]
pub struct Held {
    file: ManuallyDrop<File>,
    identity: Identity,
    table: Table,
    marked: bool,
    /// In the host's table: which of ours has got the descriptor last.
    serial: u32,
}

impl Held {
    pub fn new(file: File) -> io::Result<Held> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let (identity, table) = (look_at(&file)?, Table::current());
        let marked = table.is_host() && mark(&file);
        let serial = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if table.is_host() {
            holder_of(&file).store(serial, Ordering::Relaxed);
        }
        Ok(Held { file: ManuallyDrop::new(file), identity, table, marked, serial })
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the descriptor is known to be the one that was opened.
    fn is_ours(&self) -> bool {
        match self.table == Table::current() {
            true if self.table.is_host() => self.marked && self.checked().is_ok(),
            is_here => is_here,
        }
    }

    /// The file, to be written to.
    pub fn checked(&self) -> io::Result<&File> {
        match self.table == Table::current() {
            true if !self.table.is_host() => Ok(&self.file),
            _ => self.checked_len().map(|(file, _)| file),
        }
    }

    /// The file, to be written to, and how long it is.
    pub fn checked_len(&self) -> io::Result<(&File, u64)> {
        let is_held = self.table == Table::current()
            && (!self.table.is_host()
                || holder_of(&self.file).load(Ordering::Relaxed) == self.serial
                    && (!self.marked || is_marked(&self.file)));
        match identity_and_len(&self.file) {
            Ok((identity, len)) if is_held && identity.is(&self.identity) => Ok((&self.file, len)),
            _ => Err(refuse(CLOSED, "has been closed by somebody else")),
        }
    }
}

/// The file as it was last checked.
impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Who holds a descriptor of the host's table: one that we open may have the number of an earlier one that the host has closed.
fn holder_of(file: &File) -> &'static AtomicU32 {
    static HOLDERS: [AtomicU32; 1 << 12] = [const { AtomicU32::new(0) }; 1 << 12];
    // Of two descriptors that share a place the first one is not closed, which does no harm.
    &HOLDERS[file.as_raw_fd() as usize % HOLDERS.len()]
}

/// The mark: which signal an opened file sends when it is ready, if it is asked to send any (fcntl(2), `F_SETSIG`). It belongs to the
/// opened file and not to its descriptor, and does nothing.
const MARK: libc::c_int = libc::SIGWINCH;

fn mark(file: &File) -> bool {
    // SAFETY: fcntl takes a descriptor, which is open.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, MARK) == 0 }
}

fn is_marked(file: &File) -> bool {
    // SAFETY: whether the descriptor is open is for the kernel to find out.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETSIG) == MARK }
}

/// Linux include/uapi/asm-generic/fcntl.h; not in every version of the bindings.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// Appends all of `slices`, in as few system calls as the kernel allows. Consumes them. If that fails, says how many bytes
/// were written before: they are in the file.
pub fn append(mut file: &File, mut slices: &mut [IoSlice<'_>]) -> (u64, io::Result<()>) {
    // Linux IOV_MAX.
    const MOST: usize = 1024;
    let mut written = 0;
    while !slices.is_empty() {
        let batch = slices.len().min(MOST);
        match file.write_vectored(&slices[..batch]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Appends all of `slices` or nothing. Consumes them; returns their size.
pub fn append_whole(file: &File, slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let (written, result) = append(file, slices);
    if result.is_err() && written > 0 {
        // What follows half a record or half a line would be lost to readers.
        let _ = file.metadata().and_then(|data| file.set_len(data.len() - written));
    }
    result.map(|()| written)
}

/// Makes `base/.debug/jit/jitsym-jit-XXXXXX`, the place where perf's own agents put a dump when `JITDUMPDIR` is set (linux
/// tools/perf/jvmti/jvmti_agent.c, `create_jit_cache_dir`).
pub fn make_jit_cache_dir(base: &Path) -> io::Result<PathBuf> {
    let parent = base.join(".debug").join("jit");
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&parent)?;
    let template = parent.join(OsStr::new("jitsym-jit-XXXXXX"));
    let template = CString::new(template.into_os_string().into_vec())?;
    let pointer = template.into_raw();
    // SAFETY: mkdtemp writes only to the six last characters of the string, which `into_raw` made ours.
    let (made, error) = unsafe { (libc::mkdtemp(pointer), io::Error::last_os_error()) };
    // SAFETY: the pointer comes from `into_raw`, and its length has not changed.
    let path = unsafe { CString::from_raw(pointer) };
    if made.is_null() {
        return Err(error);
    }
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("jitsym-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        dir
    }

    fn claim(path: &Path, mode: u32) -> io::Result<File> {
        super::claim(&Dir::of(path)?, path.file_name().unwrap_or_default(), mode)
    }

    fn create_new(path: &Path, mode: u32) -> io::Result<File> {
        create_with(&Dir::of(path)?, path.file_name().unwrap_or_default(), mode, APPEND)
    }

    /// For tests that change what holds for the whole process, and for those that this would disturb. That is also a child:
    /// until it executes its program it has a copy of every descriptor, and with it the locks of files that are closed here.
    fn alone() -> MutexGuard<'static, ()> {
        static LOCK: Mutex<()> = Mutex::new(());
        LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_stale_file_is_replaced_and_a_file_in_use_is_not() {
        let _alone = alone();
        let dir = dir("stale");
        let path = dir.join("jit-1.dump");
        fs::write(&path, "of somebody in this process").unwrap();
        assert!(claim(&path, 0o600).unwrap_err().to_string().contains("another library"));
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let file = claim(&path, 0o600).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(claim(&path, 0o600).unwrap_err().to_string().contains("another library"));
        drop(file);
        assert!(claim(&path, 0o600).is_ok());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_of_a_living_process_is_refused() {
        let _alone = alone();
        let dir = dir("living");
        let path = dir.join("jit-1.dump");
        fs::write(&path, "alive").unwrap();
        // It ends, and with it the lock, when its input does: however this test ends.
        let mut holder = Command::new("flock").arg(&path).arg("cat").stdin(Stdio::piped()).spawn().unwrap();
        // Until the lock is taken the file looks stale; so look at it without claiming it.
        let file = File::open(&path).unwrap();
        while lock(&file) {
            // SAFETY: the descriptor is open.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(file);
        let error = claim(&path, 0o600).unwrap_err();
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        assert!(error.to_string().contains("living process"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"alive");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn links_and_strange_files_are_refused() {
        let dir = dir("links");
        let (target, path) = (dir.join("target"), dir.join("perf-1.map"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let error = claim(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("regular") && is_anothers(&error));
        fs::remove_file(&path).unwrap();
        fs::hard_link(&target, &path).unwrap();
        assert!(claim(&path, 0o600).unwrap_err().to_string().contains("hard link"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(claim(&path, 0o600).is_err());
        // No other name would do.
        let full = dir.join("x".repeat(256));
        assert!(!is_anothers(&claim(&full, 0o600).unwrap_err()));
        assert!([libc::EACCES, libc::ENOSPC, libc::EMFILE]
            .iter()
            .all(|&it| !is_anothers(&io::Error::from_raw_os_error(it))));
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn reopening_notices_another_file() {
        let dir = dir("reopen");
        let path = dir.join("a");
        let file = create_new(&path, 0o600).unwrap();
        let id = look_at(&file).unwrap();
        let reopen = |id| reopen(&Dir::open(&dir).unwrap(), OsStr::new("a"), id);
        assert!(reopen(id).is_ok());
        let other = dir.join("b");
        fs::write(&other, "x").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(reopen(id).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn vectored_writes_are_complete() {
        let _alone = alone();
        let dir = dir("writev");
        let path = dir.join("a");
        let file = create_new(&path, 0o600).unwrap();
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|n| n.to_le_bytes().to_vec()).collect();
        let mut slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        assert_eq!(append_whole(&file, &mut slices).unwrap(), 12_000);
        assert_eq!(fs::read(&path).unwrap(), parts.concat());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// In a process of its own, because the limit is one of the whole process, and other tests write files.
    #[test]
    fn a_write_that_fails_half_way_leaves_nothing() {
        const LIMITED: &str = "JITSYM_TEST_LIMITED";
        let _alone = alone();
        if std::env::var_os(LIMITED).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "sys::file::tests::a_write_that_fails_half_way_leaves_nothing"]).env(LIMITED, "1");
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            return;
        }
        let dir = dir("half");
        let path = dir.join("a");
        let file = create_new(&path, 0o600).unwrap();
        append_whole(&file, &mut [IoSlice::new(b"whole")]).unwrap();
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain system calls with valid pointers. SIGXFSZ is ignored: it would end the process.
        let error = unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::getrlimit(libc::RLIMIT_FSIZE, &mut before);
            libc::setrlimit(libc::RLIMIT_FSIZE, &libc::rlimit { rlim_cur: 4096, ..before });
            append_whole(&file, &mut [IoSlice::new(&[b'x'; 3000]), IoSlice::new(&[b'y'; 3000])]).unwrap_err()
        };
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        fs::remove_dir_all(&dir).unwrap();
    }
}
