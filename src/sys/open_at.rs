//! Opens a file by its name in an open directory.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::{fcntl_dupfd_cloexec, retry_on_intr};

pub(super) fn open_at(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
    let (name, mode) = (c_string(name)?, Mode::from_raw_mode(mode));
    Ok(not_standard(retry_on_intr(|| openat(dir, &name, flags | OFlags::CLOEXEC, mode))?)?.into())
}

/// Returns the same file under a descriptor number above 2. The host may have closed its standard output. If a file of this
/// library got the descriptor number of the standard output, the host would write its output to the file.
fn not_standard(file: OwnedFd) -> io::Result<OwnedFd> {
    match file.as_raw_fd() {
        0..=2 => Ok(fcntl_dupfd_cloexec(&file, 3)?),
        _ => Ok(file),
    }
}

/// Converts a name to a C string for a system call. rustix would also convert names, but its code is larger, because it treats
/// short and long names separately.
pub(super) fn c_string(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}
