//! The pool: where chunks come from and go back to.
//!
//! Free chunks lie on a stack, so that the ones that were used last, and lie in the processor's caches, are used first. A channel
//! would hand them out in turn, and so walk through all of the pool's memory. That took 31 instead of 20 ns for a 512-byte record,
//! measured with 1 MiB and 256 KiB in turn.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::queue::chunk::{size_for, Chunk, Cursor, CHUNK_SIZE};
use crate::queue::spool::Memory;
use crate::sys::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sys::sync::{Mutex, MutexGuard, PoisonError};

/// What the pool starts with, unless its bound is lower.
const START: usize = (4 << 20) / CHUNK_SIZE;

/// With fewer chunks free than this the writer should hurry.
const LOW: usize = 4;

/// See the module's description.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    free: Stack,
    /// Units that nothing is in, in order and with gaps between them; none while the pool is shut. Only the writer and threads
    /// with large records ask.
    unused: Mutex<Vec<Range<usize>>>,
    /// Units that have memory.
    held: AtomicUsize,
    start: usize,
    /// A large record found no room: the writer is to give free chunks up for it.
    cramped: AtomicBool,
    serial: AtomicU64,
}

impl Pool {
    /// A pool that is going to hold at most `max_memory` bytes, and holds nothing before it is opened.
    pub fn new(max_memory: usize) -> io::Result<Pool> {
        let units = (max_memory / CHUNK_SIZE).max(2);
        Ok(Pool {
            memory: Memory::new(units)?,
            free: Stack::new(units),
            unused: Mutex::default(),
            held: AtomicUsize::new(0),
            start: START.min(units / 2),
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
        // One, for the thread that registers at once. The writer makes the others.
        self.grow();
        why.map(|why| format!("cannot make a spool: {why}"))
    }

    /// Gives all memory back, and the spool, if no chunk is in use. Nobody else opens or shuts it.
    pub fn shut(&self) -> bool {
        let mut unused = self.unused();
        let mut free = Vec::new();
        while let Some(unit) = self.free.pop() {
            free.push(unit);
        }
        // The owner of a chunk in use has taken it, or is about to give it back.
        if free.len() < self.held.load(Ordering::Relaxed) {
            free.into_iter().rev().for_each(|unit| self.free.push(unit));
            return false;
        }
        // From here on there is none to be had.
        unused.clear();
        self.held.store(0, Ordering::Relaxed);
        self.memory.detach();
        true
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Bytes in use.
    pub fn bytes_used(&self) -> u64 {
        (self.held.load(Ordering::Relaxed).saturating_sub(self.free.len()) * CHUNK_SIZE) as u64
    }

    /// Bytes in use or free.
    pub fn bytes_held(&self) -> u64 {
        (self.held.load(Ordering::Relaxed) * CHUNK_SIZE) as u64
    }

    /// The most chunks that there can be at a time.
    pub fn most_chunks(&self) -> usize {
        self.memory.units()
    }

    /// Whether so few chunks are free that the writer should hurry.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.free.len() < LOW
    }

    /// A chunk, if one is free.
    pub fn take(&self) -> Option<Cursor> {
        let unit = self.free.pop()?;
        // SAFETY: only units that begin a chunk are on the stack.
        Some(self.begin(unsafe { self.memory.chunk_of(unit) }))
    }

    fn begin(&self, chunk: Chunk) -> Cursor {
        Cursor::new(chunk, self.serial.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a record with `body` bytes can ever be held.
    pub fn can_hold(&self, body: usize) -> bool {
        size_for(body).is_some_and(|size| size / CHUNK_SIZE <= self.memory.units() - self.start)
    }

    /// A chunk for one record with a body that no chunk of the pool holds, if there is room.
    pub fn take_large(&self, body: usize) -> Option<Cursor> {
        let count = size_for(body)? / CHUNK_SIZE;
        let made = self.make(count, self.unused().iter_mut().rev(), |range| {
            // From the end, which the pool itself comes to last.
            range.end -= count;
            range.end..range.end + count
        });
        if made.is_none() {
            self.cramped.store(true, Ordering::Relaxed);
        }
        made.map(|chunk| self.begin(chunk))
    }

    /// One chunk more, if the bound allows it.
    fn make_one(&self) -> Option<Chunk> {
        self.make(1, self.unused().iter_mut(), |range| {
            range.start += 1;
            range.start - 1..range.start
        })
    }

    /// One free chunk more, if the bound allows it.
    fn grow(&self) -> bool {
        let made = self.make_one().map(|chunk| self.memory.units_of(chunk).start);
        made.map(|unit| self.free.push(unit)).is_some()
    }

    /// A chunk for a thread that finds none free, because the writer is held up by a slow disk. That costs the thread as much
    /// as writing a chunk does, once a chunk.
    #[cold]
    pub fn take_new(&self) -> Option<Cursor> {
        self.make_one().map(|chunk| self.begin(chunk))
    }

    fn make<'r>(
        &self,
        count: usize,
        mut unused: impl Iterator<Item = &'r mut Range<usize>>,
        cut: impl FnOnce(&mut Range<usize>) -> Range<usize>,
    ) -> Option<Chunk> {
        let units = cut(unused.find(|range| range.len() >= count)?);
        let made = self.memory.make_chunk(&units).ok();
        match made {
            Some(_) => self.held.fetch_add(count, Ordering::Relaxed),
            // The address space has no room for private memory either. These units are lost, which hardly matters now.
            None => 0,
        };
        made
    }

    fn unused(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of the chunks of the start, if there are fewer. For the writer, which does it pass by pass. Those beyond it are made
    /// by who needs them (`take_new`): the writer is held up in writing then.
    pub fn replenish(&self) {
        for _ in 0..LOW {
            if self.held.load(Ordering::Relaxed) >= self.start || !self.grow() {
                break;
            }
        }
    }

    /// Gives a chunk back that is written out, or was never published, and that nobody else uses any more.
    pub fn recycle(&self, chunk: Chunk) {
        chunk.reset();
        let units = self.memory.units_of(chunk);
        if units.len() == 1 {
            self.free.push(units.start);
        } else {
            self.give_up(units);
        }
    }

    /// Gives free chunks up if a large record waits for room. For the writer, as the following ones.
    pub fn shrink_if_cramped(&self) {
        if self.cramped.swap(false, Ordering::Relaxed) {
            self.shrink_to_start();
        }
    }

    /// Gives free chunks up that the pool has grown by.
    pub fn shrink_to_start(&self) {
        self.shrink(self.start);
    }

    /// Gives free chunks up until that many units are held, or none is free.
    pub fn shrink(&self, units: usize) {
        let mut kept = Vec::new();
        while let Some(unit) = self.free.pop() {
            // Those of the start lie together, so that the others leave room together.
            if self.held.load(Ordering::Relaxed) > units && unit >= units {
                self.give_up(unit..unit + 1);
            } else {
                kept.push(unit);
            }
        }
        kept.into_iter().rev().for_each(|unit| self.free.push(unit));
    }

    /// Makes units unused that nobody uses.
    fn give_up(&self, units: Range<usize>) {
        let mut unused = self.unused();
        self.memory.unmake_chunk(&units);
        self.held.fetch_sub(units.len(), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::chunk::tests::event;
    use crate::queue::chunk::BODY_MAX;
    use crate::queue::record::EventKind;

    fn pool(max_memory: usize) -> Pool {
        let pool = Pool::new(max_memory).unwrap();
        assert!(!pool.is_open() && pool.take().is_none() && pool.take_new().is_none());
        assert!(pool.open(None).is_none() && pool.is_open());
        (0..8).for_each(|_| pool.replenish());
        pool
    }

    #[test]
    fn what_was_used_last_is_used_first() {
        let pool = pool(64 << 20);
        assert_eq!((pool.bytes_held(), pool.bytes_used()), (4 << 20, 0));
        let (a, b) = (pool.take().unwrap().chunk(), pool.take().unwrap().chunk());
        assert_ne!(a, b);
        assert_eq!(pool.bytes_used(), 2 * CHUNK_SIZE as u64);
        pool.recycle(b);
        pool.recycle(a);
        assert_eq!(pool.take().unwrap().chunk(), a);
        let last = pool.take().unwrap();
        assert_eq!(last.chunk(), b);
        assert!(last.chunk().serial() > a.serial());
    }

    #[test]
    fn the_pool_grows_to_its_bound_and_back() {
        let pool = pool(8 << 20);
        let mut taken = Vec::new();
        while let Some(cursor) = pool.take().or_else(|| pool.take_new()) {
            taken.push(cursor.chunk());
        }
        assert_eq!(taken.len(), 32);
        assert_eq!((pool.bytes_held(), pool.bytes_used()), (8 << 20, 8 << 20));
        assert!(pool.is_low() && !pool.grow() && pool.take_large(BODY_MAX + 1).is_none());
        taken.into_iter().for_each(|chunk| pool.recycle(chunk));
        // A large record has asked.
        pool.shrink_if_cramped();
        assert_eq!((pool.bytes_held(), pool.bytes_used()), (4 << 20, 0));
        assert!(pool.take_large(4 << 20).is_none() && pool.take_large((4 << 20) - 1000).is_some());
    }

    #[test]
    fn it_is_shut_when_every_chunk_has_come_home() {
        let pool = pool(8 << 20);
        let (a, b) = (pool.take().unwrap().chunk(), pool.take_large(1 << 20).unwrap().chunk());
        pool.recycle(a);
        assert!(!pool.shut() && pool.is_open());
        pool.recycle(b);
        assert!(pool.shut() && !pool.is_open());
        assert_eq!((pool.bytes_held(), pool.bytes_used()), (0, 0));
        assert!(pool.take().is_none() && pool.take_new().is_none() && pool.take_large(1 << 20).is_none());
        let dir = std::env::temp_dir();
        assert_eq!(pool.open(Some(&dir)), None);
        assert_eq!(pool.memory().state(), crate::queue::status::SpoolState::Shared);
        let again = pool.take().unwrap().chunk();
        assert_eq!((again.committed(), again.size()), (0, CHUNK_SIZE));
        pool.recycle(again);
        assert!(pool.shut());
        assert_eq!(pool.memory().state(), crate::queue::status::SpoolState::None);
    }

    #[test]
    fn large_records_come_and_go() {
        let pool = pool(8 << 20);
        assert!(!pool.can_hold(4 << 20) && pool.can_hold(3 << 20));
        let mut cursor = pool.take_large(3 << 20).unwrap();
        cursor.room().unwrap()[..3 << 20].fill(7);
        cursor.commit(event(EventKind::Load, 1, 3 << 20));
        assert!(pool.take_large(3 << 20).is_none());
        assert_eq!(pool.bytes_held(), (4 << 20) + (3 << 20) + CHUNK_SIZE as u64);
        pool.recycle(cursor.chunk());
        assert_eq!(pool.bytes_held(), 4 << 20);
        let again = pool.take_large(3 << 20).unwrap();
        assert_eq!(again.chunk(), cursor.chunk());
        assert_eq!((again.chunk().committed(), again.chunk().consumed()), (0, 0));
    }

    #[test]
    fn threads_never_get_the_same_chunk() {
        let pool = pool(8 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let Some(mut cursor) = pool.take() else { continue };
                        let room = cursor.room().unwrap();
                        room[0] = thread;
                        std::hint::black_box(&mut *room);
                        assert_eq!(room[0], thread);
                        pool.recycle(cursor.chunk());
                    }
                });
            }
        });
        assert_eq!(pool.bytes_used(), 0);
        assert_eq!(std::iter::from_fn(|| pool.take()).count(), 16);
    }
}
