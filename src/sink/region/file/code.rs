//! Collects bytes of code in private memory before they are written to the file. Runtimes place functions next to each
//! other, upwards or downwards. So pieces of code that are neighbours are written together.

use std::io;
use std::ops::Range;

use super::writes::Disk;

/// The maximum number of bytes that wait to be written.
const WAITING_MAX: usize = 256 << 10;
/// The maximum distance between pieces of code that count as neighbours.
const GAP: u64 = 256;

/// Code that is not written yet.
#[derive(Debug, Default)]
pub struct PendingCode {
    bytes: Vec<u8>,
    /// The offset in the text and the length of each piece, in the order of arrival.
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

    /// Writes all pieces. `text` is the offset of the text in the file. After an error all pieces continue to wait.
    pub fn write(&mut self, disk: &mut Disk, text: u64) -> io::Result<()> {
        let (mut pieces, mut bytes) = (&self.pieces[..], &self.bytes[..]);
        while !pieces.is_empty() {
            let (count, range) = neighbours(pieces);
            let (group, others) = pieces.split_at(count);
            let mut left = bytes;
            let parts = group.iter().map(|&(offset, len)| {
                let (part, behind) = left.split_at(len);
                left = behind;
                (text + offset, part)
            });
            disk.write_pieces(text + range.start..text + range.end, parts)?;
            (pieces, bytes) = (others, left);
        }
        (self.bytes, self.pieces) = (Vec::new(), Vec::new());
        Ok(())
    }
}

/// Returns how many of the first pieces are neighbours, and the range that these pieces cover.
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
        // The second piece lies below the first piece, and there is a gap between the two. The third piece lies above the first
        // piece, and the fourth piece overlaps the second piece. The last piece is distant.
        assert_eq!(neighbours(&[(1000, 10), (900, 93), (1010, 20), (905, 4), (5000, 1)]), (4, 900..1030));
        assert_eq!(neighbours(&[(5000, 1), (900, 93)]), (1, 5000..5001));
        assert_eq!(neighbours(&[(100, 100), (200 + GAP, 1), (201 + 2 * GAP, 1), (202 + 3 * GAP + 1, 1)]).0, 3);
    }
}
