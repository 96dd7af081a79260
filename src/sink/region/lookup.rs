//! Lists all regions, and finds the region that contains an address. The search takes no lock, because every registration makes
//! this search.

use std::sync::atomic::{fence, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use super::state::Region;

/// The maximum number of regions at a time. The writer has one open file for each region. The usual limit of open files for a
/// process is 1024, so at least 256 open files remain for other uses.
pub const MOST: usize = 768;

/// All regions, and an index of the regions by address. Regions are never freed, so a call that races with the end of a region
/// reads valid memory.
#[derive(Debug, Default)]
pub struct Places {
    /// The memory is allocated when the first region is added.
    memory: OnceLock<Box<Memory>>,
    /// The number of elements of `Memory::places` that were used at least once.
    used: AtomicUsize,
}

#[derive(Debug)]
struct Memory {
    places: [AtomicPtr<Region>; MOST],
    /// The version of the index. The version is odd while a thread changes the index.
    version: AtomicU64,
    /// The number of regions in the index.
    count: AtomicUsize,
    /// The regions in order of their start.
    index: [Entry; MOST],
}

/// An entry of the index. The ranges of entries may overlap, because another region may be made in a part of a region that the
/// host has unmapped.
#[derive(Debug)]
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
    /// The largest end among this entry and all entries before it.
    reach: AtomicU64,
    region: AtomicPtr<Region>,
}

impl Memory {
    fn new() -> Option<Box<Memory>> {
        // SAFETY: zero bytes are valid initial values of all fields: null pointers and the number zero.
        unsafe {
            let layout = std::alloc::Layout::new::<Memory>();
            let memory = std::alloc::alloc_zeroed(layout).cast::<Memory>();
            (!memory.is_null()).then(|| Box::from_raw(memory))
        }
    }
}

impl Places {
    pub fn all(&self) -> impl Iterator<Item = &'static Region> + '_ {
        let used = self.used.load(Ordering::Acquire);
        let places = self.memory.get().map_or(&[][..], |memory| &memory.places[..used]);
        // SAFETY: regions that are published here are never freed.
        places.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
    }

    /// Passes the regions that may contain an address to `is_right`, and returns the first region that `is_right` accepts. The
    /// region with the highest start comes first.
    #[inline]
    pub fn around(&self, addr: u64, mut is_right: impl FnMut(&'static Region) -> bool) -> Option<&'static Region> {
        let memory = self.memory.get()?;
        let version = memory.version.load(Ordering::Acquire);
        let count = memory.count.load(Ordering::Relaxed).min(MOST);
        let entries = &memory.index[..count];
        let behind = entries.partition_point(|entry| entry.start.load(Ordering::Relaxed) <= addr);
        let near = entries[..behind].iter().rev().take_while(|entry| entry.reach.load(Ordering::Relaxed) > addr);
        // SAFETY: regions that are published here are never freed.
        let mut near = near.filter_map(|entry| unsafe { entry.region.load(Ordering::Acquire).as_ref() });
        let found = near.find(|region| is_right(region));
        fence(Ordering::Acquire);
        if version % 2 == 0 && memory.version.load(Ordering::Relaxed) == version {
            return found;
        }
        // Another thread changed the index during the search. The list `places` is always correct.
        self.all().find(|region| is_right(region))
    }

    /// Returns true if the list is full, or if the memory for the list cannot be allocated.
    pub fn is_full(&self) -> bool {
        self.all().count() >= MOST || self.memory().is_none()
    }

    fn memory(&self) -> Option<&Memory> {
        if self.memory.get().is_none() {
            // If several threads allocate the memory at the same time, all threads use the memory that was set first.
            let _ = self.memory.set(Memory::new()?);
        }
        self.memory.get().map(Box::as_ref)
    }

    /// Adds a region. Returns false if the list is full. Only one thread at a time may call `add` or `remove`.
    pub fn add(&self, region: &'static Region) -> bool {
        let Some(memory) = self.memory() else { return false };
        let Some(place) = memory.places.iter().position(|place| place.load(Ordering::Relaxed).is_null()) else {
            return false;
        };
        memory.places[place].store(std::ptr::from_ref(region).cast_mut(), Ordering::Release);
        self.used.fetch_max(place + 1, Ordering::AcqRel);
        Self::change(memory, |count| {
            let mut at = count;
            while at > 0 && memory.index[at - 1].start.load(Ordering::Relaxed) > region.start() {
                memory.index[at].take(&memory.index[at - 1]);
                at -= 1;
            }
            memory.index[at].set(
                region.start(),
                region.start() + region.place.max_len,
                std::ptr::from_ref(region).cast_mut(),
            );
            count + 1
        });
        true
    }

    /// Removes a region. Returns false if the region is not in the list.
    pub fn remove(&self, region: &'static Region) -> bool {
        let Some(memory) = self.memory.get() else { return false };
        let is_it = |place: &&AtomicPtr<Region>| std::ptr::eq(place.load(Ordering::Relaxed), region);
        let Some(place) = memory.places.iter().find(is_it) else { return false };
        place.store(std::ptr::null_mut(), Ordering::Release);
        Self::change(memory, |count| {
            let is_it = |entry: &Entry| std::ptr::eq(entry.region.load(Ordering::Relaxed), region);
            let at = memory.index[..count].iter().position(is_it).unwrap_or(count);
            (at + 1..count).for_each(|next| memory.index[next - 1].take(&memory.index[next]));
            count - usize::from(at < count)
        });
        true
    }

    /// Changes the index. `change` gets the number of regions in the index, and returns the new number.
    fn change(memory: &Memory, change: impl FnOnce(usize) -> usize) {
        memory.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let count = change(memory.count.load(Ordering::Relaxed));
        memory.count.store(count, Ordering::Relaxed);
        let mut reach = 0;
        for entry in &memory.index[..count] {
            reach = reach.max(entry.end.load(Ordering::Relaxed));
            entry.reach.store(reach, Ordering::Relaxed);
        }
        memory.version.fetch_add(1, Ordering::Release);
    }
}

impl Entry {
    fn take(&self, other: &Entry) {
        self.set(
            other.start.load(Ordering::Relaxed),
            other.end.load(Ordering::Relaxed),
            other.region.load(Ordering::Relaxed),
        );
    }

    fn set(&self, start: u64, end: u64, region: *mut Region) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.region.store(region, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sink::region::addresses::Placement;
    use crate::sink::region::code_marks::Marks;
    use crate::sink::region::lost_pages::Pages;
    use crate::sink::region::naming::Naming;
    use crate::sink::region::state::{Backing, Parts};
    use crate::sys::sync::outside::Arc;

    pub fn region(start: u64, len: u64) -> &'static Region {
        let kind = Backing::Private { adopted: false, never_flips: false };
        let (base, header_len, tables, has_object_above) = (start, 0, 0..0, false);
        let place = Placement { start, max_len: len, base, header_len, tables, has_object_above, marks_hint: 0 };
        let (pages, naming) = (Pages::new(start, len), Naming::nameless(None));
        let parts = Parts { place, kind, len, pages, naming, file: None, inherited: None };
        let marks = Arc::new(Marks::new(0, len).unwrap());
        Box::leak(Box::new(Region::new(parts, marks, Arc::default(), None).unwrap()))
    }

    #[test]
    fn each_address_has_its_region() {
        const STEP: u64 = 1 << 20;
        let places = Places::default();
        assert!(places.around(STEP, |_| true).is_none());
        // The regions are added in mixed order. The last region contains the ranges of all earlier regions.
        let numbers = (0..MOST as u64 - 1).map(|number| number * 5 % (MOST as u64 - 1));
        let small: Vec<_> = numbers.map(|number| region((number + 1) * STEP, STEP / 2)).collect();
        let large = region(STEP - 8, 1 << 30);
        assert!(small.iter().chain([&large]).all(|region| places.add(region)) && places.is_full());
        assert!(!places.add(region(7, 7)) && places.all().count() == MOST);
        let found = |addr, size| {
            places.around(addr, |region| region.spans(addr, size)).map(|region| (region.start(), region.place.max_len))
        };
        for region in &small {
            assert_eq!(found(region.start() + STEP / 4, 8), Some((region.start(), STEP / 2)));
            assert_eq!(found(region.start() + STEP / 2, 8), Some((STEP - 8, 1 << 30)));
        }
        assert_eq!((found(STEP - 9, 1), found(STEP - 8 + (1 << 30), 1)), (None, None));
        for region in small.iter().step_by(2).chain([&large]) {
            assert!(places.remove(region) && !places.remove(region));
        }
        assert!(small.iter().step_by(2).all(|region| found(region.start(), 1).is_none()));
        assert!(small
            .iter()
            .skip(1)
            .step_by(2)
            .all(|region| found(region.start(), 1) == Some((region.start(), STEP / 2))));
        assert!(!places.is_full() && places.all().count() == small.len() / 2);
    }
}
