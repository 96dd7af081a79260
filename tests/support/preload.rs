//! Libraries that programs are started with.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Links that are removed when this process ends.
static LINKS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A path of this library that `LD_PRELOAD` can have. The loader takes spaces and colons for ends of paths: then the way there is by
/// a link.
pub fn preloadable(library: &Path) -> PathBuf {
    if !library.to_string_lossy().contains([' ', ':']) {
        return library.to_owned();
    }
    let (dir, name) = (library.parent().expect("directory"), library.file_name().expect("name"));
    let mut links = LINKS.lock().expect("links");
    if links.is_empty() {
        // SAFETY: the function stays, and does not panic.
        unsafe { libc::atexit(remove_links) };
    }
    let link = Path::new("/tmp").join(format!("jitsym-preload-{}-{}", std::process::id(), links.len()));
    std::os::unix::fs::symlink(dir, &link).expect("link");
    links.push(link.clone());
    link.join(name)
}

extern "C" fn remove_links() {
    for link in LINKS.lock().into_iter().flat_map(|mut links| std::mem::take(&mut *links)) {
        let _ = std::fs::remove_file(link);
    }
}
