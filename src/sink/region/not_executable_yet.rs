//! Memory in which code was registered while it could not be executed yet. Later calls look at it again: only a registering thread
//! knows that nobody writes there meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use super::not_adopted::NOT_NOW;
use super::NEVER;

/// So much of it is remembered.
const MOST: usize = 256;

/// The second look comes so many nanoseconds after the first one, and each later one after twice the pause, up to a bound. Each
/// reads what is mapped.
const FIRST_PAUSE: u64 = 10_000_000;
const LAST_PAUSE: u64 = 1_000_000_000;

/// Memory that waits for longer than this is counted as refused, once. It goes on waiting.
const LONG: u64 = 1_000_000_000;

/// Whole pages with code.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub start: u64,
    pub end: u64,
    /// Where the pages of the first code end.
    pub first_end: u64,
    since: u64,
    /// When code was registered there last and it was still not executable.
    looked: u64,
    next: u64,
    pause: u64,
    is_counted: bool,
}

impl Wait {
    /// Memory before an address waits no longer.
    pub fn goes_on_at(&mut self, addr: u64) {
        (self.start, self.first_end) = (addr, addr);
    }
}

/// The remembered memory; one thread at a time.
#[derive(Debug, Default)]
pub struct Waiting(Vec<Wait>);

/// When to look next, for all threads; `NEVER` if nothing waits.
#[derive(Debug)]
pub struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Due {
        Due(AtomicU64::new(NEVER))
    }
}

impl Due {
    /// Whether something waits. The common case is that nothing does.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NEVER
    }

    pub fn is_at(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= now
    }
}

impl Waiting {
    /// What these pages are a part of from now on. A code cache is filled from one end to the other.
    fn touched(&mut self, start: u64, end: u64) -> Option<&mut Wait> {
        let wait = self.0.iter_mut().find(|wait| start <= wait.end && wait.start <= end)?;
        (wait.start, wait.end) = (wait.start.min(start), wait.end.max(end));
        Some(wait)
    }

    /// Whether whole pages wait that were not executable a moment ago.
    pub fn has(&mut self, start: u64, end: u64, now: u64) -> bool {
        self.touched(start, end).is_some_and(|wait| now.saturating_sub(wait.looked) < NOT_NOW)
    }

    /// Takes note of whole pages. False if there is no room for more.
    pub fn add(&mut self, due: &Due, start: u64, end: u64, now: u64) -> bool {
        if let Some(wait) = self.touched(start, end) {
            wait.looked = now;
            return true;
        }
        if self.0.len() >= MOST || self.0.try_reserve(1).is_err() {
            return false;
        }
        self.0.push(Wait {
            start,
            end,
            first_end: end,
            since: now,
            looked: now,
            next: now,
            pause: FIRST_PAUSE,
            is_counted: false,
        });
        self.tell(due);
        true
    }

    /// Takes out what is to be looked at now.
    pub fn take_due(&mut self, due: &Due, now: u64) -> Vec<Wait> {
        let mut taken = Vec::new();
        if taken.try_reserve(self.0.len()).is_ok() {
            taken.extend(self.0.extract_if(.., |wait| wait.next <= now));
        }
        self.tell(due);
        taken
    }

    /// Puts back what still waits.
    pub fn put_back(&mut self, due: &Due, mut wait: Wait, now: u64) {
        wait.next = now.saturating_add(wait.pause);
        wait.pause = (2 * wait.pause).min(LAST_PAUSE);
        if self.0.try_reserve(1).is_ok() {
            self.0.push(wait);
        }
        self.tell(due);
    }

    /// Where memory begins that has waited for long, each once.
    pub fn long(&mut self, now: u64) -> impl Iterator<Item = u64> + use<'_> {
        let is_long = move |wait: &&mut Wait| !wait.is_counted && now.saturating_sub(wait.since) >= LONG;
        self.0.iter_mut().filter(is_long).map(|wait| {
            wait.is_counted = true;
            wait.start
        })
    }

    /// A range of whole pages is about to be unmapped.
    pub fn forget(&mut self, due: &Due, start: u64, end: u64) {
        self.0.retain_mut(|wait| {
            if start <= wait.start && wait.start < end {
                wait.goes_on_at(end.min(wait.end));
            } else if wait.start < start && wait.end <= end {
                wait.end = wait.end.min(start);
            }
            wait.start < wait.end
        });
        self.tell(due);
    }

    pub fn clear(&mut self, due: &Due) {
        self.0.clear();
        self.tell(due);
    }

    fn tell(&self, due: &Due) {
        due.0.store(self.0.iter().map(|wait| wait.next).min().unwrap_or(NEVER), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare() {
        let (mut waiting, due) = (Waiting::default(), Due::default());
        assert!(!due.is_any() && !due.is_at(NEVER - 1));
        // One after the other they are one piece, and elsewhere another one.
        assert!(waiting.add(&due, 4096, 8192, 100) && waiting.add(&due, 8192, 12288, 100));
        assert!(
            waiting.has(4096, 8192, 101) && waiting.has(12288, 16384, 101) && !waiting.has(16384, 20480, NOT_NOW + 100)
        );
        assert!(waiting.add(&due, 65536, 69632, 200) && waiting.0.len() == 2 && due.is_any() && due.is_at(100));
        let (mut now, mut looks, mut counted) = (200, 0, 0);
        while now < 10 * LONG {
            for wait in waiting.take_due(&due, now) {
                looks += 1;
                waiting.put_back(&due, wait, now);
            }
            counted += waiting.long(now).count();
            now = due.0.load(Ordering::Relaxed);
        }
        assert!(looks < 40 && counted == 2, "{looks} looks, {counted} counted");
        assert!(
            (0..MOST as u64 + 9).filter(|number| waiting.add(&due, number << 20, (number << 20) + 1, now)).count()
                <= MOST
        );
        waiting.clear(&due);
        assert!(!due.is_any());
    }

    #[test]
    fn what_is_unmapped_waits_no_longer() {
        let (mut waiting, due) = (Waiting::default(), Due::default());
        let waits = |waiting: &Waiting| waiting.0.iter().map(|wait| (wait.start, wait.end)).collect::<Vec<_>>();
        assert!([(10, 20), (30, 40), (50, 60)].iter().all(|&(start, end)| waiting.add(&due, start, end, 7)));
        waiting.forget(&due, 0, 10);
        waiting.forget(&due, 35, 36);
        assert_eq!(waits(&waiting), [(10, 20), (30, 40), (50, 60)]);
        waiting.forget(&due, 15, 35);
        assert_eq!(waits(&waiting), [(10, 15), (35, 40), (50, 60)]);
        waiting.forget(&due, 35, 60);
        assert!(waits(&waiting) == [(10, 15)] && due.is_any());
        waiting.forget(&due, 0, 100);
        assert!(waits(&waiting).is_empty() && !due.is_any());
    }
}
