//! Locks on ranges of bytes of an open file (`F_OFD_SETLK`, fcntl(2)).
//!
//! An `F_OFD_SETLK` lock belongs to the open file, and lasts until the last descriptor and the last mapping of the open file
//! are closed. A lock that belongs to the process (`F_SETLK`) would end earlier: when the process closes any descriptor of the
//! file, or when the descriptor table of the locking thread is freed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
#[cfg(target_pointer_width = "32")]
use std::os::fd::RawFd;

/// The C library's `fcntl` has offsets of 32 bits on machines with addresses of 32 bits. The kernel has a call with more.
#[cfg(target_pointer_width = "32")]
use libc::flock64 as flock;
#[cfg(not(target_pointer_width = "32"))]
use libc::{fcntl, flock};

#[cfg(target_pointer_width = "32")]
unsafe fn fcntl(file: RawFd, command: libc::c_int, range: *mut flock) -> libc::c_long {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_fcntl64, file, command, range) }
}

/// An offset in a file, or a distance.
pub type Offset = i64;
/// The start and the length of a range, in bytes. A range of length 0 extends to the end of the file.
pub type Bytes = (Offset, Offset);

/// The whole file, whatever its length.
pub const WHOLE: Bytes = (0, 0);

fn ask(file: &File, command: libc::c_int, kind: libc::c_int, (start, len): Bytes) -> io::Result<libc::c_short> {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let mut range = flock { l_type, l_whence, l_start: start, l_len: len, l_pid: 0 };
    // SAFETY: the descriptor is open, and the pointer is valid.
    match unsafe { fcntl(file.as_raw_fd(), command, &raw mut range) } {
        0 => Ok(range.l_type),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks a range for writing. Fails at once if another open file has a lock in the range.
pub fn lock(file: &File, bytes: Bytes) -> io::Result<()> {
    ask(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes).map(drop)
}

pub fn unlock(file: &File, bytes: Bytes) -> io::Result<()> {
    ask(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Whether this error of `lock` means that another open file has a lock in the range.
pub fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Whether another open file has a lock for writing in a range. Returns false if the file system does not support locks.
///
/// A lock for reading does not count, because any process that may read the file can take such a lock.
pub fn is_locked(file: &File, bytes: Bytes) -> bool {
    ask(file, libc::F_OFD_GETLK, libc::F_RDLCK, bytes).is_ok_and(|kind| kind != libc::F_UNLCK as libc::c_short)
}
