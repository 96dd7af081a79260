//! Files of forked children that have not called the library. A child whose parent has a region of two views gets such a file when
//! it is forked, so that its code has names from the beginning. Most children execute another program at once: the parent's writer
//! removes their files. Those of children that have run for a while stay, as a profile may need them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::naming::file_name;
use super::{lock, Regions};
use crate::sys::clock::monotonic_ns;
use crate::sys::dir::Dir;
use crate::sys::file;
use crate::sys::listing;
use crate::sys::sync::outside::Mutex;

/// After this many nanoseconds a child that was going to execute another program has mostly done so. Files of children that end
/// sooner go too.
const SETTLED: u64 = 100_000_000;

/// See the module's description. Times are those of the monotonic clock, 0 for none.
#[derive(Debug, Default)]
pub struct Children {
    last_fork: AtomicU64,
    /// When files are looked at.
    due: AtomicU64,
    /// Files that stay, and whether their child has ended.
    settled: Mutex<Vec<(OsString, bool)>>,
}

impl Regions {
    /// The process has forked. Whether the writer has to be told.
    pub fn has_forked(&self) -> bool {
        if !self.all().any(|region| region.has_shared_file()) {
            return false;
        }
        let now = monotonic_ns();
        self.children.last_fork.store(now, Ordering::SeqCst);
        self.children.due.compare_exchange(0, now + SETTLED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// How long it is until files of children are looked at.
    pub fn children_in(&self) -> Option<Duration> {
        let due = self.children.due.load(Ordering::SeqCst);
        (due > 0).then(|| Duration::from_nanos(due.saturating_sub(monotonic_ns())))
    }

    /// Removes files of children that run another program by now.
    pub fn tidy_children(&self) {
        if self.children_in().is_none_or(|time| !time.is_zero()) {
            return;
        }
        // A fork after this asks again.
        self.children.due.store(0, Ordering::SeqCst);
        let next = self.children.last_fork.load(Ordering::SeqCst) + SETTLED;
        if next > monotonic_ns() {
            let _ = self.children.due.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        let path = lock(&self.settings).dir.clone();
        let Ok(dir) = Dir::open(&path) else { return };
        let mut settled = std::mem::take(&mut *lock(&self.children.settled));
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
                // A profile may need it, as long as there are not too many.
                false if known == Some(false) => {
                    if let Ok(identity) = dir.identity_of(&name) {
                        self.keep_old(path.join(&name), identity, data.blocks() * 512);
                    }
                    found.push((name, true));
                }
                false if known == Some(true) => found.push((name, true)),
                false => _ = dir.remove(&name),
            }
        }
        *lock(&self.children.settled) = found;
    }
}

/// Whether a child still executes what it was forked for: it has mapped that file, or another one once it has taken over.
fn runs(child: u32) -> bool {
    match fs::read(format!("/proc/{child}/maps")) {
        Ok(maps) => {
            let names = [format!("/jit-{child}-"), format!("/jitted-{child}-r")];
            names.iter().any(|name| contains(&maps, name.as_bytes()))
        }
        // Nothing is known of a process that does not show its mappings.
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// What a child's file is called, which it has until its first call.
pub(super) fn name_for(child: u32, parent: u32, number: u32, begins_at_code: bool) -> OsString {
    file_name((child, number), &format!(".f{parent}"), begins_at_code)
}

/// The child whose file has this name.
fn child_of(name: &OsStr, parent: u32) -> Option<u32> {
    let text = name.to_str()?.strip_suffix(&format!(".f{parent}.so"))?;
    text.strip_prefix("jit-").or_else(|| text.strip_prefix("jitted-"))?.split_once('-')?.0.parse().ok()
}

fn age(data: &fs::Metadata) -> u64 {
    let age = data.modified().ok().and_then(|time| time.elapsed().ok());
    age.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_child_it_is() {
        for begins_at_code in [false, true] {
            let name = name_for(17, 4711, 3, begins_at_code);
            assert_eq!(child_of(&name, 4711), Some(17), "{name:?}");
            assert_eq!(child_of(&name, 711), None);
        }
        for name in ["jit-17-3.so", "jit-17-3.4711.so", "jit-17.f4711.so", "perf-17.f4711.so", "jit-x-3.f4711.so"] {
            assert_eq!(child_of(OsStr::new(name), 4711), None, "{name}");
        }
    }
}
