//! Which registrations exist, and how large their code is: a slab of words that any thread can check and retire without a
//! lock.
//!
//! An id is `generation << 32 | place`. The word of a place is `generation << 32 | unread << 31 | code size`, the generation
//! odd while the code is registered; so an id is live exactly if its generation is the word's, and an id that was given out is
//! never given out again.

use std::alloc::{self, Layout};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::{ptr, slice};

use crate::api::Id;
use crate::registry::Registry;

/// Slots of the first segment; each further one is twice as long.
const FIRST_SEGMENT: u32 = 1 << 12;
const SEGMENTS: usize = 20;
/// Threads take slots by this many.
const BATCH: usize = 32;
/// So many unused slots are kept ready for use.
const AHEAD: u32 = 1 << 13;
/// Slots in a page of memory.
const IN_A_PAGE: usize = 4096 / size_of::<Place>();
const NO_SLOT: u32 = u32::MAX;

/// The bytes of the code are not copied, and the writer has not read them yet.
const UNREAD: u64 = 1 << 31;

/// One registration.
#[derive(Debug, Default)]
struct Place {
    word: AtomicU64,
    /// Where the code lies.
    addr: AtomicU64,
}

/// The slab.
#[derive(Debug)]
pub struct Ids {
    segments: [AtomicPtr<Place>; SEGMENTS],
    /// Slots from here on were never used.
    fresh: AtomicU32,
    /// Slots below are in memory that the kernel has given. Only the writer asks for it.
    ready: AtomicU32,
    /// The free slot on top of a stack, `NO_SLOT` if there is none, below a number that changes with each push and pop. The
    /// word of a free slot holds the next one in place of a size. (A channel would have the registering threads free its
    /// memory, and wait for the lock of the arena that the writer allocated it from.)
    free: AtomicU64,
}

impl Ids {
    pub fn new() -> Ids {
        Ids {
            segments: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS],
            fresh: AtomicU32::new(0),
            ready: AtomicU32::new(0),
            free: AtomicU64::new(NO_SLOT.into()),
        }
    }

    /// In a forked child: the same ids as in the parent, of which those live on that are in one of the registries. No thread of
    /// the parent uses any other. What is in a registry and not live here was ended meanwhile, and is taken out of it.
    pub fn inherit(&self, mut registries: [&mut Registry; 2]) -> Ids {
        let segments = self.segments.each_ref().map(|start| AtomicPtr::new(start.load(Ordering::Acquire)));
        let fresh = self.fresh.load(Ordering::Relaxed);
        let child = Ids { segments, fresh: AtomicU32::new(fresh), ready: AtomicU32::new(fresh), ..Ids::new() };
        for slot in (0..fresh).rev() {
            let Some(place) = child.place(slot) else { continue };
            let word = place.word.load(Ordering::Relaxed);
            let generation = (word >> 32) as u32;
            let id = u64::from(generation) << 32 | u64::from(slot);
            let registered = registries.each_ref().map(|registry| registry.id_in(slot));
            if generation % 2 == 1 && registered.contains(&id) {
                place.word.store(word & !UNREAD, Ordering::Relaxed);
                continue;
            }
            for (registry, registered) in registries.iter_mut().zip(registered) {
                registry.remove(registered);
            }
            // Nobody has such an id, or whoever has it is told that it is over.
            place.word.store(word_of(generation.wrapping_add(generation % 2), 0), Ordering::Relaxed);
            child.push_free(slot);
        }
        child
    }

    /// Never done in a process. In a model there is one slab for each order of events that is run.
    #[cfg(jitsym_loom)]
    pub fn free(&mut self) {
        for (segment, start) in self.segments.iter_mut().enumerate() {
            let start = std::mem::replace(start.get_mut(), ptr::null_mut());
            let layout = Layout::array::<Place>((FIRST_SEGMENT as usize) << segment);
            if let (false, Ok(layout)) = (start.is_null(), layout) {
                // SAFETY: `place_or_new` has made it like this, and nobody uses it any more.
                unsafe { alloc::dealloc(start.cast(), layout) };
            }
        }
    }

    fn locate(slot: u32) -> (usize, usize) {
        let position = slot as u64 + u64::from(FIRST_SEGMENT);
        let segment = (position.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
        (segment, (position - (u64::from(FIRST_SEGMENT) << segment)) as usize)
    }

    fn place(&self, slot: u32) -> Option<&Place> {
        let (segment, offset) = Self::locate(slot);
        let start = self.segments.get(segment)?.load(Ordering::Acquire);
        // SAFETY: a segment that is published has `FIRST_SEGMENT << segment` places and is never freed; `locate` stays below.
        (!start.is_null()).then(|| unsafe { &*start.add(offset) })
    }

    /// The place of a slot, with its segment made if need be.
    #[cold]
    fn place_or_new(&self, slot: u32) -> Option<&Place> {
        let (segment, _) = Self::locate(slot);
        let start = self.segments.get(segment)?;
        if start.load(Ordering::Acquire).is_null() {
            let layout = Layout::array::<Place>((FIRST_SEGMENT as usize) << segment).ok()?;
            // Zeroed by the kernel, page by page when it is used: whoever comes by should not pay for all of it.
            // SAFETY: the layout is not empty.
            let places = unsafe { alloc::alloc_zeroed(layout) }.cast::<Place>();
            let exchange = start.compare_exchange(ptr::null_mut(), places, Ordering::AcqRel, Ordering::Acquire);
            if exchange.is_err() && !places.is_null() {
                // SAFETY: another thread was faster; ours was never seen by anybody.
                unsafe { alloc::dealloc(places.cast(), layout) };
            }
        }
        self.place(slot)
    }

    /// Sees to it that the slots which are taken next are in memory: a page that has to be given to a registering thread costs
    /// it some microseconds, once in `IN_A_PAGE` calls. For one thread at a time.
    pub fn prepare(&self) {
        let fresh = self.fresh.load(Ordering::Relaxed);
        let mut ready = self.ready.load(Ordering::Relaxed).max(fresh);
        while ready < fresh.saturating_add(AHEAD) {
            let Some(place) = self.place_or_new(ready) else { break };
            // A store that changes nothing, whoever else has the place by now.
            let _ = place.word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            ready += IN_A_PAGE as u32;
        }
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Makes a slot that nobody refers to any more free for every thread.
    pub fn recycle(&self, id: Id) {
        self.push_free(split(id).1);
    }

    fn push_free(&self, slot: u32) {
        let Some(place) = self.place(slot) else { return };
        let generation = place.word.load(Ordering::Relaxed) >> 32;
        let push = |top: u64| {
            place.word.store(generation << 32 | top & 0xffff_ffff, Ordering::Relaxed);
            Some(((top >> 32) + 1) << 32 | u64::from(slot))
        };
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, push);
    }

    fn pop_free(&self) -> Option<u32> {
        let pop = |top: u64| {
            let below = self.place(top as u32)?.word.load(Ordering::Relaxed);
            Some(((top >> 32) + 1) << 32 | below & 0xffff_ffff)
        };
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, pop).ok().map(|top| top as u32)
    }

    /// The place of a live id, and its word.
    fn live(&self, id: Id) -> Option<(&Place, u64)> {
        let (generation, slot) = split(id);
        let place = self.place(slot)?;
        let word = place.word.load(Ordering::Acquire);
        (generation % 2 == 1 && word >> 32 == u64::from(generation)).then_some((place, word))
    }

    /// The size of the code that is registered with this id; `None` if there is none.
    #[inline]
    pub fn size_of(&self, id: Id) -> Option<u64> {
        self.live(id).map(|(_, word)| word & (UNREAD - 1))
    }

    /// Where the code lies that is registered with this id, and its size.
    pub fn place_of(&self, id: Id) -> Option<(u64, u64)> {
        self.live(id).map(|(place, word)| (place.addr.load(Ordering::Relaxed), word & (UNREAD - 1)))
    }

    /// Notes where code lies now, and returns where it lay before; `None` if there is none with this id.
    pub fn move_to(&self, id: Id, addr: u64, unread: bool) -> Option<u64> {
        let (place, word) = self.live(id)?;
        if unread {
            // Fails if the code is unregistered meanwhile, and then does not matter.
            let _ = place.word.compare_exchange(word, word | UNREAD, Ordering::AcqRel, Ordering::Relaxed);
        }
        Some(place.addr.swap(addr, Ordering::AcqRel))
    }

    /// Whether the bytes of this code are still to be read.
    pub fn is_unread(&self, id: Id) -> bool {
        self.live(id).is_some_and(|(_, word)| word & UNREAD != 0)
    }

    /// The bytes have been read. Only the writer calls it.
    pub fn set_read(&self, id: Id) {
        if let Some((place, word)) = self.live(id) {
            let _ = place.word.compare_exchange(word, word & !UNREAD, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Ends an id. True for exactly one caller; that one sees to it that `recycle` gets the id, once nothing refers
    /// to it any more.
    pub fn retire(&self, id: Id) -> bool {
        let dead = word_of(split(id).0.wrapping_add(1), 0);
        loop {
            let Some((place, word)) = self.live(id) else { return false };
            // If the end of the session was faster, the caller sees from now on that it has ended.
            match place.word.compare_exchange(word, dead, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                // Somebody has just retired it, or read its bytes.
                Err(_) => std::hint::spin_loop(),
            }
        }
    }
}

fn word_of(generation: u32, size: u64) -> u64 {
    u64::from(generation) << 32 | size
}

fn split(id: Id) -> (u32, u32) {
    ((id.0 >> 32) as u32, id.0 as u32)
}

/// The free slots that one thread holds ready.
#[derive(Debug)]
pub struct Stock<'i> {
    /// Such as were used before.
    used: [u32; BATCH],
    used_len: usize,
    /// Such as never were: they lie side by side, from slot `next_fresh` on.
    fresh: slice::Iter<'i, Place>,
    next_fresh: u32,
}

impl<'i> Stock<'i> {
    pub fn new() -> Self {
        Stock { used: [NO_SLOT; BATCH], used_len: 0, fresh: [].iter(), next_fresh: 0 }
    }

    /// Makes a live id for code at `addr` of `size` bytes, which is below 2 GiB. `None` if there is no memory for more.
    #[inline(always)]
    pub fn take(&mut self, ids: &'i Ids, addr: u64, size: u64, unread: bool) -> Option<Id> {
        let (slot, place) = match self.fresh.next() {
            Some(place) => {
                self.next_fresh += 1;
                (self.next_fresh - 1, place)
            }
            None => self.take_used(ids)?,
        };
        place.addr.store(addr, Ordering::Relaxed);
        // Nobody else writes the word of a slot that is free.
        let generation = ((place.word.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        let flag = if unread { UNREAD } else { 0 };
        place.word.store(word_of(generation, size) | flag, Ordering::Release);
        Some(Id(u64::from(generation) << 32 | u64::from(slot)))
    }

    /// Takes back an id that was never given to anybody.
    pub fn put_back(&mut self, ids: &'i Ids, id: Id) {
        if !ids.retire(id) {
            return;
        }
        match self.used.get_mut(self.used_len) {
            Some(free) => {
                *free = split(id).1;
                self.used_len += 1;
            }
            None => ids.recycle(id),
        }
    }

    #[inline(never)]
    fn take_used(&mut self, ids: &'i Ids) -> Option<(u32, &'i Place)> {
        if self.used_len == 0 {
            // The one that was freed last is taken first.
            while self.used_len < BATCH {
                let Some(slot) = ids.pop_free() else { break };
                self.used[self.used_len] = slot;
                self.used_len += 1;
            }
            self.used[..self.used_len].reverse();
        }
        if self.used_len == 0 {
            return self.take_fresh(ids);
        }
        self.used_len -= 1;
        let slot = self.used[self.used_len];
        Some((slot, ids.place(slot)?))
    }

    /// The first of a batch that was never used, the rest of which is kept.
    #[cold]
    fn take_fresh(&mut self, ids: &'i Ids) -> Option<(u32, &'i Place)> {
        let next = |fresh: u32| fresh.checked_add(BATCH as u32);
        let first = ids.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let start = ids.place_or_new(first)?;
        // SAFETY: batches begin at multiples of their length, of which segments have a multiple: all of it is in this one.
        let batch = unsafe { slice::from_raw_parts(start, BATCH) };
        (self.fresh, self.next_fresh) = (batch[1..].iter(), first + 1);
        Some((first, start))
    }

    /// Gives the slots back when the thread ends.
    pub fn give_back(&mut self, ids: &'i Ids) {
        let unused = self.next_fresh..self.next_fresh + self.fresh.len() as u32;
        // Such as were used before are taken again first.
        unused.rev().chain(self.used[..self.used_len].iter().copied()).for_each(|slot| ids.push_free(slot));
        *self = Stock::new();
    }
}

const _: () = assert!((FIRST_SEGMENT as usize).is_multiple_of(BATCH));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Live;

    #[test]
    fn an_id_lives_once() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..5000 {
            let id = stock.take(&ids, 0x1000, 40, false).unwrap();
            assert!(seen.insert(id.0));
            assert_eq!(ids.size_of(id), Some(40));
            assert!(ids.retire(id) && ids.size_of(id).is_none() && !ids.retire(id));
            ids.recycle(id);
        }
        assert!(ids.fresh.load(Ordering::Relaxed) < 200, "slots are used again");
        assert!(ids.size_of(Id(0)).is_none() && !ids.retire(Id(0)) && !ids.retire(Id(u64::MAX)));
    }

    #[test]
    fn slots_fill_segments_without_overlap() {
        let mut expected = (0, 0);
        for slot in 0..100_000 {
            let place = Ids::locate(slot);
            if place != expected {
                assert_eq!((expected.1, place), ((FIRST_SEGMENT as usize) << expected.0, (expected.0 + 1, 0)));
            }
            expected = (place.0, place.1 + 1);
        }
        assert!(Ids::locate(u32::MAX).0 >= SEGMENTS, "the last slots do not exist, and are refused");
        assert!(Ids::new().place_or_new(u32::MAX).is_none());
    }

    #[test]
    fn what_was_not_used_is_given_back() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        let id = stock.take(&ids, 0x1000, 40, false).unwrap();
        stock.put_back(&ids, id);
        stock.give_back(&ids);
        let mut other = Stock::new();
        let again = other.take(&ids, 0x1000, 1, false).unwrap();
        assert_eq!(again.0 as u32, id.0 as u32);
        assert_ne!(again, id);
        assert_eq!(ids.fresh.load(Ordering::Relaxed), BATCH as u32);
    }

    #[test]
    fn slots_of_a_whole_cache_are_used_again() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        for _ in 0..10 {
            let all: Vec<Id> = (0..20_000).map(|_| stock.take(&ids, 0x1000, 1, false).unwrap()).collect();
            for id in all {
                assert!(ids.retire(id));
                ids.recycle(id);
            }
        }
        assert!(ids.fresh.load(Ordering::Relaxed) <= 20_000 + 2 * BATCH as u32);
    }

    #[test]
    fn only_one_thread_retires() {
        let ids = Ids::new();
        let mut stock = Stock::new();
        let all: Vec<Id> = (0..2000).map(|_| stock.take(&ids, 0x1000, 40, false).unwrap()).collect();
        let won: usize = std::thread::scope(|scope| {
            let race = || all.iter().filter(|&&id| ids.retire(id)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, all.len());
    }

    #[test]
    fn an_id_remembers_what_is_to_be_read_and_where() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        let id = stock.take(&ids, 0x1000, 40, true).unwrap();
        assert!(ids.is_unread(id));
        assert_eq!(ids.size_of(id), Some(40));
        ids.set_read(id);
        assert!(!ids.is_unread(id));
        assert_eq!(ids.move_to(id, 0x2000, false), Some(0x1000));
        assert!(!ids.is_unread(id));
        assert_eq!(ids.move_to(id, 0x3000, true), Some(0x2000));
        assert!(ids.is_unread(id) && ids.retire(id) && !ids.is_unread(id) && !ids.retire(id));
        assert_eq!(ids.move_to(id, 0x4000, false), None);
    }

    #[test]
    fn unused_slots_are_in_memory_before_they_are_taken() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        for _ in 0..6 {
            ids.prepare();
            let from = ids.fresh.load(Ordering::Relaxed);
            let pages: Vec<u8> = (from..from + AHEAD).step_by(IN_A_PAGE).map(|slot| residency(&ids, slot)).collect();
            assert!(pages.iter().all(|&page| page == 1), "{pages:?}");
            for _ in 0..AHEAD - 100 {
                stock.take(&ids, 0x1000, 40, false).unwrap();
            }
        }
        assert!(ids.segments[4].load(Ordering::Relaxed).is_null());
        assert!((0..ids.fresh.load(Ordering::Relaxed)).all(|slot| ids.place(slot).is_some()));
    }

    #[test]
    fn a_child_has_the_ids_of_live_code_and_no_other() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        let all: Vec<Id> = (0..100).map(|at| stock.take(&ids, 0x1000 * at, 40, at % 7 == 0).unwrap()).collect();
        let mut registry = Registry::default();
        for (at, id) in (0..).zip(&all) {
            let live = Live { addr: 0x1000 * at, size: 40, reach: 0, index: 0, stored: None, tables_len: 0 };
            let live = Live { reach: live.addr + 40, ..live };
            match at % 4 {
                // Ended, and the writer knows it; or not yet.
                0 => assert!(ids.retire(*id)),
                1 => {
                    registry.insert(id.0, &live, b"name", &mut Vec::new());
                    assert!(ids.retire(*id));
                }
                // Registered by a call that has not returned yet.
                2 => {}
                _ => drop(registry.insert(id.0, &live, b"name", &mut Vec::new())),
            }
        }
        let child = ids.inherit([&mut registry, &mut Registry::default()]);
        assert_eq!(registry.live_count(), 25);
        for (at, &id) in all.iter().enumerate() {
            assert_eq!(child.size_of(id), (at % 4 == 3).then_some(40), "{at}");
            assert!(!child.is_unread(id));
        }
        // All other slots are free, and are not given out as they were before.
        let mut stock = Stock::new();
        let fresh: Vec<Id> = (0..75).map(|_| stock.take(&child, 0, 1, false).unwrap()).collect();
        assert!(fresh.iter().all(|id| (id.0 as u32) < 128 && !all.contains(id)));
        assert!(all.iter().skip(3).step_by(4).all(|&id| child.size_of(id) == Some(40)));
    }

    /// 1 if the page of a slot is in memory.
    fn residency(ids: &Ids, slot: u32) -> u8 {
        let place = std::ptr::from_ref(ids.place(slot).expect("its segment is there"));
        let page = place.map_addr(|addr| addr & !4095);
        let mut resident = 0;
        // SAFETY: the page is mapped, and there is room for what is said about one page.
        assert_eq!(unsafe { libc::mincore(page.cast_mut().cast(), 1, &mut resident) }, 0);
        resident & 1
    }
}
