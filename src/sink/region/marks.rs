//! Since when code is dead, by place: looked at and written by the threads that register code, without a lock.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::mapping::Region;

/// Bytes of code for which there is one mark. Code that only shares such a piece with dead code costs a generation more, and
/// nothing else.
const PIECE: u64 = 16;

/// For each piece of a region the generation since which the code there is dead; 0 for none.
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

    /// The last generation in which code in a range has died, if that is after `first`.
    #[inline]
    pub fn after(&self, offset: u64, len: u64, first: u32) -> Option<u32> {
        if self.newest.load(Ordering::Relaxed) <= first {
            return None;
        }
        let last = self.pieces(offset, len).iter().map(|mark| mark.load(Ordering::Relaxed)).max();
        last.filter(|&last| last > first)
    }

    /// Gives the memory back, for a region that counts from the beginning. A thread that still reads finds nothing.
    pub fn clear(&self) {
        self.newest.store(0, Ordering::Relaxed);
        self.memory.discard(0..self.count * size_of::<AtomicU32>());
    }

    /// Takes note of that.
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
    fn the_last_death_counts() {
        let marks = Marks::new(1000).unwrap();
        assert_eq!(marks.after(0, 1000, 0), None);
        marks.set(100, 30, 2);
        for (offset, len) in [(96, 1), (143, 1), (0, 1000)] {
            assert_eq!(marks.after(offset, len, 1), Some(2));
        }
        assert!([(0, 96), (144, 856)].iter().all(|&(offset, len)| marks.after(offset, len, 1).is_none()));
        assert_eq!(marks.after(0, 1000, 2), None);
        marks.set(500, 1, 3);
        assert_eq!((marks.after(0, 1000, 1), marks.after(100, 30, 2)), (Some(3), None));
        // There are no marks after the end.
        marks.set(990, 100, 3);
        assert_eq!(marks.after(2000, 10, 1), None);
        // A late mark of an older generation hides none of a newer one.
        marks.set(0, 10, 1);
        assert_eq!(marks.after(500, 1, 2), Some(3));
        marks.clear();
        assert_eq!(marks.after(0, 1000, 0), None);
        // Another region has them then, which begins to count again.
        marks.set(100, 30, 2);
        assert_eq!(marks.after(100, 1, 1), Some(2));
        // A late mark of the one before does not hide those.
        marks.set(500, 1, 7);
        assert_eq!(marks.after(100, 1, 1), Some(2));
    }
}
