//! Who else in this process has to do with a file: other runtimes, and other copies of this library.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use super::clock;
use super::file::Identity;
use super::spool;

/// The descriptors that this process has of a file.
fn descriptors(file: Identity) -> impl Iterator<Item = RawFd> {
    let listed = listed_descriptors();
    // Without `/proc` each number is asked for.
    let all = if listed.is_err() { 0..table_size() } else { 0..0 };
    let numbers = listed.into_iter().flatten().chain(all);
    numbers.filter(move |&number| file_of(number) == Some((file.device, file.inode)))
}

fn listed_descriptors() -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/thread-self/fd")? {
        found.try_reserve(1)?;
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    Ok(found)
}

/// What no descriptor of this process is as high as.
///
/// Not the limit, which may be a billion, or lower than descriptors that were there before it. The kernel's table of descriptors
/// doubles when it is full, and `select` looks at no number behind its end (linux fs/select.c, `core_sys_select`).
fn table_size() -> RawFd {
    const SMALLEST: usize = 64;
    const LARGEST: usize = 1 << 20;
    let mut size = SMALLEST;
    while size < LARGEST && is_in_table(size) {
        size *= 2;
    }
    size as RawFd
}

/// Whether the kernel's table has a place for this number.
fn is_in_table(number: usize) -> bool {
    // SAFETY: whether the descriptor is open is for the kernel to find out.
    if unsafe { libc::fcntl(number as RawFd, libc::F_GETFD) } >= 0 {
        return true;
    }
    let mut wanted = Vec::new();
    if wanted.try_reserve_exact(number / 64 + 1).is_err() {
        // Nobody knows.
        return true;
    }
    wanted.resize(number / 64, 0_u64);
    wanted.push(1 << (number % 64));
    let mut no_time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let (none, count) = (std::ptr::null_mut(), number as libc::c_int + 1);
    // SAFETY: the set has a bit for each number below the count.
    unsafe { libc::select(count, wanted.as_mut_ptr().cast(), none, none, &mut no_time) != 0 }
}

/// Device and inode of what a descriptor is open for. Not asked of a server on a network, which may not answer.
fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    let mut data = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the pointers are valid; whether the descriptor is open is for the kernel to find out.
    if unsafe { libc::statx(descriptor, c"".as_ptr(), flags, libc::STATX_INO, data.as_mut_ptr()) } != 0 {
        // A sandbox may allow the older call only.
        let mut data = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: as above.
        if unsafe { libc::fstat(descriptor, data.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled in, as the call has not failed.
        let data = unsafe { data.assume_init() };
        return Some((data.st_dev, data.st_ino));
    }
    // SAFETY: filled in, as the call has not failed.
    let data = unsafe { data.assume_init() };
    Some((libc::makedev(data.stx_dev_major, data.stx_dev_minor), data.stx_ino))
}

/// Whether this process has the file open, or mapped under this name.
pub fn uses(name: &OsStr, file: Identity) -> bool {
    let inode = file.inode.to_string();
    // The device is not compared: some file systems show another one there than stat does.
    let is_mapping = |line: &[u8]| {
        let inode_field = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(4);
        inode_field == Some(inode.as_bytes()) && line.ends_with(name.as_bytes())
    };
    let mapped =
        || fs::read("/proc/thread-self/maps").is_ok_and(|maps| maps.split(|&byte| byte == b'\n').any(is_mapping));
    descriptors(file).next().is_some() || mapped()
}

/// The descriptors, but for `ours`, by which this process can write to the file, with their flags.
fn writers(file: Identity, ours: RawFd) -> impl Iterator<Item = (RawFd, libc::c_int)> {
    descriptors(file).filter(move |&descriptor| descriptor != ours).filter_map(|descriptor| {
        // SAFETY: whether the descriptor is still open is for the kernel to find out.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        let can_write = flags >= 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
        can_write.then_some((descriptor, flags))
    })
}

/// Whether anybody in this process can write to the file.
pub fn has_writer(file: Identity) -> bool {
    writes(file, -1)
}

/// Whether somebody else in this process can write to the file.
pub fn writes(file: Identity, ours: RawFd) -> bool {
    writers(file, ours).next().is_some()
}

/// Has everybody in this process write at the end of the file, wherever that is. Whoever opened it for itself alone writes to
/// the place where its own last write ended, which is over what others have written since.
pub fn make_appending(file: Identity, ours: RawFd) {
    for (descriptor, flags) in writers(file, ours).filter(|(_, flags)| flags & libc::O_APPEND == 0) {
        // SAFETY: as above; the flag changes where writes go, and nothing else.
        unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_APPEND) };
    }
}

/// Whether a file was written to since this process started; `None` if that is not known. A process before it with the same pid had
/// ended by then: so it is the work of somebody in this one, who may have closed it.
pub fn has_written(data: &Metadata) -> Option<bool> {
    Some(data.modified().ok()? >= start()?)
}

/// When this process started by the clock that files are stamped with, or two clock ticks earlier; `None` without `/proc`.
fn start() -> Option<SystemTime> {
    let (tick, now) = (clock::tick_ns() as u64, SystemTime::now());
    // Later than `now`: this thread may be interrupted, and a start too early does no harm.
    let age = clock::boottime_ns().checked_sub(spool::start_time("self")? * tick)?;
    // The clock of files stands still from one interrupt of the timer to the next.
    now.checked_sub(Duration::from_nanos(age + tick))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::sys::file::look_at;

    #[test]
    fn others_are_found_and_made_to_append() {
        let path = std::env::temp_dir().join(format!("jitsym-company-{}", std::process::id()));
        let mut other = File::create(&path).unwrap();
        let ours = OpenOptions::new().append(true).open(&path).unwrap();
        let identity = look_at(&ours).unwrap();
        other.write_all(b"one\n").unwrap();
        assert!(writes(identity, ours.as_raw_fd()) && uses(OsStr::new("x"), identity));
        assert_eq!(has_written(&other.metadata().unwrap()), Some(true));
        make_appending(identity, ours.as_raw_fd());
        (&ours).write_all(b"two\n").unwrap();
        other.write_all(b"three\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
        let reader = File::open(&path).unwrap();
        drop(other);
        assert!(!writes(identity, ours.as_raw_fd()), "one that only reads");
        drop((ours, reader));
        assert!(!uses(OsStr::new("x"), identity));
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(86400 * 365)).unwrap();
        assert_eq!(has_written(&file.metadata().unwrap()), Some(false));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn descriptors_are_in_the_table() {
        let file = File::open("/").unwrap();
        // SAFETY: the descriptor is open.
        let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700) };
        // A limit may forbid it.
        if high >= 0 {
            assert!(high < table_size() && listed_descriptors().unwrap().contains(&high));
            // SAFETY: it is not used.
            unsafe { libc::close(high) };
        }
        // The table does not shrink, and it does not grow for what is not there.
        let size = table_size();
        assert!(is_in_table(size as usize - 1) && size == table_size());
        assert!(listed_descriptors().unwrap().iter().all(|&number| number < size));
    }

    #[test]
    fn the_start_of_this_process_is_known() {
        let start = start().unwrap();
        let age = SystemTime::now().duration_since(start).unwrap();
        // The directory of the process is made when somebody looks at it first, which was later.
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
