//! Holds the list of the regions of a process, which the threads that register code share with the writer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::candidates::Candidates;
use super::children::Children;
use super::code_marks::Marks;
use super::lookup::Places;
use super::old_files::{Files, Past, Room, KEPT_FOR};
use super::sharing::Counters;
use super::state::{Parts, Region};
use crate::api::error::{Error, Result};
use crate::queue::status::Status;
use crate::sys::clock::{monotonic_ns, NEVER};
use crate::sys::file::{Held, Identity};
use crate::sys::fork_lock::{self, Inside};
use crate::sys::held_dir::Dir;
use crate::sys::mapping::page_size;
use crate::sys::sync::lock;
use crate::sys::sync::outside::{Mutex, MutexGuard};
use crate::sys::thread;
use crate::sys::timed_lock::{Locked, TimedLock};

/// The maximum time for which a registration waits while another thread makes or ends regions. The wait has a limit, because
/// the thread that makes or ends regions may be waiting for a disk.
const PATIENCE: Duration = Duration::from_secs(1);

/// A region counts as busy until this number of nanoseconds after `Region::not_before`. A busy region will probably begin more
/// epochs soon.
const BUSY_FOR: u64 = 1_000_000_000;

/// The regions of a process, and the settings for new regions.
#[derive(Debug, Default)]
pub struct Regions {
    /// Whether threads that register code must look for the code's region. True if regions exist, or if the library adopts
    /// unknown memory.
    watching: AtomicBool,
    adopting: AtomicBool,
    pub(super) without_files: AtomicBool,
    /// Whether new regions exist that the writer has not handled yet.
    some_new: AtomicBool,
    /// Whether the host has unmapped regions that the writer has not ended yet.
    pub(super) some_gone: AtomicBool,
    places: Places,
    pub(super) candidates: Candidates,
    pub(super) settings: Mutex<Settings>,
    changing: TimedLock<()>,
    pub(super) children: Children,
    room: Arc<Room>,
    /// Whether any region is inherited (see `inherited`).
    any_inherited: AtomicBool,
    counters: Counters,
}

/// The directory and mode of new files, and the remaining data of ended regions.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub dir: PathBuf,
    /// The directory of the last region.
    pub last_dir: Option<Arc<Dir>>,
    pub mode: u32,
    /// Whether a forked child lets regions stay mappings of its parent's files until it registers code there.
    pub lends: bool,
    /// The number in the name of the next file. If a file with this name exists, the library tries the following numbers.
    pub next_number: u32,
    /// The region that most recently got a file.
    last: Option<&'static Region>,
    pub files: Files,
    /// The ended regions, which are never freed, because a call that races with the end of a region may still read the region.
    ended: Vec<&'static Region>,
    /// Maps the base address of each ended region (see `Placement::base`) to the length of the region's code.
    pub bases: BTreeMap<u64, u64>,
    /// The writer's descriptors of the files of ended regions. Only the writer can close them.
    pub to_close: Vec<Arc<Held>>,
    /// Marks of ended regions, which new regions reuse. A call that races with the end of a region may read the marks of a new
    /// region; at worst, this begins an unnecessary epoch.
    spare_marks: Vec<Arc<Marks>>,
}

/// The thread that holds a `Changer` may make and end regions. A fork of the process waits for this thread, but only for a
/// limited time.
pub(super) struct Changer<'r> {
    _one: Locked<'r, ()>,
    _inside: Inside,
}

impl Regions {
    /// Waits while the process forks, and then while another thread makes or ends regions, each for a limited time. If the fork
    /// takes too long, the call continues during the fork. If the other thread takes too long, for example because of a slow
    /// disk, the call fails.
    pub(super) fn begin_change(&self) -> Result<Changer<'_>> {
        let inside = fork_lock::enter();
        Ok(Changer { _one: self.changing.lock_in_time().ok_or(Error::Timeout)?, _inside: inside })
    }

    /// Like `begin_change`, but does not wait for a fork, because the caller can also make the change later. Returns `None` if
    /// the process is forking, or if another thread makes or ends regions for longer than `PATIENCE`.
    pub(super) fn begin_change_unless_forking(&self) -> Option<Changer<'_>> {
        let inside = fork_lock::try_enter()?;
        Some(Changer { _one: self.changing.lock_until(Instant::now() + PATIENCE)?, _inside: inside })
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Whether a registration has to look for the region of its code.
    #[inline(always)]
    pub fn are_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// Whether the library adopts unknown memory when code is registered in it.
    pub fn are_adopting(&self) -> bool {
        self.adopting.load(Ordering::Relaxed)
    }

    /// Whether the last created region has no file.
    pub fn are_without_files(&self) -> bool {
        self.without_files.load(Ordering::Relaxed)
    }

    /// Sets the directory and the mode of the files of new regions, and whether the library adopts unknown memory.
    /// `lends`: see `Settings`.
    pub fn configure(&self, dir: PathBuf, mode: u32, adopting: bool, lends: bool) {
        {
            let mut settings = self.settings();
            (settings.dir, settings.mode, settings.lends) = (dir, mode, lends);
        }
        self.candidates.clear();
        // Code may have been registered in regions while the sink for regions did not run. The writer must now add this code to
        // the regions' files.
        self.all().for_each(|region| region.is_new.store(true, Ordering::Relaxed));
        self.adopting.store(adopting, Ordering::Relaxed);
        self.without_files.store(false, Ordering::Relaxed);
        self.watch();
    }

    fn watch(&self) {
        // The settings are locked because the writer may end a region while another thread makes a region.
        let _settings = self.settings();
        let any = self.all().next().is_some() || self.are_adopting();
        self.watching.store(any, Ordering::Release);
        self.any_inherited.store(self.all().any(Region::is_inherited), Ordering::Relaxed);
    }

    /// Whether any region is still a mapping of the parent's file.
    #[inline(always)]
    pub(super) fn has_inherited(&self) -> bool {
        self.any_inherited.load(Ordering::Relaxed)
    }

    /// All regions that have not ended.
    pub fn all(&self) -> impl Iterator<Item = &'static Region> + '_ {
        self.places.all()
    }

    /// The regions that overlap a range, except for regions that the host has unmapped.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &'static Region> + '_ {
        let overlaps = move |region: &&Region| region.start() < end && start < region.end() && region.gone() == NEVER;
        self.all().filter(overlaps)
    }

    /// Returns the region that contains a whole piece of code.
    pub(super) fn around(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.places.around(addr, |region| region.holds(addr, size))
    }

    /// Returns the region that contains a whole piece of code, if the region's file can name the code.
    pub fn find(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.around(addr, size).filter(|region| !region.has_failed.load(Ordering::Relaxed))
    }

    /// Returns each region that contains at least a part of a piece of code, with the address and the size of the part. A
    /// mapping group is included only if it contains the whole code, because the code of a group fills whole mappings.
    pub(super) fn parts(&self, addr: u64, size: u64) -> impl Iterator<Item = (&'static Region, u64, u64)> + '_ {
        let whole = self.around(addr, size);
        let may_be_part = whole.is_none() && self.may_overlap(addr, size);
        let others = may_be_part.then(|| self.overlapping(addr, addr.saturating_add(size)));
        let others = others.into_iter().flatten().filter(|region| !region.is_mapping_group());
        whole.into_iter().chain(others).filter_map(move |region| {
            let Range { start, end } = region.part_of(addr, size);
            region.holds(start, end - start).then_some((region, start, end - start))
        })
    }

    /// Quickly checks whether a part of a piece of code may lie in a region. A region that overlaps code of at most one page
    /// contains the first or the last byte of the code. For code of more than one page, the result is always true.
    fn may_overlap(&self, addr: u64, size: u64) -> bool {
        let is_in = |at| self.places.around(at, |region| region.spans(at, 1)).is_some();
        size > page_size() as u64 || is_in(addr) || is_in(addr.saturating_add(size).saturating_sub(1))
    }

    /// For the writer: returns the regions that contained a part of the code at `time`, but not the whole code.
    pub fn parts_at(&self, addr: u64, size: u64, time: u64) -> impl Iterator<Item = &'static Region> + '_ {
        let all = self.may_overlap(addr, size).then(|| self.all());
        all.into_iter().flatten().filter(move |region| {
            let Range { start, end } = region.part_of(addr, size);
            let is_part = start < end && end - start < size && !region.is_mapping_group();
            is_part
                && region.gone() > time
                && region.pages.had(start, end, time)
                && !region.has_failed.load(Ordering::Relaxed)
        })
    }

    /// Whether the file of a region names the code now, or may name the code later. While any memory waits to become executable
    /// (see `candidates`), the result is true for all code, because the waiting memory may contain the code and become a
    /// region.
    pub fn may_name(&self, addr: u64, size: u64) -> bool {
        self.parts(addr, size).next().is_some() || self.candidates.any_waits()
    }

    /// For the writer: returns the region that contained the code at `time`, when the code was registered.
    pub fn find_at(&self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        let mut first: Option<&'static Region> = None;
        self.places.around(addr, |region| {
            let held = region.spans(addr, size) && region.gone() > time && region.pages.had(addr, addr + size, time);
            if held && first.is_none_or(|first| region.gone() < first.gone()) {
                first = Some(region);
            }
            false
        });
        first.filter(|region| !region.has_failed.load(Ordering::Relaxed))
    }

    /// Whether regions were added since the last call of this function.
    pub fn has_new(&self) -> bool {
        self.some_new.load(Ordering::Acquire) && self.some_new.swap(false, Ordering::AcqRel)
    }

    /// Records that a region contains code that was registered before the memory of the code became a part of the region.
    pub(super) fn has_older_code(&self, region: &Region) {
        region.is_new.store(true, Ordering::Relaxed);
        self.some_new.store(true, Ordering::Release);
    }

    pub fn mode(&self) -> u32 {
        self.settings().mode
    }

    /// Returns the path of the last region that got a file. If another thread is renaming the file on a slow disk, this call
    /// waits for the thread, but at most for `timeout`.
    pub fn last_path(&self, timeout: Duration) -> Result<PathBuf> {
        let last = self.settings().last.ok_or(Error::NotRunning)?;
        let end = Instant::now() + timeout;
        loop {
            // A thread that begins an epoch locks `naming` while it renames the file.
            match last.naming.try_lock() {
                Ok(naming) => return Ok(naming.path.clone()),
                Err(_) if Instant::now() > end => return Err(Error::Timeout),
                Err(_) => thread::sleep_micros(500),
            }
        }
    }

    /// Whether the number of regions has reached its limit. If so, increments the counter `region_limit`.
    pub(super) fn is_full(&self, status: &Status) -> bool {
        let is_full = self.places.is_full();
        if is_full {
            status.counters.region_limit.add(1);
        }
        is_full
    }

    /// Whether the number of regions has reached its limit, and the list of all mappings was read too recently to be read
    /// again.
    pub(super) fn rests_at_limit(&self, now: u64) -> bool {
        self.candidates.rests(now) && self.places.is_full()
    }

    /// Records that the list of all mappings was read from the time `begin` until now. Has an effect only if the number of
    /// regions has reached its limit.
    pub(super) fn has_read_mappings(&self, begin: u64) {
        if self.places.is_full() {
            self.candidates.rest(begin, monotonic_ns());
        }
    }

    /// Adds a region to the list. After this call other threads may use the region, so it must never be freed, but the caller
    /// may still end it.
    pub(super) fn publish(&self, status: &Status, parts: Parts) -> Result<&'static Region> {
        let has_file = parts.file.is_some();
        let marks = self.marks_for(parts.place.marks_hint, parts.place.max_len)?;
        let region = Region::new(parts, marks, self.room.clone(), self.counters.for_region())?;
        if self.places.is_full() {
            return Err(Error::NoMemory);
        }
        let region: &'static Region = Box::leak(Box::new(region));
        {
            let mut settings = self.settings();
            if !self.places.add(region) {
                return Err(Error::NoMemory);
            }
            if has_file {
                settings.last = Some(region);
            }
        }
        self.watch();
        self.some_new.store(true, Ordering::Release);
        status.counters.regions.add(has_file.into());
        Ok(region)
    }

    /// Records that an inherited region now has its own file, or no file.
    pub(super) fn has_parted(&self, status: &Status, region: &'static Region, has_file: bool) {
        if has_file {
            self.settings().last = Some(region);
        }
        self.watch();
        self.some_new.store(true, Ordering::Release);
        status.counters.regions.add(has_file.into());
    }

    /// Removes a region from the list. Returns false if another thread has already ended the region.
    pub(super) fn forget(&self, region: &'static Region) -> bool {
        {
            let _settings = self.settings();
            if !self.places.remove(region) {
                return false;
            }
        }
        region.marks.clear();
        {
            let mut settings = self.settings();
            if settings.ended.try_reserve(1).is_ok() {
                settings.ended.push(region);
            }
            settings.bases.insert(region.place.base, region.len());
            settings.spare_marks.push(region.marks.clone());
        }
        self.watch();
        true
    }

    /// Returns marks for a region that may grow to at most `len` bytes. For `hint`, see `Marks::new`.
    fn marks_for(&self, hint: u64, len: u64) -> Result<Arc<Marks>> {
        let mut settings = self.settings();
        let spare = &mut settings.spare_marks;
        let fit = spare.iter().enumerate().filter(|(_, marks)| marks.fit(len)).min_by_key(|(_, marks)| marks.len());
        match fit.map(|(number, _)| number) {
            Some(number) => Ok(spare.swap_remove(number)),
            None => Ok(Arc::new(Marks::new(hint, len).map_err(|_| Error::NoMemory)?)),
        }
    }

    /// Records a file that nobody writes to any more. Removes the oldest recorded files if there are too many.
    pub(super) fn keep_old(&self, path: PathBuf, identity: Identity, bytes: u64) {
        self.settings().files.keep(Past { path, identity, bytes }, monotonic_ns());
    }

    /// Returns for how many nanoseconds the next epoch of a region must not begin. `bytes` is the size of the previous epoch's
    /// file.
    pub(super) fn pause_after(&self, bytes: u64, now: u64) -> u64 {
        let pause = self.room.pause_after(bytes, now);
        if pause == 0 {
            return 0;
        }
        // All regions share the room for old files, so the pause grows with the number of busy regions.
        let is_busy = |region: &&Region| region.not_before.load(Ordering::Relaxed) + BUSY_FOR > now;
        pause.saturating_mul(self.all().filter(is_busy).count().max(1) as u64).min(KEPT_FOR)
    }
}

/// Counts a region or memory that gets no file, sets the last error to the reason `text`, and returns the error for the caller.
pub(super) fn refused(status: &Status, text: String) -> Error {
    status.counters.region_refused.add(1);
    status.last_error.set(text);
    Error::SinkFailed
}
