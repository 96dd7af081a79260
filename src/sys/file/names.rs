//! Renames and removes files only if they are the expected files, and makes a directory like the directories of perf's
//! agents.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{look_at, refuse, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::other_writers;

/// Renames the file `fresh` to `name`. Fails if `name` exists and is not the file `ours`, because the rename would replace
/// it.
pub fn put_in_place(dir: &Dir, fresh: &OsStr, name: &OsStr, ours: Option<Identity>) -> io::Result<()> {
    match dir.identity_of(name) {
        Ok(found) if ours.is_some_and(|ours| ours.is(&found)) => {}
        Ok(_) => return Err(refuse(io::ErrorKind::AlreadyExists, "has been replaced by somebody else")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    dir.rename(fresh, name)
}

/// Removes the file `name`, provided that it is the file `ours` and that no other code in this process can write to the file.
pub fn remove_ours(dir: &Dir, name: &OsStr, ours: Option<Identity>) {
    let is_ours = |file: &File| look_at(file).is_ok_and(|found| ours.is_some_and(|ours| ours.is(&found)));
    let opened = dir.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0).ok().filter(is_ours);
    if opened.is_some_and(|file| !ours.is_some_and(|ours| other_writers::writes(ours, Some(&file)))) {
        // If the removal fails, a file with correct content stays.
        let _ = dir.remove(name);
    }
}

/// Makes a directory `base/.debug/jit/jitsym-jit-XXXXXX`. perf's own agent puts a dump in a directory of this form, with
/// `JITDUMPDIR` as `base` (linux tools/perf/jvmti/jvmti_agent.c, `create_jit_cache_dir`).
pub fn make_jit_cache_dir(base: &Path) -> io::Result<PathBuf> {
    let parent = base.join(".debug").join("jit");
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&parent)?;
    let template = parent.join(OsStr::new("jitsym-jit-XXXXXX")).into_os_string();
    let mut path = CString::new(template.into_vec())?.into_bytes_with_nul();
    // SAFETY: mkdtemp writes only to the last six characters before the NUL.
    if unsafe { libc::mkdtemp(path.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    path.pop();
    Ok(PathBuf::from(OsString::from_vec(path)))
}
