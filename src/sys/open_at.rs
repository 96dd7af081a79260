//! Opens files by their names in a directory.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::retry_on_intr;

/// Opens a file by its name in a directory.
pub(super) fn open_at(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
    let (name, mode) = (c_string(name)?, Mode::from_raw_mode(mode));
    Ok(retry_on_intr(|| openat(dir, &name, flags | OFlags::CLOEXEC, mode))?.into())
}

/// Converts a name to a C string for a system call. rustix would also convert names, but its code is larger, because it treats
/// short and long names separately.
pub(super) fn c_string(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}
