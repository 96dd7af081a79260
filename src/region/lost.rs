//! Parts of a region that the host has unmapped, or mapped something else over: looked at by the threads that register code, without
//! a lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// So many parts can be lost.
const MOST: usize = 16;

/// Ranges of addresses.
#[derive(Debug, Default)]
pub struct Lost {
    count: AtomicUsize,
    parts: [(AtomicU64, AtomicU64); MOST],
}

impl Lost {
    /// Whether something of a range is lost.
    #[inline]
    pub fn any(&self, start: u64, end: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.parts().any(|(from, to)| from < end && start < to)
    }

    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // One that is being added ends at 0: it is none yet.
        let both = |(start, end): &(AtomicU64, AtomicU64)| {
            let end = end.load(Ordering::Acquire);
            (start.load(Ordering::Relaxed), end)
        };
        self.parts.iter().map(both)
    }

    /// Adds what is missing in a range: everything but these parts of it, which are in order. False if there are too many.
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
        if self.parts().any(|(from, to)| from <= start && end <= to) {
            return true;
        }
        let Some(place) = self.parts.get(self.count.fetch_add(1, Ordering::Relaxed)) else { return false };
        place.0.store(start, Ordering::Relaxed);
        place.1.store(end, Ordering::Release);
        true
    }

    /// Whether all of a range is lost.
    pub fn all(&self, start: u64, end: u64) -> bool {
        let mut next = start;
        while next < end {
            let Some((_, to)) = self.parts().find(|&(from, to)| from <= next && next < to) else { return false };
            next = to;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_lost() {
        let lost = Lost::default();
        assert!(!lost.any(0, u64::MAX) && !lost.all(10, 20));
        assert!(lost.add(10, 100, [(10, 20), (30, 40), (40, 90)].into_iter()));
        assert!(lost.any(20, 21) && lost.any(15, 21) && lost.any(99, 200) && !lost.any(10, 20) && !lost.any(30, 90));
        assert!(lost.all(20, 30) && lost.all(95, 100) && !lost.all(20, 31) && !lost.all(0, 30));
        // It is added once.
        for _ in 0..100 {
            assert!(lost.add(10, 100, [(10, 20), (30, 90)].into_iter()));
        }
        assert!(lost.add(10, 100, std::iter::empty()) && lost.all(10, 100));
        let too_many = (0..MOST as u64 + 1).map(|number| (1000 + 2 * number, 1001 + 2 * number));
        assert!(!lost.add(900, 2000, too_many));
    }
}
