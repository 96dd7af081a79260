//! Identities: whether an open file is the one that had a name before.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use rustix::fs::fstat;

/// Which file on which file system: this stays the same when its name is given to another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// When it was made, in nanoseconds; 0 where the file system does not say. The number of an inode is used again at once
    /// when a file is removed.
    pub born: u64,
}

impl Identity {
    /// Whether both are of one file, as far as is known.
    pub fn is(&self, other: &Identity) -> bool {
        let born_alike = self.born == other.born || self.born == 0 || other.born == 0;
        self.device == other.device && self.inode == other.inode && born_alike
    }

    /// Whether both are of one file for certain: in a made-up identity the other two numbers can be guessed.
    pub(super) fn is_surely(&self, other: &Identity) -> bool {
        self.born != 0 && self == other
    }
}

/// The identity of an open file.
pub fn look_at(file: &File) -> io::Result<Identity> {
    identity_and_len(file).map(|(identity, _)| identity)
}

/// The identity of an open file, and its length.
pub fn identity_and_len(file: &File) -> io::Result<(Identity, u64)> {
    match file.metadata() {
        Ok(data) => {
            let born = data.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let born = born.map_or(0, |time| time.as_nanos() as u64);
            Ok((Identity { device: data.dev(), inode: data.ino(), born }, data.len()))
        }
        // A sandbox may allow the older call only.
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
