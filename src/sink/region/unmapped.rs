//! Regions, and parts of them, that the host has unmapped or replaced by another mapping.

use std::io;
use std::iter;
use std::sync::atomic::Ordering;

use super::regions::Regions;
use super::state::Region;
use crate::queue::status::Status;
use crate::sys::clock::NEVER;
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};
use crate::sys::thread::undisturbed;

impl Regions {
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

    /// Everything that is mapped. It is held against the regions at once, because those that are made later are not in it.
    pub(super) fn all_mapped(&self, status: &Status) -> io::Result<Vec<Mapping>> {
        let maps = maps::all()?;
        for region in self.all().filter(|region| region.gone() == NEVER && region.is_private()) {
            region.tally.settle(0, region.place.max_len);
            self.check(status, region, &maps);
        }
        Ok(maps)
    }

    /// Whether any part of a region still is a mapping of its file; other parts are lost. If none is, the region is gone.
    pub(super) fn check(&self, status: &Status, region: &Region, maps: &[Mapping]) -> bool {
        // Without a file nothing can tell.
        if !region.naming().has_file() {
            return true;
        }
        let parts = || region.mapped_in(maps).map(|mapping| (mapping.start, mapping.end));
        let is_mapped = parts().next().is_some();
        is_mapped && self.lose(status, region, region.start(), region.end(), parts()) || {
            self.set_gone(status, region);
            false
        }
    }

    /// A range is unmapped, except the parts `left`, which are in order. If that is all of the region, the region is gone. False if
    /// there is no memory for the note.
    pub(super) fn lose(
        &self,
        status: &Status,
        region: &Region,
        start: u64,
        end: u64,
        left: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        // No mapping joins a mapping group meanwhile.
        let _naming = region.naming();
        let is_noted = region.pages.lose(start, end, left, status.clock.now());
        if is_noted && region.pages.all_lost(region.start(), region.end()) {
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

    /// Memory whose code is gone is about to be unmapped. Then nobody has to find that out later.
    #[cold]
    #[inline(never)]
    pub fn before_unmapping(&self, status: &Status, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr.next_multiple_of(page), addr.saturating_add(size) / page * page);
        if start >= end {
            return;
        }
        if self.are_adopting() {
            undisturbed(|| self.candidates.forget(start, end));
        }
        for region in self.overlapping(start, end).filter(|region| region.is_private()) {
            let (start, end) = (start.max(region.start()), end.min(region.end()));
            let has_file = undisturbed(|| region.naming().has_file());
            // Without memory for the note, it is found out later.
            if has_file && undisturbed(|| self.lose(status, region, start, end, iter::empty())) {
                region.tally.settle(start - region.start(), end - start);
            }
        }
    }
}
