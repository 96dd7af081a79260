//! Earlier files of regions. They are kept for profiles that have samples of them, up to a bound, and removed in the end if that is
//! asked for.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{lock, Region, Regions};
use crate::queue::own_fds;
use crate::queue::status::Status;
use crate::sink::region::file::RegionFile;
use crate::sys::dir::Dir;
use crate::sys::file::{self, Identity};
use crate::sys::sync::outside::MutexGuard;

/// Files of older epochs that are kept, and how many bytes they may have together.
const OLD_FILES: usize = 20_000;
const OLD_BYTES: u64 = 256 << 20;
/// With more than this, names and tables are more important than the bytes of code that lives on.
const OLD_BYTES_FEW: u64 = 64 << 20;
/// From three quarters of that room on, the fuller it is the more slowly it is used: all of it is to last for this number of
/// nanoseconds.
const KEPT_FOR: u64 = 60_000_000_000;

/// A region that began an epoch such a short time ago will begin others.
const BUSY_FOR: u64 = 1_000_000_000;

/// A file that is no longer written to.
#[derive(Debug)]
struct Past {
    path: PathBuf,
    identity: Identity,
    bytes: u64,
}

impl Past {
    fn remove(&self) {
        let (Ok(dir), Some(name)) = (Dir::of(&self.path), self.path.file_name()) else { return };
        if dir.identity_of(name).is_ok_and(|found| self.identity.is(&found)) {
            // Nothing can be done about a failure.
            let _ = dir.remove(name);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Files {
    /// Files of older epochs, and the last ones of ended regions; oldest first.
    old: VecDeque<Past>,
    old_bytes: u64,
    recent: Recent,
}

/// How much of the room older epochs have taken of late: what was taken is forgotten as fast as the full room lasts.
#[derive(Debug, Default)]
struct Recent {
    bytes: u64,
    at: u64,
}

impl Recent {
    /// Takes note of a file. Returns how long it takes to use as much if the room is to last.
    fn add(&mut self, bytes: u64, now: u64) -> u64 {
        let passed = now.saturating_sub(std::mem::replace(&mut self.at, now)).min(KEPT_FOR) as f64 / KEPT_FOR as f64;
        self.bytes = self.bytes.saturating_sub((OLD_BYTES as f64 * passed) as u64) + bytes;
        pause(bytes, self.bytes)
    }
}

impl Regions {
    /// Takes note of the file of an older epoch. The oldest go if there are too many.
    pub fn keep_old(&self, path: PathBuf, identity: Identity, bytes: u64) {
        let mut settings = lock(&self.settings);
        let files = &mut settings.files;
        files.old.push_back(Past { path, identity, bytes });
        files.old_bytes += bytes;
        while files.old.len() > OLD_FILES || files.old_bytes > OLD_BYTES {
            let Some(oldest) = files.old.pop_front() else { break };
            files.old_bytes -= oldest.bytes;
            oldest.remove();
        }
    }

    /// Whether files of older epochs have little room so far.
    pub fn old_are_few(&self) -> bool {
        lock(&self.settings).files.old_bytes < OLD_BYTES_FEW
    }

    /// How long the next epoch of a region has to wait, in nanoseconds, after one whose file has this number of bytes.
    pub fn pause_after(&self, bytes: u64, now: u64) -> u64 {
        let pause = lock(&self.settings).files.recent.add(bytes, now);
        if pause == 0 {
            return 0;
        }
        // Other regions share the room.
        let is_busy = |region: &&Region| region.not_before.load(Ordering::Relaxed) + BUSY_FOR > now;
        pause.saturating_mul(self.all().filter(is_busy).count().max(1) as u64).min(KEPT_FOR)
    }

    /// Takes note of the file of a region that ends. In time there may be many.
    pub(super) fn keep_last(&self, region: &Region) {
        for (number, Past { path, identity, .. }) in last_of(region).into_iter().enumerate() {
            let bytes = if number > 0 { 0 } else { std::fs::metadata(&path).map_or(0, |data| data.blocks() * 512) };
            self.keep_old(path, identity, bytes);
        }
    }

    /// The process exits: the files of private memory get the bytes of its code. False if that takes longer than this.
    pub fn write_last(&self, timeout: Duration) -> bool {
        let (regions, mode): (Vec<_>, _) = (self.all().filter(|region| region.is_private()).collect(), self.mode());
        let has_any = !regions.is_empty();
        let write = move || {
            for region in regions {
                let _ = region.opened().as_mut().map(|file| region.replace_by_copy(file, mode));
            }
        };
        !has_any || own_fds::run_for(timeout, write).is_some()
    }

    /// Removes all files that regions have and have had. Code in the present ones goes to the other sinks after this.
    pub fn remove_files(&self, status: &Status) {
        let files = std::mem::take(&mut lock(&self.settings).files);
        files.old.iter().for_each(Past::remove);
        for region in self.all() {
            let Some(file) = region.opened().take() else { continue };
            drop(file);
            region.has_failed.store(true, Ordering::Relaxed);
            status.counters.regions_ended.add(1);
            last_of(region).iter().for_each(Past::remove);
        }
    }

    /// For the writer: closes what it has open of regions that have ended.
    pub fn close_ended(&self) {
        let left = std::mem::take(&mut lock(&self.settings).to_close);
        drop(left);
    }
}

impl Region {
    /// The file, opened for the calling thread: the writer has another table of descriptors than those that make and end regions,
    /// and a host may have closed all that there is in its own.
    pub fn opened(&self) -> MutexGuard<'_, Option<Box<RegionFile>>> {
        let mut guard = lock(&self.file);
        if let Some(file) = guard.as_mut().filter(|file| !file.is_open()) {
            // The next write reports the failure.
            let _ = self.reopen(file);
        }
        guard
    }

    /// Puts a final copy in the place of the file of private memory, whose mappings show none of the bytes.
    pub(super) fn replace_by_copy(&self, file: &RegionFile, mode: u32) -> io::Result<()> {
        let (dir, name) = {
            let mut naming = lock(&self.naming);
            (naming.dir()?, naming.name_of_copy())
        };
        let copy = file::claim(&dir, &name, mode, file::ANYWHERE)?;
        let result = file.snapshot(copy, |_| true, self.build_id()).and_then(|()| lock(&self.naming).replace_by(&name));
        result.inspect_err(|_| _ = dir.remove(&name))
    }

    fn reopen(&self, file: &mut RegionFile) -> io::Result<()> {
        let held = lock(&self.naming).file()?;
        file.reopen(held)
    }
}

/// How long it takes to use a part of the room, if it is to last for [`KEPT_FOR`] when it is full.
fn pause(part: u64, used: u64) -> u64 {
    let fullness = (4 * used).saturating_sub(3 * OLD_BYTES) as f64 / OLD_BYTES as f64;
    (KEPT_FOR as f64 * fullness * part as f64 / OLD_BYTES as f64) as u64
}

/// The file of a region, under all its names.
fn last_of(region: &Region) -> Vec<Past> {
    let naming = lock(&region.naming);
    let Some(identity) = naming.last() else { return Vec::new() };
    naming.paths().map(|path| Past { path, identity, bytes: 0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_full_lasts_for_a_time() {
        assert_eq!(pause(1 << 20, OLD_BYTES / 4 * 3), 0);
        assert_eq!(pause(1 << 20, OLD_BYTES) * (OLD_BYTES >> 20), KEPT_FOR);
        assert_eq!(pause(1 << 20, OLD_BYTES / 8 * 7) * (OLD_BYTES >> 20), KEPT_FOR / 2);
    }

    #[test]
    fn what_was_taken_long_ago_delays_nothing() {
        let mut recent = Recent::default();
        let mut now = 7;
        // A file after the other as soon as it may come: in the end the room is used in that time.
        let (mut files, mut begin) = (0, now);
        while files < 3 * (OLD_BYTES >> 20) {
            now += recent.add(1 << 20, now);
            files += 1;
            begin = if files == 2 * (OLD_BYTES >> 20) { now } else { begin };
        }
        assert!((now - begin).abs_diff(KEPT_FOR) < KEPT_FOR / 20, "{} ns", now - begin);
        assert!(recent.add(1 << 20, now) > 0);
        assert_eq!(recent.add(1 << 20, now + KEPT_FOR), 0);
    }
}
