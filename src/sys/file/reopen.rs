//! Files that exist and are opened to be continued: our own, those of a dead process, and one that others in this process write.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{check_plain, lock, look_at, refuse, Access, Identity, APPEND, OURS};
use crate::sys::dir::Dir;
use crate::sys::other_writers;

/// Opens a file that somebody else in this process has made, to append to it, as from now on all in this process do. It gets our
/// mark, without which it would not be completed if the process is killed.
pub fn join(dir: &Dir, name: &OsStr) -> io::Result<File> {
    let file = dir.open_file(name, APPEND | OFlags::NONBLOCK, 0)?;
    let data = file.metadata()?;
    check_plain(&data)?;
    let _ = file.set_permissions(Permissions::from_mode(data.mode() | OURS));
    other_writers::note(&file, true);
    other_writers::make_appending(look_at(&file)?, &file);
    Ok(file)
}

/// Opens a file that we wrote before, if it still is that file.
pub fn reopen(dir: &Dir, name: &OsStr, expected: Identity, access: Access) -> io::Result<File> {
    let file = dir.open_file(name, access | OFlags::NONBLOCK, 0)?;
    if !look_at(&file)?.is(&expected) {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    let _ = lock(&file);
    other_writers::note(&file, true);
    Ok(file)
}

/// Opens such a file to read it, on a thread with another table of descriptors.
pub fn open_same(path: &Path, expected: Identity) -> io::Result<File> {
    let file = Dir::of(path)?.open_file(path.file_name().unwrap_or_default(), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    if !look_at(&file)?.is(&expected) {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    Ok(file)
}

/// Opens a file that this library has written in a process that is dead, to append to it: one of these. Returns which one.
///
/// The claim that it is one is not believed: it has to be a plain file with our mark, and known for certain. `may_be_locked`: a
/// lock is not that of the process that writes it.
pub fn take_over(dir: &Dir, name: &OsStr, known: &[Identity], may_be_locked: bool) -> io::Result<(File, Identity)> {
    let refuse = |why| Err(refuse(io::ErrorKind::InvalidData, why));
    let found = dir.open_file(name, OFlags::PATH, 0)?;
    let (data, identity) = (found.metadata()?, look_at(&found)?);
    check_plain(&data).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if !known.iter().any(|known| known.is(&identity)) {
        return refuse("has been replaced");
    }
    if !known.iter().any(|known| known.is_surely(&identity)) {
        return refuse("may be another file: it is not known when it was made");
    }
    if data.mode() & OURS == 0 {
        return refuse("has not been made by this library");
    }
    let file = dir.open_file(name, APPEND | OFlags::NONBLOCK, 0)?;
    if look_at(&file)? != identity {
        return refuse("has been replaced");
    }
    if !lock(&file) && !may_be_locked {
        return Err(self::refuse(io::ErrorKind::WouldBlock, "is written by a living process"));
    }
    Ok((file, identity))
}
