//! Lists the names in a directory.
//!
//! This module does not use the standard library's directory reader, which panics if another part of the process has closed
//! its descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{OFlags, RawDir, CWD};

use super::open_at::open_at;

/// All names in a directory, except `.` and `..`.
pub fn names(path: &Path) -> io::Result<Vec<OsString>> {
    names_that(path, |_| true)
}

/// The names in a directory for which `wanted` returns true. Use this function for a directory in which other programs may have
/// any number of files.
pub fn names_that(path: &Path, wanted: impl Fn(&OsStr) -> bool) -> io::Result<Vec<OsString>> {
    names_in(open_at(CWD, path.as_os_str(), OFlags::DIRECTORY, 0)?, wanted)
}

/// Like `names_that`, for a directory that is already open.
pub(super) fn names_in(dir: File, wanted: impl Fn(&OsStr) -> bool) -> io::Result<Vec<OsString>> {
    let (mut names, mut room) = (Vec::new(), [MaybeUninit::uninit(); 4096]);
    let mut entries = RawDir::new(dir, &mut room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." && wanted(name) {
            names.try_reserve(1)?;
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Lists the descriptors, thread ids or process ids in a directory of `/proc`. Names that are not numbers are left out.
pub fn numbers(path: &Path) -> io::Result<Vec<i32>> {
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
        assert!(numbers(Path::new("/proc/self/fd")).unwrap().contains(&file.as_raw_fd()));
    }
}
