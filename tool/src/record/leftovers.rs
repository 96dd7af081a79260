//! Files that a runtime has written into the working directory because `jitsym record` has turned its support of perf on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jitsym::sys::process;

use super::contents::Contents;
use super::script::jitdump_pid;

/// Clocks of files are behind by less than this.
const BEHIND: Duration = Duration::from_secs(1);

/// The jitdumps of a recording that were written since a time in this directory, and the logs of V8 beside them.
pub fn find(contents: &Contents, dir: &Path, since: SystemTime) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (_, path) in contents.dumps() {
        let (path, Some(number)) = (Path::new(path), jitdump_pid(path)) else { continue };
        if path.parent() != Some(dir) || !is_ours(path, since) {
            continue;
        }
        found.push(path.to_owned());
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let logs = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| is_log(name, number)));
        found.extend(logs.map(|log| log.path()).filter(|log| is_ours(log, since)));
    }
    found
}

/// Removes these files.
pub fn remove(files: &[PathBuf]) {
    // A file that cannot be removed stays, as after a run of the runtime alone.
    files.iter().for_each(|file| drop(fs::remove_file(file)));
}

/// Whether V8 has given this name to a log of the process.
fn is_log(name: &str, pid: u32) -> bool {
    name.starts_with("isolate") && name.ends_with(&format!("-{pid}-v8.log"))
}

fn is_ours(path: &Path, since: SystemTime) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).is_ok_and(|data| {
        let is_new = data.modified().is_ok_and(|written| written + BEHIND >= since);
        data.is_file() && data.uid() == process::user() && is_new
    })
}
