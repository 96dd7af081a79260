//! Code that comes and goes in regions, as the registering threads tell it.

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
    /// Before code is registered: ensures that its samples are not taken for dead code, or for no code at all. Each registration
    /// pays for this, and it takes no lock. Returns flags of the code's event.
    #[inline(never)]
    pub fn before_code(&self, status: &Status, addr: u64, size: u64) -> u8 {
        if self.candidates.any_waits() {
            self.look_again(status);
        }
        match self.find(addr, size) {
            Some(region) if region.tally.add(addr - region.start(), size) && !region.is_used_up(addr, size) => {
                region.take(status, addr, size)
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
                return region.take(status, addr, size);
            }
            region.tally.subtract(addr - region.start(), size);
        }
        // The host may be writing to it, or unmapping it, while the bridge registers code.
        if !self.are_adopting() || panic_guard::is_beside_host() {
            return 0;
        }
        self.adopt_if_new(status, addr, size).map_or(0, |region| {
            region.tally.add(addr - region.start(), size);
            region.take(status, addr, size)
        })
    }

    /// Adopts the mapping that code lies in, unless that was tried recently. A program may register all its code in such a mapping.
    fn adopt_if_new(&self, status: &Status, addr: u64, size: u64) -> Option<&'static Region> {
        if self.candidates.shows_declined(addr, addr.checked_add(size)?, monotonic_ns) {
            return None;
        }
        undisturbed(|| self.adopt_around(status, addr, size, monotonic_ns()))
    }

    /// Code is gone, or moves away.
    #[inline(never)]
    pub fn after_code(&self, status: &Status, addr: u64, size: u64) {
        if self.candidates.any_waits() {
            self.look_again(status);
        }
        let Some(region) = self.around(addr, size) else { return };
        region.tally.subtract(addr - region.start(), size);
        region.marks.end(addr - region.start(), size);
        if !region.has_failed.load(Ordering::Relaxed) {
            region.mark_dead(status, addr, size);
        }
    }

    /// Code could not be registered, for which `before_code` has returned these flags.
    pub fn not_registered(&self, addr: u64, size: u64, flags: u8) {
        if let Some(region) = self.around(addr, size) {
            region.tally.subtract(addr - region.start(), size);
            // Otherwise other code lives on there.
            if flags & flag::REPLACES == 0 {
                region.marks.end(addr - region.start(), size);
            }
        }
    }

    /// Counted code lives no more: other code has taken its place.
    pub fn no_code(&self, addr: u64, size: u64) {
        if let Some(region) = self.around(addr, size) {
            region.tally.subtract(addr - region.start(), size);
        }
    }

    /// Code that was counted as gone lives on.
    pub fn code_stays(&self, addr: u64, size: u64) {
        if let Some(region) = self.around(addr, size) {
            region.tally.add(addr - region.start(), size);
            region.marks.begin(addr - region.start(), size);
        }
    }

    /// All sessions have ended, and all code with them.
    pub fn no_code_at_all(&self) {
        self.all().for_each(|region| {
            region.tally.clear();
            region.marks.no_code();
        });
    }

    /// All code in a range is gone.
    #[cold]
    #[inline(never)]
    pub fn after_range(&self, status: &Status, addr: u64, size: u64) {
        if self.candidates.any_waits() {
            self.look_again(status);
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
    /// Code that has been counted is about to be registered. Returns flags of its event.
    fn take(&self, status: &Status, addr: u64, size: u64) -> u8 {
        let replaces = self.marks.begin(addr - self.start(), size);
        if replaces {
            self.mark_dead(status, addr, size);
            if self.flips() {
                // perf has been told of the file's name before.
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
        // The file may have got another name since code was last registered, of which the host's `mprotect` tells for the code,
        // unless it has made the memory writable and executable at once since.
        if self.epoch.load(Ordering::Relaxed) > FIRST {
            undisturbed(|| self.announce(addr, size));
        }
    }

    /// Counts live code that was not registered in it. Callers may know of newer code there already, or of its end.
    pub fn count_live(&self, addr: u64, size: u64) {
        let offset = addr - self.start();
        self.tally.add(offset, size);
        if !self.marks.any(offset, size) && self.marks.after(offset, size, 0).is_none() {
            self.marks.begin(offset, size);
        }
    }

    fn mark_dead(&self, status: &Status, addr: u64, size: u64) {
        let since = self.dead_since(status);
        let (addr, size) = self.counted(addr, size);
        self.marks.set(addr - self.start(), size, since);
        // Another thread may have begun an epoch meanwhile, in which this code is still named.
        let last = self.epoch.load(Ordering::Relaxed);
        if since <= last && !self.flips() {
            self.marks.set(addr - self.start(), size, last + 1);
        }
    }

    /// In a mapping group, the pages of dead code: what comes there next may be another mapping.
    fn counted(&self, addr: u64, size: u64) -> (u64, u64) {
        if !self.is_mapping_group() {
            return (addr, size);
        }
        let page = page_size() as u64;
        let start = addr / page * page;
        (start, (addr + size).next_multiple_of(page) - start)
    }

    /// Whether the host has left the memory as it was, as far as there is doubt.
    fn is_there(&self, regions: &Regions, status: &Status, addr: u64, size: u64) -> bool {
        if !self.tally.settle(addr - self.start(), size) {
            return true;
        }
        undisturbed(|| match maps::within(self.start(), self.end()) {
            Ok(maps) => regions.check(status, self, &maps),
            Err(_) => {
                // There is no descriptor left, perhaps.
                self.tally.doubt(addr - self.start(), size);
                true
            }
        })
    }
}
