//! Writes files to the directory of objects. A file appears there complete, under its final name, or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use jitsym::sys::held_dir::Dir;
use jitsym::sys::process;

/// An open directory. Files are made in this directory, even if its path later leads to another directory.
#[derive(Debug)]
pub struct OutDir {
    dir: Dir,
    path: PathBuf,
}

impl OutDir {
    /// Opens the directory. Makes the directory for this user alone if the directory does not exist.
    pub fn new(path: &Path) -> io::Result<OutDir> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = std::fs::canonicalize(path)?;
        Ok(OutDir { dir: Dir::open(&path)?, path })
    }

    /// Opens a directory of this user in which no other user can make, replace or remove files. Makes the directory if it
    /// does not exist. The open directory is checked, because another user may put a link in its place at any time.
    pub fn own(path: &Path) -> io::Result<OutDir> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let parent = std::fs::canonicalize(parent)?;
        let dir = Dir::open(&parent)?.below(name)?;
        let data = dir.look(OsStr::new("."))?;
        if data.uid() != process::user() || data.mode() & 0o022 != 0 {
            let why = "can be changed by other users: choose another directory with --objects";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(OutDir { dir, path: parent.join(name) })
    }

    /// Moves all files of a directory here, and replaces files of the same names.
    pub fn take_all(&self, from: &OutDir) -> io::Result<()> {
        from.dir.names()?.iter().try_for_each(|name| from.dir.rename_into(name, &self.dir))
    }

    /// The path of the directory, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file `name` with `write`, and replaces a file that has this name. The file appears when it is complete.
    pub fn put(&self, name: &str, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<PathBuf> {
        self.put_by(name, write, |temporary| self.dir.rename(temporary, OsStr::new(name)))
    }

    /// Like [`OutDir::put`], but fails if the name exists.
    pub fn put_new(&self, name: &str, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<PathBuf> {
        let there = || {
            let text = format!("{name} is there already, and is not replaced");
            io::Error::new(io::ErrorKind::AlreadyExists, text)
        };
        let final_name = OsStr::new(name);
        if self.dir.look(final_name).is_ok() {
            return Err(there());
        }
        self.put_by(name, write, |temporary| match self.dir.link(temporary, final_name) {
            Ok(()) => self.dir.remove(temporary),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(there()),
            // Some file systems have no hard links.
            Err(_) if self.dir.look(final_name).is_err() => self.dir.rename(temporary, final_name),
            Err(error) => Err(error),
        })
    }

    /// Writes a file under another name, and passes this name to `finish`.
    fn put_by(
        &self,
        name: &str,
        write: impl FnOnce(&File) -> io::Result<()>,
        finish: impl FnOnce(&OsStr) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let temporary = OsString::from(format!(".{name}.{}", std::process::id()));
        let file = match self.dir.create_new(&temporary, 0o600) {
            // An earlier process with the same pid has left the file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.dir.remove(&temporary)?;
                self.dir.create_new(&temporary, 0o600)?
            }
            other => other?,
        };
        let done = write(&file).and_then(|()| finish(&temporary));
        if done.is_err() {
            // The first error is reported.
            let _ = self.dir.remove(&temporary);
        }
        done.map(|()| self.path.join(name))
    }

    /// Whether the file `name` is a regular file of this user and of this length that begins with these bytes. In a directory
    /// that other users can write to, a file of another user may have any contents.
    pub(super) fn has(&self, name: &str, len: u64, start: &[u8]) -> bool {
        let read = || {
            let file = self.dir.open_to_read(OsStr::new(name))?;
            let data = file.metadata()?;
            let mut there = vec![0; start.len()];
            let is_one = data.is_file() && data.uid() == process::user() && data.len() == len;
            if is_one {
                file.read_exact_at(&mut there, 0)?;
            }
            Ok::<bool, io::Error>(is_one && there == start)
        };
        read().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;
    use crate::private::PrivateDir;

    #[test]
    fn a_directory_of_this_user_alone() {
        let base = PrivateDir::new(&std::env::temp_dir(), "jitsym-out-").unwrap();
        let path = base.path().join("new");
        let out = OutDir::own(&path).unwrap();
        assert_eq!(out.path(), path);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        assert!(OutDir::own(&path).is_ok(), "it is there");
        // The directory keeps its files, even if a link replaces it.
        let other = base.path().join("other");
        std::fs::rename(&path, &other).unwrap();
        symlink(base.path(), &path).unwrap();
        out.put("a.so", |mut file| file.write_all(b"a")).unwrap();
        assert!(other.join("a.so").is_file());
        assert!(OutDir::own(&path).is_err(), "a link");
        for mode in [0o770, 0o702] {
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(OutDir::own(&other).is_err_and(|error| error.to_string().contains("by other users")), "{mode:o}");
        }
        let third = OutDir::own(&base.path().join("third")).unwrap();
        third.take_all(&out).unwrap();
        assert!(third.path().join("a.so").is_file() && !other.join("a.so").exists());
    }

    #[test]
    fn files_are_complete_or_absent() {
        let base = PrivateDir::new(&std::env::temp_dir(), "jitsym-out-").unwrap();
        let path = base.path().join("new");
        let out = OutDir::new(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        let failed = out.put("a.so", |mut file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err() && std::fs::read_dir(&path).unwrap().next().is_none());
        // Links under both names are replaced, and nothing is written through them.
        let outside = base.path().join("outside");
        std::fs::write(&outside, "safe").unwrap();
        symlink(&outside, path.join("a.so")).unwrap();
        symlink(&outside, path.join(format!(".a.so.{}", std::process::id()))).unwrap();
        assert!(!out.has("a.so", 4, b"safe"));
        let made = out.put("a.so", |mut file| file.write_all(b"whole")).unwrap();
        assert_eq!(std::fs::read(made).unwrap(), b"whole");
        assert_eq!(std::fs::read(&outside).unwrap(), b"safe");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
        assert!(out.has("a.so", 5, b"wh") && !out.has("a.so", 4, b"wh") && !out.has("a.so", 5, b"x"));
        // A new file replaces nothing.
        for (name, is_new) in [("a.so", false), ("b.so", true), ("b.so", false)] {
            let made = out.put_new(name, |mut file| file.write_all(b"new"));
            assert_eq!(made.is_ok(), is_new, "{name}");
        }
        assert_eq!(std::fs::read(path.join("a.so")).unwrap(), b"whole");
        assert_eq!(std::fs::read(path.join("b.so")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
        assert!(OutDir::new(&outside).is_err() && OutDir::new(&path).is_ok());
    }
}
