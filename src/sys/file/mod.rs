//! Creates and opens files safely in directories like `/tmp`. Files that exist already are checked, and no file is opened
//! through a symbolic link.

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
pub use claim::{claim, continue_earlier, is_anothers};
pub use held::{Held, CLOSED};
pub use identity::{identity_and_len, is_removed, look_at, Identity};
pub use names::{make_jit_cache_dir, put_in_place, remove_ours};
pub use reopen::{join, open_same, reopen, take_over};
pub use space::{free_space, gains_by_reserve, is_on_disk, leaves_room, reserve, FOR_OTHERS};

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use super::held_dir::Dir;
use super::{other_writers, process, range_lock};
use refuse::refuse;

/// How a file is opened for writing.
pub type Access = OFlags;
/// Each write appends to the file, so records stay whole even if another program writes to the file.
pub const APPEND: Access = OFlags::RDWR.union(OFlags::APPEND);
/// Each write can go to any offset.
pub const ANYWHERE: Access = OFlags::RDWR;

/// The mode bit that marks a file as a file of this library. The bit has no other meaning on a regular file.
pub const OURS: u32 = libc::S_ISVTX;

/// Errors of this kind mean that another library in this process uses the file.
pub const TAKEN: io::ErrorKind = io::ErrorKind::ResourceBusy;

/// The byte that a process locks in each file that it writes to. The byte is far beyond the end of any file.
const ALIVE: range_lock::Bytes = (other_writers::COPIES - 1, 1);

/// Locks a file before the library writes to the file. The lock lasts as long as the file is open or mapped. Returns false if
/// another program has locked the file for writing.
///
/// flock(2) is not used, because a process that may only read a file could take an exclusive lock on the file by flock(2). With
/// `range_lock`, a process that may only read a file can take only a lock for reading. If another process has a lock for
/// reading, this function cannot lock the file, but still returns true.
fn lock(file: &File) -> bool {
    let taken = range_lock::lock(file, ALIVE).is_err_and(|error| range_lock::is_taken(&error));
    !(taken && range_lock::is_locked(file, ALIVE))
}

/// Returns an error with the reason if the file is not a regular file of this user, or has more than one name.
pub fn check_plain(data: &Metadata) -> io::Result<()> {
    check_ours(data)?;
    if data.nlink() != 1 {
        return Err(refuse(io::ErrorKind::AlreadyExists, "has a second name (hard link)"));
    }
    Ok(())
}

/// Returns an error with the reason if the file is not a regular file of this user. The file may have several names.
pub fn check_ours(data: &Metadata) -> io::Result<()> {
    if !data.file_type().is_file() {
        return Err(refuse(io::ErrorKind::AlreadyExists, "exists and is not a regular file"));
    }
    if data.uid() != process::user() {
        return Err(refuse(io::ErrorKind::PermissionDenied, "belongs to another user"));
    }
    Ok(())
}

/// Whether a living process has locked the file.
pub fn is_locked(dir: &Dir, name: &OsStr) -> bool {
    let opened = dir.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0);
    opened.is_ok_and(|file| range_lock::is_locked(&file, ALIVE))
}
