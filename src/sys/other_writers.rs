//! Determines whether other libraries in this process, such as other runtimes and other copies of this library, use or write a
//! file.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, OFlags};

use super::descriptor_table::DescriptorTable;
use super::file::{look_at, Identity};
use super::held_dir::Dir;
use super::range_lock::Offset;
use super::{clock, host_fds, listing, owner_process, range_lock, thread};

/// The descriptors that the host's threads have open for a file.
///
/// The background thread has its own descriptor table, so it reads the numbers of the host's descriptors from `/proc`. The
/// thread of `host_fds`, which shares the host's table, then looks at each descriptor. The thread of `host_fds` opens no file,
/// because the host may close any descriptor in its table at any time.
fn descriptors(file: Identity) -> Vec<RawFd> {
    let dir = match (DescriptorTable::current().is_host(), host_fds::tid()) {
        (false, Some(tid)) => format!("/proc/self/task/{tid}/fd"),
        _ => "/proc/thread-self/fd".into(),
    };
    // Without `/proc`, all descriptor numbers below 1024 are tried. The usual limit of a process is 1024 descriptors.
    let listed = listing::numbers(Path::new(&dir)).ok();
    in_host_table(|| {
        let numbers = listed.clone().unwrap_or_else(|| (0..1024).collect());
        numbers.into_iter().filter(|&number| file_of(number) == Some((file.device, file.inode))).collect()
    })
}

fn in_host_table<T: Default + Send + Sync>(body: impl Fn() -> T + Sync) -> T {
    let result = OnceLock::new();
    host_fds::run(&|| _ = result.set(body()));
    result.into_inner().unwrap_or_default()
}

/// The descriptor with this number in the calling thread's table.
fn numbered(descriptor: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the kernel checks whether the descriptor is open. The descriptor is not closed and not kept.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

/// The device and the inode of the file for which a descriptor is open. The call tells the kernel not to ask the server of a
/// network file system, because the server might never answer.
fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mut data = MaybeUninit::<libc::statx>::zeroed();
    // The system call is made by number, because older C libraries have no wrapper, and rustix would ask the loader whether
    // there is a wrapper.
    // SAFETY: the path ends with a NUL, and `data` has room for the answer. Zeros are a valid value of `data`, so `data` is
    // initialised even if the call fails.
    let (result, data) = unsafe {
        let (path, mask) = (c"".as_ptr(), libc::STATX_INO);
        let result = libc::syscall(libc::SYS_statx, descriptor, path, flags, mask, data.as_mut_ptr());
        (result, data.assume_init())
    };
    match result {
        0 => Some((libc::makedev(data.stx_dev_major, data.stx_dev_minor), data.stx_ino)),
        // A sandbox may allow only the older call, fstat(2).
        _ => fstat(numbered(descriptor)).ok().map(|data| (data.st_dev, data.st_ino)),
    }
}

/// Whether this process has the file open, or mapped under this name.
pub fn uses(dir: &Dir, name: &OsStr, file: Identity) -> bool {
    let inode = file.inode.to_string();
    // The device is not compared, because `maps` and stat(2) show different devices for some file systems.
    let is_mapping = |line: &[u8]| {
        let inode_field = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(4);
        inode_field == Some(inode.as_bytes()) && line.ends_with(name.as_bytes())
    };
    let mapped =
        || fs::read("/proc/thread-self/maps").is_ok_and(|maps| maps.split(|&byte| byte == b'\n').any(is_mapping));
    let is_it = |opened: &File| look_at(opened).is_ok_and(|found| found.is(&file));
    let opened = dir.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0).ok().filter(is_it);
    opened.is_some_and(|opened| has_other_copy(&opened)) || !descriptors(file).is_empty() || mapped()
}

/// The host's descriptors that are open for writing to the file, except the descriptor of `ours`. Each descriptor has its
/// flags.
fn writers(file: Identity, ours: Option<&File>) -> Vec<(RawFd, OFlags)> {
    let ours = ours.filter(|_| DescriptorTable::current().is_host()).map(AsRawFd::as_raw_fd);
    let found = descriptors(file);
    in_host_table(|| {
        let flags_of = |&descriptor: &RawFd| {
            let flags = fcntl_getfl(numbered(descriptor)).ok()?;
            let can_write = [OFlags::WRONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE));
            (can_write && Some(descriptor) != ours).then_some((descriptor, flags))
        };
        found.iter().filter_map(flags_of).collect()
    })
}

/// Whether other code in this process can write to the file. `ours` is the caller's own open file, if any.
pub fn writes(file: Identity, ours: Option<&File>) -> bool {
    ours.is_some_and(has_other_copy) || !writers(file, ours).is_empty()
}

/// Whether other code in this process can write to the file, or is about to open it for writing. If `is_cut` is true, the
/// file was truncated, and the call may take a quarter of a second.
///
/// When a thread opens a file with O_TRUNC, the kernel truncates the file some time before the descriptor exists (linux
/// fs/open.c, `do_sys_openat2`). In the meantime the thread may wait for a processor. So a truncated file is checked several
/// times.
pub fn writes_or_will(file: Identity, ours: Option<&File>, is_cut: bool) -> bool {
    const LOOKS: u32 = 9;
    writes(file, ours)
        || is_cut
            && (1..LOOKS).any(|look| {
                thread::sleep_micros(1000 << (look - 1));
                writes(file, ours)
            })
}

/// Sets `O_APPEND` on all other descriptors of this process that can write to the file. Without this flag, a library writes
/// at the offset at which its own last write ended, and overwrites data that others have written since.
pub fn make_appending(file: Identity, ours: &File) {
    let others = writers(file, Some(ours));
    in_host_table(|| {
        for (descriptor, flags) in others.iter().filter(|(_, flags)| !flags.contains(OFlags::APPEND)) {
            let _ = fcntl_setfl(numbered(*descriptor), *flags | OFlags::APPEND);
        }
    });
}

/// Each copy of this library locks one byte in each file that it writes to, because a copy cannot list the descriptors of the
/// other copies. The locked bytes begin at this offset, far beyond the end of any file. Each process has a range of bytes,
/// and each copy in the process has one byte of the range.
pub(super) const COPIES: Offset = 1 << 62;
/// The length of the range of bytes that belongs to one process.
const RANGE: Offset = 1 << 30;

/// Computes a secret number from the argument `of` and from the random bytes that the kernel has given to the process
/// (getauxval(3), `AT_RANDOM`). For the same argument, all copies of this library in this process get the same number, and two
/// processes get different numbers. Every process can read which bytes are locked. So the number must reveal neither an address
/// nor the random bytes, from which the C library computes its own secrets.
fn secret(of: usize) -> Offset {
    // SAFETY: getauxval returns 0 or the address of 16 bytes that never change.
    let random = unsafe { (libc::getauxval(libc::AT_RANDOM) as *const [u8; 16]).as_ref() };
    // `DefaultHasher` is not used, because its algorithm may change, and copies that were built by different compilers must
    // agree on the number.
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new();
    hasher.write(random.map_or(&[][..], |random| random));
    hasher.write(&of.to_ne_bytes());
    (hasher.finish() >> 32) as Offset
}

/// The file offset at which this process's range of bytes begins. The offset is the same in each file.
fn this_process() -> Offset {
    COPIES + secret(0) % RANGE * RANGE
}

/// The offset of this copy's byte in the range, computed from the address of the copy's code.
fn this_copy() -> Offset {
    // The first and the last byte of the range are not used. Otherwise `has_other_copy` could check a range of length 0,
    // which would extend to the end of the file.
    1 + secret(note as *const () as usize) % (RANGE - 2)
}

/// Returns a part of the range of bytes that belongs to this process. `start` and `end` count from the beginning of the range.
fn bytes(start: Offset, end: Offset) -> range_lock::Bytes {
    (this_process() + start, end - start)
}

/// Announces to other copies of this library whether this copy writes to a file, by locking or unlocking this copy's byte.
/// Before the file is closed, this function must be called with `writes` false. If the file is mapped, closing the file alone
/// would not unlock the byte.
pub fn note(ours: &File, writes: bool) {
    let bytes = bytes(this_copy(), this_copy() + 1);
    // The result is ignored: on a file system without locks, the copies of this library cannot detect each other.
    let _ = if writes { range_lock::lock(ours, bytes) } else { range_lock::unlock(ours, bytes) };
}

fn has_other_copy(ours: &File) -> bool {
    let around = [(0, this_copy()), (this_copy() + 1, RANGE)];
    around.into_iter().any(|(start, end)| range_lock::is_locked(ours, bytes(start, end)))
}

/// Whether a file was written to since this process started. `None` if this is unknown. The file has this process's pid in
/// its name, and any earlier process with this pid ended before this process started. So only a library in this process can
/// be the writer, even if the library has closed the file.
pub fn has_written(data: &Metadata) -> Option<bool> {
    Some(data.modified().ok()? >= start()?)
}

/// Whether this process has certainly written to the file. The result is false if the last write was in the first moments of
/// this process, because an earlier process with the same pid may have made this write. An example of such an earlier process
/// is process 1 of the previous container.
pub fn has_certainly_written(data: &Metadata) -> bool {
    let too_early = Duration::from_nanos(2 * clock::tick_ns() as u64);
    start().zip(data.modified().ok()).is_some_and(|(start, modified)| modified > start + too_early)
}

fn start() -> Option<SystemTime> {
    start_of("self")
}

/// The start time of a process (a pid or `self`), by the clock that the kernel uses for modification times of files. The
/// result may be up to two clock ticks too early. `None` without `/proc`, or if there is no such process.
pub fn start_of(process: &str) -> Option<SystemTime> {
    let (tick, now) = (clock::tick_ns() as u64, SystemTime::now());
    // The age is read after `now`. If this thread is interrupted between the reading of `now` and the reading of the age, the
    // result is too early. A result that is too early does no harm.
    let age = clock::boottime_ns().checked_sub(owner_process::start_time(process)? * tick)?;
    // The clock of modification times advances only at timer interrupts, so it may lag by one tick.
    now.checked_sub(Duration::from_nanos(age + tick))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    fn others_are_found_and_made_to_append() {
        let path = std::env::temp_dir().join(format!("jitsym-company-{}", std::process::id()));
        let mut other = File::create(&path).unwrap();
        let ours = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let (dir, name) = (Dir::of(&path).unwrap(), path.file_name().unwrap());
        let identity = look_at(&ours).unwrap();
        other.write_all(b"one\n").unwrap();
        assert!(writes(identity, Some(&ours)) && uses(&dir, name, identity));
        assert_eq!(has_written(&other.metadata().unwrap()), Some(true));
        make_appending(identity, &ours);
        (&ours).write_all(b"two\n").unwrap();
        other.write_all(b"three\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
        let reader = File::open(&path).unwrap();
        // The locks below act like the locks of another copy of the library.
        note(&ours, true);
        assert!(!has_other_copy(&ours) && !has_other_copy(&reader), "it is this one");
        for byte in [0, this_copy() - 1, this_copy() + 1, RANGE - 1] {
            let bytes = bytes(byte, byte + 1);
            assert!(range_lock::lock(&other, bytes).is_ok() && has_other_copy(&ours));
            assert!(range_lock::unlock(&other, bytes).is_ok() && !has_other_copy(&ours));
        }
        drop(other);
        assert!(!writes(identity, Some(&ours)), "one that only reads");
        drop((ours, reader));
        assert!(!uses(&dir, name, identity));
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(86400 * 365)).unwrap();
        assert_eq!(has_written(&file.metadata().unwrap()), Some(false));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_start_of_this_process_is_known() {
        let start = start().unwrap();
        let age = SystemTime::now().duration_since(start).unwrap();
        // The process's directory in `/proc` may be younger than the process, because the kernel makes the directory only at
        // the first access. So the test does not use the directory's age.
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
