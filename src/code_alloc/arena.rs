//! The bookkeeping of one region: which pieces of memory callers own, and which memory is free.
//!
//! A region begins a new epoch when new code overlaps code that was freed in the current epoch. In the new epoch, the memory of
//! all code that was freed earlier can be reused at no cost. So the arena first holds freed memory back (`resting`), and later
//! makes a large amount of this memory available at once. If no available memory is large enough for a new piece, the piece
//! gets memory that was never used, even while other memory is held back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;

use crate::sink::region::CodeRegion;
use crate::sys::mapping::Table;

/// Pieces begin and end at multiples of this number, the size of a cache line. It is a multiple of the unit in which a region
/// marks freed code, so no mark covers both live code and the freed code of a neighbour.
pub const GRANULE: u64 = 64;

/// A bit of the entries in `Arena::pieces`.
const TRAMPOLINE: u32 = 1 << 31;

/// Memory is returned to the file system in parts of this size, which is a multiple of every page size.
pub const CHUNK: u64 = 64 << 10;

/// The arena holds back at most this many bytes, or a quarter of the bytes in use, whichever is larger.
pub const RESTING_MIN: u64 = 1 << 20;

/// Free `CHUNK`s are returned to the file system only while the free bytes that still have memory exceed both this number and
/// the bytes in use. The reason is that a returned page costs as much as a new page when it is used again.
const KEPT_MIN: u64 = 1 << 20;

/// One region, divided into pieces. The *place* of a piece is its offset in the region, in bytes.
#[derive(Debug)]
pub struct Arena {
    pub exec: u64,
    pub write: u64,
    /// The length of the region in bytes, and the maximum length to which the region can grow.
    pub len: u64,
    pub max_len: u64,
    /// Whether the sink for regions ran when the region was made. Otherwise the region never has a file.
    pub named: bool,
    /// Each byte below this offset belongs to `pieces`, `resting` or `free`. `begin` allocates the memory from this offset on.
    top: u64,
    /// An entry for each granule. If a piece that a caller owns begins with the granule, the entry is the number of the piece's
    /// granules, with the bit `TRAMPOLINE` if the piece has a trampoline. Otherwise, the entry is 0.
    pieces: Table<u32>,
    in_use: u64,
    /// Offsets and lengths of the freed pieces that are held back, in the order in which they were freed.
    resting: VecDeque<(u64, u64)>,
    resting_len: u64,
    /// The lengths of the free parts, which can be allocated again, by their offsets in the region. Adjacent parts are merged.
    free: BTreeMap<u64, u64>,
    free_by_len: BTreeSet<(u64, u64)>,
    free_len: u64,
    /// The parts that were returned to the file system, by their offsets in the region. The value is the length, which is
    /// always `CHUNK`.
    given_back: BTreeMap<u64, u64>,
}

impl Arena {
    /// The entries of a region with this maximum length.
    pub fn no_pieces(max_len: u64) -> io::Result<Table<u32>> {
        Table::zeroed((max_len / GRANULE) as usize)
    }

    /// `pieces` comes from `no_pieces`.
    pub fn new(region: CodeRegion, max_len: u64, named: bool, pieces: Table<u32>) -> Arena {
        Arena {
            exec: region.exec,
            write: region.write,
            len: region.size,
            max_len,
            named,
            top: 0,
            pieces,
            in_use: 0,
            resting: VecDeque::new(),
            resting_len: 0,
            free: BTreeMap::new(),
            free_by_len: BTreeSet::new(),
            free_len: 0,
            given_back: BTreeMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.in_use == 0
    }

    /// Converts an address to an offset in this region; `None` outside of the region.
    pub fn place(&self, exec: u64) -> Option<u64> {
        exec.checked_sub(self.exec).filter(|place| *place < self.max_len)
    }

    /// Allocates a piece of free memory, by best fit, and returns the piece's place.
    pub fn reuse(&mut self, len: u64, alignment: u64) -> Option<u64> {
        // A free part of at least this length has room for an aligned piece, wherever the part begins.
        let &(free_len, start) = self.free_by_len.range((len + alignment - GRANULE, 0)..).next()?;
        let place = start.next_multiple_of(alignment);
        self.take_free(start, free_len);
        self.add_free(start, place - start);
        self.add_free(place + len, start + free_len - (place + len));
        self.hand_out(place, len);
        Some(place)
    }

    /// Allocates a piece of the new memory from `top` on, and returns the piece's place.
    pub fn begin(&mut self, len: u64, alignment: u64) -> Option<u64> {
        let place = self.top.next_multiple_of(alignment);
        if place + len > self.len {
            return None;
        }
        self.add_free(self.top, place - self.top);
        self.top = place + len;
        self.hand_out(place, len);
        Some(place)
    }

    /// The length that the region must have for `begin` to succeed; `None` if the region cannot become that long.
    pub fn len_for(&self, len: u64, alignment: u64) -> Option<u64> {
        Some(self.top.next_multiple_of(alignment) + len).filter(|end| *end <= self.max_len)
    }

    fn hand_out(&mut self, place: u64, len: u64) {
        self.set(place, len);
        self.in_use += len;
    }

    /// Stores the length of the piece that begins at the offset `place`.
    fn set(&mut self, place: u64, len: u64) {
        if let Some(entry) = self.pieces.get_mut((place / GRANULE) as usize) {
            *entry = (len / GRANULE) as u32;
        }
    }

    /// The entry of the piece that begins at the offset `place`; `None` if no piece begins there.
    fn entry(&self, place: u64) -> Option<u32> {
        let entry = self.pieces.get((place / GRANULE) as usize).copied();
        entry.filter(|&entry| entry != 0 && place.is_multiple_of(GRANULE))
    }

    /// The length of the piece that begins at the offset `place`; `None` if no piece begins there.
    pub fn len_of(&self, place: u64) -> Option<u64> {
        self.entry(place).map(|entry| u64::from(entry & !TRAMPOLINE) * GRANULE)
    }

    /// Notes that the piece at the offset `place` has a trampoline.
    pub fn mark_trampoline(&mut self, place: u64) {
        if let Some(entry) = self.pieces.get_mut((place / GRANULE) as usize) {
            *entry |= TRAMPOLINE;
        }
    }

    pub fn is_trampoline(&self, place: u64) -> bool {
        self.entry(place).is_some_and(|entry| entry & TRAMPOLINE != 0)
    }

    /// Frees a piece, and holds its memory back.
    pub fn end(&mut self, place: u64) {
        let Some(len) = self.len_of(place) else { return };
        self.set(place, 0);
        self.in_use -= len;
        self.resting_len += len;
        self.resting.push_back((place, len));
        let most = RESTING_MIN.max(self.in_use / 4);
        if self.resting_len > most {
            self.rest_no_more(most / 2);
        }
    }

    /// Moves pieces from `resting` to the free memory, oldest first, until `resting` has at most `most` bytes.
    pub fn rest_no_more(&mut self, most: u64) {
        while self.resting_len > most {
            let Some((place, len)) = self.resting.pop_front() else { return };
            self.resting_len -= len;
            self.add_free(place, len);
        }
    }

    /// Shortens a piece to `len` bytes. The memory that is cut off becomes available at once, because no code was registered
    /// there since the piece was allocated.
    pub fn shrink(&mut self, place: u64, len: u64) {
        let Some(old) = self.len_of(place) else { return };
        self.set(place, len);
        self.in_use -= old - len;
        if place + old == self.top {
            self.top = place + len;
        } else {
            self.add_free(place + len, old - len);
        }
    }

    fn add_free(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &before_len)) = self.free.range(..start).next_back() {
            if before + before_len == start {
                self.take_free(before, before_len);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(&after_len) = self.free.get(&(start + len)) {
            self.take_free(start + len, after_len);
            len += after_len;
        }
        self.free.insert(start, len);
        self.free_by_len.insert((len, start));
        self.free_len += len;
    }

    fn take_free(&mut self, start: u64, len: u64) {
        self.free.remove(&start);
        self.free_by_len.remove(&(len, start));
        self.free_len -= len;
    }

    /// The ranges of whole `CHUNK`s that the caller should return to the file system. The list is empty if few bytes are free.
    pub fn unused(&self) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        // `given_back` can also contain memory that is held back, so the result of the subtraction can be negative. When the
        // memory of a returned `CHUNK` cannot be provided again for a new piece, the piece is freed, and its memory is held
        // back.
        if self.free_len.saturating_sub(self.given_back.len() as u64 * CHUNK) <= KEPT_MIN.max(self.in_use) {
            return found;
        }
        for &(len, start) in self.free_by_len.range((CHUNK, 0)..) {
            let chunks = (start.next_multiple_of(CHUNK)..).step_by(CHUNK as usize);
            for chunk in chunks.take_while(|chunk| chunk + CHUNK <= start + len) {
                match found.last_mut() {
                    _ if self.given_back.contains_key(&chunk) => {}
                    Some(last) if last.end == chunk => last.end += CHUNK,
                    _ => found.push(chunk..chunk + CHUNK),
                }
            }
        }
        found
    }

    /// Notes that a range of whole `CHUNK`s was returned to the file system.
    pub fn give_back(&mut self, range: Range<u64>) {
        self.given_back.extend(range.step_by(CHUNK as usize).map(|chunk| (chunk, CHUNK)));
    }

    /// Returns the offsets of all `CHUNK`s in this range that currently have no memory.
    pub fn missing(&self, place: u64, len: u64) -> Vec<u64> {
        self.given_back.range(place / CHUNK * CHUNK..place + len).map(|(&chunk, _)| chunk).collect()
    }

    /// Notes that memory was provided again for a `CHUNK`.
    pub fn restored(&mut self, chunk: u64) {
        self.given_back.remove(&chunk);
    }

    #[cfg(test)]
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Asserts that every byte is accounted for exactly once.
    #[cfg(test)]
    pub fn check(&self) {
        let resting = self.resting.iter().copied();
        let entries = self.pieces.iter().enumerate().filter(|(_, entry)| **entry != 0);
        let places = entries.map(|(granule, _)| granule as u64 * GRANULE);
        let pieces: BTreeMap<u64, u64> = places.map(|place| (place, self.len_of(place).unwrap())).collect();
        let mut all: Vec<(u64, u64)> = pieces.iter().chain(&self.free).map(|(&start, &len)| (start, len)).collect();
        all.extend(resting);
        all.sort_unstable();
        let end = all.iter().fold(0, |end, &(start, len)| {
            assert_eq!(start, end, "overlap or loss: {all:x?}");
            start + len
        });
        assert_eq!(end, self.top);
        assert!(self.top <= self.len && self.len <= self.max_len);
        assert_eq!(self.in_use, pieces.values().sum::<u64>());
        assert_eq!(self.resting_len, self.resting.iter().map(|(_, len)| len).sum::<u64>());
        let by_len: BTreeSet<(u64, u64)> = self.free.iter().map(|(&start, &len)| (len, start)).collect();
        assert_eq!((&by_len, self.free_len), (&self.free_by_len, self.free.values().sum()));
        let starts: Vec<u64> = self.free.keys().copied().collect();
        assert!(starts.windows(2).all(|pair| pair[0] + self.free[&pair[0]] < pair[1]), "neighbours are not one");
        for &chunk in self.given_back.keys() {
            assert!(pieces.range(..chunk + CHUNK).next_back().is_none_or(|(start, len)| start + len <= chunk));
        }
    }
}
