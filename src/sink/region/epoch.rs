//! Epochs: the file of a region gets another name, and perf is told. So code in the place of dead code has its own name.
//!
//! Epochs share a file, as names of it (hard links), as long as no code takes the place of code that has died. When some does,
//! the writer puts what the file said until then under the names of the epochs in which the dead code ran. The file
//! continues with the rest: a split.
//!
//! perf takes a name when memory is mapped, or when its protection changes. With two views, and where memory is writable and
//! executable at once, the thread that registers code gives the next name and tells perf. Where the host changes the protection,
//! its own `mprotect` tells perf, which may be long before it registers the code. So the name changes when code dies.

use std::sync::atomic::Ordering;

use super::code_marks::EPOCH_MOST;
use super::file_names::can_begin_at_code;
use super::naming::{Archive, Naming};
use super::state::{Backing, Region};
use crate::queue::status::Status;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};
use crate::sys::panic_guard;
use crate::sys::thread::undisturbed;

/// How many archives may wait for the writer, and for how many functions in all: each one copies what the file says of them.
const PENDING_MOST: u64 = 256;
const COPIED_MOST: u64 = 4 << 20;

/// A file has at most this number of names.
const NAMES_MOST: usize = 4096;

/// A file gets another name in spite of this many files of a dead process.
const LEFT_MOST: u32 = 256;

/// Code that is registered within this number of nanoseconds after an epoch began may have been told of under the name before.
const SETTLE_TIME: u64 = 20_000_000;

/// A turn costs a copy of what the file says. perf takes some samples between two.
const TURN_PAUSE: u64 = 10_000_000;

/// Within this number of nanoseconds perf has probably taken no sample: the next epoch begins where this one does.
const BRIEF: u64 = 300_000;

/// Deaths with no registration between them share a name for this number of nanoseconds.
const SHARED: u64 = 10_000_000;

impl Region {
    /// Whether the host changes the protection of the memory, which tells perf of names.
    pub(super) fn flips(&self) -> bool {
        matches!(self.kind, Backing::Private { never_flips: false, .. })
    }

    /// Code in a range has died. Returns since which epoch it is dead.
    pub(super) fn dead_since(&self, status: &Status) -> u32 {
        let last = self.epoch.load(Ordering::Relaxed);
        if !self.flips() || self.pages.are_of_group() {
            // The next one begins when code is registered there; in a mapping group, none does.
            return last + 1;
        }
        let now = status.clock.now();
        let is_in_use = self.is_in_use.swap(false, Ordering::Relaxed);
        if is_in_use || now > self.named_at.load(Ordering::Relaxed).saturating_add(SHARED) {
            undisturbed(|| {
                if self.is_to_turn(now) {
                    self.turn(status, now, last, SETTLE_TIME);
                } else {
                    self.rename(status, now, last, false);
                }
            });
        }
        self.epoch.load(Ordering::Relaxed)
    }

    /// Code is about to be registered in the place of code that is dead since an epoch.
    #[cold]
    pub(super) fn replace(&self, status: &Status, addr: u64, size: u64, since: u32) {
        let now = status.clock.now();
        if self.pages.are_of_group() || now < self.not_before.load(Ordering::Relaxed) {
            status.counters.region_late.add(1);
            if self.is_archiving() {
                undisturbed(|| self.make_due(&mut self.naming(), now));
            }
            return;
        }
        undisturbed(|| {
            let last = self.epoch.load(Ordering::Relaxed);
            if since <= last {
                self.split(status, since, 0, false);
                self.naming().is_reused = true;
                return;
            }
            self.turn(status, now, last, 0);
            if let Backing::Private { .. } = self.kind {
                self.announce(addr, size);
            }
        });
    }

    /// Code has been registered over live code, which only the writer knows. Returns the time of the split, if it can tell perf.
    pub fn replace_live(&self, status: &Status) -> Option<u64> {
        let (now, last) = (status.clock.now(), self.epoch.load(Ordering::Relaxed));
        let is_new = matches!(self.kind, Backing::TwoViews { .. }) || self.flips();
        let may = !self.pages.are_of_group() && is_new && now >= self.not_before.load(Ordering::Relaxed);
        may.then(|| self.turn(status, now, last, 0)).flatten()
    }

    /// Tells perf the name of the file, for memory that is still writable and executable at the same time.
    pub(super) fn announce(&self, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr / page * page, (addr + size).next_multiple_of(page));
        let maps = maps::within(start, end).unwrap_or_default();
        let rwx = READ_WRITE | READ_EXEC;
        let is_rwx = |piece: Mapping| piece.start <= start && end <= piece.end && piece.protection == rwx;
        if !panic_guard::is_beside_host() && self.mapped_in(&maps).any(is_rwx) {
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
    /// `__report_module`), with others that of the file. So two names in turn make each epoch begin at another place than the
    /// one before, though nothing moves.
    pub(super) fn can_begin_at_code(&self, naming: &Naming) -> bool {
        let is_whole = self.text() > 0 && !self.pages.any_lost(self.start(), self.end());
        is_whole && naming.path.parent().is_some_and(can_begin_at_code)
    }

    /// Whether the next epoch is to begin at another place, in memory whose protection the host changes. There a mapping may
    /// be a part of the memory, whose beginning says nothing. So nothing changes before code has taken the place of dead code.
    fn is_to_turn(&self, now: u64) -> bool {
        let naming = self.naming();
        let (can, is_at_code, is_reused) = (self.can_begin_at_code(&naming), naming.begins_at_code(), naming.is_reused);
        let has_paused = now > naming.turned_at.saturating_add(TURN_PAUSE);
        drop(naming);
        if now < self.not_before.load(Ordering::Relaxed) {
            return false;
        }
        if !can || !has_paused || !(is_at_code || is_reused) {
            return is_at_code && !can;
        }
        // To look takes reading what is mapped.
        let turns = is_at_code && is_reused || self.executes_in_one_piece() != is_at_code;
        if !turns {
            self.naming().turned_at = now;
        }
        turns
    }

    /// Whether all that is executable is one mapping, which begins where the code does.
    pub(super) fn executes_in_one_piece(&self) -> bool {
        let maps = maps::within(self.start(), self.end()).unwrap_or_default();
        let mut executable = self.mapped_in(&maps).filter(Mapping::is_executable);
        executable.next().is_some_and(|first| first.start == self.start()) && executable.next().is_none()
    }

    /// Begins an epoch after `last`, at another place if it can, for which the file does not say what it says now.
    fn turn(&self, status: &Status, now: u64, last: u32, settle_time: u64) -> Option<u64> {
        let is_named = self.rename(status, now, last, true);
        is_named
            .then(|| self.split(status, self.epoch.load(Ordering::Relaxed), settle_time, settle_time == 0))
            .flatten()
    }

    /// Begins an epoch after `last`, at another place if it `turns` and can. False if there is none.
    fn rename(&self, status: &Status, now: u64, last: u32, turns: bool) -> bool {
        let mut naming = self.naming();
        if self.epoch.load(Ordering::Relaxed) != last {
            // Another thread was faster.
            return true;
        }
        let dir = if naming.names.len() < NAMES_MOST { naming.dir().ok() } else { None };
        let was_at_code = naming.begins_at_code();
        // A turn without a split would leave names of both kinds to one file.
        // Nor would perf know of a beginning in which it has taken no sample: it would keep the tables of the one before.
        let turns = turns && Self::has_room(status, &naming) && now > naming.turned_at.saturating_add(BRIEF);
        let at_code = if turns { !was_at_code && self.can_begin_at_code(&naming) } else { was_at_code };
        let name_of = |epoch| naming.name_of(epoch, at_code);
        let fresh = dir.and_then(|dir| {
            // Something of that name may be left of a dead process, and would be lost by renaming.
            let mut numbers = last + 1..(last + LEFT_MOST).min(EPOCH_MOST);
            let epoch = numbers.find(|&epoch| dir.look(&name_of(epoch)).is_err())?;
            let (old, fresh) = (naming.name().to_owned(), name_of(epoch));
            dir.rename(&old, &fresh).ok()?;
            // Where a file can have one name only, the old one is missing until the split.
            let _ = dir.link(&fresh, &old);
            Some((epoch, old, fresh))
        });
        let Some((epoch, old, fresh)) = fresh else {
            status.counters.region_late.add(1);
            return false;
        };
        if at_code != was_at_code {
            (naming.is_reused, naming.turned_at) = (false, now);
        }
        naming.path.set_file_name(&fresh);
        naming.names.push_back((last, old));
        if let Ok(file) = naming.file() {
            let sharing = if let Backing::TwoViews { .. } = self.kind { Sharing::Shared } else { Sharing::Private };
            let _ = self.place.map_tables(sharing, &file);
            if let Backing::TwoViews { .. } = self.kind {
                let (start, len) = (self.start(), self.len());
                // SAFETY: the range is this region's, and shows the same part of the same file already.
                let _ = unsafe { code_memory::map_over(start, len, READ_EXEC, sharing, &file, self.text()) };
            }
        }
        self.named_at.store(now, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Release);
        status.counters.region_generations.add(1);
        true
    }

    /// Whether one more split may wait for the writer.
    fn has_room(status: &Status, naming: &Naming) -> bool {
        let most = (COPIED_MOST / status.counters.live.get().max(1)).clamp(2, PENDING_MOST);
        (naming.archives.len() as u64) < most
    }

    /// What the file says now is for the epochs before `first`; the rest is for that one, and later ones.
    /// Returns when that was. The writer may let `settle_time` pass first.
    fn split(&self, status: &Status, first: u32, settle_time: u64, is_clean: bool) -> Option<u64> {
        let mut naming = self.naming();
        // The caller's code is stamped later.
        let now = status.clock.now();
        if settle_time == 0 {
            // Code comes in the place of dead code: what waits has to be seen to before.
            self.make_due(&mut naming, now);
        }
        let is_waiting = naming.archives.back().is_some_and(|last| last.first >= first);
        let has_names = naming.names.front().is_some_and(|&(epoch, _)| epoch < first);
        let is_new = self.first.load(Ordering::Relaxed) < first && !is_waiting && has_names;
        if is_new {
            if !Self::has_room(status, &naming) {
                status.counters.region_late.add(1);
                return None;
            }
            let begin = if naming.begins_at_code() { self.text() } else { 0 };
            naming.archives.push_back(Archive { time: now, due: now + settle_time, first, begin, is_clean });
            self.not_before.fetch_max(now + self.pause.load(Ordering::Relaxed), Ordering::Relaxed);
            self.splits_at.store(naming.next_time(), Ordering::Release);
        }
        if settle_time == 0 {
            self.first.fetch_max(first, Ordering::Release);
        }
        (is_new || is_waiting).then_some(now)
    }

    /// The writer sees to all that waits before it comes to what is registered from now on.
    fn make_due(&self, naming: &mut Naming, now: u64) {
        naming.archives.iter_mut().for_each(|split| split.due = split.due.min(now));
        self.splits_at.store(naming.next_time(), Ordering::Release);
    }

    /// Whether the writer has a split to see to.
    pub fn is_archiving(&self) -> bool {
        self.splits_at.load(Ordering::Acquire) != NEVER
    }

    /// The next split that is due before a time, for the writer.
    pub fn next_archive(&self, before: u64) -> Option<Archive> {
        if self.splits_at.load(Ordering::Acquire) > before {
            return None;
        }
        self.take_archive(|split| split.due <= before)
    }

    /// The next split that was made before a time, due or not.
    pub fn next_archive_made(&self, before: u64) -> Option<Archive> {
        if !self.is_archiving() {
            return None;
        }
        self.take_archive(|split| split.time <= before)
    }

    fn take_archive(&self, is_wanted: impl Fn(&Archive) -> bool) -> Option<Archive> {
        let mut naming = self.naming();
        let first = if naming.archives.front().is_some_and(is_wanted) { naming.archives.pop_front() } else { None };
        self.splits_at.store(naming.next_time(), Ordering::Release);
        first
    }
}
