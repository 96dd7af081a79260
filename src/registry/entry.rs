//! Entries of live registrations. An entry has all data of a registration except the address, the size and the name of the
//! code. An entry also refers to the code's group of records in the jitdump, or to info records in memory.

use super::byte_strings::ByteStrings;
use crate::sys::mapping::Table;

/// The offset and length of a group in the jitdump, without the code bytes at the group's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The offset is never 0, because the jitdump begins with its header.
    pub offset: u64,
    pub len: usize,
}

/// The kind of files that contain the name of a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// The perf map and the jitdump contain the name.
    #[default]
    Plain,
    /// The file of the region in which the code lies contains the name.
    Region,
}

/// A live registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub addr: u64,
    /// Always below 4 GiB.
    pub size: u64,
    pub index: u64,
    /// Where the code's group is in the jitdump. When the code moves, the writer reads the group from the jitdump.
    pub stored: Option<Stored>,
    pub home: Home,
}

/// The part of a live registration that is in the table of entries. The registration's piece contains the address, the size and
/// the name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub index: u64,
    /// The offset of the group in the jitdump, or the offset of the info records in memory (with the bit `IN_MEMORY`). 0 if the
    /// registration has no group and no info records.
    pub stored_offset: u64,
    pub stored_len: u32,
    /// The number of the registration's piece among the pieces of the same `Home`.
    pub piece: u32,
    /// The generation of the id; 0 if no live registration has this slot. No id has generation 0.
    pub generation: u32,
    pub home: Home,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// If this bit of `stored_offset` is set, the lower bits are an offset in the memory of info records. No file is long enough
/// for an offset with this bit.
pub(super) const IN_MEMORY: u64 = 1 << 63;

impl Entry {
    pub fn stored(&self) -> Option<Stored> {
        let is_in_file = self.stored_offset != 0 && self.stored_offset & IN_MEMORY == 0;
        is_in_file.then_some(Stored { offset: self.stored_offset, len: self.stored_len as usize })
    }

    /// The offset and length of the info records, if they are in memory.
    pub fn info(&self) -> Option<(usize, usize)> {
        let place = ((self.stored_offset & !IN_MEMORY) as usize, self.stored_len as usize);
        (self.stored_offset & IN_MEMORY != 0).then_some(place)
    }
}

/// All entries, indexed by the slot, which is the lower half of the id. There are few slots, because the slots of ended
/// registrations are reused.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub all: Table<Entry>,
    /// The number of live registrations for each `Home`.
    pub live: [usize; 2],
    pub info: ByteStrings,
}

impl Entries {
    /// The id of the live registration with this slot; 0 if there is none. 0 is never an id.
    pub fn id_in(&self, slot: u32) -> u64 {
        let generation = self.all.get(slot as usize).map_or(0, |entry| entry.generation);
        if generation == 0 {
            0
        } else {
            u64::from(generation) << 32 | u64::from(slot)
        }
    }

    /// The entry of a live registration.
    pub fn get(&self, id: u64) -> Option<&Entry> {
        let generation = (id >> 32) as u32;
        self.all.get(id as u32 as usize).filter(|entry| generation != 0 && entry.generation == generation)
    }

    /// Sets the entry of a slot that has no live registration.
    pub fn set(&mut self, slot: u32, entry: Entry) {
        let slot = slot as usize;
        if slot >= self.all.len() {
            let missing = slot + 1 - self.all.len();
            (0..missing).for_each(|_| self.all.push(Entry::default()));
        }
        self.all[slot] = entry;
        self.live[entry.home as usize] += 1;
    }

    pub fn end(&mut self, slot: u32) {
        let entry = &mut self.all[slot as usize];
        entry.generation = 0;
        self.live[entry.home as usize] -= 1;
        if let Some((_, len)) = entry.info() {
            entry.stored_offset = 0;
            self.info.drop(len);
        }
    }

    /// The live registrations, with their ids.
    pub fn live(&self) -> impl Iterator<Item = (u64, &Entry)> {
        let live = self.all.iter().enumerate().filter(|(_, entry)| entry.generation != 0);
        live.map(|(slot, entry)| (u64::from(entry.generation) << 32 | slot as u64, entry))
    }

    /// Frees the memory of dropped info records if they use much memory.
    pub fn tidy(&mut self) {
        if self.info.is_wasteful() {
            let owned = self.all.iter_mut().filter_map(|entry| {
                let (at, len) = entry.info()?;
                Some((at, len, &mut entry.stored_offset))
            });
            self.info.compact(owned, |place, at| *place = at as u64 | IN_MEMORY);
        }
    }
}
