//! Other processes: whether one lives, and which files those that can be seen have in use.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether there is a process with this pid, whoever's it is.
pub fn is_alive(pid: u32) -> bool {
    // SAFETY: signal 0 is none; the kernel only looks whether it could be sent.
    let failed = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0;
    !(failed && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH))
}

/// Device and inode of every file that a process has open or mapped, as far as this user may know; `None` without `/proc`, or with
/// one in which not even this process is to be seen.
pub fn files_in_use() -> Option<HashSet<(u64, u64)>> {
    let mut found = HashSet::new();
    fs::read_dir("/proc/self/fd").ok()?;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        if name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            add_files(&process.path(), &mut found);
        }
    }
    Some(found)
}

fn add_files(process: &Path, found: &mut HashSet<(u64, u64)>) {
    for dir in ["fd", "map_files"] {
        let entries = fs::read_dir(process.join(dir)).into_iter().flatten().flatten();
        found.extend(entries.filter_map(|entry| fs::metadata(entry.path()).ok()).map(|data| (data.dev(), data.ino())));
    }
}
