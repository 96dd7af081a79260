//! Where in a region dead code is named: looked at and written by the threads that register code, without a lock.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::mapping::Region;

/// Bytes of code for which there is one mark. Code that only shares such a piece with dead code costs a generation more, and
/// nothing else.
const PIECE: u64 = 64;

/// For each piece of a region the generation in which dead code is named there; 0 for none.
#[derive(Debug)]
pub struct Marks {
    memory: Region,
    count: usize,
    /// The generation of the last mark: as long as no code has died in one, nothing else need be looked at.
    newest: AtomicU32,
}

impl Marks {
    pub fn new(len: u64) -> io::Result<Marks> {
        let count = usize::try_from(len.div_ceil(PIECE)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Marks { memory: Region::private(count * size_of::<AtomicU32>())?, count, newest: AtomicU32::new(0) })
    }

    /// Whether they are enough for a region that can be so long.
    pub fn fit(&self, len: u64) -> bool {
        len.div_ceil(PIECE) <= self.count as u64
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    fn pieces(&self, offset: u64, len: u64) -> &[AtomicU32] {
        // SAFETY: the memory is as long, zeroed, aligned to pages, and lives as long as this; any value is a valid atomic.
        let all = unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast::<AtomicU32>(), self.count) };
        let (first, end) = ((offset / PIECE) as usize, (offset + len).div_ceil(PIECE) as usize);
        all.get(first..end).unwrap_or_default()
    }

    /// Whether dead code is named in a range in this generation.
    #[inline]
    pub fn any(&self, offset: u64, len: u64, generation: u32) -> bool {
        self.newest.load(Ordering::Relaxed) >= generation && self.is_marked(offset, len, generation)
    }

    fn is_marked(&self, offset: u64, len: u64, generation: u32) -> bool {
        self.pieces(offset, len).iter().any(|mark| mark.load(Ordering::Relaxed) == generation)
    }

    /// Gives the memory back, for a region that counts from the beginning. A thread that still reads finds nothing.
    pub fn clear(&self) {
        self.newest.store(0, Ordering::Relaxed);
        self.memory.discard(0..self.count * size_of::<AtomicU32>());
    }

    /// Notes that there is.
    pub fn set(&self, offset: u64, len: u64, generation: u32) {
        for mark in self.pieces(offset, len) {
            mark.store(generation, Ordering::Relaxed);
        }
        if self.newest.load(Ordering::Relaxed) < generation {
            // Not a store: another thread may be one generation ahead.
            self.newest.fetch_max(generation, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_one_generation() {
        let marks = Marks::new(1000).unwrap();
        assert!(!marks.any(0, 1000, 1));
        marks.set(100, 30, 1);
        assert!(marks.any(64, 1, 1) && marks.any(191, 1, 1) && marks.any(0, 1000, 1));
        assert!(!marks.any(0, 64, 1) && !marks.any(192, 808, 1) && !marks.any(0, 1000, 2));
        marks.set(500, 1, 2);
        assert!(marks.any(500, 1, 2) && !marks.any(100, 30, 2));
        // There are no marks after the end.
        marks.set(990, 100, 2);
        assert!(!marks.any(2000, 10, 2));
        // A late mark of an older generation hides none of a newer one.
        marks.set(0, 10, 1);
        assert!(marks.any(500, 1, 2));
        marks.clear();
        assert!(!marks.any(0, 1000, 2));
        // Another region has them then, which begins to count again.
        marks.set(100, 30, 1);
        assert!(marks.any(100, 1, 1));
        // A late mark of the one before does not hide those.
        marks.set(500, 1, 7);
        assert!(marks.any(100, 1, 1));
    }
}
