//! Creates files under names that an earlier process or another library may have used.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use super::{check_plain, is_locked, lock, look_at, refuse, Access, APPEND, OURS, TAKEN};
use crate::sys::held_dir::Dir;
use crate::sys::other_writers;

/// Creates a file. Fails if the name exists, even if it is the name of a symbolic link.
pub(super) fn create_with(dir: &Dir, name: &OsStr, mode: u32, access: Access) -> io::Result<File> {
    dir.open_file(name, access | OFlags::CREATE | OFlags::EXCL, mode | OURS)
}

/// Creates a file. If an earlier process with this pid has left a file of this name, the new file replaces the old file.
///
/// Fails without touching the existing file if this file is a symbolic link, has a second name (hard link), or belongs to
/// another user. Also fails if another library in this process uses the file (`TAKEN`), or if a living process with the same
/// pid in another pid namespace uses the file. A living process holds a lock on its file. The kernel releases the lock when the
/// last descriptor and the last mapping of the open file are closed.
pub fn claim(dir: &Dir, name: &OsStr, mode: u32, access: Access) -> io::Result<File> {
    for _ in 0..3 {
        match create_with(dir, name, mode, access) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(dir, name)?,
            Err(error) => return Err(error),
            Ok(file) => {
                // On a file system without locks, the file is used without a lock.
                let _ = lock(&file);
                other_writers::note(&file, true);
                return Ok(file);
            }
        }
    }
    Err(refuse(io::ErrorKind::AlreadyExists, "is created again and again by somebody else"))
}

/// Opens a file that this process wrote before it called execve(2) to run the present program. New data is appended to the
/// file. `None` if there is no such file, or if somebody else uses the file.
pub fn continue_earlier(dir: &Dir, name: &OsStr) -> io::Result<Option<File>> {
    let identity = dir.identity_of(name)?;
    // This process opens the file only after this check, because the check looks for open descriptors of the process.
    if !other_writers::has_certainly_written(&dir.look(name)?) || other_writers::uses(dir, name, identity) {
        return Ok(None);
    }
    let file = dir.open_file(name, APPEND | OFlags::NONBLOCK, 0)?;
    let data = file.metadata()?;
    let is_ours = check_plain(&data).is_ok() && data.mode() & OURS != 0;
    if !is_ours || !look_at(&file)?.is(&identity) || !lock(&file) {
        return Ok(None);
    }
    other_writers::note(&file, true);
    Ok(Some(file))
}

/// Whether `error`, which `claim` has returned, means that a file of this name exists and must stay. If the result is true, the
/// caller may succeed with another file name.
pub fn is_anothers(error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::AlreadyExists | TAKEN => true,
        // An error without an error number comes from this module, and means that another user's file has this name. An error
        // with a number comes from the kernel, and means that this process is not allowed to create files in the directory.
        io::ErrorKind::PermissionDenied => error.raw_os_error().is_none(),
        _ => false,
    }
}

fn remove_stale(dir: &Dir, name: &OsStr) -> io::Result<()> {
    let found = dir.open_file(name, OFlags::PATH, 0);
    let file = match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let data = file.metadata()?;
    check_plain(&data)?;
    let identity = look_at(&file)?;
    drop(file);
    let taken = || Err(refuse(TAKEN, "is written by another library in this process"));
    if other_writers::uses(dir, name, identity) {
        return taken();
    }
    // The lock is held until the file is removed, because another copy of this library may be about to replace the file too. If
    // this user may not write to the file, the file cannot be locked, and the code only checks whether others have locked it.
    let opened = dir.open_file(name, OFlags::RDWR | OFlags::NONBLOCK, 0).ok();
    if opened.as_ref().map_or_else(|| is_locked(dir, name), |file| !lock(file)) {
        return Err(refuse(io::ErrorKind::AlreadyExists, "is written by a living process with the same pid"));
    }
    // At this point, this process does not use the file. A file with this library's mark is no longer needed: an earlier
    // process has left it, or this process has left it before a call of execve(2). If the file has no mark, but was written
    // since this process started, another library in this process has written the file.
    if data.mode() & OURS == 0 {
        match other_writers::has_written(&data) {
            Some(false) => {}
            Some(true) => return taken(),
            None => {
                return Err(refuse(
                    TAKEN,
                    "may be of another library in this process: /proc does not say when that began",
                ))
            }
        }
    }
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match dir.identity_of(name) {
        Ok(found) if found.is(&identity) => {
            dir.remove(name).or_else(|error| if gone(&error) { Ok(()) } else { Err(error) })
        }
        Ok(_) => Ok(()),
        Err(error) if gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
