//! Files that other people can read and nobody else can plant: created new, never through a link, written in whole.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

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
    fn of(data: &Metadata) -> Identity {
        let born = data.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let born = born.map_or(0, |time| time.as_nanos() as u64);
        Identity { device: data.dev(), inode: data.ino(), born }
    }
}

/// The identity of an open file.
pub fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|data| Identity::of(&data))
}

/// The identity of whatever has this name; of a link, not of what it points to.
pub fn identity_of_name(path: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(path).map(|data| Identity::of(&data))
}

/// Whether the file has been removed since it was opened.
pub fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.nlink() == 0)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Appending keeps whole records whole even if something else writes to the file.
    options.read(true).append(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options
}

/// Creates a file that does not exist yet; a link of that name counts as existing.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    options().create_new(true).mode(mode).open(path)
}

/// Creates `path`, in place of a file that an earlier process with our pid has left there.
///
/// Refuses to touch anything else: a link, a file of somebody else, one with a second name, one that another library in
/// this process is writing, or one of a living process that has the same pid in another namespace. Such processes are known
/// by a lock, which the system releases when the last of their descriptors is closed.
pub fn claim(path: &Path, mode: u32) -> io::Result<File> {
    for _ in 0..3 {
        match create_new(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(path)?,
            Err(error) => return Err(error),
            Ok(file) => {
                // A file system without locks is no reason to go without symbols.
                let _ = lock(&file);
                return Ok(file);
            }
        }
    }
    Err(refuse(io::ErrorKind::AlreadyExists, "is created again and again by somebody else"))
}

/// Locks a file for as long as it is open. False if somebody else has.
fn lock(file: &File) -> bool {
    // SAFETY: flock takes a descriptor, which is open.
    let failed = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
    !(failed && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let data = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
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
    if in_use_here(path, Identity::of(&data)) {
        return Err(refuse(io::ErrorKind::AlreadyExists, "is written by another library in this process"));
    }
    let same =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK).open(path);
    if same.is_ok_and(|file| !lock(&file)) {
        return Err(refuse(io::ErrorKind::AlreadyExists, "is written by a living process with the same pid"));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether this process has the file open or mapped. By way of this thread: `/proc/self` shows nothing once the first one has ended.
fn in_use_here(path: &Path, identity: Identity) -> bool {
    let inode = identity.inode.to_string();
    let descriptors = fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    let open =
        descriptors.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|data| Identity::of(&data) == identity);
    // The device is not compared: some file systems show another one there than stat does.
    let name = path.file_name().unwrap_or(path.as_os_str()).as_bytes();
    let is_mapping = |line: &[u8]| {
        let inode_field = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(4);
        inode_field == Some(inode.as_bytes()) && line.ends_with(name)
    };
    let mapped = fs::read("/proc/thread-self/maps").is_ok_and(|maps| maps.split(|&byte| byte == b'\n').any(is_mapping));
    open || mapped
}

/// Opens a file that we wrote before, if it still is that file.
pub fn reopen(path: &Path, expected: Identity) -> io::Result<File> {
    let file = options().open(path)?;
    if identity(&file)? != expected {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    let _ = lock(&file);
    Ok(file)
}

/// Whether writing to room that was provided ahead pays: measured on ext4, down to a third of the time. On a file system in
/// memory the pages would be cleared first, which costs as much as filling them.
pub fn gains_by_reserve(file: &File) -> bool {
    let mut data = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and the pointer valid.
    let failed = unsafe { libc::fstatfs(file.as_raw_fd(), data.as_mut_ptr()) } != 0;
    // SAFETY: filled in, as the call has not failed.
    !failed && unsafe { data.assume_init() }.f_type == libc::EXT4_SUPER_MAGIC
}

/// Has the file system provide room behind the end of a file, which stays where it is. That is advice: if it cannot be followed
/// nothing is wrong.
pub fn reserve(file: &File, offset: u64, len: u64) {
    // SAFETY: fallocate takes a descriptor, which is open.
    unsafe {
        libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, offset as libc::off_t, len as libc::off_t);
    }
}

fn refuse(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}

/// A file that is kept open for long. A host that closes all descriptors, as daemons do, may have a file of its own under the
/// same number later: that one is neither written to nor closed.
#[derive(Debug)]
pub struct Held {
    file: ManuallyDrop<File>,
    identity: Identity,
}

impl Held {
    pub fn new(file: File) -> io::Result<Held> {
        Ok(Held { identity: identity(&file)?, file: ManuallyDrop::new(file) })
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn is_ours(&self) -> bool {
        identity(&self.file).is_ok_and(|identity| identity == self.identity)
    }

    /// Closes what a forked child has inherited. It is not used any more in this process.
    pub fn close_in_child(&self) {
        if self.is_ours() {
            // SAFETY: the descriptor is that of this file, and nobody in this process uses it.
            unsafe { libc::close(self.file.as_raw_fd()) };
        }
    }

    /// The file, to be written to.
    pub fn checked(&self) -> io::Result<&File> {
        if self.is_ours() {
            Ok(&self.file)
        } else {
            Err(refuse(io::ErrorKind::NotConnected, "has been closed by somebody else"))
        }
    }
}

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

/// Appends all of `slices`, in as few system calls as the kernel allows, or nothing. Consumes them; returns their size.
pub fn append_whole(file: &File, slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let mut written = 0;
    let result = append(file, slices, &mut written);
    if result.is_err() && written > 0 {
        // What follows half a record or half a line would be lost to readers.
        let _ = file.metadata().and_then(|data| file.set_len(data.len() - written));
    }
    result.map(|()| written)
}

fn append(mut file: &File, mut slices: &mut [IoSlice<'_>], written: &mut u64) -> io::Result<()> {
    // Linux IOV_MAX.
    const MOST: usize = 1024;
    while !slices.is_empty() {
        let batch = slices.len().min(MOST);
        match file.write_vectored(&slices[..batch]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                *written += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
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
        fs::write(&path, "old").unwrap();
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
        assert!(claim(&path, 0o600).unwrap_err().to_string().contains("regular"));
        fs::remove_file(&path).unwrap();
        fs::hard_link(&target, &path).unwrap();
        assert!(claim(&path, 0o600).unwrap_err().to_string().contains("hard link"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(claim(&path, 0o600).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn reopening_notices_another_file() {
        let dir = dir("reopen");
        let path = dir.join("a");
        let file = create_new(&path, 0o600).unwrap();
        let id = identity(&file).unwrap();
        assert!(reopen(&path, id).is_ok());
        let other = dir.join("b");
        fs::write(&other, "x").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(reopen(&path, id).is_err());
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

    #[test]
    fn a_write_that_fails_half_way_leaves_nothing() {
        let _alone = alone();
        let dir = dir("half");
        let path = dir.join("a");
        let file = create_new(&path, 0o600).unwrap();
        append_whole(&file, &mut [IoSlice::new(b"whole")]).unwrap();
        // The limit holds for the whole test process, for a moment.
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain system calls with valid pointers. SIGXFSZ is ignored while the limit is on.
        let error = unsafe {
            let handler = libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::getrlimit(libc::RLIMIT_FSIZE, &mut before);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            let error = append_whole(&file, &mut [IoSlice::new(&[b'x'; 3000]), IoSlice::new(&[b'y'; 3000])]);
            libc::setrlimit(libc::RLIMIT_FSIZE, &before);
            libc::signal(libc::SIGXFSZ, handler);
            error.unwrap_err()
        };
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        fs::remove_dir_all(&dir).unwrap();
    }
}
