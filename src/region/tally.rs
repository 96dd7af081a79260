//! How much live code callers know of in each part of a region that the host may unmap: where there is none, it may have done so.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::error::{Error, Result};

/// Live code is counted for each so many bytes: what a host is likely to give back.
const PART: u64 = 64 << 10;

/// One for each part of a region; none in a region that the host does not unmap.
#[derive(Debug)]
pub struct Tally {
    parts: Vec<Part>,
}

#[derive(Debug, Default)]
struct Part {
    live: AtomicI32,
    /// The last code in it is gone, and nobody has looked since whether it is still mapped.
    in_doubt: AtomicBool,
}

impl Tally {
    pub fn new(len: u64) -> Result<Tally> {
        let (mut parts, count) = (Vec::new(), len.div_ceil(PART) as usize);
        parts.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        parts.resize_with(count, Part::default);
        Ok(Tally { parts })
    }

    #[inline]
    fn parts(&self, offset: u64, size: u64) -> &[Part] {
        let (first, end) = ((offset / PART) as usize, (offset + size).div_ceil(PART) as usize);
        self.parts.get(first..end.min(self.parts.len())).unwrap_or_default()
    }

    /// Code begins to live there.
    #[inline]
    pub fn add(&self, offset: u64, size: u64) {
        for part in self.parts(offset, size) {
            part.live.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Code is gone.
    pub fn subtract(&self, offset: u64, size: u64) {
        for part in self.parts(offset, size) {
            if part.live.fetch_sub(1, Ordering::Relaxed) <= 1 {
                part.in_doubt.store(true, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub fn is_in_doubt(&self, offset: u64, size: u64) -> bool {
        self.parts(offset, size).iter().any(|part| part.in_doubt.load(Ordering::Relaxed))
    }

    /// The host may have unmapped it.
    pub fn doubt(&self, offset: u64, size: u64) {
        for part in self.parts(offset, size) {
            part.in_doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Somebody looks now. Whether there is reason to.
    pub fn settle(&self, offset: u64, size: u64) -> bool {
        let doubtful = |part: &&Part| part.in_doubt.swap(false, Ordering::Relaxed);
        self.parts(offset, size).iter().filter(doubtful).count() > 0
    }

    /// All code has ended.
    pub fn clear(&self) {
        for part in &self.parts {
            part.live.store(0, Ordering::Relaxed);
            part.in_doubt.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_is_of_a_part() {
        let tally = Tally::new(3 * PART).unwrap();
        tally.add(0, 64);
        tally.add(PART - 1, 2);
        assert!(!tally.is_in_doubt(0, 3 * PART));
        // Other code lives where it began, and none where it ended.
        tally.subtract(PART - 1, 2);
        assert!(!tally.is_in_doubt(0, PART) && tally.is_in_doubt(PART, 1));
        // Whoever looks at one part says nothing of another.
        assert!(!tally.settle(2 * PART, PART) && tally.is_in_doubt(PART, 1));
        assert!(tally.settle(PART, 1) && !tally.settle(PART, 1));
        tally.subtract(0, 64);
        tally.doubt(2 * PART, 1);
        assert!(tally.settle(0, 3 * PART) && !tally.is_in_doubt(0, 3 * PART));
        // Nothing lies behind the end, and a region that is not unmapped has no parts.
        tally.add(3 * PART, 64);
        let none = Tally::new(0).unwrap();
        none.subtract(0, 64);
        assert!(!none.settle(0, PART));
    }
}
