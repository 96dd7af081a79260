//! A directory that is held: files in it are found by name also after the process has changed its root, and never those of
//! another directory that has taken the same path since.

use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::descriptors::DescriptorTable;
use super::file::{look_at, Held, Identity};

/// See the module's description.
#[derive(Debug)]
pub struct Dir(Held);

impl Dir {
    pub fn open(path: &Path) -> io::Result<Dir> {
        let open = |how| open_at(libc::AT_FDCWD, path.as_os_str(), how | libc::O_DIRECTORY, 0);
        let file = match DescriptorTable::current().is_host() {
            // A directory that is opened as a mere path cannot be marked; but it may be one that nobody may list.
            true => open(libc::O_RDONLY).or_else(|_| open(libc::O_PATH))?,
            false => open(libc::O_PATH)?,
        };
        Ok(Dir(Held::new(file)?))
    }

    /// The directory that a file lies in.
    pub fn of(path: &Path) -> io::Result<Dir> {
        Dir::open(path.parent().unwrap_or(Path::new("/")))
    }

    pub fn identity(&self) -> Identity {
        self.0.identity()
    }

    /// Whether both are the same one, and this is still open.
    pub fn is(&self, other: &Dir) -> bool {
        self.0.checked().is_ok() && self.0.identity().is(&other.0.identity())
    }

    /// Whether it is still open: a host may have closed all descriptors.
    pub fn is_open(&self) -> bool {
        self.0.checked().is_ok()
    }

    fn descriptor(&self) -> io::Result<RawFd> {
        self.0.checked().map(AsRawFd::as_raw_fd)
    }

    /// Opens a file in it; never by way of a link.
    pub fn open_file(&self, name: &OsStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
        open_at(self.descriptor()?, name, flags | libc::O_NOFOLLOW, mode)
    }

    /// The metadata of the entry with this name, of a link and not of its target.
    pub fn look(&self, name: &OsStr) -> io::Result<Metadata> {
        self.open_file(name, libc::O_PATH, 0)?.metadata()
    }

    /// The identity of what has this name.
    pub fn identity_of(&self, name: &OsStr) -> io::Result<Identity> {
        self.open_file(name, libc::O_PATH, 0).and_then(|file| look_at(&file))
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let (dir, name) = (self.descriptor()?, c_string(name)?);
        // SAFETY: the descriptor is open, and the string ends with a NUL.
        result(unsafe { libc::unlinkat(dir, name.as_ptr(), 0) })
    }

    /// Gives a file another name, in place of whatever has that.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let (dir, from, to) = (self.descriptor()?, c_string(from)?, c_string(to)?);
        // SAFETY: the descriptor is open, and the strings end with a NUL.
        result(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) })
    }

    /// Gives two files each other's names.
    pub fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        let (dir, one, other) = (self.descriptor()?, c_string(one)?, c_string(other)?);
        // By number, because older C libraries have no wrapper.
        // SAFETY: the descriptor is open, and the strings end with a NUL.
        result(unsafe {
            libc::syscall(libc::SYS_renameat2, dir, one.as_ptr(), dir, other.as_ptr(), libc::RENAME_EXCHANGE)
        } as libc::c_int)
    }
}

fn open_at(dir: RawFd, name: &OsStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
    let name = c_string(name)?;
    loop {
        // SAFETY: the string ends with a NUL.
        let descriptor = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC, mode as libc::c_uint) };
        if descriptor >= 0 {
            // SAFETY: it was just opened, and nobody else has it.
            return Ok(unsafe { File::from_raw_fd(descriptor) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}

fn result(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
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
        dir.open_file(name("a"), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600).unwrap();
        dir.rename(name("a"), name("b")).unwrap();
        assert!(new.join("b").exists() && dir.look(name("b")).unwrap().is_file());
        dir.remove(name("b")).unwrap();
        assert!(!new.join("b").exists() && dir.look(name("a")).is_err());
        assert_eq!(fs::read(old.join("a")).unwrap(), b"of another one");
        std::os::unix::fs::symlink(old.join("a"), new.join("link")).unwrap();
        assert!(dir.look(name("link")).unwrap().is_symlink());
        assert!(dir.open_file(name("link"), libc::O_RDONLY, 0).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
