//! Many short byte strings (pieces), stored one after another in one table.
//!
//! A separate allocation for each piece would cost as much as all other work on a record.

use crate::sys::mapping::Table;

/// A compaction is made only if there are more bytes of garbage than this.
const GARBAGE_MIN: usize = 64 * 1024;

/// The bytes of all pieces. Each piece has one owner, which drops it.
#[derive(Debug, Default)]
pub struct ByteStrings {
    bytes: Table<u8>,
    /// The number of bytes in pieces that were dropped.
    garbage: usize,
}

impl ByteStrings {
    /// Adds a piece and returns its offset. `None` if memory is short.
    pub fn add(&mut self, piece: &[u8]) -> Option<usize> {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(piece);
        (self.bytes.len() == at + piece.len()).then_some(at)
    }

    /// Makes room for `len` bytes. False if memory is short.
    #[inline]
    pub fn make_room(&mut self, len: usize) -> bool {
        self.bytes.try_reserve(len).is_ok()
    }

    pub fn get(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }

    pub fn drop(&mut self, len: usize) {
        self.garbage += len;
    }

    /// Whether more than half of the bytes, and more than `GARBAGE_MIN` bytes, are garbage. If so, a compaction removes more
    /// bytes than it copies. So all compactions together copy fewer bytes than were added.
    #[inline]
    pub fn is_wasteful(&self) -> bool {
        self.garbage > GARBAGE_MIN && self.garbage > self.bytes.len() / 2
    }

    /// Frees the bytes of dropped pieces. `owned` yields the offset, the length and the owner of each piece that was not
    /// dropped. `tell` is called with the owner and the new offset.
    pub fn compact<T>(&mut self, owned: impl Iterator<Item = (usize, usize, T)>, tell: impl Fn(T, usize)) {
        let mut bytes = Table::default();
        if bytes.try_reserve(self.bytes.len() - self.garbage).is_err() {
            return;
        }
        let old = std::mem::replace(self, ByteStrings { bytes, garbage: 0 });
        for (at, len, owner) in owned {
            tell(owner, self.bytes.len());
            self.bytes.extend_from_slice(old.get(at, len));
        }
    }

    /// The number of all bytes, and the number of garbage bytes among them.
    #[cfg(test)]
    pub fn usage(&self) -> (usize, usize) {
        (self.bytes.len(), self.garbage)
    }
}
