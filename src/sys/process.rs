//! Determines whether other processes are alive and which files they use, and reads the user and the limits of this process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::listing;

/// Whether a process with this pid exists, whoever owns it.
pub fn is_alive(pid: u32) -> bool {
    // SAFETY: for signal 0, the kernel sends nothing, and only checks whether a signal could be sent.
    let failed = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0;
    !(failed && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH))
}

/// The effective user id of this process.
pub fn user() -> u32 {
    // SAFETY: geteuid only reports a number.
    unsafe { libc::geteuid() }
}

/// The soft limit of this process for a resource. `None` if there is no limit, or the limit is unknown. The argument is
/// generic because C libraries differ in the type of resources.
pub fn limit(resource: impl Into<i64>) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid.
    let is_known = unsafe { libc::getrlimit(resource.into() as _, &mut limit) == 0 };
    #[allow(clippy::unnecessary_cast, reason = "the type has 32 bits where addresses have")]
    let soft = limit.rlim_cur as u64;
    (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(soft)
}

/// The mount namespaces of all processes whose namespaces this process may read. `None` if this process may read no
/// namespace.
pub fn mount_namespaces() -> Option<Vec<u64>> {
    let pids = listing::numbers(Path::new("/proc")).ok()?;
    let of = |pid| Some(fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?.ino());
    let found: Vec<u64> = pids.into_iter().filter_map(of).collect();
    (!found.is_empty()).then_some(found)
}

/// The device and the inode of every file that any process has open or mapped, as far as the kernel shows them to this user.
/// `None` without `/proc`, or if `/proc` does not show this process.
pub fn files_in_use() -> Option<BTreeSet<(u64, u64)>> {
    let mut found = BTreeSet::new();
    fs::read_dir("/proc/self/fd").ok()?;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        if name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            add_files(&process.path(), &mut found);
        }
    }
    Some(found)
}

fn add_files(process: &Path, found: &mut BTreeSet<(u64, u64)>) {
    // A thread may have its own descriptor table.
    let tasks = listing::numbers(&process.join("task")).unwrap_or_default();
    let dirs = tasks.into_iter().map(|task| process.join(format!("task/{task}/fd")));
    for dir in dirs.chain([process.join("map_files")]) {
        let names = listing::names(&dir).unwrap_or_default();
        let files = names.into_iter().filter_map(|name| fs::metadata(dir.join(name)).ok());
        found.extend(files.map(|data| (data.dev(), data.ino())));
    }
}
