//! Generations: the file of a region gets another name, and perf is told. So code in the place of dead code has its own name.

use std::ffi::OsString;
use std::sync::atomic::Ordering;

use super::state::{Backing, Region};
use super::{lock, slides, undisturbed, Switch, NEVER};
use crate::queue::status::Status;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};

/// How many generations may wait for the writer.
const PENDING_MOST: usize = 256;

/// A file gets another name in spite of this many files of a dead process.
const LEFT_MOST: usize = 256;

impl Region {
    /// Gives the file another name, and tells perf; but not before the writer can keep up. `code` is the range that the calling
    /// thread is about to register.
    #[cold]
    pub fn switch(&self, status: &Status, code: Option<(u64, u64)>) {
        if code.is_none() && matches!(self.kind, Backing::Private { never_flips: true, .. }) {
            return;
        }
        let now = status.clock.now();
        if now < self.not_before.load(Ordering::Relaxed) {
            status.counters.region_late.add(1);
            return;
        }
        undisturbed(|| {
            self.rename(status, now);
            if let (Backing::Private { .. }, Some((addr, size))) = (self.kind, code) {
                self.announce_tables();
                self.announce(addr, size);
            }
        });
    }

    /// Tells perf the name of the file for the tables. It looks for them in the mapping of the file that the code is in, and
    /// reckons from where the lowest one begins (linux tools/perf/util/unwind-libunwind-local.c, `read_unwind_spec_eh_frame`).
    pub(super) fn announce_tables(&self) {
        let mut naming = lock(&self.naming);
        if let Ok(file) = naming.file() {
            // SAFETY: the range is this region's; it shows the same part of the same file already, which nobody reads there.
            let _ = unsafe { code_memory::map_over(self.base, self.tables_len, READ_EXEC, Sharing::Private, &file, 0) };
        }
    }

    /// Tells perf the name of the file, for memory that is still writable and executable at the same time.
    pub(super) fn announce(&self, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr / page * page, (addr + size).next_multiple_of(page));
        let maps = maps::within(start, end).unwrap_or_default();
        let rwx = READ_WRITE | READ_EXEC;
        let is_rwx = |piece: Mapping| piece.start <= start && end <= piece.end && piece.protection == rwx;
        if self.mapped_in(&maps).any(is_rwx) {
            // perf is told by `mprotect` if that changes anything. Writable pages are readable too on each of our processors
            // (linux mm, `protection_map`): nobody misses the right to read. At its return the mapping is one again, and
            // perf is told of all of it.
            // SAFETY: the pages hold code that the caller is about to register: nobody unmaps them now. They are ours, and no
            // thread makes a forbidden access meanwhile.
            let _ = unsafe {
                code_memory::protect(start, end - start, rwx & !libc::PROT_READ)
                    .and_then(|()| code_memory::protect(start, end - start, rwx))
            };
        }
    }

    fn rename(&self, status: &Status, now: u64) {
        let mut naming = lock(&self.naming);
        if naming.switches.len() >= PENDING_MOST {
            status.counters.region_late.add(1);
            return;
        }
        let old = naming.name().to_owned();
        let fresh = naming.dir().ok().and_then(|dir| {
            let name_of = |generation: u32| OsString::from(format!("{}.{generation}.so", naming.stem));
            // Something of that name may be left of a dead process, and would be lost by renaming.
            let mut numbers = (naming.generation + 1..).take(LEFT_MOST);
            let generation = numbers.find(|&generation| dir.look(&name_of(generation)).is_err())?;
            let fresh = name_of(generation);
            dir.rename(&old, &fresh).ok().map(|()| (generation, fresh))
        });
        let Some((generation, fresh)) = fresh else {
            status.counters.region_late.add(1);
            return;
        };
        naming.generation = generation;
        naming.path.set_file_name(&fresh);
        let mut begin = 0;
        if let (Backing::TwoViews { .. }, Ok(file)) = (self.kind, naming.file()) {
            begin = if slides::is_slid(&naming.path) { slides::begin_of(generation, self.max_len) } else { 0 };
            let (end, page) = (self.text() + self.len(), page_size() as u64);
            // SAFETY: the range is this region's. Of what is used of it, all but the header page shows the same part of the same
            // file already, and the tables are for nobody in this process.
            let _ = unsafe {
                if begin > 0 {
                    // Else the kernel makes one mapping of both.
                    let _ = code_memory::reserve_over(self.base, begin);
                    let _ = code_memory::map_over(self.base, page, READ_EXEC, Sharing::Shared, &file, 0);
                }
                code_memory::map_over(self.base + begin, end - begin, READ_EXEC, Sharing::Shared, &file, begin)
            };
        }
        // Code that is registered after this is stamped later: the time from before is safe.
        naming.switches.push_back(Switch { time: now, old, begin });
        self.switched.store(naming.next_time(), Ordering::Release);
        self.generation.fetch_add(1, Ordering::Release);
        status.counters.region_generations.add(1);
    }

    /// Whether the writer has a switch to see to.
    pub fn is_switching(&self) -> bool {
        self.switched.load(Ordering::Acquire) != NEVER
    }

    /// The next switch before a time, for the writer.
    pub fn next_switch(&self, before: u64) -> Option<Switch> {
        if self.switched.load(Ordering::Acquire) > before {
            return None;
        }
        let mut naming = lock(&self.naming);
        let is_before = naming.switches.front().is_some_and(|switch| switch.time <= before);
        let first = if is_before { naming.switches.pop_front() } else { None };
        self.switched.store(naming.next_time(), Ordering::Release);
        first
    }
}
