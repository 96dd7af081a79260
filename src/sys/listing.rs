//! The names in a directory.
//!
//! Not by the standard library, which panics if somebody has closed the descriptor that it reads from.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// All names in a directory, except those of itself and its parent.
pub fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL.
    let dir = unsafe { libc::opendir(path.as_ptr()) };
    if dir.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let result = loop {
        // SAFETY: errno is this thread's.
        unsafe { libc::__errno_location().write(0) };
        // SAFETY: the directory is open, and no other thread uses it.
        let Some(entry) = (unsafe { libc::readdir(dir).as_ref() }) else {
            let error = io::Error::last_os_error();
            break if error.raw_os_error() == Some(0) { Ok(()) } else { Err(error) };
        };
        // SAFETY: the name ends with a NUL.
        let name = OsStr::from_bytes(unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes());
        if name != "." && name != ".." {
            if let Err(error) = names.try_reserve(1) {
                break Err(error.into());
            }
            names.push(name.to_owned());
        }
    };
    // SAFETY: it is open, and no longer used.
    unsafe { libc::closedir(dir) };
    result.map(|()| names)
}

/// The numbers among them: descriptors, or threads.
pub fn numbers<T: std::str::FromStr>(path: &Path) -> io::Result<Vec<T>> {
    Ok(names(path)?.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_directory_is_read_to_its_end() {
        let dir = std::env::temp_dir().join(format!("jitsym-listing-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mut expected: Vec<OsString> = (0..1000).map(|number| format!("file {number}").into()).collect();
        expected.iter().for_each(|name| std::fs::write(dir.join(name), "").unwrap());
        let mut found = names(&dir).unwrap();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = std::fs::File::open("/").unwrap();
        assert!(numbers::<i32>(Path::new("/proc/self/fd")).unwrap().contains(&file.as_raw_fd()));
    }
}
