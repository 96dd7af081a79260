//! Keeps a directory open, so that the library continues to use this directory even if the path later leads to another
//! directory.
//!
//! The library finds the files in the directory even after the process has changed its root directory. If another directory
//! gets the same path, the library never confuses the files of the two directories.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{linkat, renameat, unlinkat, AtFlags, OFlags, CWD};

use super::descriptor_table::DescriptorTable;
use super::file::{look_at, Held, Identity};
use super::listing;
use super::open_at::{c_string, open_at};

#[derive(Debug)]
pub struct Dir(Held);

impl Dir {
    pub fn open(path: &Path) -> io::Result<Dir> {
        let open = |how| open_at(CWD, path.as_os_str(), how | OFlags::DIRECTORY, 0);
        let file = match DescriptorTable::current().is_host() {
            // A directory that is opened with O_PATH cannot be marked (see `Held`). So in the host's descriptor table, O_PATH
            // is used only for a directory that this user has no permission to list.
            true => open(OFlags::RDONLY).or_else(|_| open(OFlags::PATH))?,
            false => open(OFlags::PATH)?,
        };
        Ok(Dir(Held::new(file)?))
    }

    /// Opens the directory that contains the file with this path.
    pub fn of(path: &Path) -> io::Result<Dir> {
        Dir::open(path.parent().unwrap_or(Path::new("/")))
    }

    pub fn identity(&self) -> Identity {
        self.0.identity()
    }

    /// Whether `other` is the same directory as `self`, and `self` is still open.
    pub fn is(&self, other: &Dir) -> bool {
        self.0.checked().is_ok() && self.0.identity().is(&other.0.identity())
    }

    /// Whether the directory is still open. The result is false if the host has closed all descriptors.
    pub fn is_open(&self) -> bool {
        self.0.checked().is_ok()
    }

    /// Opens a file in the directory. Fails if the name is a symbolic link.
    pub fn open_file(&self, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
        open_at(self.0.checked()?.as_fd(), name, flags | OFlags::NOFOLLOW, mode)
    }

    /// Opens a file for reading, without waiting if it is a FIFO or a terminal.
    pub fn open_to_read(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0)
    }

    /// Makes a new file for writing. Fails if the name exists, even as a symbolic link.
    pub fn create_new(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
    }

    /// Opens a directory in this directory. Fails if the name is a symbolic link.
    pub fn below(&self, name: &OsStr) -> io::Result<Dir> {
        Ok(Dir(Held::new(self.open_file(name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)?))
    }

    /// All names in the directory, except `.` and `..`.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        listing::names_in(self.open_file(OsStr::new("."), OFlags::DIRECTORY, 0)?, |_| true)
    }

    /// The metadata of the entry with this name. A symbolic link is not followed.
    pub fn look(&self, name: &OsStr) -> io::Result<Metadata> {
        self.open_file(name, OFlags::PATH, 0)?.metadata()
    }

    pub fn identity_of(&self, name: &OsStr) -> io::Result<Identity> {
        self.open_file(name, OFlags::PATH, 0).and_then(|file| look_at(&file))
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self.0.checked()?, &c_string(name)?, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self.0.checked()?, &c_string(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Renames a file, and replaces whatever has the new name.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let dir = self.0.checked()?;
        Ok(renameat(dir, &c_string(from)?, dir, &c_string(to)?)?)
    }

    /// Moves a file to another directory, and replaces whatever has the name there.
    pub fn rename_into(&self, name: &OsStr, other: &Dir) -> io::Result<()> {
        let name = c_string(name)?;
        Ok(renameat(self.0.checked()?, &name, other.0.checked()?, &name)?)
    }

    /// Gives the file `name` a second name, by a hard link.
    pub fn link(&self, name: &OsStr, second: &OsStr) -> io::Result<()> {
        let dir = self.0.checked()?;
        Ok(linkat(dir, &c_string(name)?, dir, &c_string(second)?, AtFlags::empty())?)
    }

    /// Exchanges the names of two files, in one step.
    pub fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        let dir = self.0.checked()?.as_raw_fd();
        let (one, other) = (c_string(one)?, c_string(other)?);
        // The system call is made by number, because older C libraries have no wrapper function, and rustix would ask the
        // loader for a wrapper function.
        // SAFETY: both names end with a NUL.
        let result = unsafe {
            libc::syscall(libc::SYS_renameat2, dir, one.as_ptr(), dir, other.as_ptr(), libc::RENAME_EXCHANGE)
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_stay_where_the_directory_goes() {
        let base = std::env::temp_dir().join(format!("jitsym-dir-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let (old, new) = (base.join("old"), base.join("new"));
        fs::create_dir_all(&old).unwrap();
        let dir = Dir::open(&old).unwrap();
        fs::rename(&old, &new).unwrap();
        fs::create_dir(&old).unwrap();
        fs::write(old.join("a"), "of another one").unwrap();
        let name = |text: &'static str| OsStr::new(text);
        dir.create_new(name("a"), 0o600).unwrap();
        assert!(dir.create_new(name("a"), 0o600).is_err());
        dir.rename(name("a"), name("b")).unwrap();
        assert!(new.join("b").exists() && dir.look(name("b")).unwrap().is_file());
        dir.remove(name("b")).unwrap();
        assert!(!new.join("b").exists() && dir.look(name("a")).is_err());
        assert_eq!(fs::read(old.join("a")).unwrap(), b"of another one");
        std::os::unix::fs::symlink(old.join("a"), new.join("link")).unwrap();
        assert!(dir.look(name("link")).unwrap().is_symlink());
        assert!(dir.open_file(name("link"), OFlags::RDONLY, 0).is_err());
        fs::create_dir(new.join("below")).unwrap();
        let below = dir.below(name("below")).unwrap();
        fs::write(new.join("below/c"), "c").unwrap();
        assert!(below.open_to_read(name("c")).is_ok() && dir.remove_dir(name("below")).is_err());
        assert_eq!(below.names().unwrap(), ["c"]);
        below.remove(name("c")).unwrap();
        dir.remove_dir(name("below")).unwrap();
        std::os::unix::fs::symlink(&old, new.join("below")).unwrap();
        assert!(dir.below(name("below")).is_err(), "through a link");
        fs::remove_dir_all(&base).unwrap();
    }
}
