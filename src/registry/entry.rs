//! Entries of live registrations, with the place of the group in the jitdump, or of the info records in memory.

/// The place of a group in the jitdump, without the code bytes at the group's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Never 0: the file begins with its header.
    pub offset: u64,
    pub len: usize,
}

/// A live registration, without its piece.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub index: u64,
    /// The offset of the group in the jitdump, or the place of the info records in memory (`IN_MEMORY`). 0 for neither.
    pub stored_offset: u64,
    pub stored_len: u32,
    pub tables_len: u32,
    /// Number of free bytes that the code claims after its end (`Live::reach`).
    pub beyond: u32,
    pub piece: u32,
    /// The generation of the id. 0, which no id has, if there is no registration with this slot.
    pub generation: u32,
}

const _: () = assert!(size_of::<Entry>() == 40);

/// If this bit of `stored_offset` is set, the lower bits are a place in the memory of info records. No file is that long.
pub(super) const IN_MEMORY: u64 = 1 << 63;

impl Entry {
    pub fn stored(&self) -> Option<Stored> {
        let is_in_file = self.stored_offset != 0 && self.stored_offset & IN_MEMORY == 0;
        is_in_file.then_some(Stored { offset: self.stored_offset, len: self.stored_len as usize })
    }

    /// The place and length of the info records, if they are in memory.
    pub fn info(&self) -> Option<(usize, usize)> {
        let place = ((self.stored_offset & !IN_MEMORY) as usize, self.stored_len as usize);
        (self.stored_offset & IN_MEMORY != 0).then_some(place)
    }
}
