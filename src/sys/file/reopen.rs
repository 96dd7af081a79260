//! Opens existing files: files that this process has closed, files of a dead process, and files of other libraries in this
//! process.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{check_plain, lock, look_at, refuse, Access, Identity, APPEND, OURS};
use crate::sys::held_dir::Dir;
use crate::sys::other_writers;

/// Opens a file that other code in this process has made, to append to it. Makes all other writers in this process append
/// too. Marks the file as a file of this library, because recovery after a kill completes only marked files.
pub fn join(dir: &Dir, name: &OsStr) -> io::Result<File> {
    let file = dir.open_file(name, APPEND | OFlags::NONBLOCK, 0)?;
    let data = file.metadata()?;
    check_plain(&data)?;
    let _ = file.set_permissions(Permissions::from_mode(data.mode() | OURS));
    other_writers::note(&file, true);
    other_writers::make_appending(look_at(&file)?, &file);
    Ok(file)
}

/// Reopens a file for writing. `expected` identifies the file, which this process has written before. Fails if the name now
/// belongs to another file.
pub fn reopen(dir: &Dir, name: &OsStr, expected: Identity, access: Access) -> io::Result<File> {
    let file = dir.open_file(name, access | OFlags::NONBLOCK, 0)?;
    if !look_at(&file)?.is(&expected) {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    let _ = lock(&file);
    other_writers::note(&file, true);
    Ok(file)
}

/// Opens a file for reading. Fails if the path no longer leads to the file `expected`. The argument is a path and not an open
/// directory, because the calling thread may have a descriptor table in which the directory is not open.
pub fn open_same(path: &Path, expected: Identity) -> io::Result<File> {
    let file = Dir::of(path)?.open_file(path.file_name().unwrap_or_default(), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    if !look_at(&file)?.is(&expected) {
        return Err(refuse(io::ErrorKind::NotFound, "has been replaced"));
    }
    Ok(file)
}

/// Opens a file that this library wrote in a process that is now dead, to append to the file. The file must have one of the
/// identities `known`. Returns the file and its identity.
///
/// The identities may be forged. So the call accepts the file only if the file passes `check_plain`, has the library's mark,
/// and certainly has one of the identities (`Identity::is_surely`). A lock on the file means that the writer of the file is
/// alive. The call accepts a locked file only if `may_be_locked` is true.
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
