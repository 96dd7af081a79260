//! Finds regions and parts of regions that the host has unmapped or replaced by another mapping.

use std::io;
use std::iter;
use std::sync::atomic::Ordering;

use super::regions::Regions;
use super::state::Region;
use crate::queue::status::Status;
use crate::sys::clock::{monotonic_ns, NEVER};
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};
use crate::sys::thread::undisturbed;

impl Regions {
    /// Returns the regions that the host unmapped at the time `before` or earlier.
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

    /// Reads the list of all mappings, and immediately checks all private regions against this list. A later check would treat
    /// regions that were made after the list was read as unmapped.
    pub(super) fn all_mapped(&self, status: &Status) -> io::Result<Vec<Mapping>> {
        let begin = monotonic_ns();
        let maps = maps::all()?;
        for region in self.all().filter(|region| region.gone() == NEVER && region.is_private()) {
            region.tally.settle(0, region.place.max_len);
            self.check(status, region, &maps);
        }
        self.has_read_mappings(begin);
        Ok(maps)
    }

    /// Marks those parts of a region as lost that are no longer mappings of the region's file. Returns whether any part is
    /// left. If no part is left, marks the region as gone.
    pub(super) fn check(&self, status: &Status, region: &Region, maps: &[Mapping]) -> bool {
        // The mappings of a region without a file cannot be recognized in the list of mappings.
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

    /// Marks a range as lost, except for the parts that `left` yields, in the order of their addresses. If the whole region is
    /// lost, marks the region as gone. Returns false if there is no memory for the record of lost pages.
    pub(super) fn lose(
        &self,
        status: &Status,
        region: &Region,
        start: u64,
        end: u64,
        left: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        // While this thread locks `naming`, no mapping can join a mapping group.
        let _naming = region.naming();
        let is_noted = region.pages.lose(start, end, left, status.clock.now());
        if is_noted && region.pages.all_lost(region.start(), region.end()) {
            self.set_gone(status, region);
        }
        is_noted
    }

    /// Marks a region as gone, because the host has unmapped the region or is about to unmap it.
    fn set_gone(&self, status: &Status, region: &Region) {
        // Code that is registered after this call has a later time than `now`. Another thread may already have set `gone`.
        let now = status.clock.now();
        let _ = region.gone.compare_exchange(NEVER, now, Ordering::AcqRel, Ordering::Relaxed);
        self.some_gone.store(true, Ordering::Release);
    }

    /// Marks memory that the host is about to unmap as lost, so that later registrations need not check the memory. All code in
    /// this memory has ended.
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
            // If there is no memory for the record of lost pages, a later check finds the lost pages.
            if has_file && undisturbed(|| self.lose(status, region, start, end, iter::empty())) {
                region.tally.settle(start - region.start(), end - start);
            }
        }
    }
}
