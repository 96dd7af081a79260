//! The pool: where chunks come from and go back to.
//!
//! Free chunks lie on a stack, so that the ones that were used last, and lie in the processor's caches, are used first. A channel
//! would hand them out in turn, and so walk through all of the pool's memory. That took 31 instead of 20 ns for a 512-byte record,
//! measured with 1 MiB and 256 KiB in turn.
//!
//! Each page of memory costs its maker a fault, so the pool makes little before it is needed. A chunk is as small as its thread has
//! use for, and grows while it is empty. The writer makes chunks ahead while threads ask for more, and gives all of them back when
//! the process is idle.

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

/// What the pool grows to while the writer keeps up, unless its bound is lower.
const AMPLE: usize = (4 << 20) / CHUNK_SIZE;

/// With fewer chunks free than this the writer should hurry.
const LOW: usize = 4;

/// So many threads have a small chunk each before one has to wait for another's, unless the pool's bound is lower than usual. A unit
/// takes address space, but memory only for the chunk in it.
const THREADS: usize = 1024;
const USUAL: usize = (64 << 20) / CHUNK_SIZE;

/// See the module's description.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    /// Free chunks of `CHUNK_SIZE`, and smaller ones.
    whole: Stack,
    small: Stack,
    /// Units that nothing is in, in order and with gaps between them; none while the pool is shut. Only who makes
    /// or gives up chunks asks.
    unused: Mutex<Vec<Range<usize>>>,
    /// Units that have memory.
    held: AtomicUsize,
    /// Bytes of chunks that were made, and of those that somebody has; and how many there may be.
    bytes_held: Counter,
    bytes_used: Counter,
    max_bytes: usize,
    ample: usize,
    /// The size of the largest chunk that a thread has needed because it had filled another one; 0 for none since the process was
    /// idle.
    asked: Counter,
    /// A record found no room beside chunks that are free or idle: the writer is to give them up for it.
    cramped: AtomicBool,
    serial: AtomicU64,
}

impl Pool {
    /// A pool that is going to hold at most `max_memory` bytes, and holds nothing before it is opened.
    pub fn new(max_memory: usize) -> io::Result<Pool> {
        let whole = (max_memory / CHUNK_SIZE).max(2);
        // helgrind takes a second for the address space of some 300 units, and valgrind runs 500 threads at most.
        let has_few = whole < USUAL || valgrind::is_running();
        let units = if has_few { whole } else { whole.max(THREADS) };
        // Where address space is short there are as many as can be full.
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

    /// Whether it has been opened.
    pub fn is_open(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0 || !self.unused().is_empty()
    }

    /// Opens the pool, in a spool in `dir` if possible. The returned text is the reason why there is no spool. Nobody else opens or
    /// shuts the pool.
    pub fn open(&self, dir: Option<&Path>) -> Option<String> {
        if self.is_open() {
            return None;
        }
        let why = dir.and_then(|dir| self.memory.attach(dir).err());
        self.unused().push(0..self.memory.units());
        // For the thread that registers at once.
        self.grow(FIRST_SIZE);
        why.map(|why| format!("cannot make a spool: {why}"))
    }

    /// Gives all memory back, and the spool, if no chunk is in use. Nobody else opens or shuts it.
    pub fn shut(&self) -> bool {
        let mut unused = self.unused();
        let free: Vec<Chunk> = std::iter::from_fn(|| self.pop()).collect();
        // The owner of a chunk in use has taken it, or is about to give it back.
        if free.len() < self.held.load(Ordering::Relaxed) {
            free.into_iter().rev().for_each(|chunk| self.push(chunk));
            return false;
        }
        // From here on there is none to be had.
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

    /// Bytes in use.
    pub fn bytes_used(&self) -> u64 {
        self.bytes_used.load(Ordering::Relaxed) as u64
    }

    /// Bytes in use or free.
    pub fn bytes_held(&self) -> u64 {
        self.bytes_held.load(Ordering::Relaxed) as u64
    }

    /// The most chunks that there can be at a time.
    pub fn most_chunks(&self) -> usize {
        self.memory.units()
    }

    /// Whether so few chunks are free that the writer should hurry.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.count_free() < LOW
    }

    /// Whether so few threads more find a chunk that those which are not in use should come back. Each of them takes a whole unit of
    /// the address space, however small it is.
    pub fn is_scarce(&self) -> bool {
        let units = self.memory.units();
        let unused = units.saturating_sub(self.held.load(Ordering::Relaxed));
        self.count_free() + unused < (units / 4).max(1)
    }

    /// About how many chunks are free.
    #[inline]
    fn count_free(&self) -> usize {
        // In this order: a chunk that is made larger meanwhile is counted twice, and not left out.
        let small = self.small.len();
        small + self.whole.len()
    }

    fn pop(&self) -> Option<Chunk> {
        // A small one that was made larger meanwhile is found by the third.
        let unit = self.whole.pop().or_else(|| self.small.pop()).or_else(|| self.whole.pop())?;
        // SAFETY: only units that begin a chunk are on the stacks.
        Some(unsafe { self.memory.chunk_of(unit) })
    }

    fn push(&self, chunk: Chunk) {
        let stack = if chunk.size() < CHUNK_SIZE { &self.small } else { &self.whole };
        stack.push(self.memory.units_of(chunk).start);
    }

    /// Whether the pool may grow without reason to wait for the writer.
    pub fn is_ample(&self) -> bool {
        self.bytes_held.load(Ordering::Relaxed) >= self.ample * CHUNK_SIZE
    }

    /// A chunk of at least this size, if one is free.
    pub fn take(&self, size: usize) -> Option<Cursor> {
        let chunk = self.pop()?;
        if chunk.size() < size && !self.enlarge(chunk, size) {
            self.push(chunk);
            // Small ones may have all the memory that is allowed.
            self.cramped.store(true, Ordering::Relaxed);
            return None;
        }
        Some(self.begin(chunk))
    }

    /// A chunk with room for a body of this length, if the next free one is such.
    pub fn take_as_it_is(&self, body: usize) -> Option<Cursor> {
        let chunk = self.pop()?;
        if chunk.body_max() < body {
            self.push(chunk);
            return None;
        }
        Some(self.begin(chunk))
    }

    /// No thread asks for more: chunks that come back from now on stay as small as they are.
    pub fn forget_asked(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// A thread that has filled a chunk needs one of this size.
    pub fn ask_for(&self, size: usize) {
        self.asked.fetch_max(size, Ordering::Relaxed);
    }

    /// Gives a chunk that nobody uses more memory. False if there is none, and nothing has changed.
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

    /// Counts bytes that are about to be made, if there may be so many more.
    fn may_hold(&self, more: usize) -> bool {
        let add = |held: usize| held.checked_add(more).filter(|&sum| sum <= self.max_bytes);
        self.bytes_held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn begin(&self, chunk: Chunk) -> Cursor {
        self.bytes_used.fetch_add(chunk.size(), Ordering::Relaxed);
        Cursor::new(chunk, self.serial.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a record with `body` bytes can ever be held.
    pub fn can_hold(&self, body: usize) -> bool {
        size_for(body).is_some_and(|size| size <= self.max_bytes - self.ample * CHUNK_SIZE)
    }

    /// A chunk for one record with a body that no chunk of the pool holds, if there is room.
    pub fn take_large(&self, body: usize) -> Option<Cursor> {
        let count = size_for(body)? / CHUNK_SIZE;
        let made = self.make(count, count * CHUNK_SIZE, |unused| {
            // From the end, which the pool itself comes to last.
            let range = unused.iter_mut().rev().find(|range| range.len() >= count)?;
            range.end -= count;
            Some(range.end..range.end + count)
        });
        if made.is_none() {
            self.cramped.store(true, Ordering::Relaxed);
        }
        made.map(|chunk| self.begin(chunk))
    }

    /// One chunk more, if the bound allows it.
    fn make_one(&self, size: usize) -> Option<Chunk> {
        self.make(1, size, |unused| {
            let range = unused.iter_mut().find(|range| range.start < range.end)?;
            range.start += 1;
            Some(range.start - 1..range.start)
        })
    }

    /// One free chunk more, if the bound allows it.
    fn grow(&self, size: usize) -> bool {
        self.make_one(size).map(|chunk| self.push(chunk)).is_some()
    }

    /// A chunk for a thread that finds none free: because the pool has not grown yet, or the writer is held up by a slow disk. That
    /// costs the thread as much as writing a chunk does, once a chunk.
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
                // The address space may have no room for private memory either.
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

    /// Makes memory ahead, up to an ample amount: a small chunk for the next thread; while threads ask for more, for each of them one
    /// of the size that they will ask for next; and all of it once they ask for whole ones. For the writer, which does it bit by
    /// bit, round by round. More than that is made by who needs it (`take_new`): the writer is held up in writing then.
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

    /// Enlarges some of the free chunks. One by one: threads find the others.
    fn grow_free_ones(&self) {
        for _ in 0..LOW {
            let Some(unit) = self.small.pop() else { return };
            // SAFETY: only units that begin a chunk are on the stacks.
            let chunk = unsafe { self.memory.chunk_of(unit) };
            let is_whole = self.enlarge(chunk, CHUNK_SIZE);
            self.push(chunk);
            if !is_whole {
                return;
            }
        }
    }

    /// Gives a chunk back that is written out, or was never published, and that nobody else uses any more.
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

    /// Whether a record has found no room beside other chunks since this was asked last. For the writer.
    pub fn take_cramped(&self) -> bool {
        self.cramped.swap(false, Ordering::Relaxed)
    }

    /// Gives free chunks up that an ample pool does not need, for a record that waits for room. For the writer.
    pub fn make_way(&self) {
        // Those that stay lie together, so that the others leave room together.
        self.shrink_to(self.ample);
    }

    /// Gives all free chunks up but one, for the next thread. For the writer, when nobody has registered anything for a while.
    pub fn rest(&self) {
        let kept = self.pop();
        self.shrink();
        match kept {
            Some(chunk) => self.push(chunk),
            None => self.replenish(1),
        }
    }

    /// Moves the free chunks out of the spool, whose use ends when no other chunk is in it either. For the writer, which has moved the
    /// chunks that it knows.
    pub fn leave_spool(&self) {
        let free: Vec<Chunk> = std::iter::from_fn(|| self.pop()).collect();
        for chunk in free.into_iter().rev() {
            self.memory.take_from_spool(chunk);
            self.push(chunk);
        }
        let _nobody_makes_chunks = self.unused();
        self.memory.leave_spool();
    }

    /// Gives all free chunks up. For the writer.
    pub fn shrink(&self) {
        self.shrink_to(0);
    }

    /// Gives the free chunks up that do not lie in the first units.
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
        // Neighbours go in one system call.
        for row in free.chunk_by(|one, next| one.0 + 1 == next.0 && is_whole(one) && is_whole(next)) {
            let ((first, _), (last, chunk)) = (row[0], row[row.len() - 1]);
            self.give_up(first..last + 1, (last - first) * CHUNK_SIZE + chunk.size());
        }
    }

    /// Makes units unused that nobody uses, the first `size` bytes of which have memory.
    fn give_up(&self, units: Range<usize>, size: usize) {
        let mut unused = self.unused();
        self.memory.unmake_chunks(&units, size);
        self.held.fetch_sub(units.len(), Ordering::Relaxed);
        self.bytes_held.fetch_sub(size, Ordering::Relaxed);
        put_back(&mut unused, units);
    }
}

/// Adds units to those that nothing is in.
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

/// A stack of units, without locks (R. K. Treiber's): each unit on it names the one below.
#[derive(Debug)]
struct Stack {
    /// `changes:32 | unit + 1`, 0 for none. Each change counts, so that a unit which went and came back is noticed.
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

    /// About how many there are.
    fn len(&self) -> usize {
        // A thread that pops may be faster than the one that has just pushed and counts.
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

    /// Changes the top and returns the one before; `None` if there is no change to make.
    fn change(&self, new: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let next = |old: u64| Some(((old >> 32) + 1) << 32 | u64::from(new(old as u32)?));
        self.top.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(|old| old as u32)
    }
}
