//! The data that a living process publishes about itself for `jitsym doctor PID`: its counters, and its last failure.
//!
//! The data is in the header of the spool, at the same offset in all versions. Each value has a name, so that a program of
//! another version can read it. Each value is correct by itself, as in `jitsym_stats`, but two values may be from different
//! moments. The writer stores the values after each round.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::text_cell::TextCell;
use crate::queue::status::{LastError, Stats};

/// The offset of `Published` in the spool.
pub const PLACE: usize = 64;
/// The first version of the spool's layout that contains `Published`.
pub const SINCE: u32 = 7;
const LAYOUT: u32 = 1;
/// The sizes of the parts of `Published`: the maximum number of values (`VALUES`), the maximum length of the names of all
/// values (`NAMES`), and the maximum length of the text of the last failure (`FAILURE`). All lengths are in bytes.
const VALUES: usize = 64;
const NAMES: usize = 896;
const FAILURE: usize = 256;
#[derive(Debug)]
#[repr(C)]
pub struct Published {
    /// The number of the layout. The number is stored last, so it is 0 until values are published.
    layout: AtomicU32,
    count: AtomicU32,
    values: [AtomicU64; VALUES],
    /// The names of the values, with a space after each.
    names: TextCell<{ NAMES / 8 }>,
    /// The number of the last failure, and its text.
    failure_number: AtomicU64,
    failure: TextCell<{ FAILURE / 8 }>,
}

const _: () = assert!(Stats::NAMES.len() <= VALUES && Stats::NAMES_IN_ONE.len() <= NAMES);

impl Published {
    /// Publishes these values. Only the writer calls this function.
    pub fn set(&self, stats: &Stats, last_error: &LastError) {
        for (cell, value) in self.values.iter().zip(stats.values()) {
            cell.store(value, Ordering::Relaxed);
        }
        last_error.look(|number, text| {
            if self.failure_number.swap(number, Ordering::Relaxed) != number {
                self.failure.set(&text.as_bytes()[..text.len().min(FAILURE)]);
            }
        });
        if self.layout.load(Ordering::Relaxed) != LAYOUT {
            self.names.set(Stats::NAMES_IN_ONE.as_bytes());
            self.count.store(Stats::NAMES.len() as u32, Ordering::Relaxed);
            self.layout.store(LAYOUT, Ordering::Release);
        }
    }

    /// The values with their names, and the last failure. `None` if no data is published, or if the layout is that of another
    /// version.
    pub(super) fn get(&self) -> Option<(Vec<(String, u64)>, String)> {
        if self.layout.load(Ordering::Acquire) != LAYOUT {
            return None;
        }
        let names = String::from_utf8(self.names.get()?).ok()?;
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let count = (self.count.load(Ordering::Relaxed) as usize).min(VALUES);
        let values = names.split_ascii_whitespace().zip(&self.values[..count]).filter(|(name, _)| is_name(name));
        let values = values.map(|(name, value)| (name.to_owned(), value.load(Ordering::Relaxed))).collect();
        // If the process is storing a new text at this moment, `get` may return `None`.
        let failure = self.failure.get().unwrap_or_default();
        Some((values, String::from_utf8_lossy(&failure).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Published {
        // SAFETY: all fields are atomics, for which zero is a valid value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn what_is_said_is_heard() {
        let (published, last_error) = (empty(), LastError::default());
        assert_eq!(published.get(), None);
        let stats = Stats { registered: 7, calls_refused: 3, memory: 9, ..Stats::default() };
        published.set(&stats, &last_error);
        let value = |name: &str| published.get().unwrap().0.into_iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!((value("registered"), value("calls_refused"), value("memory"), value("moved")), (7, 3, 9, 0));
        assert_eq!(published.get().unwrap().1, "");
        last_error.set("x".repeat(1000));
        published.set(&stats, &last_error);
        assert_eq!(published.get().unwrap().1, "x".repeat(FAILURE));
        last_error.set("short".into());
        published.set(&stats, &last_error);
        assert_eq!(published.get().unwrap().1, "short");
    }

    #[test]
    fn another_version_may_have_other_values() {
        let published = empty();
        published.names.set(b"registered brand_new ../etc X");
        published.count.store(u32::MAX, Ordering::Relaxed);
        published.values.iter().zip(1..).for_each(|(cell, value)| cell.store(value, Ordering::Relaxed));
        published.layout.store(LAYOUT, Ordering::Relaxed);
        assert_eq!(published.get().unwrap().0, [("registered".to_owned(), 1), ("brand_new".to_owned(), 2)]);
        published.layout.store(LAYOUT + 1, Ordering::Relaxed);
        assert_eq!(published.get(), None);
    }
}
