//! Descriptor tables. The background thread has its own table: neither side can use, close or even see what the other
//! has opened, and a number means nothing in the other's table.
//!
//! A host that closes all descriptors, as daemons do, so closes none of ours; and what a host opens under any number cannot
//! receive our bytes. Where the kernel or a sandbox refuses a second table, all threads share the host's.

use std::cell::Cell;
use std::hash::RandomState;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{open, Mode, OFlags};

use super::listing;
use super::process::limit;

/// A table of descriptors, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorTable(u32);

impl DescriptorTable {
    /// The one that the host's threads share.
    pub const HOST: DescriptorTable = DescriptorTable(0);

    /// That of the calling thread.
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

/// Gives the calling thread, which is one of ours, its own table, in which nothing is open. False if it shares the host's.
///
/// Record locks of POSIX belong to a table (fcntl(2)): those of the host stay with its own.
pub fn separate() -> bool {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // Where getrandom is refused the standard library keeps one descriptor of /dev/urandom for all threads, each of which reads from it
    // once: here, while it is the same for this one.
    let _ = RandomState::new();
    // Tools that look for races print on the thread that they find one on.
    if cfg!(jitsym_locks) || !(close_in_new_table() || copy_and_close()) || !take_standard_numbers() {
        return false;
    }
    TABLE.set(DescriptorTable(LAST.fetch_add(1, Ordering::Relaxed) + 1));
    true
}

/// close_range(2), Linux 5.9: no descriptor of the host is in the new table at any time.
fn close_in_new_table() -> bool {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    // SAFETY: by number, because older C libraries have no wrapper. Nothing is open in the new table that anybody uses.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) == 0 }
}

/// The same for older kernels, in two steps.
fn copy_and_close() -> bool {
    // SAFETY: the calling thread has a copy of the table from here on.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return false;
    }
    let listed = listing::numbers(Path::new("/proc/thread-self/fd"));
    // The limit may have been lowered since something was opened, but nothing else is known then.
    let most = || limit(libc::RLIMIT_NOFILE).map_or(1 << 16, |limit| limit.min(1 << 16) as libc::c_int);
    let open: Vec<libc::c_int> = listed.unwrap_or_else(|_| (0..most()).collect());
    for descriptor in open {
        // SAFETY: the table is this thread's alone, and it uses nothing that is open in it.
        unsafe { libc::close(descriptor) };
    }
    true
}

/// Puts something that cannot be written to in the place of the standard streams, whose numbers a file of ours must not have:
/// whatever is printed on this thread would be in it. False if the table is not the empty one that it should be.
fn take_standard_numbers() -> bool {
    let opened = [(); 3].map(|()| open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok());
    let numbers = opened.each_ref().map(|opened| opened.as_ref().map(AsRawFd::as_raw_fd));
    // Else a sandbox says yes and does nothing.
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
        // SAFETY: whether the descriptor is open is for the kernel to find out.
        unsafe { libc::fcntl(descriptor, libc::F_GETFD) != -1 }
    }

    /// In each of the ways in which a table is had.
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
                // SAFETY: nothing else in this table uses it, and it is not closed another time.
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
