//! Tracks candidates for adoption: memory ranges that contain registered code, but are not regions yet.
//!
//! *Declined* memory could not be adopted, and is not checked again for a while. *Waiting* memory is not executable yet. Only
//! calls that register, move or unregister code check waiting memory, because the host promises that no other thread writes to
//! code memory during these calls. Each registration outside of regions calls `any_waits` and `shows_declined`, so these two
//! functions take no lock and make no system call.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use crate::sys::clock::NEVER;
use crate::sys::sync::lock;
use crate::sys::sync::outside::Mutex;

/// The maximum number of declined ranges that are remembered.
const SHOWN: usize = 1024;
/// The maximum number of ranges that wait to become executable.
const MOST_WAITING: usize = 256;

/// The pause before the next check of memory to which the host may be writing, in nanoseconds.
pub const NOT_NOW: u64 = 5_000_000;
/// The pause before the next attempt after a failed adoption, in nanoseconds. Later, there may be enough memory, or enough disk
/// space for a file.
pub const FAILED: u64 = 10_000_000_000;

/// While the number of regions is at its limit, reads of the list of all mappings take at most 1/`SHARE` of the time. Each read
/// finds regions that the host has unmapped, and so frees places in the list of regions.
const SHARE: u64 = 50;

/// The pause between the first and the second check of waiting memory, in nanoseconds. Each later pause is twice as long as the
/// pause before it, up to `LAST_PAUSE`, because each check reads the list of mappings.
const FIRST_PAUSE: u64 = 10_000_000;
const LAST_PAUSE: u64 = 1_000_000_000;

/// Memory that waits for longer than this number of nanoseconds is counted as refused once, but continues to wait.
const LONG: u64 = 1_000_000_000;

/// The table of declined and waiting memory.
#[derive(Debug)]
pub struct Candidates {
    shown: Shown,
    /// The time of the next check of waiting memory, or `NEVER` if no memory waits.
    due: AtomicU64,
    /// While the number of regions is at its limit, the list of all mappings is not read before this time to adopt new memory.
    rests_until: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    waiting: Vec<Wait>,
    /// The start addresses of memory that was counted as not adopted. The values are unused: a set would need more machine code
    /// than this map type, whose machine code the library already contains.
    counted: BTreeMap<u64, u64>,
}

/// A range of whole pages that contain registered code, and that are not executable yet.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub start: u64,
    pub end: u64,
    /// The end of the pages of the code that was registered first in the range.
    pub first_end: u64,
    /// Whether only one piece of code was registered in the range, and begins at the first byte of the range.
    pub is_function: bool,
    since: u64,
    /// The last time when a registration of code in these pages found the pages not executable.
    looked: u64,
    next: u64,
    pause: u64,
    is_counted: bool,
}

impl Wait {
    /// Removes the memory below `addr` from the waiting range.
    pub fn goes_on_at(&mut self, addr: u64) {
        (self.start, self.first_end, self.is_function) = (addr, addr, false);
    }
}

impl Default for Candidates {
    fn default() -> Candidates {
        Candidates {
            shown: Shown::default(),
            due: AtomicU64::new(NEVER),
            rests_until: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }
}

impl Candidates {
    /// Changes the table, and then updates the time of the next check.
    fn change<T>(&self, body: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let result = body(&mut table);
        self.due.store(table.waiting.iter().map(|wait| wait.next).min().unwrap_or(NEVER), Ordering::Relaxed);
        result
    }

    /// Whether any memory waits to become executable. Usually no memory waits.
    #[inline(always)]
    pub fn any_waits(&self) -> bool {
        self.due.load(Ordering::Relaxed) != NEVER
    }

    /// Whether a check of waiting memory is due.
    pub fn any_is_due(&self, now: u64) -> bool {
        self.due.load(Ordering::Relaxed) <= now
    }

    /// Records that the list of all mappings was read from `begin` to `now`, and that the number of regions is at its limit.
    pub fn rest(&self, begin: u64, now: u64) {
        // The pause is limited because the process may have been stopped during the read.
        let pause = now.saturating_sub(begin).saturating_mul(SHARE).min(FAILED);
        self.rests_until.store(now.saturating_add(pause), Ordering::Relaxed);
    }

    /// Whether a read of the list of all mappings at the time `now` would exceed the share of time for such reads.
    pub fn rests(&self, now: u64) -> bool {
        now < self.rests_until.load(Ordering::Relaxed)
    }

    /// Whether a range is declined now. Takes no lock.
    pub fn shows_declined(&self, start: u64, end: u64, now: impl Fn() -> u64) -> bool {
        self.shown.has(start, end, now)
    }

    /// Whether a range must not be checked now: the range is declined, or its pages wait to become executable and a
    /// registration found the pages not executable in the last `NOT_NOW` nanoseconds.
    pub fn has_put_off(&self, (start, end): (u64, u64), pages: &Range<u64>, now: u64) -> bool {
        let mut table = lock(&self.table);
        if self.shown.has(start, end, || now) {
            return true;
        }
        let was_looked_at = |wait: &mut Wait| now.saturating_sub(wait.looked) < NOT_NOW;
        let waits = table.waits_at(pages.start, pages.end).is_some_and(was_looked_at);
        if waits {
            self.shown.show(pages, now, NOT_NOW);
        }
        waits
    }

    /// Declines a range for `pause` nanoseconds.
    pub fn decline(&self, range: &Range<u64>, now: u64, pause: u64) {
        let _table = lock(&self.table);
        self.shown.show(range, now, pause);
    }

    /// Records whole pages that are not executable yet, and that contain code at the address `addr`. Returns false if too many
    /// ranges wait.
    pub fn wait(&self, addr: u64, pages: &Range<u64>, now: u64) -> bool {
        self.change(|table| table.wait(pages.start, pages.end, now, addr == pages.start))
    }

    /// Removes and returns the waiting ranges whose next check is due at `before` or earlier.
    pub fn take_due(&self, before: u64) -> Vec<Wait> {
        self.change(|Table { waiting, .. }| {
            let mut taken = Vec::new();
            if taken.try_reserve(waiting.len()).is_ok() {
                taken.extend(waiting.extract_if(.., |wait| wait.next <= before));
            }
            taken
        })
    }

    /// If only one range waits, and its next check is due at `before` or earlier, removes and returns this range.
    pub fn take_only(&self, before: u64) -> Option<Wait> {
        self.change(|Table { waiting, .. }| match waiting[..] {
            [only] if only.next <= before => waiting.pop(),
            _ => None,
        })
    }

    /// Adds a range that still waits to the waiting ranges again, with a longer pause until its next check.
    pub fn put_back(&self, mut wait: Wait, now: u64) {
        wait.next = now.saturating_add(wait.pause);
        wait.pause = (2 * wait.pause).min(LAST_PAUSE);
        self.put_again(wait);
    }

    /// Adds a range to the waiting ranges again. The time of its next check stays the same.
    pub fn put_again(&self, wait: Wait) {
        self.change(|Table { waiting, .. }| {
            if waiting.try_reserve(1).is_ok() {
                waiting.push(wait);
            }
        });
    }

    /// Returns the start of a range that has waited for at least `LONG`. Each range is returned once.
    pub fn next_long(&self, now: u64) -> Option<u64> {
        let is_long = |wait: &&mut Wait| !wait.is_counted && now.saturating_sub(wait.since) >= LONG;
        lock(&self.table).waiting.iter_mut().find(is_long).map(|wait| {
            wait.is_counted = true;
            wait.start
        })
    }

    /// Records that the memory at `start` is not adopted. Returns true in the first call for this `start`.
    pub fn is_first_refusal(&self, start: u64) -> bool {
        lock(&self.table).counted.insert(start, 0).is_none()
    }

    /// Forgets a range of whole pages that is about to be unmapped. Memory that is mapped in this range later is a new
    /// candidate.
    pub fn forget(&self, start: u64, end: u64) {
        self.change(|table| {
            table.waiting.retain_mut(|wait| {
                if start <= wait.start && wait.start < end {
                    wait.goes_on_at(end.min(wait.end));
                } else if wait.start < start && wait.end <= end {
                    wait.end = wait.end.min(start);
                }
                wait.start < wait.end
            });
            self.shown.forget(start, end);
        });
    }

    pub fn clear(&self) {
        self.change(|table| {
            *table = Table::default();
            self.shown.forget(0, NEVER);
        });
    }
}

impl Table {
    /// Extends the waiting range that overlaps or touches these pages, and returns the range. A code cache is usually filled
    /// from one end to the other.
    fn waits_at(&mut self, start: u64, end: u64) -> Option<&mut Wait> {
        let wait = self.waiting.iter_mut().find(|wait| start <= wait.end && wait.start <= end)?;
        (wait.start, wait.end, wait.is_function) = (wait.start.min(start), wait.end.max(end), false);
        Some(wait)
    }

    fn wait(&mut self, start: u64, end: u64, now: u64, is_function: bool) -> bool {
        if let Some(wait) = self.waits_at(start, end) {
            wait.looked = now;
            return true;
        }
        if self.waiting.len() >= MOST_WAITING || self.waiting.try_reserve(1).is_err() {
            return false;
        }
        let (since, looked, next, pause) = (now, now, now, FIRST_PAUSE);
        let (first_end, is_counted) = (end, false);
        self.waiting.push(Wait { start, end, first_end, is_function, since, looked, next, pause, is_counted });
        true
    }
}

/// The declined ranges, which all threads can read without a lock.
#[derive(Debug, Default)]
struct Shown {
    used: AtomicUsize,
    /// Start and end of each range, and the time until which the range is declined. The time is 0 while a thread changes the
    /// entry. Most processes decline no range, so the list is allocated when the first range is declined. If memory is lacking,
    /// the list stays empty.
    places: OnceLock<Vec<[AtomicU64; 3]>>,
}

impl Shown {
    /// The entries of the list that were used at least once.
    fn used(&self) -> &[[AtomicU64; 3]] {
        let used = self.used.load(Ordering::Acquire).min(SHOWN);
        self.places.get().and_then(|places| places.get(..used)).unwrap_or_default()
    }

    fn has(&self, start: u64, end: u64, now: impl Fn() -> u64) -> bool {
        let holds = |[from, to, until]: [u64; 3]| from <= start && end <= to && now() < until;
        self.used().iter().filter_map(read).any(holds)
    }

    /// Declines a range for `pause` nanoseconds. Must be called by one thread at a time.
    fn show(&self, range: &Range<u64>, now: u64, pause: u64) {
        let places = self.places.get_or_init(|| {
            let mut places = Vec::new();
            if places.try_reserve_exact(SHOWN).is_ok() {
                places.resize_with(SHOWN, Default::default);
            }
            places
        });
        let is_free = |[_, _, until]: &[AtomicU64; 3]| until.load(Ordering::Relaxed) <= now;
        let free = self.used().iter().position(is_free);
        // If no entry is free, the entries are reused in turn.
        let place = free.unwrap_or_else(|| self.used.fetch_add(1, Ordering::AcqRel) % SHOWN);
        let Some([start, end, until]) = places.get(place) else { return };
        until.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        start.store(range.start, Ordering::Relaxed);
        end.store(range.end, Ordering::Relaxed);
        until.store(now.saturating_add(pause), Ordering::Release);
    }

    fn forget(&self, start: u64, end: u64) {
        for [from, to, until] in self.used() {
            if from.load(Ordering::Relaxed) < end && start < to.load(Ordering::Relaxed) {
                until.store(0, Ordering::Relaxed);
            }
        }
    }
}

fn read([start, end, until]: &[AtomicU64; 3]) -> Option<[u64; 3]> {
    let time = until.load(Ordering::Acquire);
    let range = [start.load(Ordering::Relaxed), end.load(Ordering::Relaxed), time];
    fence(Ordering::Acquire);
    (time != 0 && until.load(Ordering::Relaxed) == time).then_some(range)
}

#[cfg(test)]
mod tests;
