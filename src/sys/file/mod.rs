//! Files that other people can read and nobody else can plant: created new, never through a link, written in whole.

mod append;
mod claim;
mod held;
mod identity;
mod names;
mod refuse;
mod reopen;
mod space;
#[cfg(test)]
mod tests;

pub use append::{allow_any_place, append, append_whole};
pub use claim::{claim, is_anothers};
pub use held::{Held, CLOSED};
pub use identity::{identity_and_len, is_removed, look_at, Identity};
pub use names::{make_jit_cache_dir, put_in_place, remove_ours};
pub use reopen::{join, open_same, reopen, take_over};
pub use space::{free_space, gains_by_reserve, is_on_disk, reserve};

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use super::dir::Dir;
use super::{other_writers, process, range_lock};
use refuse::refuse;

/// How a file is written to.
pub type Access = OFlags;
/// At its end: that keeps whole records whole even if something else writes to the file.
pub const APPEND: Access = OFlags::RDWR.union(OFlags::APPEND);
/// At any place.
pub const ANYWHERE: Access = OFlags::RDWR;

/// Marks a file as the work of this library. The bit has no other meaning on a file.
pub const OURS: u32 = libc::S_ISVTX;

/// The kind of error for a file that belongs to somebody else in this process.
pub const TAKEN: io::ErrorKind = io::ErrorKind::ResourceBusy;

/// The byte, far after the end of all files, that a process locks in each file that it writes to.
const ALIVE: range_lock::Bytes = (other_writers::COPIES - 1, 1);

/// Locks a file for as long as it is open or mapped, which is to be written to. False if somebody else who can write to it has.
///
/// Not by flock(2): whoever may read a file can lock it so. For the same reason a lock for reading is no obstacle, but that this one
/// is not had then.
fn lock(file: &File) -> bool {
    let taken = range_lock::lock(file, ALIVE).is_err_and(|error| range_lock::is_taken(&error));
    !(taken && range_lock::is_locked(file, ALIVE))
}

/// Whether a file is one that this user has made and nobody has a second name for; else what is wrong with it.
pub fn check_plain(data: &Metadata) -> io::Result<()> {
    check_ours(data)?;
    if data.nlink() != 1 {
        return Err(refuse(io::ErrorKind::AlreadyExists, "has a second name (hard link)"));
    }
    Ok(())
}

/// The same for a file that may have more names.
pub fn check_ours(data: &Metadata) -> io::Result<()> {
    if !data.file_type().is_file() {
        return Err(refuse(io::ErrorKind::AlreadyExists, "exists and is not a regular file"));
    }
    if data.uid() != process::user() {
        return Err(refuse(io::ErrorKind::PermissionDenied, "belongs to another user"));
    }
    Ok(())
}

/// Whether somebody who lives has locked a file.
pub fn is_locked(dir: &Dir, name: &OsStr) -> bool {
    let opened = dir.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0);
    opened.is_ok_and(|file| range_lock::is_locked(&file, ALIVE))
}
