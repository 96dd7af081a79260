//! Begins epochs: periods in which a region's file has one name. When new code replaces dead code, the library gives the file
//! another name, which perf records, so that perf does not attribute samples of the new code to the dead code.
//!
//! As long as no code replaces dead code, the names of several epochs are hard links to one file. When code replaces dead code,
//! the file is *split*: the writer copies the file's earlier contents, and gives the copy the names of the epochs in which the
//! dead code ran. The file itself then describes only the epochs in which the new code can run.
//!
//! perf learns the name of a file when a process maps the file, or changes the protection of a mapping of the file. If a region
//! has two views, or if the memory is writable and executable at the same time, the registration of the new code renames the
//! file and makes perf learn the new name. If the host changes the protection of the memory, perf learns the new name from the
//! host's own `mprotect`. The host may call `mprotect` long before it registers the new code, and the file must already have
//! the new name at this time. So in this case, the library renames the file as soon as code dies.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::code_marks::EPOCH_MOST;
use super::file_names::can_begin_at_code;
use super::naming::{Archive, Naming};
use super::state::{Backing, Region};
use crate::queue::status::Status;
use crate::sys::attributes::Attributes;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::file;
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};
use crate::sys::panic_guard;
use crate::sys::thread::undisturbed;

/// The maximum number of splits of one region that wait for the writer.
const PENDING_MOST: u64 = 256;
/// The limit for a product: the number of waiting splits of one region, multiplied by the number of live functions. The limit
/// exists because each split makes a copy of the file, which describes all live functions. Two splits may always wait, even if
/// the product exceeds the limit.
const COPIED_MOST: u64 = 4 << 20;

/// The maximum number of older names of a file.
const NAMES_MOST: usize = 4096;

/// A dead process with the same pid may have left files with the next epoch numbers. Fewer than this number of epoch numbers
/// are tried for a new name.
const LEFT_MOST: u32 = 256;

/// perf may show code under the file's earlier name if the code is registered within this number of nanoseconds after the
/// beginning of an epoch.
const SETTLE_TIME: u64 = 20_000_000;

/// When code dies, a turn (see `turn`) begins only if the last turn is more than this number of nanoseconds ago, because the
/// writer copies the file for each turn. During the pause, perf takes some samples.
const TURN_PAUSE: u64 = 10_000_000;

/// A time in nanoseconds in which perf probably takes no sample. The object's beginning does not move twice within this time.
const BRIEF: u64 = 300_000;

/// When code dies, a new epoch usually begins. No new epoch is needed if perf has probably taken no sample of the code in the
/// present epoch: the code then counts as dead since the beginning of the present epoch. This is so if no code has been
/// registered in the epoch, the epoch is at most this number of nanoseconds old, and other code has died at most `BRIEF`
/// nanoseconds ago.
const SHARED: u64 = 10_000_000;

impl Region {
    /// Whether the host changes the protection of the memory. perf learns the present name of the file from each change.
    pub(super) fn flips(&self) -> bool {
        matches!(self.kind, Backing::Private { never_flips: false, .. })
    }

    /// Returns the first epoch in which code that has just died counts as dead. If the host changes the protection of the
    /// memory, this call may begin the returned epoch.
    pub(super) fn dead_since(&self, status: &Status) -> u32 {
        let last = self.epoch.load(Ordering::Relaxed);
        if !self.flips() || self.pages.are_of_group() {
            // The next epoch begins later, when code is registered over dead code. A mapping group has no epochs.
            return last + 1;
        }
        let now = status.clock.now();
        let is_after = |time: &AtomicU64, pause| now > time.load(Ordering::Relaxed).saturating_add(pause);
        let is_in_use = self.is_in_use.swap(false, Ordering::Relaxed);
        // A child that was forked since the epoch began may run the code that dies now, under the epoch's name.
        if is_in_use || self.sharing.has_forked() || is_after(&self.named_at, SHARED) || is_after(&self.died_at, BRIEF)
        {
            undisturbed(|| {
                if self.is_to_turn(now) {
                    self.turn(status, now, last, SETTLE_TIME);
                } else {
                    self.rename(status, now, last, false);
                }
            });
        }
        self.died_at.store(status.clock.now(), Ordering::Relaxed);
        self.epoch.load(Ordering::Relaxed)
    }

    /// Splits the file before new code is registered over dead code. Without the split, perf would attribute samples of the new
    /// code to the dead code. `since` is the first epoch in which the old code is dead. If this epoch has not begun yet, begins
    /// a new epoch.
    #[cold]
    pub(super) fn replace(&self, status: &Status, addr: u64, size: u64, since: u32) {
        self.sharing.is_changed();
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

    /// For the writer, when code was registered over live code: begins an epoch and splits the file, if perf can learn a new
    /// name. Returns the time of the split.
    pub fn replace_live(&self, status: &Status) -> Option<u64> {
        self.sharing.is_changed();
        let (now, last) = (status.clock.now(), self.epoch.load(Ordering::Relaxed));
        let is_new = matches!(self.kind, Backing::TwoViews { .. }) || self.flips();
        let may = !self.pages.are_of_group() && is_new && now >= self.not_before.load(Ordering::Relaxed);
        may.then(|| self.turn(status, now, last, 0)).flatten()
    }

    /// Makes perf learn the present name of the file, by changing the protection of the memory for a moment. Does nothing if
    /// the memory is no longer writable and executable at the same time.
    pub(super) fn announce(&self, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr / page * page, (addr + size).next_multiple_of(page));
        let maps = maps::within(start, end).unwrap_or_default();
        let rwx = READ_WRITE | READ_EXEC;
        let is_rwx = |piece: Mapping| piece.start <= start && end <= piece.end && piece.protection == rwx;
        if !panic_guard::is_beside_host() && self.mapped_in(&maps).any(is_rwx) {
            // The first `mprotect` removes the right to read. On the supported processors, writable pages stay readable (linux
            // mm, `protection_map`), so reads of the pages do not fault. The second `mprotect` makes the pages and their
            // neighbours one mapping again, and perf records this whole mapping, with the name of the file.
            // SAFETY: the pages contain code that the caller is about to register, so nobody unmaps them now. The pages belong
            // to this region, and between the two calls other threads can still read, write and execute the pages.
            let _ = unsafe {
                code_memory::protect(start, end - start, rwx & !libc::PROT_READ)
                    .and_then(|()| code_memory::protect(start, end - start, rwx))
            };
        }
    }

    /// Whether the file may have a name that makes the object begin at the code.
    ///
    /// perf 7 uses libdw, which keeps one table of the objects of a process and finds an object by the address where it begins.
    /// If a file's path begins with `/tmp/jitted-`, perf assumes that the object begins where the mapping begins (linux
    /// tools/perf/util/unwind-libdw.c, `__report_module`). For all other paths, perf assumes that the object begins where the
    /// first byte of the file would be mapped. The library alternates between paths that begin with `/tmp/jitted-` and other
    /// paths (see `turn`). Each change between the two kinds of paths moves the beginning of the object to another address,
    /// although no memory moves.
    pub(super) fn can_begin_at_code(&self, naming: &Naming) -> bool {
        let is_whole = self.text() > 0 && !self.pages.any_lost(self.start(), self.end());
        is_whole && naming.path.parent().is_some_and(can_begin_at_code)
    }

    /// Whether the object should begin at another address in the next epoch. Only used for memory whose protection the host
    /// changes. A change of a part of the region makes a separate mapping, which may begin in the middle of the region. So the
    /// object's beginning stays the same until code replaces dead code.
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
        // `executes_in_one_piece` is called last, because it reads the list of mappings from /proc.
        let turns = is_at_code && is_reused || self.executes_in_one_piece() != is_at_code;
        if !turns {
            self.naming().turned_at = now;
        }
        turns
    }

    /// Whether the executable part of the region is a single mapping that begins where the code begins.
    pub(super) fn executes_in_one_piece(&self) -> bool {
        let maps = maps::within(self.start(), self.end()).unwrap_or_default();
        let mut executable = self.mapped_in(&maps).filter(Mapping::is_executable);
        executable.next().is_some_and(|first| first.start == self.start()) && executable.next().is_none()
    }

    /// Begins an epoch after `last`, in which the object begins at another address if possible. Then splits the file, so that
    /// the present contents of the file describe the epochs before the new epoch. Returns the time of the split.
    fn turn(&self, status: &Status, now: u64, last: u32, settle_time: u64) -> Option<u64> {
        let is_named = self.rename(status, now, last, true);
        is_named
            .then(|| self.split(status, self.epoch.load(Ordering::Relaxed), settle_time, settle_time == 0))
            .flatten()
    }

    /// Begins an epoch after `last`. If `turns` is true, moves the beginning of the object if possible. Returns false if no
    /// epoch could begin.
    fn rename(&self, status: &Status, now: u64, last: u32, turns: bool) -> bool {
        let mut naming = self.naming();
        if self.epoch.load(Ordering::Relaxed) != last {
            // Another thread has already begun an epoch after `last`.
            return true;
        }
        let dir = if naming.names.len() < NAMES_MOST { naming.dir().ok() } else { None };
        let was_at_code = naming.begins_at_code();
        // The object's beginning moves only if there is room for a split, and if perf has had enough time to take a sample
        // since the previous move. Without a split, one file would have both a name for the old beginning and a name for the
        // new beginning. Without a sample since the previous move, perf would continue to use the tables that it read before
        // the previous move.
        let turns = turns && self.has_room(status, &mut naming, now) && now > naming.turned_at.saturating_add(BRIEF);
        let at_code = if turns { !was_at_code && self.can_begin_at_code(&naming) } else { was_at_code };
        let name_of = |epoch| naming.name_of(epoch, at_code);
        let fresh = dir.and_then(|dir| {
            // A dead process may have left a file with the new name, which the call of `rename` would overwrite.
            let mut numbers = last + 1..(last + LEFT_MOST).min(EPOCH_MOST);
            let epoch = numbers.find(|&epoch| dir.look(&name_of(epoch)).is_err())?;
            let (old, fresh) = (naming.name().to_owned(), name_of(epoch));
            dir.rename(&old, &fresh).ok()?;
            // An error is ignored: on a file system without hard links, the old name is missing until the split.
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
        let shown = naming.file().and_then(|file| {
            let two_views = matches!(self.kind, Backing::TwoViews { .. });
            let sharing = if two_views { Sharing::Shared } else { Sharing::Private };
            let tables = self.place.map_tables(sharing, &file, |range| self.owns(range));
            if two_views {
                self.map_code(&file, self.end() - page_size() as u64, self.end())?;
            }
            tables
        });
        if shown.is_err() {
            // For the mapping of the code or of the tables, perf does not learn the new name. perf 6 finds the tables only if it
            // knows both mappings under the same name.
            status.counters.region_late.add(1);
        }
        self.named_at.store(now, Ordering::Relaxed);
        self.sharing.is_renamed();
        self.epoch.store(epoch, Ordering::Release);
        status.counters.region_generations.add(1);
        true
    }

    /// Maps the executable view of a region with two views again, from `from` to `end`, so that perf learns the present name of
    /// the file. This call may make the view longer. Usually the kernel merges the new mapping with the rest of the view, and
    /// perf records the whole view as one mapping. If the host has locked the view, or has given advice by `madvise`, the
    /// kernel does not merge. Then the whole view is mapped again, with its former attributes. On some file systems
    /// (overlayfs), the kernel never merges mappings. There, the attributes are looked up only if the view is locked, because a
    /// look-up in each call would take too long.
    pub(super) fn map_code(&self, file: &File, from: u64, end: u64) -> io::Result<()> {
        let (start, old, protection) = (self.start(), self.len(), self.exec.load(Ordering::Relaxed));
        let map = |from: u64| {
            let offset = self.text() + (from - start);
            // SAFETY: the range belongs to this region. If the range is in use, it already shows this part of this file, so the
            // contents of the memory do not change.
            unsafe { code_memory::map_over(from, end - from, protection, Sharing::Shared, file, offset) }
        };
        if self.never_merges.load(Ordering::Relaxed) && !code_memory::has_locked(start, old) {
            return map(start);
        }
        let is_alike = from > start && code_memory::is_one_mapping(start, old);
        if is_alike {
            map(from)?;
            if code_memory::is_one_mapping(start, end - start) {
                return Ok(());
            }
        }
        let known = self.mapped().and_then(|mut pieces| {
            if let Some(first) = pieces.first_mut().filter(|_| is_alike) {
                // `map(from)` has just mapped the last pages again. Before `map(from)`, the whole view was one mapping, so the
                // last pages had the attributes of the first piece.
                first.end = start + old;
                pieces.truncate(1);
            }
            maps::look_up_attributes(&mut pieces).map(|()| pieces)
        });
        let pieces = match known {
            Err(error) if code_memory::has_locked(start, old) => return Err(error),
            // If the process cannot read `/proc`, the view is mapped without its attributes. At worst, the advice that the host
            // has given by `madvise` is lost.
            known => known.unwrap_or_default(),
        };
        if !pieces.is_empty() && pieces.iter().all(|piece| piece.attributes == Attributes::default()) {
            self.never_merges.store(true, Ordering::Relaxed);
        }
        map(start)?;
        pieces.iter().for_each(|piece| piece.attributes.give(piece.start, piece.end - piece.start, protection));
        Ok(())
    }

    /// Whether another split may wait for the writer, and whether there is room for another copy of the file.
    fn has_room(&self, status: &Status, naming: &mut Naming, now: u64) -> bool {
        let most = (COPIED_MOST / status.counters.live.get().max(1)).clamp(2, PENDING_MOST);
        (naming.archives.len() as u64) < most && self.room.has(self.copy_bytes(naming), now)
    }

    /// The probable size, in bytes, of the next copy of the file.
    fn copy_bytes(&self, naming: &mut Naming) -> u64 {
        let last = self.copy_bytes.load(Ordering::Relaxed);
        if last > 0 {
            return last;
        }
        let Ok(file) = naming.file() else { return 0 };
        let bytes = file.metadata().map_or(0, |data| data.blocks() * 512);
        // The copy does not contain the text. In the file, the text takes no room if the memory is private and the file is on a
        // disk.
        bytes.saturating_sub(if self.is_private() && file::is_on_disk(&file) { 0 } else { self.len() })
    }

    /// Splits the file: a copy of the present contents will describe the epochs before `first`, and the file itself describes
    /// the epoch `first` and later epochs. Returns the time of the split. The split is due after `settle_time` nanoseconds.
    fn split(&self, status: &Status, first: u32, settle_time: u64, is_clean: bool) -> Option<u64> {
        let mut naming = self.naming();
        // The caller registers its code after this split, so the code's time is later than `now`.
        let now = status.clock.now();
        if settle_time == 0 {
            // New code replaces dead code, and the writer must handle the waiting splits before the new code.
            self.make_due(&mut naming, now);
        }
        let is_waiting = naming.archives.back().is_some_and(|last| last.first >= first);
        let has_names = naming.names.front().is_some_and(|&(epoch, _)| epoch < first);
        let is_new = self.first.load(Ordering::Relaxed) < first && !is_waiting && has_names;
        if is_new {
            if !self.has_room(status, &mut naming, now) {
                status.counters.region_late.add(1);
                return None;
            }
            let begin = if naming.begins_at_code() { self.text() } else { 0 };
            let _expected = self.room.expect(self.copy_bytes(&mut naming));
            naming.archives.push_back(Archive { time: now, due: now + settle_time, first, begin, is_clean, _expected });
            self.not_before.fetch_max(now + self.pause.load(Ordering::Relaxed), Ordering::Relaxed);
            self.splits_at.store(naming.next_time(), Ordering::Release);
        }
        if settle_time == 0 {
            self.first.fetch_max(first, Ordering::Release);
        }
        (is_new || is_waiting).then_some(now)
    }

    /// Makes all waiting splits due, so that the writer handles these splits before any code that is registered from now on.
    fn make_due(&self, naming: &mut Naming, now: u64) {
        naming.archives.iter_mut().for_each(|split| split.due = split.due.min(now));
        self.splits_at.store(naming.next_time(), Ordering::Release);
    }

    /// Whether a split waits for the writer.
    pub fn is_archiving(&self) -> bool {
        self.splits_at.load(Ordering::Acquire) != NEVER
    }

    /// For the writer: removes and returns the next split if it is due at `before` or earlier. If `even_undue` is true, it is
    /// enough that the split was made at `before` or earlier.
    pub fn next_archive(&self, before: u64, even_undue: bool) -> Option<Archive> {
        if self.splits_at.load(Ordering::Acquire) > if even_undue { NEVER - 1 } else { before } {
            return None;
        }
        let mut naming = self.naming();
        let is_wanted = |split: &Archive| before >= if even_undue { split.time } else { split.due };
        let first = if naming.archives.front().is_some_and(is_wanted) { naming.archives.pop_front() } else { None };
        self.splits_at.store(naming.next_time(), Ordering::Release);
        first
    }
}
