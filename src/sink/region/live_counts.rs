//! Counts the live code in each part of a region, because the host may unmap parts without live code.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::error::{Error, Result};

/// The size of a part, in bytes. Hosts probably give memory back in blocks of this size.
const PART: u64 = 64 << 10;

/// The bit of a part's count that is set if the host may have unmapped the part since the last check.
const IN_DOUBT: u32 = 1 << 31;

/// The value of a count without live code. The value is so large that a subtraction may come before the matching addition.
const NONE: u32 = 1 << 30;

/// The flag `IN_DOUBT` is in the same word as the count, because every registration reads the flag and the count. Regions with
/// two views and mapping groups have no counts.
#[derive(Debug)]
pub struct Tally {
    parts: Vec<AtomicU32>,
}

impl Tally {
    pub fn new(len: u64) -> Result<Tally> {
        let (mut parts, count) = (Vec::new(), len.div_ceil(PART) as usize);
        parts.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        parts.resize_with(count, || AtomicU32::new(NONE));
        Ok(Tally { parts })
    }

    #[inline]
    fn parts(&self, offset: u64, size: u64) -> &[AtomicU32] {
        let (first, end) = ((offset / PART) as usize, (offset + size).div_ceil(PART) as usize);
        self.parts.get(first..end.min(self.parts.len())).unwrap_or_default()
    }

    /// Counts new code. Returns false if the host may have unmapped the memory.
    #[inline]
    pub fn add(&self, offset: u64, size: u64) -> bool {
        let both = self.parts(offset, size).iter().fold(0, |all, part| all | part.fetch_add(1, Ordering::Relaxed));
        both & IN_DOUBT == 0
    }

    /// Subtracts ended code from the counts. When a part loses its last code, all parts without code get the flag `IN_DOUBT`: a
    /// host may give back all unused memory at once, even memory that never contained code.
    pub fn subtract(&self, offset: u64, size: u64) {
        let gone = |part: &AtomicU32| part.fetch_sub(1, Ordering::Relaxed) & !IN_DOUBT <= NONE + 1;
        if self.parts(offset, size).iter().filter(|part| gone(part)).count() > 0 {
            for part in self.parts.iter().filter(|part| part.load(Ordering::Relaxed) <= NONE) {
                part.fetch_or(IN_DOUBT, Ordering::Relaxed);
            }
        }
    }

    /// Records that the host may have unmapped the range.
    pub fn doubt(&self, offset: u64, size: u64) {
        for part in self.parts(offset, size) {
            part.fetch_or(IN_DOUBT, Ordering::Relaxed);
        }
    }

    /// Clears the flag `IN_DOUBT`, because the caller checks the memory now. Returns whether the flag was set.
    pub fn settle(&self, offset: u64, size: u64) -> bool {
        let both = |all, part: &AtomicU32| all | part.fetch_and(!IN_DOUBT, Ordering::Relaxed);
        self.parts(offset, size).iter().fold(0, both) & IN_DOUBT != 0
    }

    /// Records that all code has ended, and sets the flag `IN_DOUBT` of all parts.
    pub fn clear(&self) {
        for part in &self.parts {
            part.store(NONE | IN_DOUBT, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_is_of_a_part() {
        let tally = Tally::new(3 * PART).unwrap();
        assert!(tally.add(0, 64) && tally.add(PART - 1, 2));
        assert!(!tally.settle(0, 3 * PART));
        // The ended code lay in the first part, which still has other live code, and in the second part, which has no live code
        // now.
        tally.subtract(PART - 1, 2);
        assert!(tally.add(0, 64) && !tally.add(PART, 1));
        // A check of one part leaves the flags of all other parts set. Parts that never had code also keep their flags.
        assert!(tally.settle(PART, 1) && tally.add(PART, 1));
        assert!(!tally.add(2 * PART, 1) && tally.settle(2 * PART, PART) && !tally.settle(0, 3 * PART));
        tally.subtract(0, 64);
        assert!(!tally.settle(0, PART));
        tally.subtract(0, 64);
        assert!(tally.settle(0, 3 * PART) && !tally.settle(0, 3 * PART));
        tally.doubt(2 * PART, 1);
        assert!(!tally.add(2 * PART, 1));
        // The end of this code is counted a second time. The flag is still set when code that is added later ends.
        tally.subtract(0, 64);
        assert!(tally.settle(0, PART) && tally.add(0, 64) && tally.add(0, 64));
        tally.subtract(0, 64);
        assert!(tally.settle(0, PART));
        tally.clear();
        assert!(!tally.add(0, 3 * PART));
        // There are no parts after the end of the region. The tally of a region that the host cannot unmap has no parts.
        assert!(tally.add(3 * PART, 64));
        let none = Tally::new(0).unwrap();
        none.subtract(0, 64);
        assert!(!none.settle(0, PART));
    }
}
