//! Paths without spaces, for programs that take a space for the end of a path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Links that are removed when this process ends.
static LINKS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A path of this file or directory that `LD_PRELOAD`, a list of flags, or a command in a document can have. Spaces and colons are
/// ends of paths there. If the path has any, the way is by a link.
pub fn spaceless(path: &Path) -> PathBuf {
    if !path.to_string_lossy().contains([' ', ':']) {
        return path.to_owned();
    }
    let name = path.file_name().expect("name");
    let (dir, name) = if path.is_dir() { (path, OsStr::new("")) } else { (path.parent().expect("directory"), name) };
    let mut links = LINKS.lock().expect("links");
    if links.is_empty() {
        // SAFETY: the function stays, and does not panic.
        unsafe { libc::atexit(remove_links) };
    }
    let link = Path::new("/tmp").join(format!("jitsym-link-{}-{}", std::process::id(), links.len()));
    std::os::unix::fs::symlink(dir, &link).expect("link");
    links.push(link.clone());
    if name.is_empty() {
        link
    } else {
        link.join(name)
    }
}

extern "C" fn remove_links() {
    for link in LINKS.lock().into_iter().flat_map(|mut links| std::mem::take(&mut *links)) {
        let _ = std::fs::remove_file(link);
    }
}
