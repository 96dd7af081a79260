//! Tracks the registered code of a process, and finds the piece that was at an address at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::check::frames::Rows;

/// A piece of code in the form in which it was registered.
#[derive(Debug)]
pub struct Piece {
    pub name: String,
    /// The address in the file.
    pub addr: u64,
    pub size: u64,
    /// The code, if the file contains its bytes.
    pub bytes: Vec<u8>,
    pub rows: Option<Rows>,
    /// The reason why the tables cannot be read.
    pub problem: Option<String>,
    /// The time of registration on CLOCK_MONOTONIC, or 0 if the time is unknown.
    pub time: u64,
    /// The file that describes the piece.
    pub file: String,
    /// The distance of the real address from `addr`.
    pub shift: i64,
    /// The number of calls that were stepped.
    pub calls: u32,
    /// Whether the piece was selected.
    pub wanted: bool,
}

impl Piece {
    /// The real addresses.
    pub fn range(&self) -> Range<u64> {
        let start = self.addr.wrapping_add_signed(self.shift);
        start..start.saturating_add(self.size)
    }

    /// The number of calls to step, at most `calls`. Without tables, one call is enough.
    pub fn most(&self, calls: u32) -> u32 {
        if self.rows.is_some() {
            calls
        } else {
            calls.min(1)
        }
    }

    /// Whether another piece begins within this piece, and this piece has the same bytes there.
    fn same_bytes(&self, other: &Piece) -> bool {
        let Ok(at) = usize::try_from(other.addr.wrapping_sub(self.addr)) else { return false };
        let mine = self.bytes.get(at..).unwrap_or_default();
        let common = mine.len().min(other.bytes.len());
        common > 0 && mine[..common] == other.bytes[..common]
    }
}

/// All pieces of a process.
#[derive(Debug, Default)]
pub struct Book {
    pub pieces: Vec<Piece>,
    /// The present code: for each start address, the end and the piece.
    live: BTreeMap<u64, (u64, usize)>,
    /// Pairs of a large and a small piece. The small piece begins within the large piece, which has the same bytes there.
    pub swallowed: Vec<(usize, usize)>,
}

impl Book {
    /// The newest piece at an address.
    pub fn at(&self, addr: u64) -> Option<usize> {
        let (_, &(end, piece)) = self.live.range(..=addr).next_back()?;
        (addr < end).then_some(piece)
    }

    /// The piece at an address at a time, or otherwise the first piece that was registered there later.
    pub fn at_time(&self, addr: u64, time: u64) -> Option<usize> {
        let there = self.pieces.iter().enumerate().filter(|(_, piece)| piece.range().contains(&addr));
        let (before, after): (Vec<_>, Vec<_>) = there.partition(|(_, piece)| piece.time <= time);
        // Within a smaller piece, the large piece is ignored.
        let is_over = |index: usize| {
            self.swallowed.iter().any(|&(large, small)| large == index && addr >= self.pieces[small].range().start)
        };
        let newest = before.iter().filter(|(index, _)| !is_over(*index)).max_by_key(|(_, piece)| piece.time);
        let newest = newest.or_else(|| before.last());
        newest.or_else(|| after.iter().min_by_key(|(_, piece)| piece.time)).map(|&(index, _)| index)
    }

    /// Adds a piece, which replaces the code at its addresses.
    pub fn add(&mut self, piece: Piece) -> usize {
        let index = self.pieces.len();
        self.pieces.push(piece);
        self.place(index);
        index
    }

    /// Notes that a piece is at this distance from its registered address.
    pub fn shift(&mut self, index: usize, shift: i64) {
        self.live.retain(|_, (_, piece)| *piece != index);
        self.pieces[index].shift = shift;
        self.place(index);
    }

    /// Puts a piece at its address, and replaces the code there.
    fn place(&mut self, index: usize) {
        let mut range = self.pieces[index].range();
        let below = self.live.range(..range.end).rev();
        let overlapping = below.take_while(|(_, &(end, _))| range.start < end);
        let overlapping: Vec<(u64, u64, usize)> =
            overlapping.map(|(&start, &(end, piece))| (start, end, piece)).collect();
        for (start, end, other) in overlapping {
            let (new, old) = (&self.pieces[index], &self.pieces[other]);
            if new.addr < old.addr && new.same_bytes(old) {
                // The small piece remains.
                self.swallowed.push((index, other));
                range.end = range.end.min(start);
                continue;
            }
            if old.addr < new.addr && old.same_bytes(new) {
                self.swallowed.push((other, index));
            }
            self.live.remove(&start);
            if start < range.start {
                self.live.insert(start, (range.start, other));
            }
            if end > range.end {
                self.live.insert(range.end, (end, other));
            }
        }
        if range.start < range.end {
            self.live.insert(range.start, (range.end, index));
        }
    }

    /// Notes that a piece has moved, with its bytes and tables.
    pub fn moved(&mut self, index: usize, addr: u64, time: u64) -> usize {
        let old = &mut self.pieces[index];
        let rows = old.rows.take();
        let copy = Piece {
            name: old.name.clone(),
            addr,
            size: old.size,
            bytes: old.bytes.clone(),
            rows,
            problem: old.problem.clone(),
            time,
            file: old.file.clone(),
            shift: 0,
            calls: 0,
            wanted: old.wanted,
        };
        self.live.retain(|_, (_, piece)| *piece != index);
        self.add(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(addr: u64, bytes: &[u8], time: u64) -> Piece {
        Piece {
            name: format!("at {addr:#x}"),
            addr,
            size: bytes.len() as u64,
            bytes: bytes.to_vec(),
            rows: None,
            problem: None,
            time,
            file: String::new(),
            shift: 0,
            calls: 0,
            wanted: true,
        }
    }

    #[test]
    fn the_newest_is_there() {
        let mut book = Book::default();
        let first = book.add(piece(0x100, &[1; 32], 1));
        let second = book.add(piece(0x108, &[2; 8], 2));
        assert_eq!([0x100, 0x107, 0x108, 0x10f, 0x110].map(|at| book.at(at)), {
            let (first, second) = (Some(first), Some(second));
            [first, first, second, second, first]
        });
        assert_eq!((book.at(0xff), book.at(0x120)), (None, None));
        assert!(book.swallowed.is_empty());
        assert_eq!((book.at_time(0x108, 1), book.at_time(0x108, 2)), (Some(first), Some(second)));
        assert_eq!(book.at_time(0x100, 0), Some(first));
    }

    /// Whichever piece is registered first, the small one remains.
    #[test]
    fn a_size_that_is_too_large() {
        for order in [[0, 1], [1, 0]] {
            let mut book = Book::default();
            let large = [[1; 16], [2; 16]].concat();
            let pieces = [(0x100, &large[..]), (0x110, &large[16..])];
            let added = order.map(|which| (which, book.add(piece(pieces[which].0, pieces[which].1, 1))));
            let index = |which| added.iter().find(|(it, _)| *it == which).expect("was added").1;
            assert_eq!(book.swallowed, [(index(0), index(1))]);
            assert_eq!((book.at(0x10f), book.at(0x110)), (Some(index(0)), Some(index(1))));
            assert_eq!(book.at_time(0x118, 5), Some(index(1)));
        }
    }
}
