//! Identities of files, by which the library recognises a file even if the file's name now belongs to another file.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use rustix::fs::fstat;

/// Identifies a file independently of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// The time when the file was created, in nanoseconds since 1970; 0 if this time is unknown. The time is needed because a
    /// new file may get the inode number of a file that was just removed.
    pub born: u64,
}

impl Identity {
    /// Whether the two identities may belong to the same file. An unknown time of creation counts as equal to any other time.
    pub fn is(&self, other: &Identity) -> bool {
        let born_alike = self.born == other.born || self.born == 0 || other.born == 0;
        self.device == other.device && self.inode == other.inode && born_alike
    }

    /// Whether the two identities certainly belong to the same file. The time of creation must be known, because anyone who
    /// forges an identity can guess the device and the inode number.
    pub(super) fn is_surely(&self, other: &Identity) -> bool {
        self.born != 0 && self == other
    }
}

/// The identity of an open file.
pub fn look_at(file: &File) -> io::Result<Identity> {
    identity_and_len(file).map(|(identity, _)| identity)
}

pub fn identity_and_len(file: &File) -> io::Result<(Identity, u64)> {
    match file.metadata() {
        Ok(data) => {
            let born = data.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let born = born.map_or(0, |time| time.as_nanos() as u64);
            Ok((Identity { device: data.dev(), inode: data.ino(), born }, data.len()))
        }
        // A sandbox may allow only fstat(2), not the newer statx(2).
        Err(_) => {
            let data = fstat(file)?;
            Ok((Identity { device: data.st_dev, inode: data.st_ino, born: 0 }, data.st_size as u64))
        }
    }
}

/// Whether the file has been removed since it was opened.
pub fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.nlink() == 0)
}
