//! Collects the bytes of code in private memory, and writes adjacent pieces of code to the file together. Runtimes place
//! functions next to each other, upwards or downwards.
//!
//! The text of the file contains breakpoint instructions instead of the bytes of the code. If somebody sets a probe (uprobe) on
//! an address of the text, the kernel executes a copy of the instruction that the *file* has at this address. If the file had
//! zeros, or the bytes of code that other code has replaced in memory, the probe would make the host execute a wrong
//! instruction and crash. The kernel refuses a probe on a breakpoint instruction (linux kernel/events/uprobes.c,
//! `prepare_uprobe`).

use std::io;
use std::ops::Range;

use super::writes::Disk;
use crate::format::arch::NATIVE;
use crate::format::elf::header::HEADER_SIZE;

/// The maximum number of bytes that wait to be written.
const WAITING_MAX: usize = 256 << 10;
/// The maximum gap between two pieces of code that count as neighbours.
const GAP: u64 = 256;
/// The smallest page size of the supported systems.
const PAGE: usize = 4096;

/// Breakpoint instructions for a whole page. The array is longer than a page, because a slice of it may begin at offset 0 to 3.
static BREAKPOINTS: [u8; PAGE + 4] = {
    let mut all = [0; PAGE + 4];
    if let Some(arch) = NATIVE {
        let mut at = 0;
        while at < all.len() {
            all[at] = arch.abi().breakpoints[at % 4];
            at += 1;
        }
    }
    all
};

/// Code that is not written yet.
#[derive(Debug, Default)]
pub struct PendingCode {
    bytes: Vec<u8>,
    /// The offset in the text and the length of each piece, in the order in which the pieces were added.
    pieces: Vec<(u64, usize)>,
}

impl PendingCode {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a piece. Returns false if there is no room for the piece.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let has_room = self.bytes.len() + bytes.len() <= WAITING_MAX
            && self.bytes.try_reserve(bytes.len()).is_ok()
            && self.pieces.try_reserve(1).is_ok();
        if has_room {
            self.bytes.extend_from_slice(bytes);
            self.pieces.push((offset, bytes.len()));
        }
        has_room
    }

    /// Writes all pieces to `place`. After an error, all pieces still wait to be written.
    pub fn write(&mut self, disk: &mut Disk, place: Place) -> io::Result<()> {
        let (mut pieces, mut bytes) = (&self.pieces[..], &self.bytes[..]);
        while !pieces.is_empty() {
            let (count, range) = neighbours(pieces);
            let (group, others) = pieces.split_at(count);
            place.write(disk, group, range, bytes)?;
            (pieces, bytes) = (others, &bytes[group.iter().map(|&(_, len)| len).sum()..]);
        }
        (self.bytes, self.pieces) = (Vec::new(), Vec::new());
        Ok(())
    }
}

/// The offsets at which pieces of code are written to a file.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The offset of the text.
    pub text: u64,
    /// The offset of the range for the bytes of the code, if the file has this range.
    pub bytes: Option<u64>,
}

impl Place {
    /// Writes neighbouring pieces of code, which lie in `range` of the text. `bytes` has the bytes of the pieces, in the same
    /// order.
    pub fn write(self, disk: &mut Disk, pieces: &[(u64, usize)], range: Range<u64>, bytes: &[u8]) -> io::Result<()> {
        let parts = || {
            let mut left = bytes;
            pieces.iter().map(move |&(offset, len)| {
                let (part, behind) = left.split_at(len);
                left = behind;
                (offset, part)
            })
        };
        if let Some(at) = self.bytes {
            disk.write_pieces(at + range.start..at + range.end, parts().map(|(offset, part)| (at + offset, part)))?;
        }
        let places = || parts().flat_map(move |(offset, part)| self.breakpoints(offset, part));
        let ranges = places().map(|(at, len)| at..at + len as u64);
        let Some(all) = ranges.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end)) else {
            return Ok(());
        };
        disk.write_pieces(all, places().map(|(at, len)| (at, &BREAKPOINTS[at as usize % 4..][..len])))
    }

    /// Returns the ranges of the file that get breakpoints. The header page gets no breakpoints. A page of code that has only
    /// zeros gets no breakpoints either: if the host has never written to this page, it shows the contents of the file, which
    /// must stay zero.
    fn breakpoints<'a>(self, offset: u64, bytes: &'a [u8]) -> impl Iterator<Item = (u64, usize)> + use<'a> {
        let (mut at, mut left) = (self.text + offset, bytes);
        let pages = std::iter::from_fn(move || {
            let (part, behind) = left.split_at(left.len().min(PAGE - at as usize % PAGE));
            left = behind;
            at += part.len() as u64;
            (!part.is_empty()).then(|| (at - part.len() as u64, part))
        });
        let has_code = |&(at, part): &(u64, &[u8])| at >= HEADER_SIZE as u64 && part.iter().any(|&byte| byte != 0);
        pages.filter(move |page| NATIVE.is_some() && has_code(page)).map(|(at, part)| (at, part.len()))
    }
}

/// Returns how many of the first pieces in `pieces` are neighbours, and the range that these pieces cover.
fn neighbours(pieces: &[(u64, usize)]) -> (usize, Range<u64>) {
    let mut range = pieces[0].0..pieces[0].0;
    let is_near = |range: &Range<u64>, &(offset, len): &(u64, usize)| {
        range.start <= offset + len as u64 + GAP && offset <= range.end + GAP
    };
    let mut count = 0;
    while let Some(piece) = pieces.get(count).filter(|piece| is_near(&range, piece)) {
        range = range.start.min(piece.0)..range.end.max(piece.0 + piece.1 as u64);
        count += 1;
    }
    (count, range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_near() {
        // The second piece lies below the first piece, after a gap. The third piece lies above the first piece, and the fourth
        // piece overlaps the second piece. The last piece is far from all other pieces.
        assert_eq!(neighbours(&[(1000, 10), (900, 93), (1010, 20), (905, 4), (5000, 1)]), (4, 900..1030));
        assert_eq!(neighbours(&[(5000, 1), (900, 93)]), (1, 5000..5001));
        assert_eq!(neighbours(&[(100, 100), (200 + GAP, 1), (201 + 2 * GAP, 1), (202 + 3 * GAP + 1, 1)]).0, 3);
    }
}
