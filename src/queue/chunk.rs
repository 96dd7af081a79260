//! Chunks: the memory into which a thread writes its records. The bodies of the records are in the format of the jitdump.
//!
//! A chunk belongs to one registering thread until the chunk is full. A record has a body (the bytes for the file) and an
//! event of fixed size. The thread adds bodies from the bottom up, and events from the top down. The bodies of consecutive
//! records are adjacent, so the writer writes them to the file in one piece. The writer finds each record by its event.
//!
//! ```text
//! | head | body 0 | body 1 | ...  free  ... | event 1 | event 0 |
//! ```
//!
//! The thread publishes a record with one release store of the number of events. The writer reads that number with acquire
//! order.

use std::ptr::NonNull;
use std::slice;

use crate::sys::prefetch;
use crate::sys::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::sync::Witness;

use super::record::{Event, EventKind};

/// Size of a full-size chunk. A record that is larger gets a chunk whose size is a multiple of `CHUNK_SIZE`. In loom models,
/// chunks are so small that one record can fill most of a chunk.
pub const CHUNK_SIZE: usize = if cfg!(jitsym_loom) { 4096 } else { 256 * 1024 };

/// Size of a thread's first chunk. The chunk is at the start of a unit of `CHUNK_SIZE` bytes. The rest of the unit is address
/// space without memory.
pub const FIRST_SIZE: usize = if cfg!(jitsym_loom) { CHUNK_SIZE } else { 16 * 1024 };

/// Size of a chunk's head: one cache line for the thread that fills the chunk, and one for the writer.
pub const HEAD: usize = size_of::<Head>();

/// The longest body that fits into a full-size chunk.
pub const BODY_MAX: usize = CHUNK_SIZE - HEAD - size_of::<Event>();

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    /// Number of events published.
    committed: AtomicU32,
    /// Size of the chunk in bytes, including the head.
    size: AtomicU32,
    /// The serial number. Each chunk that a thread begins to fill gets a higher number.
    serial: AtomicU64,
    consumed: ConsumedCells,
    /// Reports to loom when records are written and read.
    contents: Witness,
}

/// How many events of the chunk are consumed so far. In each round that consumes events of the chunk, the writer stores this
/// count together with the number of the round. The two cells are for the last two rounds that stored a count. The number of
/// the last committed round decides which cell is valid (see `spool::layout`).
#[derive(Debug)]
#[repr(C, align(64))]
struct ConsumedCells([ConsumedCell; 2]);

#[derive(Debug)]
#[repr(C)]
struct ConsumedCell {
    round: AtomicU64,
    count: AtomicU64,
}

const _: () = assert!(FIRST_SIZE <= CHUNK_SIZE && CHUNK_SIZE.is_power_of_two() && FIRST_SIZE.is_power_of_two());
const _: () = assert!((HEAD == 128 || cfg!(jitsym_loom)) && size_of::<Event>() == 64);

/// While the writer changes a cell's `count`, the cell's `round` has this value.
const NO_ROUND: u64 = u64::MAX;

#[cfg(jitsym_loom)]
impl Head {
    fn new() -> Head {
        let cell = || ConsumedCell { round: AtomicU64::new(0), count: AtomicU64::new(0) };
        Head {
            committed: AtomicU32::new(0),
            size: AtomicU32::new(0),
            serial: AtomicU64::new(0),
            consumed: ConsumedCells([cell(), cell()]),
            contents: Witness::default(),
        }
    }
}

/// Size of a chunk for one record that has a body of this length. `None` if the record is too large for any chunk.
pub fn size_for(body: usize) -> Option<usize> {
    let size = body.checked_add(HEAD + size_of::<Event>())?.checked_next_multiple_of(CHUNK_SIZE)?;
    // Offsets in a chunk have 32 bits.
    (size <= u32::MAX as usize).then_some(size)
}

/// Size of the chunk that a thread requests if the thread has no chunk. The body of the thread's record has at least `body`
/// bytes.
pub fn first_size_for(body: usize) -> usize {
    if body + HEAD + size_of::<Event>() > FIRST_SIZE {
        CHUNK_SIZE
    } else {
        FIRST_SIZE
    }
}

/// Whether `size` is a valid size for a chunk whose units have `room` bytes in total.
pub fn is_size_in(size: usize, room: usize) -> bool {
    size == room || room == CHUNK_SIZE && (FIRST_SIZE..room).contains(&size) && size.is_power_of_two()
}

/// A chunk. Copies of this value refer to the same memory. The comments on the methods describe who may use the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk(NonNull<u8>);

// SAFETY: the memory of a chunk outlives every user: the memory is never unmapped, and the writer, which is the last user,
// returns the chunk to the pool. By its stores to `committed`, the registering thread hands the parts of a chunk to the writer.
unsafe impl Send for Chunk {}

impl Chunk {
    /// # Safety
    /// `start` is 64-byte aligned. `size` is below 4 GiB. The `size` bytes from `start` on are writable and belong to the
    /// chunk.
    pub unsafe fn init(start: NonNull<u8>, size: usize) -> Chunk {
        let chunk = Chunk(start);
        // loom's atomics are not plain words, so the head has to be constructed.
        #[cfg(jitsym_loom)]
        // SAFETY: the caller's promise.
        unsafe {
            start.cast::<Head>().write(Head::new());
        }
        chunk.head().size.store(size as u32, Ordering::Relaxed);
        chunk.reset();
        chunk
    }

    /// The address of the chunk, in a form that an atomic can hold.
    pub fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// # Safety
    /// A chunk starts at `start`.
    pub unsafe fn at(start: NonNull<u8>) -> Chunk {
        Chunk(start)
    }

    fn head(&self) -> &Head {
        // SAFETY: a chunk begins with a head. Any bytes are a valid head, because all its fields are atomics.
        unsafe { self.0.cast::<Head>().as_ref() }
    }

    pub fn size(self) -> usize {
        self.head().size.load(Ordering::Relaxed) as usize
    }

    /// Reports to loom that the chunk's first record is written.
    #[cfg(jitsym_loom)]
    pub fn touch(self) {
        self.head().contents.written(0);
    }

    pub fn serial(self) -> u64 {
        self.head().serial.load(Ordering::Relaxed)
    }

    /// The longest body for which the empty chunk has room.
    pub fn body_max(self) -> usize {
        self.size() - HEAD - size_of::<Event>()
    }

    /// Number of published events.
    pub fn committed(self) -> u32 {
        self.head().committed.load(Ordering::Acquire)
    }

    /// Number of events that the writer had consumed at the end of the round `round`.
    pub fn consumed_up_to(self, round: u64) -> u32 {
        let cells = self.head().consumed.0.iter();
        let read = |cell: &ConsumedCell| (cell.round.load(Ordering::Relaxed), cell.count.load(Ordering::Relaxed));
        let latest = cells.map(read).filter(|&(at, _)| at <= round).max();
        latest.map_or(0, |(_, count)| count as u32)
    }

    /// Number of events that the writer has consumed.
    pub fn consumed(self) -> u32 {
        self.consumed_up_to(NO_ROUND - 1)
    }

    /// Notes that the writer will have consumed `count` events at the end of the round `round`. Only the writer calls this
    /// function.
    pub fn set_consumed(self, round: u64, count: u32) {
        let [a, b] = &self.head().consumed.0;
        let (a_round, b_round) = (a.round.load(Ordering::Relaxed), b.round.load(Ordering::Relaxed));
        // The count that belongs to the last committed round stays until `round` is committed.
        let cell = if a_round == round || (b_round != round && a_round <= b_round) { a } else { b };
        cell.round.store(NO_ROUND, Ordering::Release);
        cell.count.store(count.into(), Ordering::Release);
        cell.round.store(round, Ordering::Release);
    }

    /// Shortens a copy of another process's chunk: checks the events from number `from` on, and makes the copy end before the
    /// first invalid event. Only the caller may use the copy.
    pub fn make_sound(self, from: u32, is_sound: impl Fn(&Event, &[u8]) -> bool) {
        let most = (self.size() - HEAD) / size_of::<Event>();
        let committed = self.committed().min(most as u32);
        let mut end = from.min(committed);
        // Bodies have to follow each other and end before the events begin. If a body overlapped another body or an event, a
        // change of the body (`body_mut`) would damage the overlapped data.
        let mut next_body = HEAD;
        let bodies_end = self.size() - committed as usize * size_of::<Event>();
        while end < committed && self.is_event(end) {
            let event = self.event(end);
            let (start, stop) = (event.body_at as usize, event.body_at as usize + event.body_len as usize);
            // SAFETY: the body is in the chunk, which nobody else uses.
            if start < next_body || stop > bodies_end || !is_sound(&event, unsafe { self.body(&event) }) {
                break;
            }
            next_body = stop;
            end += 1;
        }
        self.head().committed.store(end, Ordering::Relaxed);
        self.set_consumed(NO_ROUND - 1, from.min(end));
    }

    /// Whether the kind of an event is valid. If the kind is not valid, the bytes must not be read as an `Event`.
    fn is_event(self, number: u32) -> bool {
        let event = self.event_place(number).cast::<u8>();
        // SAFETY: the event lies in the chunk.
        let kind = unsafe { event.add(std::mem::offset_of!(Event, kind)).read() };
        kind <= EventKind::UnregisterRange as u8
    }

    /// Makes the chunk empty again. Only the caller may use the chunk.
    pub fn reset(self) {
        // `committed` is reset first. So if the process is killed before the counts are reset, recovery reads no event a
        // second time.
        self.head().committed.store(0, Ordering::Release);
        for cell in &self.head().consumed.0 {
            cell.count.store(0, Ordering::Release);
            cell.round.store(0, Ordering::Release);
        }
    }

    /// The address of the event with this number, even if the event is not written yet. The address is aligned, because the
    /// size of a chunk is a multiple of the size of an event.
    pub fn event_place(self, number: u32) -> *mut Event {
        let end = self.0.as_ptr().wrapping_add(self.size());
        end.wrapping_sub((number as usize + 1) * size_of::<Event>()).cast()
    }

    pub fn event(self, number: u32) -> Event {
        debug_assert!(number < self.committed());
        self.head().contents.read(number);
        // SAFETY: committed events are never written to again.
        unsafe { self.event_place(number).read() }
    }

    /// The body of a committed event.
    ///
    /// # Safety
    /// The result is used only until the chunk is recycled.
    pub unsafe fn body<'a>(self, event: &Event) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.bodies(event.body_at as usize, event.body_len as usize) }
    }

    /// Returns `len` bytes of the chunk, beginning at offset `at`. The returned bytes are bodies of committed events, or parts
    /// of such bodies.
    ///
    /// # Safety
    /// The result is used only until the chunk is recycled. The bytes lie in bodies of committed events.
    pub unsafe fn bodies<'a>(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: bodies are written before their events are committed, and lie inside the chunk.
        unsafe { slice::from_raw_parts(self.0.as_ptr().add(at), len) }
    }

    /// The body of a committed event, for the writer, which can correct the body before it is written to the file.
    ///
    /// # Safety
    /// The result is used only until the chunk is recycled. No other reference to the body exists.
    pub unsafe fn body_mut<'a>(self, event: &Event) -> &'a mut [u8] {
        // SAFETY: as for `body`. After the commit, the thread that wrote the body does not access the body again.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr().add(event.body_at as usize), event.body_len as usize) }
    }
}

/// The position in a thread's chunk at which the thread writes next.
#[derive(Debug)]
pub struct Cursor {
    chunk: Chunk,
    /// The address of the next body.
    body: *mut u8,
    /// The address of the next event. This address is below `body` if the chunk has no room for another event.
    event: *mut Event,
    events: u32,
}

impl Cursor {
    /// Starts to write in an empty chunk that only the caller uses. `serial` has to be higher than the serial number of every
    /// chunk that was begun earlier.
    pub fn new(chunk: Chunk, serial: u64) -> Cursor {
        chunk.head().serial.store(serial, Ordering::Relaxed);
        // SAFETY: the head is a part of the chunk.
        let body = unsafe { chunk.0.as_ptr().add(HEAD) };
        Cursor { chunk, body, event: chunk.event_place(0), events: 0 }
    }

    pub fn chunk(&self) -> Chunk {
        self.chunk
    }

    /// Returns true until the first record is published in the chunk.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// How many bytes are left for the body of the next record; `None` if not even an event fits.
    #[inline(always)]
    pub fn room_len(&self) -> Option<usize> {
        (self.event as usize).checked_sub(self.body as usize)
    }

    /// All the memory that is left for the body of the next record; `None` if not even an event fits.
    #[inline(always)]
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let len = self.room_len()?;
        // SAFETY: the range is between the committed bodies and the events, so only this thread uses it. The kernel zeroes
        // mapped memory, so all bytes of the range are initialised.
        Some(unsafe { slice::from_raw_parts_mut(self.body, len) })
    }

    /// Prefetches the memory of the next record. Other processors and programs may have displaced this memory from the caches
    /// since the last record.
    #[inline(always)]
    pub fn ask_ahead(&self) {
        let Cursor { chunk, body, event, .. } = *self;
        prefetch::to_write::<0>(chunk.as_ptr());
        prefetch::to_write::<0>(event.cast());
        prefetch::to_write::<0>(body);
    }

    /// Writes the event of a record. The chunk must have room for the record. Before or after this call, the caller writes
    /// the body (`event.body_len` bytes) to the start of `room`.
    #[inline(always)]
    pub fn write_event(&mut self, event: Event) {
        let body_at = (self.body as usize - self.chunk.0.as_ptr() as usize) as u32;
        self.chunk.head().contents.written(self.events);
        // SAFETY: the chunk has room for the record. So the address of the event is in the chunk, after the memory that
        // `room` returns.
        unsafe { self.event.write(Event { body_at, ..event }) };
    }

    /// Publishes the record whose event and body were just written.
    #[inline(always)]
    pub fn publish(&mut self, body_len: usize) {
        let (body, event) = (self.body.wrapping_add(body_len), self.event.wrapping_sub(1));
        (self.body, self.event) = (body, event);
        self.events += 1;
        self.chunk.head().committed.store(self.events, Ordering::Release);
        // The writer has read the records that were in this memory before, so the memory is in another processor's cache. The
        // prefetch fetches the memory while the caller continues. For a long record, the processor itself fetches the further
        // cache lines.
        prefetch::to_write::<0>(event.cast());
        prefetch::to_write::<64>(body);
        prefetch::to_write::<128>(body);
        prefetch::to_write::<192>(body);
        prefetch::to_write::<256>(body);
    }

    /// Publishes a record whose body, `event.body_len` bytes, was just written to the start of `room`.
    #[inline]
    pub fn commit(&mut self, event: Event) {
        let body_len = event.body_len as usize;
        self.write_event(event);
        self.publish(body_len);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::queue::spool::Memory;

    pub fn event(kind: EventKind, timestamp: u64, body_len: u32) -> Event {
        Event { timestamp, id: 2, index: 3, addr: 4, size: 5, body_len, tid: 6, kind, ..Event::default() }
    }

    #[test]
    fn bodies_are_adjacent_and_come_back() {
        let memory = Memory::new(1).unwrap();
        let chunk = memory.make_chunk(&(0..1), CHUNK_SIZE).unwrap();
        let mut cursor = Cursor::new(chunk, 7);
        let mut written = 0u32;
        while let Some(room) = cursor.room().filter(|room| room.len() >= 100) {
            room[..100].fill(written as u8);
            cursor.commit(event(EventKind::Load, 1, 100));
            written += 1;
        }
        assert_eq!((chunk.committed(), chunk.serial(), chunk.size()), (written, 7, CHUNK_SIZE));
        assert_eq!(written as usize, (CHUNK_SIZE - HEAD) / 164);
        for number in 0..written {
            let event = chunk.event(number);
            assert_eq!(event.body_at as usize, HEAD + 100 * number as usize);
            // SAFETY: the chunk is not recycled yet.
            assert!(unsafe { chunk.body(&event) }.iter().all(|&byte| byte == number as u8));
        }
        // Fills the rest of the chunk, up to the last event, with records that have no body.
        while cursor.room().is_some() {
            cursor.commit(event(EventKind::Unregister, 1, 0));
        }
        let events = chunk.committed() as usize * size_of::<Event>();
        assert!(HEAD + 100 * written as usize + events > CHUNK_SIZE - size_of::<Event>());
    }

    #[test]
    fn what_is_consumed_counts_when_its_round_does() {
        let memory = Memory::new(1).unwrap();
        let chunk = memory.make_chunk(&(0..1), CHUNK_SIZE).unwrap();
        assert_eq!(chunk.consumed(), 0);
        chunk.set_consumed(3, 10);
        assert_eq!((chunk.consumed(), chunk.consumed_up_to(2), chunk.consumed_up_to(3)), (10, 0, 10));
        chunk.set_consumed(5, 20);
        chunk.set_consumed(5, 21);
        assert_eq!((chunk.consumed_up_to(4), chunk.consumed_up_to(5)), (10, 21));
        chunk.set_consumed(6, 30);
        assert_eq!((chunk.consumed_up_to(5), chunk.consumed_up_to(6)), (21, 30));
        chunk.reset();
        assert_eq!((chunk.consumed(), chunk.committed()), (0, 0));
    }

    #[test]
    fn large_records_take_whole_units() {
        assert_eq!(size_for(0), Some(CHUNK_SIZE));
        assert_eq!(size_for(BODY_MAX), Some(CHUNK_SIZE));
        assert_eq!(size_for(BODY_MAX + 1), Some(2 * CHUNK_SIZE));
        assert_eq!((size_for(u32::MAX as usize), size_for(usize::MAX)), (None, None));
    }
}
