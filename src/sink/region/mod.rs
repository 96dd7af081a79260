//! Code memory that is a mapping of an ELF file, so that every profiler names code in it by itself: the regions of a process, as
//! the threads that register code and the writer share them.
//!
//! perf takes the name of a mapping from the path of its file at the time of `mmap` or `mprotect`. So when bytes at which dead
//! code is named are used for other code, the file gets another name (`rename`), and the mapping is made again over itself: the
//! same file and bytes, but a new generation in the profile. The writer puts what the file said before under its old name.

mod adopt;
mod changing;
mod create;
mod declined;
pub mod file;
mod files;
mod fork;
mod lost;
mod marks;
mod naming;
mod sink;
mod slides;
mod tally;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::api::error::{Error, Result};
use crate::queue::status::Status;
use crate::sink::region::file::RegionFile;
use crate::sys::clock::monotonic_ns;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::dir::Dir;
use crate::sys::file::Held;
use crate::sys::maps::{self, Mapping};
use crate::sys::mem::page_size;
use crate::sys::sync::outside::{Mutex, MutexGuard, PoisonError};
use crate::sys::thread::{self, quietly};
use changing::Changing;
pub use create::{CodeRegion, RegionOptions};
use declined::{Declined, Shown};
use lost::Lost;
use marks::Marks;
pub use naming::{Naming, Switch};
pub use sink::KIND;
use tally::Tally;

/// How many regions there may be at a time.
pub const MOST: usize = 256;

/// How many generations may wait for the writer to see to them.
const PENDING_MOST: usize = 256;

/// So many files that a dead process has left do not keep a file from having another name.
const LEFT_MOST: usize = 256;

/// No switch is pending.
const NEVER: u64 = u64::MAX;

/// The regions of a process.
#[derive(Debug)]
pub struct Regions {
    /// There are some, or unknown memory is adopted: whoever registers code has to look.
    watching: AtomicBool,
    adopting: AtomicBool,
    /// Memory that is not adopted for now.
    declined: Shown,
    /// The host has unmapped some, to whose end the writer has not seen yet.
    some_gone: AtomicBool,
    /// Beyond this place there is none.
    used: AtomicUsize,
    /// What is here is never freed: a call that races with the end of a region finds valid memory.
    places: [AtomicPtr<Region>; MOST],
    settings: Mutex<Settings>,
    pub changing: Changing,
}

/// Where files are made, and what is known of memory that cannot be adopted.
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
    files: files::Files,
    /// The last of the regions that are none any more, which are not freed: a call that races with their end may still look at them.
    ended: Option<&'static Region>,
    /// Where they began, with their tables.
    bases: BTreeSet<u64>,
    /// What the writer has open of such regions, for it to close.
    to_close: Vec<Arc<Held>>,
    /// Marks of such regions, whose address space others take over. Whoever still looks at them finds marks that are not meant for
    /// him, which costs a generation at most.
    spare_marks: Vec<Arc<Marks>>,
    declined: Declined,
}

/// How the memory of a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Executable, and a second time writable at another place; both show the file.
    TwoViews { write: u64 },
    /// Once; the host changes what may be done with it, and what it writes is not in the file.
    Private {
        /// It was the host's before.
        adopted: bool,
        /// It is writable and executable at the same time: the host has no reason to call `mprotect`, which would tell perf of
        /// another name.
        never_flips: bool,
    },
}

/// One region. Made once, and never freed.
#[derive(Debug)]
pub struct Region {
    /// Where the executable memory begins, and how long it is and may become.
    pub start: u64,
    len: AtomicU64,
    pub max_len: u64,
    /// Where the file's first byte is mapped, with the tables behind it, and how much of it.
    pub base: u64,
    pub tables_len: u64,
    pub kind: Kind,
    marks: Arc<Marks>,
    /// Counts what `marks` are compared with.
    generation: AtomicU32,
    /// Code has been registered since the file got its last name, where that may have to be another one soon.
    is_in_use: AtomicBool,
    tally: Tally,
    /// Of what the host has unmapped.
    lost: Lost,
    /// The writer has not seen it yet.
    pub is_new: AtomicBool,
    /// In a forked child that got no file for it: the one that it is a mapping of is the parent's.
    is_of_parent: bool,
    /// Since when it is known that the host has unmapped it; else `NEVER`. What was registered before is still written.
    gone: AtomicU64,
    /// Its file cannot be written: new code in it is for the other sinks.
    pub is_unwell: AtomicBool,
    /// The time before which no caller gives the file another name.
    pub not_before: AtomicU64,
    /// When it got the name that it has, as long as the writer has not seen to the last one; else `NEVER`.
    switched: AtomicU64,
    pub naming: Mutex<Naming>,
    /// Only the writer has it for long.
    pub file: Mutex<Option<Box<RegionFile>>>,
    /// The one that has ended before this one.
    ended_before: AtomicPtr<Region>,
}

impl Default for Regions {
    fn default() -> Regions {
        Regions {
            watching: AtomicBool::new(false),
            adopting: AtomicBool::new(false),
            declined: Shown::default(),
            some_gone: AtomicBool::new(false),
            used: AtomicUsize::new(0),
            places: [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST],
            settings: Mutex::default(),
            changing: Changing::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what takes a lock on a thread of the host, which is not to be cancelled then, nor to be stopped by a signal, as for
/// garbage collection: others would wait for the lock.
fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    thread::uncancelled(|| quietly(body))
}

impl Regions {
    /// Whether a registration has to be looked at.
    #[inline(always)]
    pub fn are_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// What holds from now on for new regions.
    pub fn configure(&self, dir: PathBuf, mode: u32, adopting: bool) {
        {
            let mut settings = lock(&self.settings);
            (settings.dir, settings.mode) = (dir, mode);
            settings.declined.clear(&self.declined);
        }
        // Code that was registered in regions while this sink did not run belongs in their files now.
        self.all().for_each(|region| region.is_new.store(true, Ordering::Relaxed));
        self.adopting.store(adopting, Ordering::Relaxed);
        self.watch();
    }

    fn watch(&self) {
        // The writer ends some while others are made.
        let _settings = lock(&self.settings);
        let any = self.all().next().is_some() || self.adopting.load(Ordering::Relaxed);
        self.watching.store(any, Ordering::Release);
    }

    /// The regions that there are.
    pub fn all(&self) -> impl Iterator<Item = &'static Region> + '_ {
        let used = self.used.load(Ordering::Acquire);
        // SAFETY: what is published here is never freed.
        self.places[..used].iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
    }

    /// The region that code lies in, as a whole.
    fn around(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.all().find(|region| region.holds(addr, size))
    }

    /// The region that code lies in, as a whole, if profilers see it there.
    pub fn find(&self, addr: u64, size: u64) -> Option<&'static Region> {
        self.around(addr, size).filter(|region| !region.is_unwell.load(Ordering::Relaxed))
    }

    /// The region that code lies in that was registered at a time, for the writer.
    pub fn find_at(&self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        let held = self
            .all()
            .filter(|region| region.spans(addr, size) && region.gone() > time && !region.lost.any(addr, addr + size));
        held.min_by_key(|region| region.gone()).filter(|region| !region.is_unwell.load(Ordering::Relaxed))
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

    /// The path of the file of the last region.
    pub fn last_path(&self) -> Option<PathBuf> {
        let last = lock(&self.settings).last?;
        // With another generation it has another one.
        let path = lock(&last.naming).path.clone();
        Some(path)
    }

    /// Whether something of a range belongs to a region.
    fn overlap(&self, start: u64, end: u64) -> bool {
        let overlaps = |region: &Region| {
            let (from, to) = (start.max(region.start), end.min(region.start + region.max_len));
            from < to && !region.lost.all(from, to)
        };
        self.all().any(|region| overlaps(region) && region.gone() == NEVER)
    }

    /// Whether there are as many as there may be.
    fn is_full(&self) -> bool {
        self.places.iter().all(|place| !place.load(Ordering::Relaxed).is_null())
    }

    /// Makes a region known. It cannot be taken back, only ended.
    fn publish(&self, region: Region) -> Result<&'static Region> {
        if self.is_full() {
            return Err(Error::NoMemory);
        }
        let has_file = !region.is_unwell.load(Ordering::Relaxed);
        let region: &'static Region = Box::leak(Box::new(region));
        let new = std::ptr::from_ref(region).cast_mut();
        for (number, place) in self.places.iter().enumerate() {
            if place.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.used.fetch_max(number + 1, Ordering::AcqRel);
                self.watch();
                if has_file {
                    lock(&self.settings).last = Some(region);
                }
                return Ok(region);
            }
        }
        Err(Error::NoMemory)
    }

    /// The region is none any more. False if another thread has ended it.
    fn forget(&self, region: &'static Region) -> bool {
        let (old, none) = (std::ptr::from_ref(region).cast_mut(), std::ptr::null_mut());
        let taken = |place: &AtomicPtr<Region>| place.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed);
        if !self.places.iter().any(|place| taken(place).is_ok()) {
            return false;
        }
        region.marks.clear();
        {
            let mut settings = lock(&self.settings);
            let last = settings.ended.replace(region).map_or(none, |last| std::ptr::from_ref(last).cast_mut());
            region.ended_before.store(last, Ordering::Relaxed);
            settings.bases.insert(region.base);
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

    /// Whether any of a region still is a mapping of its file. Else it is none any more; and what is not is lost.
    fn check(&self, status: &Status, region: &Region, maps: &[Mapping]) -> bool {
        // Without a file nothing can tell.
        let is_mapped = !lock(&region.naming).has_file() || {
            let parts = || region.mapped_in(maps).map(|mapping| (mapping.start, mapping.end));
            parts().next().is_some() && region.lost.add(region.start, region.end(), parts())
        };
        if !is_mapped {
            // What is registered from now on is stamped later. Another thread may have been faster.
            let now = status.clock.now();
            let _ = region.gone.compare_exchange(NEVER, now, Ordering::AcqRel, Ordering::Relaxed);
            self.some_gone.store(true, Ordering::Release);
        }
        is_mapped
    }

    /// Looks after regions that the host may have unmapped, given everything that is mapped.
    fn check_all(&self, status: &Status, maps: &[Mapping]) {
        let may_be_unmapped = |region: &&Region| region.gone() == NEVER && matches!(region.kind, Kind::Private { .. });
        for region in self.all().filter(may_be_unmapped) {
            region.tally.settle(0, region.max_len);
            self.check(status, region, maps);
        }
    }

    /// Before code is registered: sees to it that samples of it will not be taken for dead code, or of no code at all. This is part
    /// of what each registration costs: no lock, and what threads share is written to only where it changes.
    #[inline(never)]
    pub fn before_code(&self, status: &Status, addr: u64, size: u64) {
        match self.find(addr, size) {
            Some(region) if region.tally.add(addr - region.start, size) => region.take(status, addr, size),
            known => self.before_doubtful_code(status, addr, size, known),
        }
    }

    #[cold]
    #[inline(never)]
    fn before_doubtful_code(&self, status: &Status, addr: u64, size: u64, known: Option<&'static Region>) {
        if let Some(region) = known {
            if region.is_there(self, status, addr, size) && region.holds(addr, size) {
                return region.take(status, addr, size);
            }
            region.tally.subtract(addr - region.start, size);
        }
        if !self.adopting.load(Ordering::Relaxed) {
            return;
        }
        if let Some(region) = self.adopt_if_new(status, addr, size) {
            region.tally.add(addr - region.start, size);
            region.take(status, addr, size);
        }
    }

    /// Adopts the mapping that code lies in, unless that has been tried not long ago. A program may register all its code where that
    /// is so.
    fn adopt_if_new(&self, status: &Status, addr: u64, size: u64) -> Option<&'static Region> {
        if self.is_full() || self.declined.has(addr, addr.checked_add(size)?, monotonic_ns) {
            return None;
        }
        undisturbed(|| self.adopt_around(status, addr, size, monotonic_ns()))
    }

    /// Code is gone, or moves away.
    #[inline(never)]
    pub fn after_code(&self, status: &Status, addr: u64, size: u64) {
        let Some(region) = self.around(addr, size) else { return };
        region.tally.subtract(addr - region.start, size);
        if !region.is_unwell.load(Ordering::Relaxed) {
            region.mark_dead(status, addr, size);
        }
    }

    /// Code does not live that was counted: it has been overwritten, or could not be registered.
    pub fn no_code(&self, addr: u64, size: u64) {
        if let Some(region) = self.around(addr, size) {
            region.tally.subtract(addr - region.start, size);
        }
    }

    /// Code lives on that had been counted as gone.
    pub fn code_stays(&self, addr: u64, size: u64) {
        if let Some(region) = self.around(addr, size) {
            region.count_live(addr, size);
        }
    }

    /// All sessions have ended, and all code with them.
    pub fn no_code_at_all(&self) {
        self.all().for_each(|region| region.tally.clear());
    }

    /// All code in a range is gone.
    #[cold]
    #[inline(never)]
    pub fn after_range(&self, status: &Status, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let overlaps = |region: &&Region| region.start < end && addr < region.end() && region.gone() == NEVER;
        for region in self.all().filter(overlaps) {
            let (start, end) = (addr.max(region.start), end.min(region.end()));
            region.tally.doubt(start - region.start, end - start);
            region.mark_dead(status, start, end - start);
        }
    }
}

impl Region {
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub fn end(&self) -> u64 {
        self.start + self.len()
    }

    fn holds(&self, addr: u64, size: u64) -> bool {
        self.spans(addr, size) && self.gone() == NEVER && !self.lost.any(addr, addr + size)
    }

    fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    fn spans(&self, addr: u64, size: u64) -> bool {
        addr >= self.start && addr.checked_add(size).is_some_and(|end| end <= self.end())
    }

    /// Where the text begins in the file.
    pub fn text(&self) -> u64 {
        self.start - self.base
    }

    /// Code is about to be registered, which has been counted.
    fn take(&self, status: &Status, addr: u64, size: u64) {
        if matches!(self.kind, Kind::Private { .. }) && !self.is_in_use.load(Ordering::Relaxed) {
            self.begin_to_use(addr, size);
        }
        if self.marks.any(addr - self.start, size, self.generation.load(Ordering::Relaxed)) {
            self.switch(status, Some((addr, size)));
        }
    }

    #[cold]
    fn begin_to_use(&self, addr: u64, size: u64) {
        self.is_in_use.store(true, Ordering::Relaxed);
        // The file may have got another name since code was last registered, of which the host's `mprotect` tells for the code,
        // unless it has made the memory writable and executable at once since.
        if self.generation.load(Ordering::Relaxed) > 1 {
            undisturbed(|| {
                self.announce_tables();
                self.announce(addr, size);
            });
        }
    }

    /// There is live code in it that was not registered in it.
    pub fn count_live(&self, addr: u64, size: u64) {
        self.tally.add(addr - self.start, size);
    }

    fn mark_dead(&self, status: &Status, addr: u64, size: u64) {
        // Where the host's own mprotect tells perf of a new name, that has to be there before: with the first code that goes.
        let generation = match self.kind {
            Kind::Private { never_flips: false, .. } if self.is_in_use.swap(false, Ordering::Relaxed) => {
                self.switch(status, None);
                return;
            }
            _ => self.generation.load(Ordering::Relaxed),
        };
        self.marks.set(addr - self.start, size, generation);
    }

    /// Whether the host has left the memory as it was, as far as there is doubt.
    fn is_there(&self, regions: &Regions, status: &Status, addr: u64, size: u64) -> bool {
        if !self.tally.settle(addr - self.start, size) {
            return true;
        }
        undisturbed(|| match maps::within(self.start, self.end()) {
            Ok(maps) => regions.check(status, self, &maps),
            Err(_) => {
                // There is no descriptor left, perhaps.
                self.tally.doubt(addr - self.start, size);
                true
            }
        })
    }

    /// What of it is still a mapping of its file, as far as it has got one.
    fn mapped(&self) -> io::Result<Vec<Mapping>> {
        maps::collect(self.mapped_in(&maps::within(self.start, self.end())?))
    }

    /// The same, given what is mapped.
    fn mapped_in<'a>(&self, maps: &'a [Mapping]) -> impl Iterator<Item = Mapping> + use<'a> {
        let inode = lock(&self.naming).identity().map(|identity| identity.inode);
        let (start, end, base) = (self.start, self.end(), self.base);
        // Another file system may have an inode of this number; but not mapped just as this file would be.
        let is_ours = move |mapping: &&Mapping| {
            let begin = mapping.start.checked_sub(mapping.offset);
            mapping.start < end && start < mapping.end && Some(mapping.inode) == inode && begin == Some(base)
        };
        let part = move |mapping: &Mapping| {
            let from = mapping.start.max(start);
            let offset = mapping.offset + (from - mapping.start);
            Mapping { start: from, end: mapping.end.min(end), offset, ..*mapping }
        };
        maps.iter().filter(is_ours).map(part)
    }

    /// Gives the file another name, and tells perf. Not before the writer can keep up with it. `code` is where the calling thread
    /// is about to register some.
    #[cold]
    pub fn switch(&self, status: &Status, code: Option<(u64, u64)>) {
        if code.is_none() && matches!(self.kind, Kind::Private { never_flips: true, .. }) {
            return;
        }
        let now = status.clock.now();
        if now < self.not_before.load(Ordering::Relaxed) {
            status.counters.region_late.add(1);
            return;
        }
        undisturbed(|| {
            self.rename(status, now);
            if let (Kind::Private { .. }, Some((addr, size))) = (self.kind, code) {
                self.announce_tables();
                self.announce(addr, size);
            }
        });
    }

    /// Tells perf the name of the file for the tables. It looks for them in the mapping of the file that the code is in, and
    /// reckons from where the lowest one begins (linux tools/perf/util/unwind-libunwind-local.c, `read_unwind_spec_eh_frame`).
    fn announce_tables(&self) {
        let mut naming = lock(&self.naming);
        if let Ok(file) = naming.file() {
            // SAFETY: the range is this region's; it shows the same part of the same file already, which nobody reads there.
            let _ = unsafe { code_memory::map_over(self.base, self.tables_len, READ_EXEC, Sharing::Private, &file, 0) };
        }
    }

    /// Tells perf the name of the file of memory that may be written and executed at the same time, as far as it is that still.
    fn announce(&self, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr / page * page, (addr + size).next_multiple_of(page));
        let maps = maps::within(start, end).unwrap_or_default();
        let rwx = READ_WRITE | READ_EXEC;
        let is_rwx = |piece: Mapping| piece.start <= start && end <= piece.end && piece.protection == rwx;
        if self.mapped_in(&maps).any(is_rwx) {
            // perf is told by `mprotect` if that changes anything. What can be written can be read too on each of our processors
            // (linux mm, `protection_map`), so that nobody misses the right to read. At its return the mapping is one again, and
            // perf is told of all of it.
            // SAFETY: the pages hold code that the caller is about to register: nobody unmaps them now. They are ours, and no
            // thread does what is not allowed meanwhile.
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
        if let (Kind::TwoViews { .. }, Ok(file)) = (self.kind, naming.file()) {
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
        // What is registered from now on is stamped later: the time from before is safely so.
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

/// What a region is made of, once its memory is in place.
#[derive(Debug)]
struct Parts {
    start: u64,
    len: u64,
    max_len: u64,
    base: u64,
    tables_len: u64,
    kind: Kind,
    naming: Naming,
    /// None if no profiler will see it.
    file: Option<RegionFile>,
}

impl Region {
    fn new(parts: Parts, marks: Arc<Marks>) -> Result<Region> {
        let tally = Tally::new(if matches!(parts.kind, Kind::Private { .. }) { parts.max_len } else { 0 })?;
        Ok(Region {
            start: parts.start,
            len: AtomicU64::new(parts.len),
            max_len: parts.max_len,
            base: parts.base,
            tables_len: parts.tables_len,
            kind: parts.kind,
            marks,
            generation: AtomicU32::new(1),
            is_in_use: AtomicBool::new(false),
            tally,
            lost: Lost::new(parts.start, parts.max_len),
            is_new: AtomicBool::new(true),
            is_of_parent: matches!(parts.kind, Kind::Private { .. }) && parts.file.is_none(),
            gone: AtomicU64::new(NEVER),
            is_unwell: AtomicBool::new(parts.file.is_none()),
            not_before: AtomicU64::new(0),
            switched: AtomicU64::new(NEVER),
            naming: Mutex::new(parts.naming),
            file: Mutex::new(parts.file.map(Box::new)),
            ended_before: AtomicPtr::new(std::ptr::null_mut()),
        })
    }
}
