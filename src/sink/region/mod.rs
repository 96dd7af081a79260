//! Code memory that is a mapping of an ELF file, so that every profiler names code in it by itself. These are the regions of a
//! process, as the threads that register code and the writer share them. The writer's part alone is `sink` and `archive`.
//!
//! perf takes the name of a mapping from the path of its file at the time of `mmap` or `mprotect`. So the file gets other names
//! when code dies and other code takes its place: see `epoch`.

mod address_space;
mod adopt;
mod archive;
mod automatic;
mod children;
mod code_marks;
mod create;
mod epoch;
mod exchange;
mod file;
mod fork;
mod live_counts;
mod lookup;
mod mapping_group;
mod naming;
mod not_adopted;
mod not_executable_yet;
mod old_files;
mod release;
mod sink;
mod state;
mod track;
mod unmapped_parts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::error::{Error, Result};
use crate::queue::status::Status;
use crate::sys::dir::Dir;
use crate::sys::file::Held;
use crate::sys::fork_lock::{self, Inside};
use crate::sys::maps::Mapping;
use crate::sys::sync::outside::{Mutex, MutexGuard, PoisonError};
use crate::sys::thread::{self, quietly};
use crate::sys::timed_lock::{Locked, TimedLock};
pub use address_space::REACH;
use code_marks::Marks;
pub use create::{CodeRegion, RegionOptions, SIZE_MAX};
use lookup::Places;
use naming::Naming;
use not_adopted::{Declined, Shown};
use not_executable_yet::{Due, Waiting};
pub use sink::{RegionSink, KIND};
use state::Parts;
pub use state::{Backing, Region};

/// No split is pending.
const NEVER: u64 = u64::MAX;

/// The regions of a process.
#[derive(Debug)]
pub struct Regions {
    /// There are some, or unknown memory is adopted: registering threads have to look.
    watching: AtomicBool,
    adopting: AtomicBool,
    without_files: AtomicBool,
    /// Memory that is not adopted for now.
    declined: Shown,
    /// When memory is to be looked at again that could not be executed yet.
    due: Due,
    /// Some are new, and the writer has not seen them yet.
    some_new: AtomicBool,
    /// The host has unmapped some, and the writer has not ended them yet.
    some_gone: AtomicBool,
    places: Places,
    settings: Mutex<Settings>,
    changing: TimedLock<()>,
    children: children::Children,
}

/// Where files are made, which regions have ended, and which memory cannot be adopted.
#[derive(Debug, Default)]
struct Settings {
    dir: PathBuf,
    /// The directory of the last region.
    last_dir: Option<Arc<Dir>>,
    mode: u32,
    /// The file of the next region has this number at least.
    next_number: u32,
    /// The last one that got a file.
    last: Option<&'static Region>,
    files: old_files::Files,
    /// The last ended region. They are not freed: a call that races with their end may still look at them.
    ended: Option<&'static Region>,
    /// Where they began, with their tables, and how long they were.
    bases: BTreeMap<u64, u64>,
    /// Files of such regions that the writer has open, for it to close.
    to_close: Vec<Arc<Held>>,
    /// Marks of such regions, for others to use. A call that still looks at them may see another region's marks, which costs a
    /// epoch at most.
    spare_marks: Vec<Arc<Marks>>,
    declined: Declined,
    waiting: Waiting,
    /// Where memory begins that was not adopted, which has been counted. The values say nothing: this kind of map costs no
    /// code of its own.
    refused: BTreeMap<u64, u64>,
}

impl Default for Regions {
    fn default() -> Regions {
        Regions {
            watching: AtomicBool::new(false),
            adopting: AtomicBool::new(false),
            without_files: AtomicBool::new(false),
            declined: Shown::default(),
            due: Due::default(),
            some_new: AtomicBool::new(false),
            some_gone: AtomicBool::new(false),
            places: Places::default(),
            settings: Mutex::default(),
            changing: TimedLock::default(),
            children: children::Children::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs code that takes a lock on a thread of the host. The thread is not cancelled meanwhile, nor stopped by a signal, as for
/// garbage collection: others would wait for the lock.
fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    thread::uncancelled(|| quietly(body))
}

/// How long a registration waits for a thread that makes or ends regions, which may wait for a disk.
const PATIENCE: Duration = Duration::from_secs(1);

/// As long as this is there, its thread may make and end regions, and the process does not fork.
struct Changer<'r> {
    _one: Locked<'r, ()>,
    _inside: Inside,
}

impl Regions {
    /// Waits until no other thread makes or ends regions, and while the process forks. Another thread may wait for a disk.
    fn begin_change(&self) -> Result<Changer<'_>> {
        let inside = fork_lock::enter();
        Ok(Changer { _one: self.changing.lock_in_time().ok_or(Error::Timeout)?, _inside: inside })
    }

    /// As `begin_change`, for what need not be now: nothing while the process forks.
    fn begin_change_unless_forking(&self) -> Option<Changer<'_>> {
        let inside = fork_lock::try_enter()?;
        Some(Changer { _one: self.changing.lock_until(Instant::now() + PATIENCE)?, _inside: inside })
    }

    /// Whether a registration has to be looked at.
    #[inline(always)]
    pub fn are_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// Whether unknown memory that code is registered in is adopted, while the sink runs.
    pub fn are_adopting(&self) -> bool {
        self.adopting.load(Ordering::Relaxed)
    }

    /// Whether the last region that was created has got no file.
    pub fn are_without_files(&self) -> bool {
        self.without_files.load(Ordering::Relaxed)
    }

    /// Sets the directory and mode of the files of new regions, and whether unknown memory is adopted.
    pub fn configure(&self, dir: PathBuf, mode: u32, adopting: bool) {
        {
            let mut settings = lock(&self.settings);
            (settings.dir, settings.mode) = (dir, mode);
            settings.declined.clear(&self.declined);
            settings.waiting.clear(&self.due);
            settings.refused.clear();
        }
        // Code that was registered in regions while this sink did not run belongs in their files now.
        self.all().for_each(|region| region.is_new.store(true, Ordering::Relaxed));
        self.adopting.store(adopting, Ordering::Relaxed);
        self.without_files.store(false, Ordering::Relaxed);
        self.watch();
    }

    fn watch(&self) {
        // The writer ends some while others are made.
        let _settings = lock(&self.settings);
        let any = self.all().next().is_some() || self.are_adopting();
        self.watching.store(any, Ordering::Release);
    }

    /// The regions that there are.
    pub fn all(&self) -> impl Iterator<Item = &'static Region> + '_ {
        self.places.all()
    }

    /// The region that code lies in, as a whole.
    fn around(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.places.around(addr, |region| region.holds(addr, size))
    }

    /// The region that code lies in, as a whole, if profilers see it there.
    pub fn find(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.around(addr, size).filter(|region| !region.has_failed.load(Ordering::Relaxed))
    }

    /// Whether the file of a region names code, or may do so when memory becomes executable.
    pub fn may_name(&self, addr: u64, size: u64) -> bool {
        self.find(addr, size).is_some() || self.due.is_any()
    }

    /// The region that code lies in that was registered at a time, for the writer.
    pub fn find_at(&self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        let mut first: Option<&'static Region> = None;
        self.places.around(addr, |region| {
            let held = region.spans(addr, size) && region.gone() > time && region.had(addr, size, time);
            if held && first.is_none_or(|first| region.gone() < first.gone()) {
                first = Some(region);
            }
            false
        });
        first.filter(|region| !region.has_failed.load(Ordering::Relaxed))
    }

    /// Whether there are regions that were not there when this was asked last.
    pub fn has_new(&self) -> bool {
        self.some_new.load(Ordering::Acquire) && self.some_new.swap(false, Ordering::AcqRel)
    }

    /// The regions that the host had unmapped before some time.
    pub fn gone(&self, before: u64) -> Vec<&'static Region> {
        if !self.some_gone.load(Ordering::Relaxed) || !self.some_gone.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let (gone, later): (Vec<_>, Vec<_>) =
            self.all().filter(|region| region.gone() != NEVER).partition(|region| region.gone() <= before);
        if !later.is_empty() {
            self.some_gone.store(true, Ordering::Release);
        }
        gone
    }

    /// Permission bits of the files.
    pub fn mode(&self) -> u32 {
        lock(&self.settings).mode
    }

    /// The path of the file of the last region. Waits no longer than this if the file is given another name on a disk that hangs.
    pub fn last_path(&self, timeout: Duration) -> Result<PathBuf> {
        let last = lock(&self.settings).last.ok_or(Error::NotRunning)?;
        let end = Instant::now() + timeout;
        loop {
            // With another epoch it has another one.
            match last.naming.try_lock() {
                Ok(naming) => return Ok(naming.path.clone()),
                Err(_) if Instant::now() > end => return Err(Error::Timeout),
                Err(_) => thread::sleep_micros(500),
            }
        }
    }

    /// Whether something of a range belongs to a region.
    fn overlap(&self, start: u64, end: u64) -> bool {
        let overlaps = |region: &Region| {
            let (from, to) = (start.max(region.start), end.min(region.start + region.max_len));
            from < to && !region.lost.all(from, to)
        };
        self.all().any(|region| overlaps(region) && region.gone() == NEVER)
    }

    /// Whether there can be no further region, which is counted.
    fn is_full(&self, status: &Status) -> bool {
        let is_full = self.places.is_full();
        if is_full {
            status.counters.region_limit.add(1);
        }
        is_full
    }

    /// Makes a region known. It cannot be taken back, only ended.
    fn publish(&self, region: Region) -> Result<&'static Region> {
        if self.places.is_full() {
            return Err(Error::NoMemory);
        }
        let has_file = !region.has_failed.load(Ordering::Relaxed);
        let region: &'static Region = Box::leak(Box::new(region));
        {
            let mut settings = lock(&self.settings);
            if !self.places.add(region) {
                return Err(Error::NoMemory);
            }
            if has_file {
                settings.last = Some(region);
            }
        }
        self.watch();
        self.some_new.store(true, Ordering::Release);
        Ok(region)
    }

    /// Takes a region out of the list. False if another thread has ended it.
    fn forget(&self, region: &'static Region) -> bool {
        {
            let _settings = lock(&self.settings);
            if !self.places.remove(region) {
                return false;
            }
        }
        region.marks.clear();
        {
            let mut settings = lock(&self.settings);
            let last =
                settings.ended.replace(region).map_or(std::ptr::null_mut(), |last| std::ptr::from_ref(last).cast_mut());
            region.ended_before.store(last, Ordering::Relaxed);
            settings.bases.insert(region.base, region.len());
            settings.spare_marks.push(region.marks.clone());
        }
        self.watch();
        true
    }

    /// Marks for a region that can be so long.
    fn marks_for(&self, len: u64) -> Result<Arc<Marks>> {
        let mut settings = lock(&self.settings);
        let spare = &mut settings.spare_marks;
        let fit = spare.iter().enumerate().filter(|(_, marks)| marks.fit(len)).min_by_key(|(_, marks)| marks.len());
        match fit.map(|(number, _)| number) {
            Some(number) => Ok(spare.swap_remove(number)),
            None => Ok(Arc::new(Marks::new(len).map_err(|_| Error::NoMemory)?)),
        }
    }

    /// Whether any part of a region still is a mapping of its file; other parts are lost. If none is, the region is gone.
    fn check(&self, status: &Status, region: &Region, maps: &[Mapping]) -> bool {
        // Without a file nothing can tell.
        if !lock(&region.naming).has_file() {
            return true;
        }
        let parts = || region.mapped_in(maps).map(|mapping| (mapping.start, mapping.end));
        let is_mapped = parts().next().is_some();
        is_mapped && self.lose(status, region, region.start, region.end(), parts()) || {
            self.set_gone(status, region);
            false
        }
    }

    /// A range is unmapped, except the parts `left`, which are in order. If that is all of the region, the region is gone. False if
    /// there is no memory for the note.
    fn lose(
        &self,
        status: &Status,
        region: &Region,
        start: u64,
        end: u64,
        left: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        // No mapping joins a mapping group meanwhile.
        let _naming = lock(&region.naming);
        let is_noted = region.lost.add(start, end, left);
        if let Some(mapping_group) = &region.mapping_group {
            mapping_group.leave(start, end, status.clock.now(), |page| region.lost.any(page, page + 1));
        }
        if is_noted && region.lost.all(region.start, region.end()) {
            self.set_gone(status, region);
        }
        is_noted
    }

    /// The host has unmapped a region, or does so next.
    fn set_gone(&self, status: &Status, region: &Region) {
        // Code that is registered after this is stamped later. Another thread may have been faster.
        let now = status.clock.now();
        let _ = region.gone.compare_exchange(NEVER, now, Ordering::AcqRel, Ordering::Relaxed);
        self.some_gone.store(true, Ordering::Release);
    }

    /// Looks after regions that the host may have unmapped, given everything that is mapped.
    fn check_all(&self, status: &Status, maps: &[Mapping]) {
        let may_be_unmapped =
            |region: &&Region| region.gone() == NEVER && matches!(region.kind, Backing::Private { .. });
        for region in self.all().filter(may_be_unmapped) {
            region.tally.settle(0, region.max_len);
            self.check(status, region, maps);
        }
    }
}
