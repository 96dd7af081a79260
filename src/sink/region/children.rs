//! Removes files that the library made for forked children, once the files are no longer needed.
//!
//! If a process has a region with two views, each forked child gets a separate file at the fork. So profilers find the names of
//! the child's code before the child first calls the library. Most children soon execute another program, and the
//! parent's writer removes their files. The files of children that ran for longer stay, because a profile may need the files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::file_names::child_of;
use crate::format::file_names::beginnings_of_regions;
use crate::sys::clock::monotonic_ns;
use crate::sys::file::{self, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::listing;
use crate::sys::sync::lock;
use crate::sys::sync::outside::Mutex;

/// The files are checked this number of nanoseconds after a fork. By then, most children that execute another program have done
/// so.
const SETTLED: u64 = 100_000_000;

/// The files of forked children. `last_fork` and `due` are times of the monotonic clock, or 0.
#[derive(Debug, Default)]
pub struct Children {
    last_fork: AtomicU64,
    /// The time of the next check of the files.
    due: AtomicU64,
    /// The names of the files that stay. The flag of a name is true if the file's child has ended or has executed another
    /// program.
    settled: Mutex<Vec<(OsString, bool)>>,
}

impl Children {
    /// Records a fork. If no check of the files is planned yet, plans a check, and returns true: the caller must notify the
    /// writer.
    pub fn add(&self) -> bool {
        let now = monotonic_ns();
        self.last_fork.store(now, Ordering::SeqCst);
        self.due.compare_exchange(0, now + SETTLED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The time until the next check of the files. `None` if no check is planned.
    pub fn due_in(&self) -> Option<Duration> {
        let due = self.due.load(Ordering::SeqCst);
        (due > 0).then(|| Duration::from_nanos(due.saturating_sub(monotonic_ns())))
    }

    pub fn are_due(&self) -> bool {
        self.due_in().is_some_and(|time| time.is_zero())
    }

    /// Checks the files: removes the files of children that ended or executed another program soon after the fork. The files
    /// of children that ended later, or executed another program later, are passed to `keep`, because a profile may need the
    /// files.
    pub fn tidy(&self, path: impl FnOnce() -> PathBuf, keep: impl Fn(PathBuf, Identity, u64)) {
        // A fork that happens after this line plans another check.
        self.due.store(0, Ordering::SeqCst);
        let next = self.last_fork.load(Ordering::SeqCst) + SETTLED;
        if next > monotonic_ns() {
            let _ = self.due.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        let path = path();
        let Ok(dir) = Dir::open(&path) else { return };
        let mut settled = std::mem::take(&mut *lock(&self.settled));
        let mut found = Vec::new();
        for name in listing::names(&path).unwrap_or_default() {
            let Some(child) = child_of(&name, std::process::id()) else { continue };
            let Ok(data) = dir.look(&name) else { continue };
            if file::check_ours(&data).is_err() || data.mode() & file::OURS == 0 {
                continue;
            }
            let known = settled.iter().position(|(file, _)| *file == name).map(|at| settled.swap_remove(at).1);
            match runs(child) || file::is_locked(&dir, &name) {
                true if known.is_some() || age(&data) >= SETTLED / 2 => found.push((name, false)),
                true => {}
                false if known == Some(false) => {
                    if let Ok(identity) = dir.identity_of(&name) {
                        keep(path.join(&name), identity, data.blocks() * 512);
                    }
                    found.push((name, true));
                }
                false if known == Some(true) => found.push((name, true)),
                false => _ = dir.remove(&name),
            }
        }
        *lock(&self.settled) = found;
    }
}

/// Whether a child still runs this program. Such a child has mapped the file that was made for the child at the fork, or a file
/// that the child has made itself.
fn runs(child: u32) -> bool {
    match fs::read(format!("/proc/{child}/maps")) {
        Ok(maps) => beginnings_of_regions(child).iter().any(|name| contains(&maps, format!("/{name}").as_bytes())),
        // A process whose mappings cannot be read counts as running.
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH),
    }
}

fn age(data: &fs::Metadata) -> u64 {
    let age = data.modified().ok().and_then(|time| time.elapsed().ok());
    age.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
