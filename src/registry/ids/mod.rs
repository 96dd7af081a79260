//! Ids of registrations, with the address and size of their code. Any thread can check and retire an id without a lock.
//!
//! An id is `generation << 32 | slot`. The word of a slot is `generation << 32 | unread << 31 | code size`. The generation is
//! odd while the code is registered. So an id is live exactly if its generation is odd and equal to the generation in the word
//! of its slot. No id is used twice.

mod id_pool;
#[cfg(test)]
mod tests;

use std::alloc::{self, Layout};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::api::Id;
use crate::registry::Registry;
pub use id_pool::IdPool;

/// Number of slots in the first segment. Each further segment is twice as long as the segment before.
const FIRST_SEGMENT: u32 = 1 << 8;
const SEGMENTS: usize = 24;
/// Number of slots that a thread takes at once.
const BATCH: usize = 32;
/// The largest number of unused slots that are kept ready.
const AHEAD: u32 = 1 << 13;
const IN_A_PAGE: usize = 4096 / size_of::<IdSlot>();
const NO_SLOT: u32 = u32::MAX;
/// A free slot with this generation is not used again, because its generation would overflow to 0 after one more use.
const LAST: u32 = u32::MAX - 1;

/// If this bit of a slot's word is set, the bytes of the code were not copied, and the writer has not read these bytes yet.
const UNREAD: u64 = 1 << 31;

/// The number of the slot of an id, for tables with an entry for each id. Free slots are used again, so their numbers stay small.
pub fn slot_of(id: u64) -> usize {
    id as u32 as usize
}

/// The slot of one registration.
#[derive(Debug, Default)]
struct IdSlot {
    word: AtomicU64,
    addr: AtomicU64,
}

#[derive(Debug)]
pub struct Ids {
    segments: [AtomicPtr<IdSlot>; SEGMENTS],
    /// Slots from this number on were never used.
    fresh: AtomicU32,
    /// The kernel has provided the memory of all slots below this number. Only the writer requests this memory ahead of use.
    ready: AtomicU32,
    /// The stack of free slots. The lower half is the slot on top, or `NO_SLOT`. The upper half counts the pushes and pops, to
    /// avoid the ABA problem. The lower half of a free slot's word is the next slot of the stack (the slot below), or
    /// `NO_SLOT`. A channel would be slower than this stack: registering threads would free memory that the writer has
    /// allocated, and would wait for the lock of the writer's malloc arena.
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

    /// For a forked child: returns a copy of the parent's ids. Only the ids in the registry stay live. All other slots become
    /// free, even slots that a thread of the parent had reserved, because this thread does not exist in the child. The registry
    /// still contains code that has ended or moved if the parent's writer has not read the record of this change. The id of
    /// this code is dead or refers to another address, so the code is removed from the registry.
    pub fn inherit(&self, registry: &mut Registry) -> Ids {
        let segments = self.segments.each_ref().map(|start| AtomicPtr::new(start.load(Ordering::Acquire)));
        let fresh = self.fresh.load(Ordering::Relaxed);
        let child = Ids { segments, fresh: AtomicU32::new(fresh), ready: AtomicU32::new(fresh), ..Ids::new() };
        for slot in (0..fresh).rev() {
            let Some(place) = child.place(slot) else { continue };
            let word = place.word.load(Ordering::Relaxed);
            let generation = (word >> 32) as u32;
            let id = u64::from(generation) << 32 | u64::from(slot);
            let registered = registry.id_in(slot);
            let addr = place.addr.load(Ordering::Relaxed);
            if generation % 2 == 1 && registry.get(id).is_some_and(|live| live.addr == addr) {
                place.word.store(word & !UNREAD, Ordering::Relaxed);
                continue;
            }
            registry.remove(registered);
            // A caller may still have an id with this slot, but calls with this id find no code.
            place.word.store(word_of(generation.wrapping_add(generation % 2), 0), Ordering::Relaxed);
            child.push_free(slot);
        }
        child
    }

    /// Frees the memory. Only loom models call this, because they make a new `Ids` for each order of events. A process never
    /// frees its `Ids`.
    #[cfg(jitsym_loom)]
    pub fn free(&mut self) {
        for (segment, start) in self.segments.iter_mut().enumerate() {
            let start = std::mem::replace(start.get_mut(), ptr::null_mut());
            let layout = Layout::array::<IdSlot>((FIRST_SEGMENT as usize) << segment);
            if let (false, Ok(layout)) = (start.is_null(), layout) {
                // SAFETY: `place_or_new` has allocated the segment with this layout, and no thread uses it now.
                unsafe { alloc::dealloc(start.cast(), layout) };
            }
        }
    }

    fn locate(slot: u32) -> (usize, usize) {
        let position = slot as u64 + u64::from(FIRST_SEGMENT);
        let segment = (position.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
        (segment, (position - (u64::from(FIRST_SEGMENT) << segment)) as usize)
    }

    fn place(&self, slot: u32) -> Option<&IdSlot> {
        let (segment, offset) = Self::locate(slot);
        let start = self.segments.get(segment)?.load(Ordering::Acquire);
        // SAFETY: a published segment has `FIRST_SEGMENT << segment` places and is never freed; `locate` returns an offset
        // below this number.
        (!start.is_null()).then(|| unsafe { &*start.add(offset) })
    }

    /// The memory of a slot. Allocates the slot's segment if necessary.
    #[cold]
    fn place_or_new(&self, slot: u32) -> Option<&IdSlot> {
        let (segment, _) = Self::locate(slot);
        let start = self.segments.get(segment)?;
        if start.load(Ordering::Acquire).is_null() {
            let layout = Layout::array::<IdSlot>((FIRST_SEGMENT as usize) << segment).ok()?;
            // The kernel zeroes each page at its first use, so that no single thread bears the cost of the whole segment.
            // SAFETY: the layout is not empty.
            let places = unsafe { alloc::alloc_zeroed(layout) }.cast::<IdSlot>();
            let exchange = start.compare_exchange(ptr::null_mut(), places, Ordering::AcqRel, Ordering::Acquire);
            if exchange.is_err() && !places.is_null() {
                // SAFETY: the exchange failed, because another thread had already published a segment. So the segment that is
                // freed here was never published, and no other thread has a reference to this segment.
                unsafe { alloc::dealloc(places.cast(), layout) };
            }
        }
        self.place(slot)
    }

    /// Makes the kernel provide memory for the next slots. Otherwise one of every `IN_A_PAGE` registrations with a new slot
    /// would cause a page fault, which costs the registering thread some microseconds. Only one thread at a time may call this.
    pub fn prepare(&self) {
        let fresh = self.fresh.load(Ordering::Relaxed);
        let mut ready = self.ready.load(Ordering::Relaxed).max(fresh);
        while ready < fresh.saturating_add(ahead(fresh)) {
            let Some(place) = self.place_or_new(ready) else { break };
            // This exchange of 0 for 0 makes the kernel provide the page, and changes no value, even if a registration already
            // uses the slot.
            let _ = place.word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            ready += IN_A_PAGE as u32;
        }
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Frees the slot of an id to which nothing refers. Any thread may take a freed slot.
    pub fn recycle(&self, id: Id) {
        self.push_free(split(id).1);
    }

    fn push_free(&self, slot: u32) {
        let Some(place) = self.place(slot) else { return };
        let generation = place.word.load(Ordering::Relaxed) >> 32;
        if generation == u64::from(LAST) {
            return;
        }
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

    /// The slot of a live id, and the slot's word.
    fn live(&self, id: Id) -> Option<(&IdSlot, u64)> {
        let (generation, slot) = split(id);
        let place = self.place(slot)?;
        let word = place.word.load(Ordering::Acquire);
        (generation % 2 == 1 && word >> 32 == u64::from(generation)).then_some((place, word))
    }

    /// The size of the code that is registered with this id; `None` if the id is not live.
    #[inline]
    pub fn size_of(&self, id: Id) -> Option<u64> {
        self.live(id).map(|(_, word)| word & (UNREAD - 1))
    }

    /// The address and size of the code with this id.
    pub fn place_of(&self, id: Id) -> Option<(u64, u64)> {
        self.live(id).map(|(place, word)| (place.addr.load(Ordering::Relaxed), word & (UNREAD - 1)))
    }

    /// Stores the new address of code, and returns the old address. `None` if the id is not live.
    pub fn move_to(&self, id: Id, addr: u64, unread: bool) -> Option<u64> {
        let (place, word) = self.live(id)?;
        if unread {
            // The exchange fails if the code is unregistered meanwhile, but then the bit is not needed.
            let _ = place.word.compare_exchange(word, word | UNREAD, Ordering::AcqRel, Ordering::Relaxed);
        }
        Some(place.addr.swap(addr, Ordering::AcqRel))
    }

    /// Whether the writer still has to read the bytes of this code.
    pub fn is_unread(&self, id: Id) -> bool {
        self.live(id).is_some_and(|(_, word)| word & UNREAD != 0)
    }

    /// Notes that the bytes have been read. Only the writer may call this.
    pub fn set_read(&self, id: Id) {
        if let Some((place, word)) = self.live(id) {
            let _ = place.word.compare_exchange(word, word & !UNREAD, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Ends an id. Of all calls for the same id, exactly one returns true. The caller that gets true has to pass the id to
    /// `recycle` once nothing refers to the id.
    pub fn retire(&self, id: Id) -> bool {
        let dead = word_of(split(id).0.wrapping_add(1), 0);
        loop {
            let Some((place, word)) = self.live(id) else { return false };
            // If the end of the session retires the id before this exchange, this call returns false, and the caller then finds
            // that the session has ended.
            match place.word.compare_exchange(word, dead, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                // Another thread has just retired the id, or has recorded that the writer has read the code's bytes.
                Err(_) => std::hint::spin_loop(),
            }
        }
    }
}

/// How many unused slots are kept ready. A process that registers little code needs few slots.
fn ahead(fresh: u32) -> u32 {
    fresh.saturating_mul(4).clamp(IN_A_PAGE as u32, AHEAD)
}

fn word_of(generation: u32, size: u64) -> u64 {
    u64::from(generation) << 32 | size
}

fn split(id: Id) -> (u32, u32) {
    ((id.0 >> 32) as u32, id.0 as u32)
}

const _: () = assert!((FIRST_SEGMENT as usize).is_multiple_of(BATCH));
