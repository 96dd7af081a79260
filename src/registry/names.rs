//! The names of live and dead code.

use super::byte_strings::ByteStrings;

/// The offset and length of a name: the lowest 16 bits are the length, the higher bits the offset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name(u64);

impl Name {
    fn new(at: usize, len: usize) -> Name {
        Name((at as u64) << 16 | len as u64)
    }

    fn len(self) -> usize {
        self.0 as usize & 0xffff
    }

    fn at(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// All names. Each name has one owner, which drops the name.
#[derive(Debug, Default)]
pub struct Names(pub ByteStrings);

impl Names {
    /// Adds a name, for which `ByteStrings::make_room` has made room. A name has at most 65,535 bytes, because records store
    /// its length in 16 bits.
    pub fn add(&mut self, name: &[u8]) -> Name {
        let name = &name[..name.len().min(0xffff)];
        self.0.add(name).map_or_else(Name::default, |at| Name::new(at, name.len()))
    }

    /// A copy of a name for another owner; an empty name if memory is short.
    pub fn copy(&mut self, name: Name) -> Name {
        let copy = self.get(name).to_vec();
        self.add(&copy)
    }

    pub fn drop(&mut self, name: Name) {
        self.0.drop(name.len());
    }

    pub fn get(&self, name: Name) -> &[u8] {
        self.0.get(name.at(), name.len())
    }

    /// Frees the bytes of dropped names. `owned` yields all names that have an owner. The call stores the new offset in each
    /// name that has an owner.
    pub fn compact<'a>(&mut self, owned: impl Iterator<Item = &'a mut Name>) {
        let owned = owned.map(|name| (name.at(), name.len(), name));
        self.0.compact(owned, |name, at| *name = Name::new(at, name.len()));
    }
}
