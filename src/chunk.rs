//! Chunks: the memory in which a thread lays down its records, in the final bytes of the file.
//!
//! A chunk belongs to one registering thread until it is full. Bodies (the bytes for the file) grow from the bottom, one
//! fixed-size event for each grows from the top; so bodies of consecutive records are adjacent and go out in one piece, and
//! the writer finds its way by the events alone:
//!
//! ```text
//! | head | body 0 | body 1 | ...  free  ... | event 1 | event 0 |
//! ```
//!
//! The thread publishes a record with one release store of the number of events; the writer reads it with acquire.

use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::sys::mem::Region;

/// Size of a chunk of the pool.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Chunks for one record are a multiple of this, which bounds their number.
const OWN_UNIT: usize = 16 * 1024;

const HEAD: usize = 64;

#[repr(C)]
struct Head {
    /// Number of events published.
    committed: AtomicU32,
    /// Number of events that the writer is done with; only the writer looks at it.
    consumed: AtomicU32,
    size: usize,
    /// Made for one record, and not of the pool.
    own: bool,
}

const _: () = assert!(size_of::<Head>() <= HEAD && size_of::<Event>() == 64);

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Code was registered; the body is its group.
    Load,
    /// Code was moved; the body is its bytes at the new place.
    Move,
    /// Code was unregistered; no body.
    Unregister,
    /// All code in `[addr, addr + size)` is gone; no body.
    UnregisterRange,
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    pub timestamp: u64,
    pub id: u64,
    /// jitdump code index.
    pub index: u64,
    pub addr: u64,
    pub size: u64,
    /// Where the body lies in the chunk.
    pub body_at: u32,
    pub body_len: u32,
    /// Load: where in the body the UNWINDING_INFO record (or LOAD, if there is none) starts.
    /// Move: how many bytes behind the new place are free.
    pub unwinding_at: u32,
    pub tid: u32,
    pub kind: Kind,
    pub flags: u8,
    pub name_len: u16,
    /// Load: size of the unwind tables, 0 if there are none.
    pub tables_len: u32,
}

/// Event flags.
pub mod flag {
    /// Some code bytes could not be read.
    pub const UNREADABLE: u8 = 1;
    /// The name was cleaned.
    pub const NAME_CHANGED: u8 = 2;
    /// The caller said that the bytes behind the code are free, and they suffice for the unwind tables.
    pub const FREE_BEHIND: u8 = 4;
    /// The body ends with the code bytes.
    pub const HAS_CODE: u8 = 8;
}

/// A chunk. Copies are names of the same memory; who may use it is said at each method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(NonNull<u8>);

// SAFETY: the memory of a chunk outlives every user (the pool is never unmapped, a large chunk is freed by its last user,
// the writer), and its parts are handed from thread to thread by `committed`.
unsafe impl Send for Chunk {}

impl Chunk {
    /// # Safety
    /// `start` is 64-byte aligned, and `size` bytes from it are writable and belong to the chunk.
    unsafe fn init(start: NonNull<u8>, size: usize, own: bool) -> Chunk {
        let head = Head { committed: AtomicU32::new(0), consumed: AtomicU32::new(0), size, own };
        // SAFETY: the caller's promise.
        unsafe { start.cast::<Head>().write(head) };
        Chunk(start)
    }

    /// The address as a number, for publishing it in an atomic.
    pub fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// # Safety
    /// `start` comes from `as_ptr` of a chunk that still exists.
    pub unsafe fn from_ptr(start: *mut u8) -> Option<Chunk> {
        NonNull::new(start).map(Chunk)
    }

    fn head(&self) -> &Head {
        // SAFETY: `init` wrote the head, and it is only read and changed through atomics from then on.
        unsafe { self.0.cast::<Head>().as_ref() }
    }

    /// Number of events that can be read.
    pub fn committed(self) -> u32 {
        self.head().committed.load(Ordering::Acquire)
    }

    pub fn consumed(self) -> u32 {
        self.head().consumed.load(Ordering::Relaxed)
    }

    pub fn set_consumed(self, count: u32) {
        self.head().consumed.store(count, Ordering::Relaxed);
    }

    fn event_ptr(self, number: u32) -> *mut Event {
        let at = self.head().size - (number as usize + 1) * size_of::<Event>();
        // SAFETY: `Cursor::room` keeps the events inside the chunk. Chunk sizes are multiples of an event's, so it is aligned.
        unsafe { self.0.as_ptr().add(at).cast() }
    }

    /// An event that is committed.
    pub fn event(self, number: u32) -> Event {
        debug_assert!(number < self.committed());
        // SAFETY: committed events are not written to any more.
        unsafe { self.event_ptr(number).read() }
    }

    /// The body of a committed event.
    ///
    /// # Safety
    /// The result is used only until the chunk is recycled.
    pub unsafe fn body<'a>(self, event: &Event) -> &'a [u8] {
        // SAFETY: the body was written before the event was committed, and lies inside the chunk.
        unsafe { slice::from_raw_parts(self.0.as_ptr().add(event.body_at as usize), event.body_len as usize) }
    }

    /// Where the body of a committed event is, as `body` but with the right to the whole chunk, so that adjacent bodies can be
    /// joined.
    pub fn body_ptr(self, event: &Event) -> *const [u8] {
        // SAFETY: the body lies inside the chunk.
        let start = unsafe { self.0.as_ptr().add(event.body_at as usize) };
        ptr::slice_from_raw_parts(start, event.body_len as usize)
    }

    /// The body of a committed event, to be corrected before it is written.
    ///
    /// # Safety
    /// As `body`, and no other reference to it exists.
    pub unsafe fn body_mut<'a>(self, event: &Event) -> &'a mut [u8] {
        // SAFETY: as `body`; after the commit the thread that wrote it does not touch it any more.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr().add(event.body_at as usize), event.body_len as usize) }
    }
}

/// Where a thread goes on writing in its chunk.
#[derive(Debug)]
pub struct Cursor {
    chunk: Chunk,
    body: usize,
    events: u32,
}

impl Cursor {
    /// Starts to write in a chunk that nobody else uses.
    pub fn new(chunk: Chunk) -> Cursor {
        chunk.head().committed.store(0, Ordering::Relaxed);
        chunk.set_consumed(0);
        Cursor { chunk, body: HEAD, events: 0 }
    }

    pub fn chunk(&self) -> Chunk {
        self.chunk
    }

    /// Memory for the body of the next record, if it and its event fit.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let events = (self.events as usize + 1) * size_of::<Event>();
        let end = self.body.checked_add(len)?.checked_add(events)?;
        if end > self.chunk.head().size {
            return None;
        }
        // SAFETY: the range lies between what is committed and the events, so this thread alone uses it; the memory is
        // mapped zeroed, so it holds initialised bytes.
        Some(unsafe { slice::from_raw_parts_mut(self.chunk.0.as_ptr().add(self.body), len) })
    }

    /// Publishes a record whose body was just written to `room(event.body_len)`.
    #[inline]
    pub fn commit(&mut self, mut event: Event) {
        event.body_at = self.body as u32;
        // SAFETY: `room` left space for the event.
        unsafe { self.chunk.event_ptr(self.events).write(event) };
        self.body += event.body_len as usize;
        self.events += 1;
        self.chunk.head().committed.store(self.events, Ordering::Release);
    }
}

/// Size of a chunk for one record.
fn own_size(body: usize) -> usize {
    (HEAD + body + size_of::<Event>()).next_multiple_of(OWN_UNIT)
}

/// Where chunks come from and go back to.
#[derive(Debug)]
pub struct Pool {
    region: Region,
    chunks: usize,
    /// Chunks from here on were never used.
    fresh: AtomicUsize,
    free: (Sender<Chunk>, Receiver<Chunk>),
    /// Bytes of chunks made for one record each.
    own: AtomicUsize,
    own_limit: usize,
}

impl Pool {
    /// A pool that uses at most `max_memory` bytes, half of it for records that get a chunk of their own.
    pub fn new(max_memory: usize) -> std::io::Result<Pool> {
        let chunks = (max_memory / 2 / CHUNK_SIZE).max(2);
        Ok(Pool {
            region: Region::new(chunks * CHUNK_SIZE)?,
            chunks,
            fresh: AtomicUsize::new(0),
            free: crossbeam_channel::bounded(chunks),
            own: AtomicUsize::new(0),
            own_limit: max_memory / 2,
        })
    }

    /// Bytes in use.
    pub fn memory(&self) -> u64 {
        let fresh = self.fresh.load(Ordering::Relaxed).min(self.chunks);
        ((fresh - self.free.1.len().min(fresh)) * CHUNK_SIZE + self.own.load(Ordering::Relaxed)) as u64
    }

    /// Whether so few chunks are left that the writer should hurry.
    pub fn is_low(&self) -> bool {
        let used = self.fresh.load(Ordering::Relaxed).min(self.chunks);
        self.chunks - used + self.free.1.len() <= self.chunks / 3
    }

    /// A chunk, if one is free.
    pub fn take(&self) -> Option<Chunk> {
        if let Ok(chunk) = self.free.1.try_recv() {
            return Some(chunk);
        }
        let take = |used: usize| (used < self.chunks).then_some(used + 1);
        let number = self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        // SAFETY: `number` is below the count of chunks in the region, and nobody else got it.
        Some(unsafe { Chunk::init(self.region.start().add(number * CHUNK_SIZE), CHUNK_SIZE, false) })
    }

    /// Whether a record with `body` bytes can be held at all.
    pub fn can_hold(&self, body: usize) -> bool {
        own_size(body) <= self.own_limit
    }

    /// The most chunks of both kinds that there can be at a time.
    pub fn most_chunks(&self) -> usize {
        self.chunks + self.own_limit / OWN_UNIT
    }

    /// A chunk of its own for one record with `body` bytes, if the bound allows it.
    pub fn take_own(&self, body: usize) -> Option<Chunk> {
        let size = own_size(body);
        let fits = |used: usize| used.checked_add(size).filter(|&sum| sum <= self.own_limit);
        self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        match Region::new(size) {
            Ok(region) => {
                // SAFETY: the region is fresh and `size` bytes long; `recycle` frees it.
                let chunk = unsafe { Chunk::init(region.start(), size, true) };
                std::mem::forget(region);
                Some(chunk)
            }
            Err(_) => {
                self.own.fetch_sub(size, Ordering::Relaxed);
                None
            }
        }
    }

    /// Gives a chunk back that is written out, or was never published, and that nobody else uses any more.
    pub fn recycle(&self, chunk: Chunk) {
        if chunk.head().own {
            let size = chunk.head().size;
            // SAFETY: `take_own` mapped it with this size, and the last user is done.
            unsafe { libc::munmap(chunk.as_ptr().cast(), size) };
            self.own.fetch_sub(size, Ordering::Relaxed);
        } else {
            // There is room for all chunks.
            let _ = self.free.0.try_send(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(body_len: u32) -> Event {
        Event {
            timestamp: 1,
            id: 2,
            index: 3,
            addr: 4,
            size: 5,
            body_at: 0,
            body_len,
            unwinding_at: 0,
            tid: 6,
            kind: Kind::Load,
            flags: 0,
            name_len: 0,
            tables_len: 0,
        }
    }

    #[test]
    fn bodies_are_adjacent_and_come_back() {
        let pool = Pool::new(1 << 20).unwrap();
        let mut cursor = Cursor::new(pool.take().unwrap());
        let mut written = 0u32;
        while let Some(room) = cursor.room(100) {
            room.fill(written as u8);
            cursor.commit(event(100));
            written += 1;
        }
        let chunk = cursor.chunk();
        assert_eq!(chunk.committed(), written);
        assert_eq!(written as usize, (CHUNK_SIZE - HEAD) / 164);
        for number in 0..written {
            let event = chunk.event(number);
            assert_eq!(event.body_at as usize, HEAD + 100 * number as usize);
            // SAFETY: the chunk is not recycled yet.
            assert!(unsafe { chunk.body(&event) }.iter().all(|&byte| byte == number as u8));
        }
    }

    #[test]
    fn the_pool_is_bounded_and_reuses() {
        let pool = Pool::new(1 << 20).unwrap();
        assert_eq!(pool.chunks, 2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none() && pool.is_low());
        assert_eq!(pool.memory(), 2 * CHUNK_SIZE as u64);
        pool.recycle(a);
        assert_eq!(pool.take(), Some(a));
        pool.recycle(a);
        pool.recycle(b);
        assert_eq!(pool.memory(), 0);
    }

    #[test]
    fn large_records_have_a_bound_of_their_own() {
        let pool = Pool::new(4 << 20).unwrap();
        assert!(!pool.can_hold(3 << 20) && pool.take_own(3 << 20).is_none());
        let chunk = pool.take_own(1 << 20).unwrap();
        let mut cursor = Cursor::new(chunk);
        cursor.room(1 << 20).unwrap().fill(7);
        cursor.commit(event(1 << 20));
        assert!(pool.can_hold(1 << 20) && pool.take_own(1 << 20).is_none());
        pool.recycle(chunk);
        assert_eq!(pool.memory(), 0);
        assert!(pool.take_own(1 << 20).is_some());
    }
}
