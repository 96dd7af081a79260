//! Creation of files under names that an earlier process or another library may have used.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use super::{check_plain, is_locked, lock, look_at, refuse, Access, OURS, TAKEN};
use crate::sys::dir::Dir;
use crate::sys::other_writers;

/// Creates a file that does not exist yet; a link of that name counts as existing.
pub(super) fn create_with(dir: &Dir, name: &OsStr, mode: u32, access: Access) -> io::Result<File> {
    dir.open_file(name, access | OFlags::CREATE | OFlags::EXCL, mode | OURS)
}

/// Creates a file, in place of one that an earlier process with our pid has left there.
///
/// Refuses to touch anything else: a link, a file of somebody else, or one with a second name. Nor does it touch one of another
/// library in this process (`TAKEN`), or of a living process that has the same pid in another namespace. Such processes are
/// known by a lock, which the system releases when the last of their descriptors is closed.
pub fn claim(dir: &Dir, name: &OsStr, mode: u32, access: Access) -> io::Result<File> {
    for _ in 0..3 {
        match create_with(dir, name, mode, access) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(dir, name)?,
            Err(error) => return Err(error),
            Ok(file) => {
                // A file system without locks is no reason to go without symbols.
                let _ = lock(&file);
                other_writers::note(&file, true);
                return Ok(file);
            }
        }
    }
    Err(refuse(io::ErrorKind::AlreadyExists, "is created again and again by somebody else"))
}

/// Whether a file could not be had because its name is that of another one, which stays: another name may do.
pub fn is_anothers(error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::AlreadyExists | TAKEN => true,
        // Another user's file, and not a directory in which nothing may be made.
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
    // Until it is gone: another copy of this library may be about to replace it too. One that must not be written to can only be asked.
    let opened = dir.open_file(name, OFlags::RDWR | OFlags::NONBLOCK, 0).ok();
    if opened.as_ref().map_or_else(|| is_locked(dir, name), |file| !lock(file)) {
        return Err(refuse(io::ErrorKind::AlreadyExists, "is written by a living process with the same pid"));
    }
    // One of ours that nobody here uses is that of the program before, if the process has executed another one.
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
