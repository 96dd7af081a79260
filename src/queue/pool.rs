//! The pool of chunks. Threads take chunks from the pool, and the writer returns them.
//!
//! Free chunks are on a stack: the chunk that was used last, and is still in the processor's caches, is taken first. With a
//! channel, threads would use all chunks in turn. Writing a 512-byte record took 31 ns when chunks of 1 MiB in total were used
//! in turn, but only 20 ns with chunks of 256 KiB in total. Threads that take chunks from a channel would also free memory
//! blocks that the writer allocated, and would wait for the allocator's lock.
//!
//! Each new page of memory costs a page fault, so the pool does not provide much memory before threads need it. A thread's
//! first chunk is small, and a chunk can be enlarged while it is empty. While threads need more chunks, the writer makes
//! chunks in advance. When the process is idle, the writer frees all free chunks except one.

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicUsize as Counter;

use crate::queue::chunk::{size_for, Chunk, Cursor, CHUNK_SIZE, FIRST_SIZE};
use crate::queue::spool::Memory;
use crate::sys::sort::sort;
use crate::sys::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sys::sync::{Mutex, MutexGuard, PoisonError};
use crate::sys::valgrind;

/// While the writer keeps up, the pool grows to at most this number of full-size chunks. If half of `max_memory` is less than
/// `AMPLE` chunks, the pool grows to at most half of `max_memory` (`Pool::ample`).
const AMPLE: usize = (4 << 20) / CHUNK_SIZE;

/// If fewer chunks than this are free, the writer should hurry.
const LOW: usize = 4;

/// The pool's address space consists of units of `CHUNK_SIZE` bytes. A unit needs memory only for the chunk in it. The pool
/// usually has at least `THREADS` units, so at least this number of threads can have a small chunk at the same time. The pool
/// may have fewer units if `max_memory` is less than `USUAL` full-size chunks, if address space is short, or under valgrind.
const THREADS: usize = 1024;
const USUAL: usize = (64 << 20) / CHUNK_SIZE;

#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    /// Free chunks: `whole` has chunks of `CHUNK_SIZE` bytes, `small` has smaller chunks.
    whole: Stack,
    small: Stack,
    /// Units that contain no chunk, as a sorted list of ranges. Two ranges in the list are never adjacent. The list is empty
    /// while the pool is shut. A thread that takes a free chunk does not lock the list.
    unused: Mutex<Vec<Range<usize>>>,
    /// Number of units that have memory.
    held: AtomicUsize,
    /// Bytes of all chunks, bytes of the chunks in use, and the limit for the bytes of all chunks.
    bytes_held: Counter,
    bytes_used: Counter,
    max_bytes: usize,
    ample: usize,
    /// The largest chunk size that threads have requested after filling a chunk. The value is 0 if no thread has filled a chunk
    /// since the process was last idle.
    asked: Counter,
    /// Whether a record found no room because free or idle chunks use the memory. If this field is true, the writer has to free
    /// the memory of free and idle chunks.
    cramped: AtomicBool,
    serial: AtomicU64,
}

impl Pool {
    /// Makes a pool for at most `max_memory` bytes. The pool has no memory until it is opened.
    pub fn new(max_memory: usize) -> io::Result<Pool> {
        let whole = (max_memory / CHUNK_SIZE).max(2);
        // helgrind needs a second to map the address space of about 300 units. A process under valgrind can have at most 500
        // threads, so it does not need `THREADS` units.
        let has_few = whole < USUAL || valgrind::is_running();
        let units = if has_few { whole } else { whole.max(THREADS) };
        // If there is not enough address space for `units` units, the pool gets only one unit for each full-size chunk that
        // `max_memory` allows.
        let memory = Memory::new(units).or_else(|_| Memory::new(whole))?;
        let units = memory.units();
        Ok(Pool {
            memory,
            whole: Stack::new(units),
            small: Stack::new(units),
            unused: Mutex::default(),
            held: AtomicUsize::new(0),
            bytes_held: Counter::new(0),
            bytes_used: Counter::new(0),
            max_bytes: whole * CHUNK_SIZE,
            ample: AMPLE.min(whole / 2),
            asked: Counter::new(0),
            cramped: AtomicBool::new(false),
            serial: AtomicU64::new(1),
        })
    }

    pub fn is_open(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0 || !self.unused().is_empty()
    }

    /// Opens the pool. If possible, the pool's memory is a spool in `dir`. Returns the reason if the spool cannot be made. No
    /// other thread may open or shut the pool during the call.
    pub fn open(&self, dir: Option<&Path>) -> Option<String> {
        if self.is_open() {
            return None;
        }
        let why = dir.and_then(|dir| self.memory.attach(dir).err());
        self.unused().push(0..self.memory.units());
        // Makes a chunk for the first thread that registers code.
        self.grow(FIRST_SIZE);
        why.map(|why| format!("cannot make a spool: {why}"))
    }

    /// Frees all memory and removes the spool. If a chunk is in use, changes nothing and returns false. No other thread may
    /// open or shut the pool during the call.
    pub fn shut(&self) -> bool {
        let mut unused = self.unused();
        let free: Vec<Chunk> = std::iter::from_fn(|| self.pop()).collect();
        // Some chunks are in use, or are about to be returned.
        if free.len() < self.held.load(Ordering::Relaxed) {
            free.into_iter().rev().for_each(|chunk| self.push(chunk));
            return false;
        }
        // From here on no thread gets a chunk.
        unused.clear();
        self.held.store(0, Ordering::Relaxed);
        self.bytes_held.store(0, Ordering::Relaxed);
        self.forget_asked();
        self.memory.detach();
        true
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn bytes_used(&self) -> u64 {
        self.bytes_used.load(Ordering::Relaxed) as u64
    }

    pub fn bytes_held(&self) -> u64 {
        self.bytes_held.load(Ordering::Relaxed) as u64
    }

    /// The maximum number of chunks that can exist at the same time.
    pub fn most_chunks(&self) -> usize {
        self.memory.units()
    }

    /// Whether the number of free chunks is so low that the writer should hurry.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.count_free() < LOW
    }

    /// Whether only a few more threads can get a chunk. If the result is true, the writer should take idle chunks back. Even
    /// a small chunk needs a whole unit of the address space.
    pub fn is_scarce(&self) -> bool {
        let units = self.memory.units();
        let unused = units.saturating_sub(self.held.load(Ordering::Relaxed));
        self.count_free() + unused < (units / 4).max(1)
    }

    /// The approximate number of free chunks.
    #[inline]
    fn count_free(&self) -> usize {
        // The small chunks are counted before the full-size chunks. If a small chunk is enlarged between the two counts, the
        // chunk is counted twice. In the opposite order, a chunk that is enlarged between the two counts would not be counted
        // at all.
        let small = self.small.len();
        small + self.whole.len()
    }

    fn pop(&self) -> Option<Chunk> {
        // The third `pop` finds a small chunk that was enlarged after the first `pop`.
        let unit = self.whole.pop().or_else(|| self.small.pop()).or_else(|| self.whole.pop())?;
        // SAFETY: the stacks contain only the first units of chunks.
        Some(unsafe { self.memory.chunk_of(unit) })
    }

    fn push(&self, chunk: Chunk) {
        let stack = if chunk.size() < CHUNK_SIZE { &self.small } else { &self.whole };
        stack.push(self.memory.units_of(chunk).start);
    }

    /// Whether all chunks together have at least the size of `ample` full-size chunks. If the result is true, a thread that
    /// has filled a chunk waits for the writer before the pool grows further.
    pub fn is_ample(&self) -> bool {
        self.bytes_held.load(Ordering::Relaxed) >= self.ample * CHUNK_SIZE
    }

    /// Takes the next free chunk, if it has at least this size or can be enlarged to this size.
    pub fn take(&self, size: usize) -> Option<Cursor> {
        let chunk = self.pop()?;
        if chunk.size() < size && !self.enlarge(chunk, size) {
            self.push(chunk);
            // Small chunks may have used all the memory that is allowed.
            self.cramped.store(true, Ordering::Relaxed);
            return None;
        }
        Some(self.begin(chunk))
    }

    /// Takes the next free chunk, if it has room for a body of this length.
    pub fn take_as_it_is(&self, body: usize) -> Option<Cursor> {
        let chunk = self.pop()?;
        if chunk.body_max() < body {
            self.push(chunk);
            return None;
        }
        Some(self.begin(chunk))
    }

    /// Called when threads no longer need larger chunks. From now on, the pool does not enlarge returned chunks.
    pub fn forget_asked(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// Notes that a thread which has filled a chunk needs a chunk of this size.
    pub fn ask_for(&self, size: usize) {
        self.asked.fetch_max(size, Ordering::Relaxed);
    }

    /// Enlarges a chunk that nobody uses. If memory is short, changes nothing and returns false.
    #[cold]
    fn enlarge(&self, chunk: Chunk, size: usize) -> bool {
        let (units, more) = (self.memory.units_of(chunk), size - chunk.size());
        if !self.may_hold(more) {
            return false;
        }
        let is_made = self.memory.make_chunk(&units, size).is_ok();
        if !is_made {
            self.bytes_held.fetch_sub(more, Ordering::Relaxed);
        }
        is_made
    }

    /// Adds `more` to the count of held bytes. Called before a chunk gets `more` bytes of memory. If the new count would exceed
    /// the limit, changes nothing and returns false.
    fn may_hold(&self, more: usize) -> bool {
        let add = |held: usize| held.checked_add(more).filter(|&sum| sum <= self.max_bytes);
        self.bytes_held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn begin(&self, chunk: Chunk) -> Cursor {
        self.bytes_used.fetch_add(chunk.size(), Ordering::Relaxed);
        Cursor::new(chunk, self.serial.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the pool can ever hold a record with a body of this length.
    pub fn can_hold(&self, body: usize) -> bool {
        size_for(body).is_some_and(|size| size <= self.max_bytes - self.ample * CHUNK_SIZE)
    }

    /// Takes a new chunk for one record that is too large for a full-size chunk, if there is room.
    pub fn take_large(&self, body: usize) -> Option<Cursor> {
        let count = size_for(body)? / CHUNK_SIZE;
        let made = self.make(count, count * CHUNK_SIZE, |unused| {
            // `make_one` takes units from the start of a range. This code takes units from the end of a range, so the unused
            // units of the range stay adjacent.
            let range = unused.iter_mut().rev().find(|range| range.len() >= count)?;
            range.end -= count;
            Some(range.end..range.end + count)
        });
        if made.is_none() {
            self.cramped.store(true, Ordering::Relaxed);
        }
        made.map(|chunk| self.begin(chunk))
    }

    /// Makes one more chunk, if the limit allows it.
    fn make_one(&self, size: usize) -> Option<Chunk> {
        self.make(1, size, |unused| {
            let range = unused.iter_mut().find(|range| range.start < range.end)?;
            range.start += 1;
            Some(range.start - 1..range.start)
        })
    }

    /// Makes one more free chunk, if the limit allows it.
    fn grow(&self, size: usize) -> bool {
        self.make_one(size).map(|chunk| self.push(chunk)).is_some()
    }

    /// Makes a chunk for a thread that finds no free chunk. Perhaps the pool has not grown yet, or a slow disk delays the
    /// writer. Making a chunk costs the thread as much time as filling the chunk with records, but only once for each chunk.
    #[cold]
    pub fn take_new(&self, size: usize) -> Option<Cursor> {
        self.make_one(size).map(|chunk| self.begin(chunk))
    }

    fn make(
        &self,
        count: usize,
        size: usize,
        cut: impl FnOnce(&mut [Range<usize>]) -> Option<Range<usize>>,
    ) -> Option<Chunk> {
        let mut unused = self.unused();
        if !self.may_hold(size) {
            return None;
        }
        let made = cut(&mut unused).and_then(|units| {
            let made = self.memory.make_chunk(&units, size).ok();
            if made.is_none() {
                // `make_chunk` fails if it cannot even map private memory.
                put_back(&mut unused, units);
            }
            made
        });
        match made {
            Some(_) => _ = self.held.fetch_add(count, Ordering::Relaxed),
            None => _ = self.bytes_held.fetch_sub(size, Ordering::Relaxed),
        }
        made
    }

    fn unused(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes free chunks in advance, as long as chunks use fewer than `ample` units. Until a thread fills a chunk, one small
    /// chunk is kept free. While threads need larger chunks, about one chunk for each thread is kept free, with the size that
    /// the threads will need next. Once the threads need full-size chunks, the number of free chunks is limited only by
    /// `ample`.
    ///
    /// Only the writer calls this function. The writer makes a few chunks in each round. If the writer's writes take too long,
    /// threads may need more than `ample` chunks. In this case threads make chunks themselves (`take_new`).
    pub fn replenish(&self, threads: usize) {
        let asked = self.asked.load(Ordering::Relaxed);
        let (free, size) = match asked {
            0 => (1, FIRST_SIZE),
            CHUNK_SIZE.. => (usize::MAX, CHUNK_SIZE),
            _ => (LOW.max(threads), 2 * asked),
        };
        for _ in 0..LOW.max(threads) {
            let has_ample_units = self.held.load(Ordering::Relaxed) >= self.ample;
            if self.count_free() >= free || has_ample_units || !self.grow(size) {
                break;
            }
        }
        if asked >= CHUNK_SIZE {
            self.grow_free_ones();
        }
    }

    /// Enlarges some of the free chunks, one by one, so that threads can take the other free chunks at the same time.
    fn grow_free_ones(&self) {
        for _ in 0..LOW {
            let Some(unit) = self.small.pop() else { return };
            // SAFETY: the stacks contain only the first units of chunks.
            let chunk = unsafe { self.memory.chunk_of(unit) };
            let is_whole = self.enlarge(chunk, CHUNK_SIZE);
            self.push(chunk);
            if !is_whole {
                return;
            }
        }
    }

    /// Returns a chunk to the pool. The chunk is written out or was never published, and is no longer used.
    pub fn recycle(&self, chunk: Chunk) {
        chunk.reset();
        let (units, size) = (self.memory.units_of(chunk), chunk.size());
        self.bytes_used.fetch_sub(size, Ordering::Relaxed);
        let wanted = self.asked.load(Ordering::Relaxed);
        if units.len() > 1 {
            self.give_up(units, size);
            return;
        }
        if size < wanted {
            self.enlarge(chunk, wanted);
        }
        self.push(chunk);
    }

    /// Returns `cramped`, and sets this field to false. Only the writer calls this function.
    pub fn take_cramped(&self) -> bool {
        self.cramped.swap(false, Ordering::Relaxed)
    }

    /// Frees the free chunks in all units after the first `ample` units, so that a record which waits for room gets memory.
    /// Only the writer calls this function.
    pub fn make_way(&self) {
        // The chunks in the first units stay, so that the freed units are adjacent.
        self.shrink_to(self.ample);
    }

    /// Frees all free chunks except one. The writer calls this function when no code was registered for a while.
    pub fn rest(&self) {
        let kept = self.pop();
        self.shrink();
        match kept {
            Some(chunk) => self.push(chunk),
            None => self.replenish(1),
        }
    }

    /// Moves the free chunks out of the spool. If the spool then contains no chunk, the pool stops using the spool. Only the
    /// writer calls this function. Before the call, the writer itself moves used chunks out of the spool, if no thread is
    /// writing to them.
    pub fn leave_spool(&self) {
        let free: Vec<Chunk> = std::iter::from_fn(|| self.pop()).collect();
        for chunk in free.into_iter().rev() {
            self.memory.take_from_spool(chunk);
            self.push(chunk);
        }
        let _nobody_makes_chunks = self.unused();
        self.memory.leave_spool();
    }

    /// Frees all free chunks. Only the writer calls this function.
    pub fn shrink(&self) {
        self.shrink_to(0);
    }

    /// Frees each free chunk that begins in the unit with the number `units` or in a later unit.
    fn shrink_to(&self, units: usize) {
        let mut free: Vec<(usize, Chunk)> =
            std::iter::from_fn(|| self.pop()).map(|chunk| (self.memory.units_of(chunk).start, chunk)).collect();
        free.retain(|&(unit, chunk)| {
            let stays = unit < units;
            if stays {
                self.push(chunk);
            }
            !stays
        });
        sort(&mut free);
        let is_whole = |(unit, chunk): &(usize, Chunk)| chunk.size() == CHUNK_SIZE && !self.memory.is_private(*unit);
        // Adjacent full-size chunks are freed in one system call.
        for row in free.chunk_by(|one, next| one.0 + 1 == next.0 && is_whole(one) && is_whole(next)) {
            let ((first, _), (last, chunk)) = (row[0], row[row.len() - 1]);
            self.give_up(first..last + 1, (last - first) * CHUNK_SIZE + chunk.size());
        }
    }

    /// Frees the first `size` bytes of units that nobody uses, and marks these units as unused.
    fn give_up(&self, units: Range<usize>, size: usize) {
        let mut unused = self.unused();
        self.memory.unmake_chunks(&units, size);
        self.held.fetch_sub(units.len(), Ordering::Relaxed);
        self.bytes_held.fetch_sub(size, Ordering::Relaxed);
        put_back(&mut unused, units);
    }
}

fn put_back(unused: &mut Vec<Range<usize>>, units: Range<usize>) {
    let at = unused.partition_point(|range| range.start < units.start);
    unused.insert(at, units);
    unused.dedup_by(|next, range| {
        let adjacent = range.end == next.start;
        if adjacent {
            range.end = next.end;
        }
        adjacent || next.start == next.end
    });
}

/// A lock-free stack of units (a Treiber stack). Each unit on the stack refers to the unit below it.
#[derive(Debug)]
struct Stack {
    /// The upper 32 bits count the changes of the stack. The lower 32 bits are the number of the top unit + 1, or 0 if the
    /// stack is empty. Because of the count, a compare-exchange fails if the top unit was popped and pushed again in the
    /// meantime.
    top: AtomicU64,
    below: Box<[AtomicU32]>,
    len: AtomicUsize,
}

impl Stack {
    fn new(units: usize) -> Stack {
        Stack {
            top: AtomicU64::new(0),
            below: (0..units).map(|_| AtomicU32::new(0)).collect(),
            len: AtomicUsize::new(0),
        }
    }

    /// The approximate number of units on the stack.
    fn len(&self) -> usize {
        // If a thread pops a unit before the thread that pushed the unit has counted the push, `len` falls below 0 for a moment
        // and wraps around to a very large number.
        let len = self.len.load(Ordering::Relaxed);
        if len > self.below.len() {
            0
        } else {
            len
        }
    }

    fn push(&self, unit: usize) {
        self.change(|top| {
            self.below[unit].store(top, Ordering::Relaxed);
            Some(unit as u32 + 1)
        });
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<usize> {
        let top = self.change(|top| Some(self.below.get(top.checked_sub(1)? as usize)?.load(Ordering::Relaxed)))?;
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(top as usize - 1)
    }

    /// Replaces the top of the stack and returns the old top. If `new` returns `None`, changes nothing and returns `None`.
    fn change(&self, new: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let next = |old: u64| Some(((old >> 32) + 1) << 32 | u64::from(new(old as u32)?));
        self.top.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(|old| old as u32)
    }
}
