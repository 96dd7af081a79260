//! Names, one behind the other in one piece of memory: an allocation for each would cost as much as all else about a record.

/// Less garbage than this is not worth the while.
const GARBAGE_MIN: usize = 64 * 1024;

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
    bytes: Vec<u8>,
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

    /// The same name for another owner.
    pub fn copy(&mut self, name: Name) -> Name {
        let at = self.bytes.len();
        self.bytes.extend_from_within(name.at()..name.at() + name.len());
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
        let old = std::mem::take(self);
        self.bytes.reserve_exact(old.bytes.len() - old.garbage);
        for name in owned {
            *name = self.add(old.get(*name));
        }
    }

    /// Bytes in use, and those that are dropped.
    #[cfg(test)]
    pub fn usage(&self) -> (usize, usize) {
        (self.bytes.capacity(), self.garbage)
    }
}
