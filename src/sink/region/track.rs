//! Tracks where regions have live and dead code. The threads that register code call these functions.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::regions::Regions;
use super::state::{Region, FIRST};
use crate::queue::record::flag;
use crate::queue::status::Status;
use crate::sys::clock::monotonic_ns;
use crate::sys::mapping::page_size;
use crate::sys::maps;
use crate::sys::panic_guard;
use crate::sys::thread::undisturbed;

impl Regions {
    /// Called before code is registered. Counts and marks the code in its region, and begins an epoch if the code replaces dead
    /// code. May adopt unknown memory. Without this call, samples of the code could have the name of dead code, or no name.
    /// Every registration makes this call, so it must be fast, and usually takes no lock. Returns flags for the code's event.
    #[inline(never)]
    pub fn before_code(&self, status: &Status, addr: u64, size: u64) -> u8 {
        if self.candidates.any_waits() {
            self.look_again(status);
        }
        if self.has_inherited() {
            self.heed_parent(status);
        }
        match self.find(addr, size) {
            Some(region) if region.tally.add(addr - region.start(), size) && !region.is_used_up(addr, size) => {
                self.take(status, region, addr, size)
            }
            known => self.before_doubtful_code(status, addr, size, known),
        }
    }

    #[cold]
    #[inline(never)]
    fn before_doubtful_code(&self, status: &Status, addr: u64, size: u64, known: Option<&'static Region>) -> u8 {
        if let Some(region) = known {
            if region.is_used_up(addr, size) {
                self.part_from_mapping_group(status, region, addr, size);
            }
            if region.is_there(self, status, addr, size) && region.holds(addr, size) {
                return self.take(status, region, addr, size);
            }
            region.tally.subtract(addr - region.start(), size);
        }
        // While the bridge registers code, the host may be writing to the memory or unmapping it.
        if self.are_adopting() && !panic_guard::is_beside_host() {
            self.adopt_if_new(status, addr, size);
        }
        let parts = self.parts(addr, size).filter(|(region, ..)| !region.has_failed.load(Ordering::Relaxed));
        parts.fold(0, |flags, (region, addr, size)| {
            region.tally.add(addr - region.start(), size);
            flags | self.take(status, region, addr, size)
        })
    }

    fn take(&self, status: &Status, region: &'static Region, addr: u64, size: u64) -> u8 {
        if region.is_inherited() {
            self.part(status, region);
        }
        region.take(status, addr, size)
    }

    /// Adopts the mapping that contains the code, unless a recent attempt failed. The check for a declined mapping takes no
    /// lock, because a program may register all its code in declined mappings.
    fn adopt_if_new(&self, status: &Status, addr: u64, size: u64) {
        if !self.candidates.shows_declined(addr, addr.saturating_add(size), monotonic_ns) {
            undisturbed(|| self.adopt_around(status, addr, size, monotonic_ns()));
        }
    }

    /// Records that code has ended or moved away.
    #[inline(never)]
    pub fn after_code(&self, status: &Status, addr: u64, size: u64) {
        if self.candidates.any_waits() {
            self.look_again(status);
        }
        if self.has_inherited() {
            self.heed_parent(status);
        }
        for (region, addr, size) in self.parts(addr, size) {
            region.tally.subtract(addr - region.start(), size);
            region.marks.end(addr - region.start(), size);
            if !region.has_failed.load(Ordering::Relaxed) {
                region.mark_dead(status, addr, size);
            }
        }
    }

    /// Undoes what `before_code` has recorded about code whose registration failed. `flags` is the result of `before_code`.
    pub fn not_registered(&self, addr: u64, size: u64, flags: u8) {
        for (region, addr, size) in self.parts(addr, size) {
            region.tally.subtract(addr - region.start(), size);
            // If the flag `REPLACES` is set, the failed registration would have replaced older code. The older code is still
            // live, so its marks stay.
            if flags & flag::REPLACES == 0 {
                region.marks.end(addr - region.start(), size);
            }
        }
    }

    /// Subtracts code from the counts of live code. The caller has found that other code has replaced this code, or that the
    /// host has ended all code in a range.
    pub fn no_code(&self, addr: u64, size: u64) {
        for (region, addr, size) in self.parts(addr, size) {
            region.tally.subtract(addr - region.start(), size);
        }
    }

    /// Undoes `after_code` for code that is still live.
    pub fn code_stays(&self, addr: u64, size: u64) {
        for (region, addr, size) in self.parts(addr, size) {
            region.tally.add(addr - region.start(), size);
            region.marks.begin(addr - region.start(), size);
        }
    }

    /// Records that all code has ended, because all sessions have ended.
    pub fn no_code_at_all(&self) {
        self.all().for_each(|region| {
            region.tally.clear();
            region.marks.no_code();
        });
    }

    /// Records that all code in a range has ended.
    #[cold]
    #[inline(never)]
    pub fn after_range(&self, status: &Status, addr: u64, size: u64) {
        if self.candidates.any_waits() {
            self.look_again(status);
        }
        if self.has_inherited() {
            self.heed_parent(status);
        }
        let end = addr.saturating_add(size);
        for region in self.overlapping(addr, end) {
            let (start, end) = (addr.max(region.start()), end.min(region.end()));
            region.tally.doubt(start - region.start(), end - start);
            region.marks.end(start - region.start(), end - start);
            region.mark_dead(status, start, end - start);
        }
    }
}

impl Region {
    /// Marks code that is about to be registered, and begins an epoch if needed. The code must already be counted in `tally`.
    /// Returns flags for the code's event.
    fn take(&self, status: &Status, addr: u64, size: u64) -> u8 {
        let replaces = self.marks.begin(addr - self.start(), size);
        if replaces {
            self.mark_dead(status, addr, size);
            if self.flips() {
                // The host called `mprotect` before this call, so perf knows only the name that the file had at that time.
                status.counters.region_late.add(1);
            }
        }
        if self.is_private() && !self.is_in_use.load(Ordering::Relaxed) {
            self.begin_to_use(addr, size);
        }
        if let Some(since) = self.marks.after(addr - self.start(), size, self.first.load(Ordering::Relaxed)) {
            self.replace(status, addr, size, since);
        }
        if replaces {
            flag::REPLACES
        } else {
            0
        }
    }

    #[cold]
    fn begin_to_use(&self, addr: u64, size: u64) {
        self.is_in_use.store(true, Ordering::Relaxed);
        // The library may have renamed the file since code was last registered. Usually perf learns the new name from an
        // `mprotect` of the host. If the memory is now writable and executable at the same time, the host has not called
        // `mprotect`, so perf does not know the new name.
        if self.epoch.load(Ordering::Relaxed) > FIRST {
            undisturbed(|| self.announce(addr, size));
        }
    }

    /// Counts live code that was registered before its memory became a region. Since then, threads of the host may have ended
    /// the code, or may have registered newer code at its addresses.
    pub fn count_live(&self, addr: u64, size: u64) {
        let Range { start, end } = self.part_of(addr, size);
        self.tally.add(start - self.start(), end - start);
        self.mark_live(start, end - start);
    }

    /// Marks live code like `count_live`, unless it is marked already. The code of an inherited region is not marked, because
    /// the marks would take memory in each child, and no code comes to lie in the region before it gets its own file.
    pub fn mark_live(&self, addr: u64, size: u64) {
        let offset = addr - self.start();
        if self.is_inherited() {
            return;
        }
        if !self.marks.any(offset, size) && self.marks.after(offset, size, 0).is_none() {
            self.marks.begin(offset, size);
        }
    }

    /// Like `count_live`, for code that lies only partly in the region. The code may have been counted already when it was
    /// registered, or by an earlier call of this function.
    pub fn count_live_part(&self, addr: u64, size: u64) {
        let Range { start, end } = self.part_of(addr, size);
        if !self.marks.any(start - self.start(), end - start) {
            self.count_live(addr, size);
        }
    }

    fn mark_dead(&self, status: &Status, addr: u64, size: u64) {
        if self.is_inherited() && !self.is_mapping_group() {
            // If the region gets its own file later, this file never describes the dead code.
            return;
        }
        let since = self.dead_since(status);
        let (addr, size) = self.counted(addr, size);
        self.marks.set(addr - self.start(), size, since);
        // If another thread has begun an epoch since the call of `dead_since`, the file still names the dead code in the new
        // epoch.
        let last = self.epoch.load(Ordering::Relaxed);
        if since <= last && !self.flips() {
            self.marks.set(addr - self.start(), size, last + 1);
        }
    }

    /// Returns the range to mark as dead. In a mapping group, this range consists of whole pages: a new mapping replaces whole
    /// pages, and its code may lie anywhere in the pages.
    fn counted(&self, addr: u64, size: u64) -> (u64, u64) {
        if !self.is_mapping_group() {
            return (addr, size);
        }
        let page = page_size() as u64;
        let start = addr / page * page;
        (start, (addr + size).next_multiple_of(page) - start)
    }

    /// Checks whether the host has unmapped parts of the region, and marks the unmapped parts as lost. Reads the list of
    /// mappings only if `tally` has the flag `IN_DOUBT` for the memory of the code. Returns false if no part of the region is
    /// left.
    fn is_there(&self, regions: &Regions, status: &Status, addr: u64, size: u64) -> bool {
        if !self.tally.settle(addr - self.start(), size) {
            return true;
        }
        undisturbed(|| match maps::within(self.start(), self.end()) {
            Ok(maps) => regions.check(status, self, &maps),
            Err(_) => {
                // The process may have no free descriptor for reading the list of mappings. The flag is set again, so that the
                // next call checks the memory.
                self.tally.doubt(addr - self.start(), size);
                true
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::sink::region::lookup::tests::region;

    #[test]
    fn a_part_counts_once() {
        let region = region(1 << 20, 1 << 20);
        // The first code was registered before its memory became a region, and the second code was registered afterwards.
        let (first, second) = (region.start() - 50, region.end() - 50);
        assert!(region.tally.add(second - region.start(), 50) && !region.marks.begin(second - region.start(), 50));
        for code in [first, first, second] {
            region.count_live_part(code, 100);
        }
        for offset in [0, second - region.start()] {
            assert!(!region.tally.settle(offset, 50));
            region.tally.subtract(offset, 50);
            assert!(region.tally.settle(offset, 50));
        }
    }
}
