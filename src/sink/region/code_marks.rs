//! Marks where a region has live code and dead code. The threads that register code read and write the marks without a lock.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::mapping::{page_size, Region};

/// How many bytes of code one mark describes.
const PIECE: u64 = 16;

/// The number of epochs that fit into a mark.
pub const EPOCH_MOST: u32 = 1 << 24;

/// Two sets of marks for a region. `memory` has one mark for each piece of 16 bytes. If a piece contains dead code, its mark
/// stores where the dead code begins and ends in the piece, and the first epoch in which the code is dead. The mark of a piece
/// without dead code is 0. `ends` has one bit for each byte, which is set if live code begins or ends at this byte.
#[derive(Debug)]
pub struct Marks {
    /// The marks, and from the offset `ends_at` on the words of `ends`.
    memory: Region,
    count: usize,
    /// The newest epoch in any mark. A search for epochs after this epoch need not read the marks.
    newest: AtomicU32,
}

impl Marks {
    /// Makes marks for a region of `len` bytes. The marks lie at the address `hint` if nothing is mapped there.
    pub fn new(hint: u64, len: u64) -> io::Result<Marks> {
        let count = usize::try_from(len.div_ceil(PIECE)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Region::private_at(hint, size_for(count))?;
        Ok(Marks { memory, count, newest: AtomicU32::new(0) })
    }

    /// The address space that the marks of a region of `len` bytes take.
    pub fn size_for(len: u64) -> u64 {
        size_for(len.div_ceil(PIECE) as usize) as u64
    }

    /// Whether there are enough marks for a region with a maximum length of `len` bytes.
    pub fn fit(&self, len: u64) -> bool {
        len.div_ceil(PIECE) <= self.count as u64
    }

    pub fn len(&self) -> usize {
        self.count
    }

    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (&AtomicU32, u32, u32)> {
        // SAFETY: the memory has this length, is zeroed and aligned to pages, and lives as long as `self`. Any bit pattern is a
        // valid atomic integer.
        let all = unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast::<AtomicU32>(), self.count) };
        let (first, last) = (offset / PIECE, (offset + len).div_ceil(PIECE));
        let pieces = all.get(first as usize..last as usize).unwrap_or_default();
        pieces.iter().zip(first..).map(move |(mark, number)| {
            let within = |at: u64| at.clamp(number * PIECE, (number + 1) * PIECE) - number * PIECE;
            (mark, within(offset) as u32, within(offset + len) as u32)
        })
    }

    /// Returns the newest epoch from which code in a range counts as dead, if this epoch is after `first`.
    #[inline]
    pub fn after(&self, offset: u64, len: u64, first: u32) -> Option<u32> {
        if self.newest.load(Ordering::Relaxed) <= first {
            return None;
        }
        let dead = |(mark, from, to): (&AtomicU32, u32, u32)| {
            let (epoch, begin, end) = read(mark.load(Ordering::Relaxed));
            (begin < to && from < end).then_some(epoch)
        };
        self.pieces(offset, len).filter_map(dead).max().filter(|&last| last > first)
    }

    /// Clears the marks for use by another region, and gives the memory back to the system. A thread that still reads the marks
    /// finds them empty.
    pub fn clear(&self) {
        self.newest.store(0, Ordering::Relaxed);
        self.memory.discard(0..self.count * size_of::<AtomicU32>());
        self.no_code();
    }

    /// Records that the region has no live code.
    pub fn no_code(&self) {
        self.memory.discard(ends_at(self.count)..size_for(self.count));
    }

    fn all_words(&self) -> &[AtomicU64] {
        // SAFETY: the memory has this length, is zeroed and aligned to pages, and lives as long as `self`. Any bit pattern is a
        // valid atomic integer.
        unsafe {
            let ends = self.memory.start().byte_add(ends_at(self.count));
            std::slice::from_raw_parts(ends.as_ptr().cast(), words_for(self.count))
        }
    }

    /// The words that contain the bits of a range, each with a mask of these bits.
    fn words(&self, offset: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, last) = (offset / 64, (offset + len).div_ceil(64));
        let words = self.all_words().get(first as usize..last as usize).unwrap_or_default();
        words.iter().zip(first..).map(move |(word, number)| {
            let before = |at: u64| u64::MAX.checked_shl((at.max(number * 64) - number * 64) as u32).unwrap_or(0);
            (word, before(offset) & !before(offset + len))
        })
    }

    /// Records that code becomes live in a range. Returns whether live code already begins or ends in the range. If two threads
    /// change the same word at the same moment, one change may be lost, and a later call may return false although its code
    /// overwrites live code. The writer notices the overwritten code a little later.
    #[inline]
    pub fn begin(&self, offset: u64, len: u64) -> bool {
        if len == 0 {
            return false;
        }
        let is_taken = self.end(offset, len);
        for at in [offset, offset + len - 1] {
            if let Some(word) = self.all_words().get((at / 64) as usize) {
                word.store(word.load(Ordering::Relaxed) | 1 << (at % 64), Ordering::Relaxed);
            }
        }
        is_taken
    }

    /// Whether live code is known to begin or end in a range.
    pub fn any(&self, offset: u64, len: u64) -> bool {
        self.words(offset, len).any(|(word, bits)| word.load(Ordering::Relaxed) & bits != 0)
    }

    /// Records that code in a range has ended. Returns whether live code was known to begin or end in the range.
    #[inline]
    pub fn end(&self, offset: u64, len: u64) -> bool {
        let mut did = false;
        for (word, bits) in self.words(offset, len) {
            let old = word.load(Ordering::Relaxed);
            if old & bits != 0 {
                word.store(old & !bits, Ordering::Relaxed);
                did = true;
            }
        }
        did
    }

    /// Records that the code in a range is dead in `epoch` and in all later epochs.
    pub fn set(&self, offset: u64, len: u64, epoch: u32) {
        for (mark, from, to) in self.pieces(offset, len) {
            // A mark has one range of dead bytes. If two parts of the piece are dead, the range covers both, and the bytes
            // between them.
            let (_, begin, end) = read(mark.load(Ordering::Relaxed));
            let (begin, end) = if end == 0 { (from, to) } else { (begin.min(from), end.max(to)) };
            mark.store(epoch << 8 | begin << 4 | (end - 1), Ordering::Relaxed);
        }
        if self.newest.load(Ordering::Relaxed) < epoch {
            // A plain store would be wrong here, because another thread may already have stored a newer epoch.
            self.newest.fetch_max(epoch, Ordering::Relaxed);
        }
    }
}

/// Returns how many words of `ends` a number of pieces needs.
fn words_for(pieces: usize) -> usize {
    pieces.div_ceil(64 / PIECE as usize)
}

/// The offset of `ends`, which follows the marks of a number of pieces. The two sets are on separate pages, because each is freed alone.
fn ends_at(pieces: usize) -> usize {
    (pieces * size_of::<AtomicU32>()).next_multiple_of(page_size())
}

/// The size of the memory for the marks and the ends of a number of pieces.
fn size_for(pieces: usize) -> usize {
    ends_at(pieces) + (words_for(pieces) * size_of::<AtomicU64>()).next_multiple_of(page_size())
}

/// Returns the epoch of a mark, and where the dead code begins and ends in the piece.
fn read(mark: u32) -> (u32, u32, u32) {
    (mark >> 8, mark >> 4 & 15, if mark == 0 { 0 } else { (mark & 15) + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_death_counts() {
        let marks = Marks::new(0, 1000).unwrap();
        assert_eq!(marks.after(0, 1000, 0), None);
        marks.set(100, 30, 2);
        for (offset, len) in [(100, 1), (129, 1), (99, 2), (0, 1000)] {
            assert_eq!(marks.after(offset, len, 1), Some(2));
        }
        assert!([(0, 100), (99, 1), (130, 870)].iter().all(|&(offset, len)| marks.after(offset, len, 1).is_none()));
        assert_eq!(marks.after(0, 1000, 2), None);
        marks.set(500, 1, 3);
        assert_eq!((marks.after(0, 1000, 1), marks.after(100, 30, 2)), (Some(3), None));
        // There are no marks after the end of the region.
        marks.set(990, 100, 3);
        assert_eq!(marks.after(2000, 10, 1), None);
        // A late mark of an older epoch does not hide the marks of a newer epoch.
        marks.set(0, 10, 1);
        assert_eq!(marks.after(500, 1, 2), Some(3));
        marks.clear();
        assert_eq!(marks.after(0, 1000, 0), None);
        // After `clear`, the marks belong to a new region, whose first epoch is 0.
        marks.set(100, 30, 2);
        assert_eq!(marks.after(100, 1, 1), Some(2));
        // A slow thread may still set a mark for the region that had these marks before. The late mark does not hide the marks
        // of the new region.
        marks.set(500, 1, 7);
        assert_eq!(marks.after(100, 1, 1), Some(2));
    }

    #[test]
    fn live_code_has_two_ends() {
        let marks = Marks::new(0, 1000).unwrap();
        // Neighbouring pieces of code do not overlap.
        assert!(![(0, 37), (37, 91), (128, 1), (129, 500), (999, 1)]
            .map(|(at, len)| marks.begin(at, len))
            .contains(&true));
        // New code overlaps all of the older code, only its last byte, or only its first byte. `begin` also notices an overlap
        // of a single byte.
        assert!([(37, 91), (628, 3), (127, 1), (0, 1)].iter().all(|&(at, len)| marks.begin(at, len)));
        assert!(marks.end(0, 1) && !marks.end(0, 1) && !marks.any(0, 1) && !marks.begin(0, 1) && marks.any(0, 1));
        assert!(!marks.begin(10, 0) && !marks.any(10, 1));
        marks.no_code();
        assert!(!marks.begin(0, 1000) && marks.begin(0, 1000));
        // Nothing is recorded for code after the end of the region.
        assert!(!marks.begin(5000, 10) && !marks.begin(5000, 10));
    }
}
