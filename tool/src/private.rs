//! Private directories, in which no other user can create files.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A directory with a random name, for this user alone. The directory is removed with all its contents, if `keep` is not
/// called.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    is_kept: bool,
}

impl PrivateDir {
    /// Makes a directory in `parent`, with a name that begins with `start`.
    pub fn new(parent: &Path, start: &str) -> io::Result<PrivateDir> {
        let template = parent.join(format!("{start}XXXXXX"));
        let template = CString::new(template.as_os_str().as_bytes())?.into_raw();
        // SAFETY: the text is a C string of this function, of which the call overwrites the last six characters.
        let (made, path) = unsafe { (libc::mkdtemp(template), CString::from_raw(template)) };
        if made.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(PrivateDir { path: OsString::from_vec(path.into_bytes()).into(), is_kept: false })
    }

    /// Makes a directory beside a file, so that a new file in it can be renamed over that file.
    pub fn beside(file: &Path) -> io::Result<PrivateDir> {
        PrivateDir::new(file.parent().unwrap_or(Path::new("")), ".jitsym-")
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if !self.is_kept {
            // A failure cannot be reported.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nobody_else_can_use_it() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-private-").unwrap();
        let path = dir.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        fs::write(path.join("file"), "x").unwrap();
        let mut beside = PrivateDir::beside(&path.join("file")).unwrap();
        assert_eq!(beside.path().parent(), Some(&*path));
        beside.keep();
        let kept = beside.path().to_owned();
        drop(beside);
        assert!(kept.is_dir());
        drop(dir);
        assert!(!path.exists());
        assert!(PrivateDir::new(Path::new("/nowhere"), "x").is_err());
    }
}
