//! Reserves free slots for a thread, so that most registrations take a slot without access to the shared stack.

use std::slice;
use std::sync::atomic::Ordering;

use super::{split, word_of, IdSlot, Ids, BATCH, LAST, NO_SLOT, UNREAD};
use crate::api::Id;
use crate::sys::prefetch;

/// The free slots that one thread has reserved.
#[derive(Debug)]
#[repr(C)]
pub struct IdPool<'i> {
    /// Adjacent slots that were never used, from slot `next_fresh` on.
    fresh: slice::Iter<'i, IdSlot>,
    next_fresh: u32,
    /// Slots that were used before.
    used_len: usize,
    used: [u32; BATCH],
}

impl<'i> IdPool<'i> {
    pub fn new() -> Self {
        IdPool { used: [NO_SLOT; BATCH], used_len: 0, fresh: [].iter(), next_fresh: 0 }
    }

    /// Prefetches the memory of the next id.
    #[inline(always)]
    pub fn ask_ahead(&self) {
        prefetch::to_write::<0>(self.fresh.as_slice().as_ptr().cast_mut().cast());
    }

    /// Makes a live id for code of `size` bytes at `addr`. `size` must be below 2 GiB. `None` if there is no memory for more
    /// slots.
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
        // This thread has taken the slot, so no other thread writes the word of the slot.
        let generation = ((place.word.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        let flag = if unread { UNREAD } else { 0 };
        place.word.store(word_of(generation, size) | flag, Ordering::Release);
        Some(Id(u64::from(generation) << 32 | u64::from(slot)))
    }

    /// Takes back an id that no caller has received.
    pub fn put_back(&mut self, ids: &'i Ids, id: Id) {
        if !ids.retire(id) {
            return;
        }
        match self.used.get_mut(self.used_len) {
            Some(free) if split(id).0 + 1 != LAST => {
                *free = split(id).1;
                self.used_len += 1;
            }
            _ => ids.recycle(id),
        }
    }

    #[inline(never)]
    fn take_used(&mut self, ids: &'i Ids) -> Option<(u32, &'i IdSlot)> {
        if self.used_len == 0 {
            // The order is reversed below, so that the slot that was freed last is taken first.
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

    /// Takes a batch of slots that were never used. Returns the first slot and keeps the others.
    #[cold]
    fn take_fresh(&mut self, ids: &'i Ids) -> Option<(u32, &'i IdSlot)> {
        let next = |fresh: u32| fresh.checked_add(BATCH as u32);
        let first = ids.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let start = ids.place_or_new(first)?;
        // SAFETY: a batch begins at a multiple of `BATCH`, and the length of each segment is a multiple of `BATCH`. So the
        // whole batch lies in the segment of its first slot.
        let batch = unsafe { slice::from_raw_parts(start, BATCH) };
        (self.fresh, self.next_fresh) = (batch[1..].iter(), first + 1);
        Some((first, start))
    }

    /// Returns the slots to the shared stack when the thread ends.
    pub fn give_back(&mut self, ids: &'i Ids) {
        let unused = self.next_fresh..self.next_fresh + self.fresh.len() as u32;
        // Used slots are pushed last, so that they are taken before slots that were never used.
        unused.rev().chain(self.used[..self.used_len].iter().copied()).for_each(|slot| ids.push_free(slot));
        *self = IdPool::new();
    }
}
