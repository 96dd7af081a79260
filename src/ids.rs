//! Which registrations exist, and how large their code is: a slab of words that any thread can check and retire without a
//! lock.
//!
//! An id is `generation << 32 | slot`. The word of a slot is `generation << 32 | code size`, the generation odd while the
//! code is registered; so an id is live exactly if its generation is the word's, and an id that was given out is never given
//! out again.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::Id;

/// Slots of the first segment; each further one is twice as long.
const FIRST_SEGMENT: u32 = 1 << 12;
const SEGMENTS: usize = 20;
/// Slots travel between threads by this many.
const BATCH: usize = 32;

/// Free slots on their way from the writer to a registering thread. `u32::MAX` is no slot. Their number is bounded by how
/// many registrations were ever live at a time.
type Batch = [u32; BATCH];
const EMPTY_BATCH: Batch = [u32::MAX; BATCH];

/// The slab.
#[derive(Debug)]
pub struct Ids {
    segments: [AtomicPtr<AtomicU64>; SEGMENTS],
    /// Slots from here on were never used.
    fresh: AtomicU32,
    free: (Sender<Batch>, Receiver<Batch>),
}

impl Ids {
    pub fn new() -> Ids {
        Ids {
            segments: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS],
            fresh: AtomicU32::new(0),
            free: crossbeam_channel::unbounded(),
        }
    }

    fn locate(slot: u32) -> (usize, usize) {
        let position = slot as u64 + u64::from(FIRST_SEGMENT);
        let segment = (position.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
        (segment, (position - (u64::from(FIRST_SEGMENT) << segment)) as usize)
    }

    fn word(&self, slot: u32) -> Option<&AtomicU64> {
        let (segment, offset) = Self::locate(slot);
        let start = self.segments.get(segment)?.load(Ordering::Acquire);
        // SAFETY: a segment that is published has `FIRST_SEGMENT << segment` words and is never freed; `locate` stays below.
        (!start.is_null()).then(|| unsafe { &*start.add(offset) })
    }

    /// The word of a slot, with its segment made if need be.
    fn word_or_new(&self, slot: u32) -> Option<&AtomicU64> {
        let (segment, _) = Self::locate(slot);
        let place = self.segments.get(segment)?;
        if place.load(Ordering::Acquire).is_null() {
            let len = (FIRST_SEGMENT as usize) << segment;
            let mut words = Vec::new();
            words.try_reserve_exact(len).ok()?;
            words.resize_with(len, || AtomicU64::new(0));
            let words = Box::into_raw(words.into_boxed_slice());
            let published =
                place.compare_exchange(ptr::null_mut(), words.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok();
            if !published {
                // SAFETY: another thread was faster; ours was never seen by anybody.
                drop(unsafe { Box::from_raw(words) });
            }
        }
        self.word(slot)
    }

    /// The size of the code that is registered with this id; `None` if there is none.
    pub fn size_of(&self, id: Id) -> Option<u64> {
        let (generation, slot) = split(id);
        let word = self.word(slot)?.load(Ordering::Acquire);
        (generation % 2 == 1 && word >> 32 == u64::from(generation)).then_some(word & 0xffff_ffff)
    }

    /// Ends an id. True for exactly one caller; that one sees to it that `Recycler::add` gets the slot, once nothing refers
    /// to it any more.
    pub fn retire(&self, id: Id) -> bool {
        let (generation, slot) = split(id);
        let Some(size) = self.size_of(id) else { return false };
        let (live, dead) = (word_of(generation, size), word_of(generation.wrapping_add(1), 0));
        // The size does not change while the id lives, so this fails only if somebody else has just retired it. If that was the
        // end of the session, the caller sees from now on that it has ended.
        let exchange = |word: &AtomicU64| word.compare_exchange(live, dead, Ordering::AcqRel, Ordering::Acquire);
        self.word(slot).is_some_and(|word| exchange(word).is_ok())
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
pub struct Stock {
    slots: Batch,
    len: usize,
}

impl Stock {
    pub const fn new() -> Stock {
        Stock { slots: EMPTY_BATCH, len: 0 }
    }

    /// Makes a live id for code of `size` bytes, which is below 4 GiB. `None` if there is no memory for more.
    pub fn take(&mut self, ids: &Ids, size: u64) -> Option<Id> {
        if self.len == 0 {
            self.refill(ids);
        }
        self.len = self.len.checked_sub(1)?;
        let slot = self.slots[self.len];
        let word = ids.word_or_new(slot)?;
        // Nobody else writes the word of a slot that is free.
        let generation = ((word.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        word.store(word_of(generation, size), Ordering::Release);
        Some(Id(u64::from(generation) << 32 | u64::from(slot)))
    }

    /// Takes back an id that was never given to anybody.
    pub fn put_back(&mut self, ids: &Ids, id: Id) {
        if ids.retire(id) && self.len < BATCH {
            self.slots[self.len] = split(id).1;
            self.len += 1;
        }
    }

    fn refill(&mut self, ids: &Ids) {
        match ids.free.1.try_recv() {
            Ok(batch) => self.slots = batch,
            Err(_) => {
                let next = |fresh: u32| fresh.checked_add(BATCH as u32);
                let Ok(first) = ids.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) else { return };
                for (slot, number) in self.slots.iter_mut().zip(first..first + BATCH as u32) {
                    *slot = number;
                }
            }
        }
        self.len = BATCH;
        // A batch from a thread that ended may be part full.
        while self.len > 0 && self.slots[self.len - 1] == u32::MAX {
            self.len -= 1;
        }
    }

    /// Gives the slots back when the thread ends.
    pub fn give_back(&mut self, ids: &Ids) {
        if self.len > 0 {
            self.slots[self.len..].fill(u32::MAX);
            // The receiver lives as long as the sender.
            let _ = ids.free.0.send(self.slots);
            self.len = 0;
        }
    }
}

/// Slots that came free, collected by the writer until there are enough for a batch.
#[derive(Debug, Default)]
pub struct Recycler {
    slots: Vec<u32>,
}

impl Recycler {
    /// The slot of a retired id may be used again.
    pub fn add(&mut self, ids: &Ids, id: Id) {
        self.slots.push(split(id).1);
        if let Ok(batch) = Batch::try_from(self.slots.as_slice()) {
            let _ = ids.free.0.send(batch);
            self.slots.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_lives_once() {
        let (ids, mut stock, mut recycler) = (Ids::new(), Stock::new(), Recycler::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..5000 {
            let id = stock.take(&ids, 40).unwrap();
            assert!(seen.insert(id.0));
            assert_eq!(ids.size_of(id), Some(40));
            assert!(ids.retire(id) && ids.size_of(id).is_none() && !ids.retire(id));
            recycler.add(&ids, id);
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
        assert!(Ids::new().word_or_new(u32::MAX).is_none());
    }

    #[test]
    fn what_was_not_used_is_given_back() {
        let (ids, mut stock) = (Ids::new(), Stock::new());
        let id = stock.take(&ids, 40).unwrap();
        stock.put_back(&ids, id);
        stock.give_back(&ids);
        let mut other = Stock::new();
        let again = other.take(&ids, 1).unwrap();
        assert_eq!(again.0 as u32, id.0 as u32);
        assert_ne!(again, id);
        assert_eq!(ids.fresh.load(Ordering::Relaxed), BATCH as u32);
    }

    #[test]
    fn slots_of_a_whole_cache_are_used_again() {
        let (ids, mut stock, mut recycler) = (Ids::new(), Stock::new(), Recycler::default());
        for _ in 0..10 {
            let all: Vec<Id> = (0..20_000).map(|_| stock.take(&ids, 1).unwrap()).collect();
            for id in all {
                assert!(ids.retire(id));
                recycler.add(&ids, id);
            }
        }
        assert!(ids.fresh.load(Ordering::Relaxed) <= 20_000 + 2 * BATCH as u32);
    }

    #[test]
    fn only_one_thread_retires() {
        let ids = Ids::new();
        let mut stock = Stock::new();
        let all: Vec<Id> = (0..2000).map(|_| stock.take(&ids, 40).unwrap()).collect();
        let won: usize = std::thread::scope(|scope| {
            let race = || all.iter().filter(|&&id| ids.retire(id)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, all.len());
    }
}
