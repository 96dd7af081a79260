//! The state of one region: its addresses, its file, and whether its memory is still mapped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::addresses::{own_parts, Placement};
use super::code_marks::Marks;
use super::file::{Layout, RegionFile};
use super::live_counts::Tally;
use super::lost_pages::Pages;
use super::naming::Naming;
use super::old_files::Room;
use super::sharing::{Changes, Sharing};
use crate::api::error::Result;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::READ_EXEC;
use crate::sys::file;
use crate::sys::maps::{self, Mapping};
use crate::sys::sync::lock;
use crate::sys::sync::outside::{Mutex, MutexGuard};

/// A file gets no build-id if the hole between its tables and its text is larger than this number of bytes.
const HOLE_MOST: u64 = 64 << 20;

/// How the memory of a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// The memory is mapped twice: executable at the region's start, and writable at the address `write`. Both mappings show
    /// the file.
    TwoViews { write: u64 },
    /// The memory is mapped once. The mapping is private, so the host's writes do not reach the file. Usually the host changes
    /// the protection of the memory.
    Private {
        /// Whether the memory was the host's own memory before the library adopted it.
        adopted: bool,
        /// Whether the memory is writable and executable at the same time. If this field is true, the host has no reason to
        /// call `mprotect`, so perf learns no new name.
        never_flips: bool,
    },
}

/// The first epoch of a region. The file's name in this epoch has no epoch number.
pub(super) const FIRST: u32 = 0;

/// A region of code memory. After `Regions::publish`, a region is never freed, because threads read regions without a lock.
#[derive(Debug)]
pub struct Region {
    pub(super) place: Placement,
    pub(super) kind: Backing,
    /// The present length of the code, in bytes.
    pub(super) len: AtomicU64,
    /// If the region has two views: the protection of the executable view (see `Regions::heed_debugger`). Changes only while
    /// `naming` is locked.
    pub(super) exec: AtomicI32,
    /// Which pages of the region the host has unmapped.
    pub(super) pages: Pages,
    pub(super) marks: Arc<Marks>,
    /// The present epoch, and the first epoch that the file itself describes. Copies of the file describe the epochs before
    /// `first` (see "split" in `epoch`).
    pub(super) epoch: AtomicU32,
    pub(super) first: AtomicU32,
    /// The time when the present epoch began.
    pub(super) named_at: AtomicU64,
    /// The time when code last died. Only used if the host changes the protection of the memory.
    pub(super) died_at: AtomicU64,
    /// Whether code has been registered since the file got its present name. Only used for private memory.
    pub(super) is_in_use: AtomicBool,
    pub(super) tally: Tally,
    /// Whether other sinks may still name live code of the region. The writer must move this code to the region's file.
    pub is_new: AtomicBool,
    /// The time when the library learned that the host has unmapped the region, or `NEVER`. The writer still writes code that
    /// was registered before this time.
    pub(super) gone: AtomicU64,
    /// Whether the region's file is missing or could not be written. If so, the other sinks report new code in the region.
    pub has_failed: AtomicBool,
    /// Whether the unwind tables of a mapping group have nearly filled their room, so that no further mapping joins the group.
    pub has_little_room: AtomicBool,
    /// The earliest time for the next epoch that needs a copy of the file.
    pub(super) not_before: AtomicU64,
    /// The minimum time, in nanoseconds, between two epochs that need a copy of the file.
    pub(super) pause: AtomicU64,
    /// Whether the kernel always keeps adjacent mappings of the file separate.
    pub(super) never_merges: AtomicBool,
    /// The size of the last copy of the file, in bytes, and the room that all regions share for copies.
    pub(super) copy_bytes: AtomicU64,
    pub(super) room: Arc<Room>,
    /// The due time of the first split that the writer has not handled yet, or `NEVER`.
    pub(super) splits_at: AtomicU64,
    pub(super) naming: Mutex<Naming>,
    pub(super) sharing: Sharing,
    /// The file's inode number, or 0 if there is no file. This field is not in `naming`, because a forked child cannot lock
    /// `naming` if another thread held this lock at the fork.
    inode: AtomicU64,
    /// Only the writer holds the lock of the file for a long time.
    pub(super) file: Mutex<Option<Box<RegionFile>>>,
}

/// The parts from which `Region::new` makes a region. The memory of the region is already mapped.
#[derive(Debug)]
pub(super) struct Parts {
    pub place: Placement,
    pub kind: Backing,
    pub len: u64,
    pub pages: Pages,
    pub naming: Naming,
    /// `None` if the region has no file that profilers can find, or only the file of the parent.
    pub file: Option<RegionFile>,
    /// In a forked child: the changes of the parent's file, if the memory is still a mapping of this file.
    pub inherited: Option<Changes>,
}

impl Region {
    pub(super) fn new(
        parts: Parts,
        marks: Arc<Marks>,
        room: Arc<Room>,
        changes: Option<&'static AtomicU32>,
    ) -> Result<Region> {
        let Parts { place, kind, len, pages, naming, file, inherited } = parts;
        // A mapping group needs no counts of live code, because the mapping is always checked before new code replaces old code
        // in the group.
        let may_be_unmapped = matches!(kind, Backing::Private { .. }) && !pages.are_of_group();
        let tally = Tally::new(if may_be_unmapped { place.max_len } else { 0 })?;
        Ok(Region {
            place,
            kind,
            len: AtomicU64::new(len),
            exec: AtomicI32::new(READ_EXEC),
            pages,
            marks,
            epoch: AtomicU32::new(FIRST),
            first: AtomicU32::new(FIRST),
            named_at: AtomicU64::new(0),
            died_at: AtomicU64::new(0),
            is_in_use: AtomicBool::new(false),
            tally,
            is_new: AtomicBool::new(true),
            gone: AtomicU64::new(NEVER),
            has_failed: AtomicBool::new(file.is_none() && inherited.is_none()),
            has_little_room: AtomicBool::new(false),
            not_before: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            never_merges: AtomicBool::new(false),
            copy_bytes: AtomicU64::new(0),
            room,
            splits_at: AtomicU64::new(NEVER),
            sharing: Sharing::new(changes, inherited),
            inode: AtomicU64::new(naming.identity().map_or(0, |identity| identity.inode)),
            naming: Mutex::new(naming),
            file: Mutex::new(file.map(Box::new)),
        })
    }

    pub fn start(&self) -> u64 {
        self.place.start
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub fn end(&self) -> u64 {
        self.start() + self.len()
    }

    /// Whether the mapping is private, so that the host's writes do not reach the file.
    pub fn is_private(&self) -> bool {
        matches!(self.kind, Backing::Private { .. })
    }

    /// Whether other mappings can join the region. The range of a mapping group may contain memory that does not belong to the
    /// group.
    pub fn is_mapping_group(&self) -> bool {
        self.pages.are_of_group()
    }

    pub fn holds(&self, addr: u64, size: u64) -> bool {
        self.spans(addr, size) && self.gone() == NEVER && !self.pages.any_lost(addr, addr + size)
    }

    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    pub fn spans(&self, addr: u64, size: u64) -> bool {
        addr >= self.start() && addr.checked_add(size).is_some_and(|end| end <= self.end())
    }

    /// Returns the part of a piece of code that lies in the region.
    pub(super) fn part_of(&self, addr: u64, size: u64) -> Range<u64> {
        addr.max(self.start())..addr.saturating_add(size).min(self.end())
    }

    /// Whether the region has a file that profilers can find, and that a forked child would share with its parent.
    pub(super) fn has_shared_file(&self) -> bool {
        matches!(self.kind, Backing::TwoViews { .. })
            && !self.has_failed.load(Ordering::Relaxed)
            && self.gone() == NEVER
    }

    /// The offsets of the text and the tables in the file.
    pub(super) fn layout(&self) -> Layout {
        self.place.layout(self.len(), self.is_private())
    }

    pub fn text(&self) -> u64 {
        self.place.text()
    }

    pub(super) fn inode(&self) -> Option<u64> {
        Some(self.inode.load(Ordering::Relaxed)).filter(|&inode| inode != 0)
    }

    /// Sets the file's inode number: the number of a forked child's own file, or 0 when the region no longer has a file.
    pub(super) fn set_inode(&self, inode: u64) {
        self.inode.store(inode, Ordering::Relaxed);
    }

    /// The parts of the region that are still mappings of the region's file. The result is empty if the region has no file.
    pub(super) fn mapped(&self) -> io::Result<Vec<Mapping>> {
        maps::collect(self.mapped_in(&maps::within(self.start(), self.end())?))
    }

    /// Like `mapped`, but uses the list `maps` of mappings, which the caller has read.
    pub(super) fn mapped_in<'a>(&self, maps: &'a [Mapping]) -> impl Iterator<Item = Mapping> + use<'a> {
        own_parts(maps, self.inode(), self.place.base, self.start()..self.end())
    }

    /// Whether a range beside the code still belongs to the library. The host may have mapped other memory beside an adopted
    /// region, so such a range belongs to the library only if it is still a mapping of the region's file.
    pub(super) fn owns(&self, range: &Range<u64>) -> bool {
        if !matches!(self.kind, Backing::Private { adopted: true, .. }) {
            return true;
        }
        let Ok(maps) = maps::within(range.start, range.end) else { return false };
        let own = own_parts(&maps, self.inode(), self.place.base, range.clone());
        own.map(|part| part.end - part.start).sum::<u64>() == range.end - range.start
    }

    pub(super) fn naming(&self) -> MutexGuard<'_, Naming> {
        lock(&self.naming)
    }

    /// Locks and returns the file. Reopens the file if the calling thread has no open descriptor of it: the writer and the
    /// threads that make and end regions have different descriptor tables, and the host may have closed the descriptor in its
    /// own table.
    pub fn opened(&self) -> MutexGuard<'_, Option<Box<RegionFile>>> {
        let mut guard = lock(&self.file);
        if let Some(file) = guard.as_mut().filter(|file| !file.is_open()) {
            // If reopening fails, the next write reports the error.
            let held = self.naming().file();
            let _ = held.and_then(|held| file.reopen(held));
        }
        guard
    }

    /// Replaces the file of private memory by a final copy. The text of the copy contains the bytes of the code, which the text
    /// of the original file lacks.
    pub(super) fn replace_by_copy(&self, file: &mut RegionFile, mode: u32) -> io::Result<()> {
        let (dir, name) = {
            let mut naming = self.naming();
            (naming.dir()?, naming.name_of_copy())
        };
        let copy = file::claim(&dir, &name, mode, file::ANYWHERE)?;
        let result = file.snapshot(copy, |_| true, self.build_id()).and_then(|()| self.naming().replace_by(&name));
        self.sharing.is_changed();
        result.inspect_err(|_| _ = dir.remove(&name))
    }

    /// Makes a new build-id for the final contents of the file. Returns `None` if the file has a hole of more than `HOLE_MOST`
    /// bytes.
    pub fn build_id(&self) -> Option<[u8; 20]> {
        let Placement { start, max_len, base, tables, .. } = &self.place;
        // If perf cannot make a hard link to a file with a build-id, perf copies the whole file, holes included.
        let after_text = tables.start.saturating_sub(start + max_len);
        let before_text = start - if tables.start > *start { *base } else { tables.end };
        if after_text.max(before_text) > HOLE_MOST {
            return None;
        }
        let mut id = [0; 20];
        let random = File::open("/dev/urandom").and_then(|source| source.read_at(&mut id, 0));
        if random.is_err() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            id[..16].copy_from_slice(&now.as_nanos().to_le_bytes());
            id[16..].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Some(id)
    }
}
