//! Memory that code was registered in, and that is no region yet: it could not be adopted, and is not looked at again for a while,
//! or it waits until it can be executed. Only a registering thread knows that nobody writes there meanwhile, so later calls look at
//! it again. Each registration outside of regions asks, so the check takes no lock and makes no system call.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};

use crate::sys::clock::NEVER;
use crate::sys::sync::lock;
use crate::sys::sync::outside::Mutex;

/// So many ranges that are not looked at are known without a lock.
const SHOWN: usize = 32;
/// So many are remembered.
const MOST_DECLINED: usize = 1024;
/// So many ranges wait.
const MOST_WAITING: usize = 256;

/// After this many nanoseconds memory is looked at again that may be being written to.
pub const NOT_NOW: u64 = 5_000_000;
/// After this many a failed adoption is tried again: there may be other memory by then, or room for a file.
pub const FAILED: u64 = 10_000_000_000;

/// The second look at memory that waits comes so many nanoseconds after the first one, and each later one after twice the pause, up
/// to a bound. Each reads what is mapped.
const FIRST_PAUSE: u64 = 10_000_000;
const LAST_PAUSE: u64 = 1_000_000_000;

/// Memory that waits for longer than this is counted as refused, once. It goes on waiting.
const LONG: u64 = 1_000_000_000;

/// See the module's description.
#[derive(Debug)]
pub struct Candidates {
    /// Some of what is not looked at.
    shown: Shown,
    /// When to look next at what waits; `NEVER` if nothing does.
    due: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    declined: VecDeque<Declined>,
    waiting: Vec<Wait>,
    /// Where memory begins that was counted as not adopted. Used as a set; this kind of map is instantiated elsewhere already.
    counted: BTreeMap<u64, u64>,
}

/// A range, and the time until which it is not looked at.
#[derive(Clone, Copy, Debug)]
struct Declined {
    start: u64,
    end: u64,
    until: u64,
}

/// Whole pages with code that wait until they can be executed.
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

impl Declined {
    fn holds(&self, start: u64, end: u64, now: u64) -> bool {
        self.start <= start && end <= self.end && now < self.until
    }
}

impl Wait {
    /// Memory before an address waits no longer.
    pub fn goes_on_at(&mut self, addr: u64) {
        (self.start, self.first_end) = (addr, addr);
    }
}

impl Default for Candidates {
    fn default() -> Candidates {
        Candidates { shown: Shown::default(), due: AtomicU64::new(NEVER), table: Mutex::default() }
    }
}

impl Candidates {
    /// Changes what waits.
    fn change<T>(&self, body: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let result = body(&mut table);
        self.due.store(table.waiting.iter().map(|wait| wait.next).min().unwrap_or(NEVER), Ordering::Relaxed);
        result
    }

    /// Whether something waits. The common case is that nothing does.
    #[inline(always)]
    pub fn any_waits(&self) -> bool {
        self.due.load(Ordering::Relaxed) != NEVER
    }

    /// Whether something is to be looked at that waits.
    pub fn any_is_due(&self, now: u64) -> bool {
        self.due.load(Ordering::Relaxed) <= now
    }

    /// Whether a range is known not to be worth a look, without a lock. Others may not be worth one either.
    pub fn shows_declined(&self, start: u64, end: u64, now: impl Fn() -> u64) -> bool {
        self.shown.has(start, end, now)
    }

    /// Whether a range is not to be looked at, which is shown from now on.
    pub fn has_declined(&self, start: u64, end: u64, now: u64) -> bool {
        self.shown.show_if_declined(&lock(&self.table), start, end, now)
    }

    /// Whether a range, which lies in whole pages, is not to be looked at, or waits and was not executable a moment ago.
    pub fn has_put_off(&self, (start, end): (u64, u64), pages: &Range<u64>, now: u64) -> bool {
        let mut table = lock(&self.table);
        if self.shown.show_if_declined(&table, start, end, now) {
            return true;
        }
        let was_looked_at = |wait: &mut Wait| now.saturating_sub(wait.looked) < NOT_NOW;
        let waits = table.waits_at(pages.start, pages.end).is_some_and(was_looked_at);
        if waits {
            self.shown.show(table.decline(pages.start, pages.end, now, NOT_NOW), now);
        }
        waits
    }

    /// A range is not to be looked at for a time.
    pub fn decline(&self, range: &Range<u64>, now: u64, pause: u64) {
        let mut table = lock(&self.table);
        self.shown.show(table.decline(range.start, range.end, now, pause), now);
    }

    /// Whole pages wait until they can be executed. False if there is no room for more.
    pub fn wait(&self, pages: &Range<u64>, now: u64) -> bool {
        self.change(|table| table.wait(pages.start, pages.end, now))
    }

    /// Takes out what is to be looked at before some time.
    pub fn take_due(&self, before: u64) -> Vec<Wait> {
        self.change(|Table { waiting, .. }| {
            let mut taken = Vec::new();
            if taken.try_reserve(waiting.len()).is_ok() {
                taken.extend(waiting.extract_if(.., |wait| wait.next <= before));
            }
            taken
        })
    }

    /// Puts back what still waits.
    pub fn put_back(&self, mut wait: Wait, now: u64) {
        wait.next = now.saturating_add(wait.pause);
        wait.pause = (2 * wait.pause).min(LAST_PAUSE);
        self.change(|Table { waiting, .. }| {
            if waiting.try_reserve(1).is_ok() {
                waiting.push(wait);
            }
        });
    }

    /// Where memory begins that has waited for long, each once.
    pub fn next_long(&self, now: u64) -> Option<u64> {
        let is_long = |wait: &&mut Wait| !wait.is_counted && now.saturating_sub(wait.since) >= LONG;
        lock(&self.table).waiting.iter_mut().find(is_long).map(|wait| {
            wait.is_counted = true;
            wait.start
        })
    }

    /// Whether memory that begins there has not been counted before as not adopted.
    pub fn is_first_refusal(&self, start: u64) -> bool {
        lock(&self.table).counted.insert(start, 0).is_none()
    }

    /// A range of whole pages is about to be unmapped: what is mapped there later is other memory.
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
            table.declined.retain(|range| range.end <= start || end <= range.start);
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
    fn decline(&mut self, start: u64, end: u64, now: u64, pause: u64) -> Declined {
        self.declined.retain(|range| now < range.until);
        if self.declined.len() >= MOST_DECLINED {
            self.declined.pop_front();
        }
        let range = Declined { start, end, until: now.saturating_add(pause) };
        if self.declined.try_reserve(1).is_ok() {
            self.declined.push_back(range);
        }
        range
    }

    /// What these pages are a part of from now on. A code cache is filled from one end to the other.
    fn waits_at(&mut self, start: u64, end: u64) -> Option<&mut Wait> {
        let wait = self.waiting.iter_mut().find(|wait| start <= wait.end && wait.start <= end)?;
        (wait.start, wait.end) = (wait.start.min(start), wait.end.max(end));
        Some(wait)
    }

    fn wait(&mut self, start: u64, end: u64, now: u64) -> bool {
        if let Some(wait) = self.waits_at(start, end) {
            wait.looked = now;
            return true;
        }
        if self.waiting.len() >= MOST_WAITING || self.waiting.try_reserve(1).is_err() {
            return false;
        }
        let (since, looked, next, pause) = (now, now, now, FIRST_PAUSE);
        self.waiting.push(Wait { start, end, first_end: end, since, looked, next, pause, is_counted: false });
        true
    }
}

/// What all threads know without a lock of the ranges that are not looked at.
#[derive(Debug)]
struct Shown {
    used: AtomicUsize,
    /// Start, end and time. That is 0 while they are changed.
    places: [[AtomicU64; 3]; SHOWN],
}

impl Default for Shown {
    fn default() -> Shown {
        Shown { used: AtomicUsize::new(0), places: [const { [const { AtomicU64::new(0) }; 3] }; SHOWN] }
    }
}

impl Shown {
    fn has(&self, start: u64, end: u64, now: impl Fn() -> u64) -> bool {
        let used = self.used.load(Ordering::Acquire).min(SHOWN);
        self.places[..used].iter().filter_map(read).any(|range| range.holds(start, end, 0) && now() < range.until)
    }

    fn show_if_declined(&self, table: &Table, start: u64, end: u64, now: u64) -> bool {
        let found = table.declined.iter().find(|range| range.holds(start, end, now));
        found.map(|&range| self.show(range, now)).is_some()
    }

    /// To be called by one thread at a time.
    fn show(&self, range: Declined, now: u64) {
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

    fn forget(&self, start: u64, end: u64) {
        for [from, to, until] in &self.places {
            if from.load(Ordering::Relaxed) < end && start < to.load(Ordering::Relaxed) {
                until.store(0, Ordering::Relaxed);
            }
        }
    }
}

fn read([start, end, until]: &[AtomicU64; 3]) -> Option<Declined> {
    let time = until.load(Ordering::Acquire);
    let range = Declined { start: start.load(Ordering::Relaxed), end: end.load(Ordering::Relaxed), until: time };
    fence(Ordering::Acquire);
    (time != 0 && until.load(Ordering::Relaxed) == time).then_some(range)
}

#[cfg(test)]
mod tests;
