//! Parts of a region that the host has unmapped or replaced by another mapping. The threads that register code read them without a
//! lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Memory is lost in whole pages, which are as large as this at least.
const PAGE: u64 = 4096;

/// Which pages of a region are lost. They stay so, except in regions that mappings join (see `mapping_group`).
#[derive(Debug)]
pub struct Lost {
    start: u64,
    len: u64,
    /// A bit for each page, once there is a lost one.
    bits: OnceLock<Box<[AtomicU64]>>,
}

impl Lost {
    /// For a region that can be so long.
    pub fn new(start: u64, len: u64) -> Lost {
        Lost { start, len, bits: OnceLock::new() }
    }

    /// The bits of a range's pages: each word that has some, and which of it.
    fn words(&self, start: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
        let last = self.start + self.len;
        let (from, to) = (start.clamp(self.start, last) - self.start, end.clamp(self.start, last) - self.start);
        let (first, behind) = (from / PAGE, to.div_ceil(PAGE));
        let words = if first < behind { first / 64..behind.div_ceil(64) } else { 0..0 };
        words.map(move |word| {
            let low = first.saturating_sub(word * 64);
            let high = (behind - word * 64).min(64);
            (word as usize, u64::MAX << low & u64::MAX >> (64 - high))
        })
    }

    /// Whether something of a range is lost.
    #[inline]
    pub fn any(&self, start: u64, end: u64) -> bool {
        let has = |bits: &[AtomicU64]| self.words(start, end).any(|(word, mask)| of(bits, word) & mask != 0);
        self.bits.get().is_some_and(|bits| has(bits))
    }

    /// Whether all of a range is lost.
    pub fn all(&self, start: u64, end: u64) -> bool {
        let has = |bits: &[AtomicU64]| self.words(start, end).all(|(word, mask)| of(bits, word) & mask == mask);
        start >= end || self.bits.get().is_some_and(|bits| has(bits))
    }

    /// Adds the missing parts of a range: everything except the parts `left`, which are in order. False if there is no memory for
    /// them.
    pub fn add(&self, start: u64, end: u64, left: impl Iterator<Item = (u64, u64)>) -> bool {
        let mut next = start;
        for (from, to) in left.chain(std::iter::once((end, end))) {
            if next < from && !self.add_one(next, from) {
                return false;
            }
            next = to;
        }
        true
    }

    fn add_one(&self, start: u64, end: u64) -> bool {
        let Some(bits) = self.bits.get().map(Box::as_ref).or_else(|| self.make()) else { return false };
        for (word, mask) in self.words(start, end) {
            // Another thread may add the same.
            bits[word].fetch_or(mask, Ordering::Relaxed);
        }
        true
    }

    /// A range is no longer lost.
    pub fn find(&self, start: u64, end: u64) {
        for (word, mask) in self.words(start, end) {
            if let Some(bits) = self.bits.get().and_then(|bits| bits.get(word)) {
                bits.fetch_and(!mask, Ordering::Release);
            }
        }
    }

    #[cold]
    fn make(&self) -> Option<&[AtomicU64]> {
        let count = self.len.div_ceil(64 * PAGE) as usize;
        let mut bits = Vec::new();
        bits.try_reserve_exact(count).ok()?;
        bits.resize_with(count, AtomicU64::default);
        // Another thread may be faster.
        let _ = self.bits.set(bits.into_boxed_slice());
        self.bits.get().map(Box::as_ref)
    }
}

fn of(bits: &[AtomicU64], word: usize) -> u64 {
    bits.get(word).map_or(0, |bits| bits.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_lost() {
        let at = |page: u64| 0x7000_0000_0000 + page * PAGE;
        let lost = Lost::new(at(10), 1990 * PAGE);
        let (any, all) = (|from, to| lost.any(at(from), at(to)), |from, to| lost.all(at(from), at(to)));
        assert!(!lost.any(0, u64::MAX) && !all(10, 20) && all(20, 20));
        assert!(lost.add(at(10), at(100), [(at(10), at(20)), (at(30), at(40)), (at(40), at(90))].into_iter()));
        assert!(any(20, 21) && any(15, 21) && any(99, 200) && !any(10, 20) && !any(30, 90) && !any(100, 2000));
        assert!(all(20, 30) && all(90, 100) && !all(20, 31) && !all(19, 30) && !all(89, 100));
        assert!(
            lost.any(at(20) - 1, at(20) + 1) && lost.any(at(29) + 100, at(29) + 101) && !lost.any(at(20) - 9, at(20))
        );
        // It may be added again, and there is room for all of it.
        for _ in 0..2 {
            assert!(lost.add(at(10), at(100), [(at(10), at(20)), (at(30), at(90))].into_iter()));
            assert!(lost.add(at(100), at(2000), (100..2000).step_by(2).map(|page| (at(page), at(page + 1)))));
        }
        assert!((100..2000).step_by(2).all(|page| !any(page, page + 1) && all(page + 1, page + 2)));
        assert!(lost.add(at(10), at(2000), std::iter::empty()) && all(10, 2000));
        assert!(!any(0, 10) && !any(2000, 3000));
        lost.find(at(70), at(140));
        assert!(!any(70, 140) && all(10, 70) && all(140, 2000));
    }
}
