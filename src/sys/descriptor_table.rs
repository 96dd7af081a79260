//! Gives threads of this library their own tables of file descriptors, separate from the host's table.
//!
//! The background thread has its own table. The thread cannot use, close or list the host's descriptors, and the host cannot
//! use, close or list the thread's descriptors. So a host that closes all descriptors, as daemons do, closes no descriptor of
//! this library, and the background thread cannot write to a file of the host by mistake. If the kernel or a sandbox refuses a
//! second table, all threads share the host's table.

use std::cell::Cell;
use std::hash::RandomState;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{open, Mode, OFlags};

use super::listing;
use super::process::limit;

/// The number of a descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorTable(u32);

impl DescriptorTable {
    /// The table that the host's threads share.
    pub const HOST: DescriptorTable = DescriptorTable(0);

    pub fn current() -> DescriptorTable {
        TABLE.get()
    }

    pub fn is_host(self) -> bool {
        self == DescriptorTable::HOST
    }
}

thread_local! {
    static TABLE: Cell<DescriptorTable> = const { Cell::new(DescriptorTable::HOST) };
}

/// Gives the calling thread, which must belong to this library, its own empty descriptor table. Returns false if the thread
/// still shares the host's table, or if `/` cannot be opened in the new table.
///
/// POSIX record locks belong to a descriptor table (fcntl(2)). So the host keeps its locks when descriptors in the thread's new
/// table are closed, and when the new table is destroyed.
pub fn separate() -> bool {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // Each thread gets random numbers once, for its first `RandomState`. If a sandbox refuses getrandom, the standard library
    // reads these numbers from /dev/urandom, and all threads use the same descriptor. The new descriptor table will not contain
    // the descriptor of /dev/urandom. So this thread gets its random numbers before it makes the new table.
    let _ = RandomState::new();
    // Builds for race detectors make no new table. A race detector prints its report on the thread in which it has found the
    // race, and the report must reach the host's standard error output.
    if cfg!(jitsym_locks) || !(close_in_new_table() || copy_and_close()) || !take_standard_numbers() {
        return false;
    }
    TABLE.set(DescriptorTable(LAST.fetch_add(1, Ordering::Relaxed) + 1));
    true
}

/// Makes a new table by close_range(2), Linux 5.9. The new table never contains the host's descriptors.
fn close_in_new_table() -> bool {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    // The system call is made by number, because older C libraries have no wrapper.
    // SAFETY: nobody uses a descriptor in the new table.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) == 0 }
}

/// Makes a new table on older kernels, by copying the host's table and closing all descriptors in the copy.
fn copy_and_close() -> bool {
    // SAFETY: the call gives the calling thread a copy of the table, and changes nothing for other threads.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return false;
    }
    let listed = listing::numbers(Path::new("/proc/thread-self/fd"));
    // Without `/proc`, the loop closes all descriptors below the process's limit, but at most the descriptors 0 to 65,535.
    // Higher descriptors stay open.
    let most = || limit(libc::RLIMIT_NOFILE).map_or(1 << 16, |limit| limit.min(1 << 16) as libc::c_int);
    let open: Vec<libc::c_int> = listed.unwrap_or_else(|_| (0..most()).collect());
    for descriptor in open {
        // SAFETY: only this thread has the table, and this thread does not use the descriptors.
        unsafe { libc::close(descriptor) };
    }
    true
}

/// Gives the numbers 0, 1 and 2 to descriptors that cannot be written to. If a file of this library got the descriptor number 1
/// or 2, text that this thread prints would go to the file. Returns false if the table was not empty, or if `/` cannot be
/// opened.
fn take_standard_numbers() -> bool {
    let opened = [(); 3].map(|()| open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok());
    let numbers = opened.each_ref().map(|opened| opened.as_ref().map(AsRawFd::as_raw_fd));
    // In an empty table, the first three descriptors get the numbers 0, 1 and 2. Other numbers mean that a sandbox has reported
    // success without making a new table.
    let is_taken = numbers == [Some(0), Some(1), Some(2)];
    if is_taken {
        std::mem::forget(opened);
    }
    is_taken
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn is_open(descriptor: i32) -> bool {
        // SAFETY: fcntl takes any number.
        unsafe { libc::fcntl(descriptor, libc::F_GETFD) != -1 }
    }

    #[test]
    fn neither_side_sees_what_the_other_has_open() {
        for way in [close_in_new_table, copy_and_close] {
            let ours = File::open("/").unwrap();
            let number = ours.as_raw_fd();
            std::thread::spawn(move || {
                assert!(way() && !is_open(number) && (0..100).all(|number| !is_open(number)));
                assert!(take_standard_numbers());
                let theirs: Vec<File> = (0..number + 10).map(|_| File::open("/dev/null").unwrap()).collect();
                assert!(theirs[0].as_raw_fd() == 3 && is_open(number));
                // SAFETY: no other code uses this descriptor number in the thread's table, and the descriptor is closed only
                // once.
                unsafe { libc::close(number) };
                std::mem::forget(theirs);
            })
            .join()
            .unwrap();
            assert!(is_open(number) && ours.metadata().unwrap().is_dir());
        }
    }

    #[test]
    fn what_is_printed_goes_nowhere() {
        std::thread::spawn(|| {
            assert!(separate() && !DescriptorTable::current().is_host());
            let first = DescriptorTable::current();
            assert!(separate() && DescriptorTable::current() != first);
            // SAFETY: the buffer is valid.
            assert!((0..3).all(|number| unsafe { libc::write(number, c"x".as_ptr().cast(), 1) } == -1));
        })
        .join()
        .unwrap();
        assert!(DescriptorTable::current().is_host());
    }
}
