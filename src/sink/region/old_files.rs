//! Keeps earlier files of regions, up to a limit, because a profile may have samples of the code that these files describe.
//! When the sink closes, the files are removed if the options ask for that.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::sys::file::Identity;
use crate::sys::held_dir::Dir;

/// The maximum number of old files.
const OLD_FILES: usize = 20_000;
/// If all old files together have more bytes than `OLD_BYTES`, files that are older than `KEPT_FOR` are removed. Younger files
/// are removed only if all old files together have more bytes than `MOST_BYTES`.
const OLD_BYTES: u64 = 256 << 20;
const MOST_BYTES: u64 = 2 * OLD_BYTES;
/// While all old files together have at least this number of bytes, copies for older epochs contain names and tables, but not
/// the bytes of live code.
const OLD_BYTES_FEW: u64 = 64 << 20;
/// How long each file of an older epoch is kept, in nanoseconds. So that files can be kept for this time, new files are delayed
/// once the recent files take three quarters of `OLD_BYTES`. The delay grows with the size of the recent files. Once recent
/// files take all of `OLD_BYTES`, no file is made. So in each period of this length, at most `MOST_BYTES` are written.
pub const KEPT_FOR: u64 = 60_000_000_000;

/// A file that nobody writes to any more.
#[derive(Debug)]
pub struct Past {
    pub path: PathBuf,
    pub identity: Identity,
    pub bytes: u64,
}

impl Past {
    pub fn remove(&self) {
        let (Ok(dir), Some(name)) = (Dir::of(&self.path), self.path.file_name()) else { return };
        if dir.identity_of(name).is_ok_and(|found| self.identity.is(&found)) {
            // A failure is ignored, because nothing can be done about it.
            let _ = dir.remove(name);
        }
    }
}

#[derive(Debug, Default)]
pub struct Files {
    /// The files of older epochs and of ended regions, each with the time at which the file became old. The oldest file comes
    /// first.
    old: VecDeque<(u64, Past)>,
    old_bytes: u64,
}

impl Files {
    /// Records an old file. Removes the oldest files if there are too many.
    pub fn keep(&mut self, past: Past, now: u64) {
        self.old_bytes += past.bytes;
        self.old.push_back((now, past));
        while let Some(&(since, _)) = self.old.front() {
            let most = if now > since + KEPT_FOR { OLD_BYTES } else { MOST_BYTES };
            if self.old.len() <= OLD_FILES && self.old_bytes <= most {
                break;
            }
            let Some((_, oldest)) = self.old.pop_front() else { break };
            self.old_bytes -= oldest.bytes;
            oldest.remove();
        }
    }

    /// Whether the old files together take less than `OLD_BYTES_FEW` bytes.
    pub fn are_few(&self) -> bool {
        self.old_bytes < OLD_BYTES_FEW
    }

    pub fn remove(&self) {
        self.old.iter().for_each(|(_, past)| past.remove());
    }
}

/// The room that all regions share for files of older epochs.
#[derive(Debug, Default)]
pub struct Room {
    /// How many bytes the recent files of older epochs took at the time `at`. Each new file adds its size, and time subtracts
    /// `OLD_BYTES` per `KEPT_FOR`. Only the writer changes `recent` and `at`.
    recent: AtomicU64,
    at: AtomicU64,
    /// The expected total size, in bytes, of the files that the writer still has to write.
    expected: AtomicU64,
}

/// A file that the writer still has to write, with its probable size in bytes.
#[derive(Debug)]
pub struct Expected {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    fn recent(&self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.at.load(Ordering::Relaxed)) as f64 / KEPT_FOR as f64;
        self.recent.load(Ordering::Relaxed).saturating_sub((OLD_BYTES as f64 * passed) as u64)
    }

    /// Whether there is room for another file of this size. If recent and expected files take no room, the limit is
    /// `MOST_BYTES` instead of `OLD_BYTES`.
    pub fn has(&self, bytes: u64, now: u64) -> bool {
        let used = self.recent(now) + self.expected.load(Ordering::Relaxed);
        used + bytes <= if used == 0 { MOST_BYTES } else { OLD_BYTES }
    }

    /// Reserves room for a file, until the returned `Expected` is dropped.
    pub fn expect(self: &Arc<Room>, bytes: u64) -> Expected {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
        Expected { room: self.clone(), bytes }
    }

    /// Returns for how many nanoseconds the next epoch of a region must not begin. `bytes` is the size of the previous epoch's
    /// file. Does not consider that other regions also begin epochs.
    pub fn pause_after(&self, bytes: u64, now: u64) -> u64 {
        let recent = self.recent(now) + bytes;
        self.recent.store(recent, Ordering::Relaxed);
        self.at.store(now, Ordering::Relaxed);
        pause(bytes, recent)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.room.expected.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the minimum pause in nanoseconds between a file of `part` bytes and the next file, if recent files take `used`
/// bytes. If recent files take `OLD_BYTES`, the pauses limit new files to `OLD_BYTES` per [`KEPT_FOR`].
fn pause(part: u64, used: u64) -> u64 {
    let fullness = (4 * used).saturating_sub(3 * OLD_BYTES) as f64 / OLD_BYTES as f64;
    (KEPT_FOR as f64 * fullness * part as f64 / OLD_BYTES as f64) as u64
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
        let old = Room::default();
        let mut now = 7;
        // Each file is written as soon as the pause allows. The pauses grow until they limit new files to `OLD_BYTES` per
        // `KEPT_FOR`.
        let (mut files, mut begin) = (0, now);
        while files < 3 * (OLD_BYTES >> 20) {
            now += old.pause_after(1 << 20, now);
            files += 1;
            begin = if files == 2 * (OLD_BYTES >> 20) { now } else { begin };
        }
        assert!((now - begin).abs_diff(KEPT_FOR) < KEPT_FOR / 20, "{} ns", now - begin);
        assert!(old.pause_after(1 << 20, now) > 0);
        assert_eq!(old.pause_after(1 << 20, now + KEPT_FOR), 0);
    }

    #[test]
    fn what_waits_takes_room() {
        let room = Arc::new(Room::default());
        let half = room.expect(OLD_BYTES / 2);
        assert!(room.has(OLD_BYTES / 2, 7) && !room.has(OLD_BYTES / 2 + 1, 7));
        room.pause_after(OLD_BYTES / 4, 7);
        assert!(room.has(OLD_BYTES / 4, 7) && !room.has(OLD_BYTES / 4 + 1, 7));
        drop(half);
        assert!(room.has(OLD_BYTES / 4 * 3, 7) && !room.has(OLD_BYTES / 4 * 3 + 1, 7));
        // If no recent file takes room, a single file may have up to `MOST_BYTES`. A file of `MOST_BYTES` takes no room after
        // twice `KEPT_FOR`.
        assert!(room.has(MOST_BYTES, 7 + KEPT_FOR) && !room.has(MOST_BYTES + 1, 7 + KEPT_FOR));
        room.pause_after(MOST_BYTES, 7 + KEPT_FOR);
        assert!(!room.has(1, 7 + 2 * KEPT_FOR) && room.has(MOST_BYTES, 7 + 3 * KEPT_FOR));
    }

    #[test]
    fn files_of_the_last_minute_stay() {
        const MIB: u64 = 1 << 20;
        let dir = std::env::temp_dir().join(format!("jitsym-old-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut files = Files::default();
        let mut keep = |number: u64, bytes: u64, now: u64| {
            let path = dir.join(number.to_string());
            let identity = crate::sys::file::look_at(&std::fs::File::create(&path).unwrap()).unwrap();
            files.keep(Past { path, identity, bytes }, now);
            (0..=number).filter(|number| dir.join(number.to_string()).exists()).collect::<Vec<u64>>()
        };
        // While all files are younger than `KEPT_FOR`, a file is removed only if the files together have more than
        // `MOST_BYTES`.
        assert_eq!(keep(0, 200 * MIB, 1), [0]);
        assert_eq!(keep(1, 300 * MIB, 2), [0, 1]);
        assert_eq!(keep(2, 13 * MIB, KEPT_FOR), [1, 2]);
        // Files that are older than `KEPT_FOR` are removed if all files together have more bytes than `OLD_BYTES`.
        assert_eq!(keep(3, 100 * MIB, KEPT_FOR + 2), [1, 2, 3]);
        assert_eq!(keep(4, 100 * MIB, KEPT_FOR + 3), [2, 3, 4]);
        assert_eq!(keep(5, 20 * MIB, 3 * KEPT_FOR), [2, 3, 4, 5]);
        assert_eq!(keep(6, 100 * MIB, 3 * KEPT_FOR), [4, 5, 6]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
