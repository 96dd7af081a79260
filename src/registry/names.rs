//! Names, one after the other in one piece of memory: an allocation for each would cost as much as all else about a record.

use crate::sys::table::Table;

/// Less garbage than this is not worth the while.
const GARBAGE_MIN: usize = 64 * 1024;

/// More than the longest name that there is.
const PIECE_MAX: usize = 1024;

/// Where a name lies: the offset above 16 bits of length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name(u64);

impl Name {
    fn len(self) -> usize {
        self.0 as usize & 0xffff
    }

    fn at(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// All names. Each has one owner, who drops it.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Table<u8>,
    /// How many of them belong to names that were dropped.
    garbage: usize,
}

impl Names {
    /// Adds a name. The records have 16 bits for the length.
    pub fn add(&mut self, name: &[u8]) -> Name {
        let name = &name[..name.len().min(0xffff)];
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        Name((at as u64) << 16 | name.len() as u64)
    }

    /// Makes room for a name, and for another piece of one. False if there is no memory.
    pub fn make_room(&mut self, name: &[u8]) -> bool {
        self.bytes.try_reserve(name.len() + PIECE_MAX).is_ok()
    }

    /// The same name for another owner; an empty one if there is no memory.
    pub fn copy(&mut self, name: Name) -> Name {
        if self.bytes.try_reserve(name.len()).is_err() {
            return Name::default();
        }
        let at = self.bytes.len();
        let copy = self.get(name).to_vec();
        self.bytes.extend_from_slice(&copy);
        Name((at as u64) << 16 | name.len() as u64)
    }

    pub fn drop(&mut self, name: Name) {
        self.garbage += name.len();
    }

    pub fn get(&self, name: Name) -> &[u8] {
        &self.bytes[name.at()..name.at() + name.len()]
    }

    /// Whether more than half is garbage, so that compacting costs no more than adding has cost since the last time.
    pub fn are_wasteful(&self) -> bool {
        self.garbage > GARBAGE_MIN && self.garbage > self.bytes.len() / 2
    }

    /// Drops the garbage. Is given all names that have an owner, and changes them.
    pub fn compact<'a>(&mut self, owned: impl Iterator<Item = &'a mut Name>) {
        let mut bytes = Table::default();
        if bytes.try_reserve(self.bytes.len() - self.garbage).is_err() {
            return;
        }
        let old = std::mem::replace(self, Names { bytes, garbage: 0 });
        for name in owned {
            *name = self.add(old.get(*name));
        }
    }

    /// Bytes in use, and those that are dropped.
    #[cfg(test)]
    pub fn usage(&self) -> (usize, usize) {
        (self.bytes.len(), self.garbage)
    }
}
