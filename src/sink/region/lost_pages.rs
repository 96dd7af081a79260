//! Records which pages of a region are lost: unmapped by the host, or replaced by another mapping. Threads that register code
//! read these records without a lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use crate::api::error::{Error, Result};
use crate::sys::clock::NEVER;

/// The smallest page size.
const PAGE: u64 = 4096;

/// Lost pages stay lost, except in mapping groups (see `mapping_group`).
#[derive(Debug)]
pub struct Pages {
    start: u64,
    len: u64,
    /// A bit for each page. The bits are allocated when the region loses its first page.
    lost: OnceLock<Box<[AtomicU64]>>,
    /// The times at which pages joined and left a mapping group. `None` if the region is not a mapping group.
    times: Option<Times>,
}

/// Two times for each page: when the page joined the mapping group, and when the page left the group. Code that was registered
/// between these times is in the file of the group.
#[derive(Debug)]
struct Times {
    /// When each page joined, or 0 if no mapping has joined at the page yet.
    since: Box<[AtomicU64]>,
    until: Box<[AtomicU64]>,
}

impl Pages {
    /// Creates the record of a region that has at most `len` bytes. No page is lost yet.
    pub fn new(start: u64, len: u64) -> Pages {
        Pages { start, len, lost: OnceLock::new(), times: None }
    }

    /// Creates the record of a mapping group. No page belongs to the group before it joins.
    pub fn of_group(start: u64, len: u64) -> Result<Pages> {
        let count = len.div_ceil(PAGE) as usize;
        let words = |count, first| words(count, first).ok_or(Error::NoMemory);
        let times = Times { since: words(count, 0)?, until: words(count, NEVER)? };
        Ok(Pages { times: Some(times), ..Pages::new(start, len) })
    }

    pub fn are_of_group(&self) -> bool {
        self.times.is_some()
    }

    /// Returns the numbers of the pages in a range of addresses.
    fn numbers(&self, start: u64, end: u64) -> Range<usize> {
        let offset = |addr: u64| addr.clamp(self.start, self.start + self.len) - self.start;
        (offset(start) / PAGE) as usize..offset(end).div_ceil(PAGE) as usize
    }

    /// Returns the bits that belong to the pages of a range. Each item has the number of a word, and a mask of the range's bits
    /// in this word.
    fn words(&self, start: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
        let Range { start: first, end: behind } = self.numbers(start, end);
        let words = if first < behind { first / 64..behind.div_ceil(64) } else { 0..0 };
        words.map(move |word| {
            let low = first.saturating_sub(word * 64);
            let high = (behind - word * 64).min(64);
            (word, u64::MAX << low & u64::MAX >> (64 - high))
        })
    }

    #[inline]
    pub fn any_lost(&self, start: u64, end: u64) -> bool {
        let has = |bits: &[AtomicU64]| self.words(start, end).any(|(word, mask)| of(bits, word) & mask != 0);
        self.lost.get().is_some_and(|bits| has(bits))
    }

    pub fn all_lost(&self, start: u64, end: u64) -> bool {
        let has = |bits: &[AtomicU64]| self.words(start, end).all(|(word, mask)| of(bits, word) & mask == mask);
        start >= end || self.lost.get().is_some_and(|bits| has(bits))
    }

    /// Marks a range as lost, except for the parts that `left` yields, in the order of their addresses. Returns false if there
    /// is no memory for the bits.
    pub fn lose(&self, start: u64, end: u64, left: impl Iterator<Item = (u64, u64)>, now: u64) -> bool {
        let mut next = start;
        for (from, to) in left.chain(std::iter::once((end, end))) {
            if next < from && !self.lose_all(next, from, now) {
                return false;
            }
            next = to;
        }
        true
    }

    fn lose_all(&self, start: u64, end: u64, now: u64) -> bool {
        let Some(bits) = self.lost.get().map(Box::as_ref).or_else(|| self.make()) else { return false };
        for (word, mask) in self.words(start, end) {
            // Another thread may set the same bits.
            bits[word].fetch_or(mask, Ordering::Relaxed);
        }
        self.end(start, end, now);
        true
    }

    #[cold]
    fn make(&self) -> Option<&[AtomicU64]> {
        // If several threads allocate the bits at the same time, all threads use the bits that were set first.
        let _ = self.lost.set(words(self.len.div_ceil(64 * PAGE) as usize, 0)?);
        self.lost.get().map(Box::as_ref)
    }

    /// Records that the pages in a range no longer belong to the mapping group.
    fn end(&self, start: u64, end: u64, now: u64) {
        let Some(Times { since, until }) = &self.times else { return };
        for page in self.numbers(start, end) {
            if since[page].load(Ordering::Relaxed) != 0 && until[page].load(Ordering::Relaxed) == NEVER {
                until[page].store(now, Ordering::Relaxed);
            }
        }
    }

    fn begin(&self, start: u64, end: u64, now: u64) {
        if let Some(times) = &self.times {
            times.since[self.numbers(start, end)].iter().for_each(|since| since.store(now.max(1), Ordering::Relaxed));
        }
    }

    /// Records that a mapping joins a mapping group. The pages of the mapping are no longer lost.
    pub fn join(&self, start: u64, end: u64, now: u64) {
        self.begin(start, end, now);
        for (word, mask) in self.words(start, end) {
            if let Some(bits) = self.lost.get().and_then(|bits| bits.get(word)) {
                bits.fetch_and(!mask, Ordering::Release);
            }
        }
    }

    /// Records that no mapping in this range can join the group any more.
    pub fn use_up(&self, start: u64, end: u64, now: u64) {
        self.begin(start, end, now);
        self.end(start, end, now);
    }

    /// Whether the range lies in a mapping group, and none of its pages has joined or was used up.
    pub fn are_unused(&self, start: u64, end: u64) -> bool {
        let is_unused = |since: &AtomicU64| since.load(Ordering::Relaxed) == 0;
        self.times.as_ref().is_some_and(|times| times.since[self.numbers(start, end)].iter().all(is_unused))
    }

    /// Whether a range belonged to the region at `time`. Outside of mapping groups, the time is ignored.
    pub fn had(&self, start: u64, end: u64, time: u64) -> bool {
        let Some(times) = &self.times else { return !self.any_lost(start, end) };
        self.numbers(start, end).all(|page| {
            let since = times.since[page].load(Ordering::Relaxed);
            since != 0 && since <= time && time < times.until[page].load(Ordering::Relaxed)
        })
    }
}

/// Makes an array of `count` numbers, each with the value `first`. Returns `None` if memory is short.
fn words(count: usize, first: u64) -> Option<Box<[AtomicU64]>> {
    let mut words = Vec::new();
    words.try_reserve_exact(count).ok()?;
    words.resize_with(count, || AtomicU64::new(first));
    Some(words.into_boxed_slice())
}

fn of(bits: &[AtomicU64], word: usize) -> u64 {
    bits.get(word).map_or(0, |bits| bits.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7000_0000_0000;

    fn at(page: u64) -> u64 {
        START + page * PAGE
    }

    #[test]
    fn what_is_missing_is_lost() {
        let pages = Pages::new(at(10), 1990 * PAGE);
        let (any, all) = (|from, to| pages.any_lost(at(from), at(to)), |from, to| pages.all_lost(at(from), at(to)));
        let lose = |from, to, left: &[(u64, u64)]| {
            pages.lose(at(from), at(to), left.iter().map(|&(from, to)| (at(from), at(to))), 7)
        };
        assert!(!pages.any_lost(0, u64::MAX) && !all(10, 20) && all(20, 20));
        assert!(lose(10, 100, &[(10, 20), (30, 40), (40, 90)]));
        assert!(any(20, 21) && any(15, 21) && any(99, 200) && !any(10, 20) && !any(30, 90) && !any(100, 2000));
        assert!(all(20, 30) && all(90, 100) && !all(20, 31) && !all(19, 30) && !all(89, 100));
        let any_bytes = |from, to| pages.any_lost(from, to);
        assert!(any_bytes(at(20) - 1, at(20) + 1) && any_bytes(at(29) + 100, at(29) + 101));
        assert!(!any_bytes(at(20) - 9, at(20)));
        // Lost pages can be marked as lost a second time. A region can lose all its pages.
        let others: Vec<_> = (100..2000).step_by(2).map(|page| (page, page + 1)).collect();
        for _ in 0..2 {
            assert!(lose(10, 100, &[(10, 20), (30, 90)]) && lose(100, 2000, &others));
        }
        assert!((100..2000).step_by(2).all(|page| !any(page, page + 1) && all(page + 1, page + 2)));
        assert!(lose(10, 2000, &[]) && all(10, 2000));
        assert!(!any(0, 10) && !any(2000, 3000));
        pages.join(at(70), at(140), 8);
        assert!(!any(70, 140) && all(10, 70) && all(140, 2000));
    }

    #[test]
    fn a_group_knows_since_when_and_until_when() {
        let pages = Pages::of_group(at(0), 100 * PAGE).unwrap();
        let had = |from, to, time| pages.had(at(from), at(to), time);
        let lose = |from, to, now| pages.lose(at(from), at(to), std::iter::empty(), now);
        assert!(lose(0, 100, 5) && pages.are_unused(at(0), at(100)) && !had(10, 12, 6));
        pages.join(at(10), at(12), 10);
        assert!(!pages.are_unused(at(11), at(13)) && pages.are_unused(at(12), at(100)));
        assert!(!pages.any_lost(at(10), at(12)) && had(10, 12, 10) && !had(10, 12, 9) && !had(10, 13, 10));
        assert!(lose(11, 100, 20) && lose(0, 100, 30));
        assert!(had(10, 11, 29) && !had(10, 11, 30) && had(10, 12, 19) && !had(10, 12, 20));
        pages.use_up(at(50), at(51), 40);
        assert!(!pages.are_unused(at(50), at(51)) && pages.all_lost(at(0), at(100)) && !had(50, 51, 40));
        // Outside of mapping groups, the time is ignored.
        assert!(!Pages::new(at(0), PAGE).are_unused(at(0), at(1)) && Pages::new(at(0), PAGE).had(at(0), at(1), 0));
    }
}
