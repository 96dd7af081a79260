//! Generations: the file of a region gets another name, and perf is told. So code in the place of dead code has its own name.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::create::map_tables;
use super::naming::Naming;
use super::state::{Backing, Region};
use super::{lock, undisturbed, Switch, NEVER};
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

    /// Tells perf the name of the file for the tables.
    pub(super) fn announce_tables(&self) {
        if let Ok(file) = lock(&self.naming).file() {
            let _ = map_tables(self.base, self.start, &self.tables, Sharing::Private, &file);
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

    /// perf 7 (its libdw) keeps one table of found objects for a process, by where they begin. With a path that begins with
    /// `/tmp/jitted-` it takes the beginning of the mapping for that of the object (linux tools/perf/util/unwind-libdw.c,
    /// `__report_module`), with others that of the file. So two names in turn make each generation begin at another place than the
    /// one before, though nothing moves. The mapping of private memory may be a part of it, whose beginning says nothing.
    fn can_begin_at_code(&self, naming: &Naming) -> bool {
        matches!(self.kind, Backing::TwoViews { .. }) && naming.path.parent() == Some(Path::new("/tmp"))
    }

    fn rename(&self, status: &Status, now: u64) {
        let mut naming = lock(&self.naming);
        if naming.switches.len() >= PENDING_MOST {
            status.counters.region_late.add(1);
            return;
        }
        let old = naming.name().to_owned();
        let fresh = naming.dir().ok().and_then(|dir| {
            let name_of = |generation| naming.name_of(generation, self.can_begin_at_code(&naming));
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
            begin = if naming.begins_at_code() { self.text() } else { 0 };
            let _ = map_tables(self.base, self.start, &self.tables, Sharing::Shared, &file);
            // SAFETY: the range is this region's, and shows the same part of the same file already.
            let _ = unsafe {
                code_memory::map_over(self.start, self.len(), READ_EXEC, Sharing::Shared, &file, self.text())
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
