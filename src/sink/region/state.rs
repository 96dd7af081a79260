//! One region: where it lies, what its file is, and whether it is still mapped.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::code_marks::Marks;
use super::file::{Layout, RegionFile};
use super::live_counts::Tally;
use super::mapping_group::MappingGroup;
use super::naming::Naming;
use super::unmapped_parts::Lost;
use super::NEVER;
use crate::api::error::Result;
use crate::sys::maps::{self, Mapping};
use crate::sys::sync::outside::Mutex;

/// How the memory of a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Executable, and a second time writable at another place; both show the file.
    TwoViews { write: u64 },
    /// Once; the host changes its protection, and the host's writes are not in the file.
    Private {
        /// It was the host's before.
        adopted: bool,
        /// It is writable and executable at the same time: the host has no reason to call `mprotect`, which would tell perf of
        /// another name.
        never_flips: bool,
    },
}

/// The epoch that a region begins with, whose name has no number.
pub(super) const FIRST: u32 = 0;

/// One region. Made once, and never freed.
#[derive(Debug)]
pub struct Region {
    /// Where the executable memory begins, and how long it is and may become.
    pub start: u64,
    pub(super) len: AtomicU64,
    pub max_len: u64,
    /// Where the file's first byte would be mapped.
    pub base: u64,
    /// How much address space its header page has there; 0 if it is not mapped.
    pub(super) header_len: u64,
    /// For libdw the object of the memory above may begin in its last page.
    pub(super) has_object_above: bool,
    /// Where its tables are mapped.
    pub tables: Range<u64>,
    pub kind: Backing,
    /// Other mappings can join it.
    pub mapping_group: Option<MappingGroup>,
    pub(super) marks: Arc<Marks>,
    /// The present epoch, and the first one that the file has not been split from.
    pub(super) epoch: AtomicU32,
    pub(super) first: AtomicU32,
    /// When it began.
    pub(super) named_at: AtomicU64,
    /// Code has been registered since the file got its last name, where that may have to be another one soon.
    pub(super) is_in_use: AtomicBool,
    pub(super) tally: Tally,
    /// Of what the host has unmapped.
    pub(super) lost: Lost,
    /// The writer has not seen it yet.
    pub is_new: AtomicBool,
    /// Since when it is known that the host has unmapped it; else `NEVER`. Code that was registered before is still written.
    pub(super) gone: AtomicU64,
    /// Its file cannot be written: new code in it is for the other sinks.
    pub has_failed: AtomicBool,
    /// The time before which nobody begins an epoch that costs a copy.
    pub(super) not_before: AtomicU64,
    /// How long after one the next may begin.
    pub(super) pause: AtomicU64,
    /// When the first split is due that the writer has not seen to; else `NEVER`.
    pub(super) splits_at: AtomicU64,
    pub(super) naming: Mutex<Naming>,
    /// The file's number, or 0: in a forked child another thread may have had the lock of `naming`.
    inode: AtomicU64,
    /// Only the writer has it for long.
    pub(super) file: Mutex<Option<Box<RegionFile>>>,
    /// The one that has ended before this one.
    pub(super) ended_before: AtomicPtr<Region>,
}

/// The parts of a new region, once its memory is in place.
#[derive(Debug)]
pub(super) struct Parts {
    pub start: u64,
    pub len: u64,
    pub max_len: u64,
    pub base: u64,
    pub header_len: u64,
    pub has_object_above: bool,
    pub tables: Range<u64>,
    pub kind: Backing,
    pub mapping_group: Option<MappingGroup>,
    pub naming: Naming,
    /// None if no profiler will see it.
    pub file: Option<RegionFile>,
}

impl Region {
    pub(super) fn new(parts: Parts, marks: Arc<Marks>) -> Result<Region> {
        // In a mapping group each mapping is looked at before code comes in the place of other code.
        let may_be_unmapped = matches!(parts.kind, Backing::Private { .. }) && parts.mapping_group.is_none();
        let tally = Tally::new(if may_be_unmapped { parts.max_len } else { 0 })?;
        Ok(Region {
            start: parts.start,
            len: AtomicU64::new(parts.len),
            max_len: parts.max_len,
            base: parts.base,
            header_len: parts.header_len,
            has_object_above: parts.has_object_above,
            tables: parts.tables,
            kind: parts.kind,
            mapping_group: parts.mapping_group,
            marks,
            epoch: AtomicU32::new(FIRST),
            first: AtomicU32::new(FIRST),
            named_at: AtomicU64::new(0),
            is_in_use: AtomicBool::new(false),
            tally,
            lost: Lost::new(parts.start, parts.max_len),
            is_new: AtomicBool::new(true),
            gone: AtomicU64::new(NEVER),
            has_failed: AtomicBool::new(parts.file.is_none()),
            not_before: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            splits_at: AtomicU64::new(NEVER),
            inode: AtomicU64::new(parts.naming.identity().map_or(0, |identity| identity.inode)),
            naming: Mutex::new(parts.naming),
            file: Mutex::new(parts.file.map(Box::new)),
            ended_before: AtomicPtr::new(std::ptr::null_mut()),
        })
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub fn end(&self) -> u64 {
        self.start + self.len()
    }

    /// What the host writes there is not in the file.
    pub fn is_private(&self) -> bool {
        matches!(self.kind, Backing::Private { .. })
    }

    pub fn holds(&self, addr: u64, size: u64) -> bool {
        self.spans(addr, size) && self.gone() == NEVER && !self.lost.any(addr, addr + size)
    }

    /// Whether memory was the region's at a time, as far as the region was there.
    pub(super) fn had(&self, addr: u64, size: u64, time: u64) -> bool {
        match &self.mapping_group {
            Some(mapping_group) => mapping_group.had(addr, addr + size, time),
            None => !self.lost.any(addr, addr + size),
        }
    }

    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    pub fn spans(&self, addr: u64, size: u64) -> bool {
        addr >= self.start && addr.checked_add(size).is_some_and(|end| end <= self.end())
    }

    /// Whether it is a file that profilers find, and that a forked child shares.
    pub(super) fn has_shared_file(&self) -> bool {
        matches!(self.kind, Backing::TwoViews { .. })
            && !self.has_failed.load(Ordering::Relaxed)
            && self.gone() == NEVER
    }

    /// Where the parts lie in the file.
    pub(super) fn layout(&self) -> Layout {
        let lens = (self.len(), self.max_len);
        let layout = Layout::of_memory(self.base, self.start, lens, &self.tables, self.is_private());
        Layout { has_object_above: self.has_object_above, ..layout }
    }

    /// Where the text begins in the file.
    pub fn text(&self) -> u64 {
        self.start - self.base
    }

    pub(super) fn inode(&self) -> Option<u64> {
        Some(self.inode.load(Ordering::Relaxed)).filter(|&inode| inode != 0)
    }

    /// In a forked child it gets a separate file. 0 when there is no longer one.
    pub(super) fn set_inode(&self, inode: u64) {
        self.inode.store(inode, Ordering::Relaxed);
    }

    /// The parts that still are mappings of its file, if it has one.
    pub(super) fn mapped(&self) -> io::Result<Vec<Mapping>> {
        maps::collect(self.mapped_in(&maps::within(self.start, self.end())?))
    }

    /// The same, given what is mapped.
    pub(super) fn mapped_in<'a>(&self, maps: &'a [Mapping]) -> impl Iterator<Item = Mapping> + use<'a> {
        let inode = self.inode();
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
}
