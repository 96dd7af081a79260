//! Keeps earlier files of regions, up to a limit, for profiles with samples of the code in these files. When the sink closes,
//! the files are removed if the options ask for that.

use std::collections::VecDeque;
use std::path::PathBuf;

use crate::sys::file::Identity;
use crate::sys::held_dir::Dir;

/// The maximum number of old files, and the maximum number of bytes that all old files may have together.
const OLD_FILES: usize = 20_000;
const OLD_BYTES: u64 = 256 << 20;
/// If old files have more bytes than this, a further old file gets names and tables, but not the bytes of code that is still
/// live.
const OLD_BYTES_FEW: u64 = 64 << 20;
/// When old files take all the room, each old file is still kept for this number of nanoseconds. For this purpose, new files
/// are delayed once old files take three quarters of the room. The delay grows with the room in use.
pub const KEPT_FOR: u64 = 60_000_000_000;

/// A file that is no longer written to.
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
            // Nothing can be done about a failure.
            let _ = dir.remove(name);
        }
    }
}

#[derive(Debug, Default)]
pub struct Files {
    /// Files of older epochs, and the last files of ended regions; oldest first.
    old: VecDeque<Past>,
    old_bytes: u64,
    /// How many bytes the recent files of older epochs took at the time `recent_at`. Each new file adds its size to this
    /// number. With time, the number decreases by `OLD_BYTES` per `KEPT_FOR`.
    recent_bytes: u64,
    recent_at: u64,
}

impl Files {
    /// Records a file. Removes the oldest files if there are too many.
    pub fn keep(&mut self, past: Past) {
        self.old_bytes += past.bytes;
        self.old.push_back(past);
        while self.old.len() > OLD_FILES || self.old_bytes > OLD_BYTES {
            let Some(oldest) = self.old.pop_front() else { break };
            self.old_bytes -= oldest.bytes;
            oldest.remove();
        }
    }

    /// Whether the old files together take less than `OLD_BYTES_FEW` bytes.
    pub fn are_few(&self) -> bool {
        self.old_bytes < OLD_BYTES_FEW
    }

    /// Returns how long the next epoch of a region has to wait, in nanoseconds. `bytes` is the size of the previous epoch's
    /// file. The result is right if no other region begins epochs.
    pub fn pause_after(&mut self, bytes: u64, now: u64) -> u64 {
        let passed = now.saturating_sub(self.recent_at).min(KEPT_FOR) as f64 / KEPT_FOR as f64;
        self.recent_bytes = self.recent_bytes.saturating_sub((OLD_BYTES as f64 * passed) as u64) + bytes;
        self.recent_at = now;
        pause(bytes, self.recent_bytes)
    }

    pub fn remove(&self) {
        self.old.iter().for_each(Past::remove);
    }
}

/// Returns how long the next file has to wait after a file of `part` bytes, in nanoseconds. `used` is the number of bytes that
/// recent files take. If the room is full, it takes [`KEPT_FOR`] to write files that would fill the whole room again.
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
        let mut old = Files::default();
        let mut now = 7;
        // Each file is written as soon as the pause allows. Once the pauses are long enough, it takes `KEPT_FOR` to write files
        // that fill the whole room.
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
}
