//! Memory that could not be adopted when code was registered in it, and is not looked at again for a while. Each registration
//! outside of regions asks, so the check takes no lock and makes no system call.

use std::collections::VecDeque;
use std::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};

/// So many ranges are known without a lock.
const SHOWN: usize = 32;
/// So many ranges are remembered.
const MOST: usize = 1024;

/// After this many nanoseconds memory is looked at again that may be being written to.
pub const NOT_NOW: u64 = 5_000_000;
/// After this many a failed adoption is tried again: there may be other memory by then, or room for a file.
pub const FAILED: u64 = 10_000_000_000;

/// A range, and the time until which it is not looked at.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    until: u64,
}

impl Range {
    fn holds(&self, start: u64, end: u64, now: u64) -> bool {
        self.start <= start && end <= self.end && now < self.until
    }
}

/// The remembered ranges; one thread at a time.
#[derive(Debug, Default)]
pub struct Declined(VecDeque<Range>);

/// Some of it, for all threads.
#[derive(Debug)]
pub struct Shown {
    used: AtomicUsize,
    /// Start, end and time. That is 0 while they are changed.
    places: [[AtomicU64; 3]; SHOWN],
}

impl Declined {
    /// Takes note of a range.
    pub fn add(&mut self, shown: &Shown, start: u64, end: u64, now: u64, pause: u64) {
        self.0.retain(|range| now < range.until);
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        let range = Range { start, end, until: now.saturating_add(pause) };
        if self.0.try_reserve(1).is_ok() {
            self.0.push_back(range);
        }
        shown.show(range, now);
    }

    /// Whether a range is not to be looked at, which is shown from now on.
    pub fn has(&self, shown: &Shown, start: u64, end: u64, now: u64) -> bool {
        let found = self.0.iter().find(|range| range.holds(start, end, now));
        found.map(|&range| shown.show(range, now)).is_some()
    }

    /// A range is about to be unmapped: what is mapped there later is other memory.
    pub fn forget(&mut self, shown: &Shown, start: u64, end: u64) {
        let overlaps = |from: u64, to: u64| from < end && start < to;
        self.0.retain(|range| !overlaps(range.start, range.end));
        for [from, to, until] in &shown.places {
            if overlaps(from.load(Ordering::Relaxed), to.load(Ordering::Relaxed)) {
                until.store(0, Ordering::Relaxed);
            }
        }
    }

    pub fn clear(&mut self, shown: &Shown) {
        self.0.clear();
        shown.places.iter().for_each(|[_, _, until]| until.store(0, Ordering::Relaxed));
    }
}

impl Default for Shown {
    fn default() -> Shown {
        Shown { used: AtomicUsize::new(0), places: [const { [const { AtomicU64::new(0) }; 3] }; SHOWN] }
    }
}

impl Shown {
    /// Whether a range is known not to be worth a look.
    pub fn has(&self, start: u64, end: u64, now: impl Fn() -> u64) -> bool {
        let used = self.used.load(Ordering::Acquire).min(SHOWN);
        self.places[..used].iter().filter_map(read).any(|range| range.holds(start, end, 0) && now() < range.until)
    }

    /// To be called by one thread at a time.
    fn show(&self, range: Range, now: u64) {
        let used = self.used.load(Ordering::Relaxed);
        let is_free = |[_, _, until]: &[AtomicU64; 3]| until.load(Ordering::Relaxed) <= now;
        let free = self.places[..used.min(SHOWN)].iter().position(is_free);
        // The oldest gives way.
        let place = free.unwrap_or_else(|| self.used.fetch_add(1, Ordering::AcqRel) % SHOWN);
        let [start, end, until] = &self.places[place];
        until.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        start.store(range.start, Ordering::Relaxed);
        end.store(range.end, Ordering::Relaxed);
        until.store(range.until, Ordering::Release);
    }
}

fn read([start, end, until]: &[AtomicU64; 3]) -> Option<Range> {
    let time = until.load(Ordering::Acquire);
    let range = Range { start: start.load(Ordering::Relaxed), end: end.load(Ordering::Relaxed), until: time };
    fence(Ordering::Acquire);
    (time != 0 && until.load(Ordering::Relaxed) == time).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_declined_is_looked_at_again() {
        let (mut declined, shown) = (Declined::default(), Shown::default());
        let is_shown = |start, end, now| shown.has(start, end, || now);
        assert!(!is_shown(0, 1, 0));
        declined.add(&shown, 100, 200, 1000, 50);
        assert!(is_shown(100, 200, 1049) && is_shown(120, 130, 1000));
        assert!(!is_shown(100, 200, 1050) && !is_shown(99, 120, 1000) && !is_shown(190, 201, 1000));
        assert!(declined.has(&shown, 150, 160, 1049) && !declined.has(&shown, 150, 160, 1050));
        declined.forget(&shown, 0, 100);
        declined.forget(&shown, 200, 300);
        assert!(is_shown(100, 200, 1000) && declined.has(&shown, 100, 200, 1000));
        declined.forget(&shown, 199, 300);
        assert!(!is_shown(100, 200, 1000) && !declined.has(&shown, 100, 200, 1000));
        declined.add(&shown, 100, 200, 1000, 50);
        declined.clear(&shown);
        assert!(!is_shown(100, 200, 1000) && !declined.has(&shown, 100, 200, 1000));
    }

    #[test]
    fn whoever_is_not_shown_any_more_is_remembered() {
        let (mut declined, shown) = (Declined::default(), Shown::default());
        let all = SHOWN as u64 * 3 + 5;
        for number in 0..all {
            declined.add(&shown, number * 10, number * 10 + 10, number, 10_000);
        }
        let is_shown = |number: u64| shown.has(number * 10, number * 10 + 10, || all);
        assert_eq!((0..all).filter(|&number| is_shown(number)).count(), SHOWN);
        assert!(!is_shown(0) && declined.has(&shown, 0, 10, all) && is_shown(0));
        // Ranges whose time is over are dropped first.
        declined.add(&shown, 5000, 5010, 20_000, 10_000);
        assert!(shown.has(5000, 5010, || 20_000) && declined.0.len() == 1);
        for number in 0..2 * MOST as u64 {
            declined.add(&shown, number * 10, number * 10 + 10, 30_000, 10_000);
        }
        assert!(declined.0.len() == MOST && !declined.has(&shown, 0, 10, 30_000));
    }
}
