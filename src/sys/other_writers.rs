//! Who else in this process has to do with a file: other runtimes, and other copies of this library.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, OFlags};

use super::descriptors::DescriptorTable;
use super::dir::Dir;
use super::file::{look_at, Identity};
use super::{clock, host_fds, listing, owner, range_lock, thread};

/// The descriptors that the host's threads have of a file.
///
/// The background thread, which has its own descriptor table, asks for them there by way of `host_fds`. That one opens nothing, because the
/// host may close whatever is open in its table at any time.
fn descriptors(file: Identity) -> Vec<RawFd> {
    let dir = match (DescriptorTable::current().is_host(), host_fds::tid()) {
        (false, Some(tid)) => format!("/proc/self/task/{tid}/fd"),
        _ => "/proc/thread-self/fd".into(),
    };
    // Without `/proc` each number is asked for, as far as most processes may have any.
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
    // SAFETY: whether it is open is for the kernel to find out. It is neither closed nor kept.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

/// Device and inode of what a descriptor is open for. Not asked of a server on a network, which may not answer.
fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mut data = MaybeUninit::<libc::statx>::zeroed();
    // By number, because older C libraries have no wrapper, and rustix would ask the loader for it.
    // SAFETY: the path ends with a NUL, and there is room for the answer, for which zero is a valid value.
    let (result, data) = unsafe {
        let (path, mask) = (c"".as_ptr(), libc::STATX_INO);
        let result = libc::syscall(libc::SYS_statx, descriptor, path, flags, mask, data.as_mut_ptr());
        (result, data.assume_init())
    };
    match result {
        0 => Some((libc::makedev(data.stx_dev_major, data.stx_dev_minor), data.stx_ino)),
        // A sandbox may allow the older call only.
        _ => fstat(numbered(descriptor)).ok().map(|data| (data.st_dev, data.st_ino)),
    }
}

/// Whether this process has the file open, or mapped under this name.
pub fn uses(dir: &Dir, name: &OsStr, file: Identity) -> bool {
    let inode = file.inode.to_string();
    // The device is not compared: some file systems show another one there than stat does.
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

/// Those of them, except for `ours`, by which it can be written to, with their flags.
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

/// Whether somebody else in this process can write to the file, which may be open as `ours`.
pub fn writes(file: Identity, ours: Option<&File>) -> bool {
    ours.is_some_and(has_other_copy) || !writers(file, ours).is_empty()
}

/// The same for a file that may have been cut.
///
/// Whoever opens a file as if it were new has cut it some time before the descriptor is there (linux fs/open.c, `do_sys_openat2`), and
/// may have to wait for a processor in between. So a file that was cut is looked at for a while.
pub fn writes_or_will(file: Identity, ours: Option<&File>, is_cut: bool) -> bool {
    const LOOKS: u32 = 9;
    writes(file, ours)
        || is_cut
            && (1..LOOKS).any(|look| {
                thread::sleep_micros(1000 << (look - 1));
                writes(file, ours)
            })
}

/// Has everybody in this process write at the end of the file, wherever that is. Whoever opened it for itself alone writes to
/// the place where its own last write ended, which is over what others have written since.
pub fn make_appending(file: Identity, ours: &File) {
    let others = writers(file, Some(ours));
    in_host_table(|| {
        for (descriptor, flags) in others.iter().filter(|(_, flags)| !flags.contains(OFlags::APPEND)) {
            let _ = fcntl_setfl(numbered(*descriptor), *flags | OFlags::APPEND);
        }
    });
}

/// Where far after its end copies of this library lock a byte of the files that they write to, because no copy sees what another one
/// has open. Each process has its own range there, in which each copy has its own byte.
pub(super) const COPIES: libc::off_t = 1 << 62;
/// How long such a range is.
const RANGE: libc::off_t = 1 << 30;

/// A number that is the same everywhere in this process and differs from that of any other: computed from the random bytes that
/// the kernel has given to it (getauxval(3), `AT_RANDOM`). Everybody can read which bytes are locked. They must reveal nothing:
/// neither those random bytes, from which the C library makes secrets, nor an address.
fn secret(of: usize) -> libc::off_t {
    // SAFETY: asks for an address of 16 bytes, which stay as they are.
    let random = unsafe { (libc::getauxval(libc::AT_RANDOM) as *const [u8; 16]).as_ref() };
    let mut hasher = DefaultHasher::new();
    (random, of).hash(&mut hasher);
    (hasher.finish() >> 32) as libc::off_t
}

/// The range of this process.
fn this_process() -> libc::off_t {
    COPIES + secret(0) % RANGE * RANGE
}

/// The byte of this copy in it: by where it lies in memory.
fn this_copy() -> libc::off_t {
    secret(note as *const () as usize) % RANGE
}

/// Start and length of a range among these bytes.
fn bytes(start: libc::off_t, end: libc::off_t) -> range_lock::Bytes {
    (this_process() + start, end - start)
}

/// Says to other copies of this library whether this one writes to a file. A mapping of the file would keep saying so.
pub fn note(ours: &File, writes: bool) {
    let bytes = bytes(this_copy(), this_copy() + 1);
    // On a file system without locks there are no copies either.
    let _ = if writes { range_lock::lock(ours, bytes) } else { range_lock::unlock(ours, bytes) };
}

fn has_other_copy(ours: &File) -> bool {
    let around = [(0, this_copy()), (this_copy() + 1, RANGE)];
    around.into_iter().any(|(start, end)| range_lock::is_locked(ours, bytes(start, end)))
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
    let age = clock::boottime_ns().checked_sub(owner::start_time("self")? * tick)?;
    // The clock of files stands still from one interrupt of the timer to the next.
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
        // Another copy, whose descriptors are not to be seen.
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
        // The directory of the process is made when somebody looks at it first, which was later.
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
