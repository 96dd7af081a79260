//! The registry of code: the live registrations, and for every address the code that was live there last.
//!
//! A perf map contains only the last code at each address, because the format has no time stamps, and perf reads the map after
//! the recording. So freed code keeps its name until new code uses its bytes. The registry divides the address space into
//! pieces, each with the name of the code that was live there last. Pieces do not overlap: of two entries for one address,
//! readers of a file would use the entry that they find first.
//!
//! The file of a region names the code in the region, and the map names all other code. The same address may have two pieces of
//! code: live code in a region, and dead code that was there before the region and is still in the perf map. So the registry
//! has two sets of pieces: one for code in regions, and one for all other code ([`Home`]).
//!
//! A large program has hundreds of thousands of live registrations, so registering must be cheap. Nothing is hashed, and no
//! entry is a separate allocation. An id contains the number of its entry, and an entry contains the number of its piece. Only
//! a lookup by address needs a search (`ordered`).

mod address_pieces;
mod byte_strings;
mod entry;
mod find;
pub mod ids;
mod jitdump_positions;
mod map_spans;
mod names;
pub mod ordered;
mod places;
#[cfg(test)]
mod tests;

use entry::Entries;
pub use entry::{Home, Live, Stored};
pub use places::MapChange;
use places::Places;

/// The code of each registration is smaller than this number of bytes.
pub const TOO_LARGE: u64 = 1 << 32;

#[derive(Debug, Default)]
pub struct Registry {
    entries: Entries,
    /// The pieces of each [`Home`].
    places: [Places; 2],
}

impl Registry {
    /// Adds a registration, for which `make_room` has made room. If the new code overlaps live code of the same [`Home`], the
    /// registrations of the older code end, and their ids are pushed to `overwritten`.
    pub fn insert(&mut self, id: u64, live: &Live, name: &[u8], overwritten: &mut Vec<u64>) -> MapChange {
        // If `id` comes from `Ids`, its slot is free, so nothing is removed here.
        if self.id_in(id as u32) != 0 {
            self.remove(self.id_in(id as u32));
        }
        self.places[live.home as usize].insert(&mut self.entries, id, live, name, overwritten)
    }

    /// Reserves the memory that the tables may need for a registration with this id, and with a name and info records of
    /// these lengths. If `may_be_in_region` is true, reserves memory for both homes, else only for [`Home::Plain`]. False if
    /// memory is short.
    #[inline(always)]
    pub fn make_room(&mut self, id: u64, name_len: usize, info_len: usize, may_be_in_region: bool) -> bool {
        let [plain, region] = &mut self.places;
        let Entries { all, info, .. } = &mut self.entries;
        let more = (id as u32 as usize + 1).saturating_sub(all.len());
        plain.make_room(name_len)
            && (!may_be_in_region || region.make_room(name_len))
            && (more == 0 || all.try_reserve(more).is_ok())
            && (info_len == 0 || info.make_room(info_len))
    }

    /// The id of the live registration with this slot; 0 if there is none. 0 is never an id.
    pub fn id_in(&self, slot: u32) -> u64 {
        self.entries.id_in(slot)
    }

    /// Ends a registration. The registration's piece keeps the name of the code.
    pub fn remove(&mut self, id: u64) -> Option<Live> {
        let entry = *self.entries.get(id)?;
        let live = self.live(&entry);
        self.entries.end(id as u32);
        self.places[live.home as usize].pieces.retire(entry.piece);
        Some(live)
    }

    /// Frees the memory of dropped names and info records if they use much memory.
    pub fn tidy(&mut self) {
        self.entries.tidy();
        self.places.iter_mut().for_each(Places::tidy_names);
    }

    /// Frees the memory of code outside of regions. All registrations must have ended.
    pub fn give_back(&mut self) {
        self.entries = Entries::default();
        self.places[Home::Plain as usize] = Places::default();
    }

    /// Ends all registrations, and passes their ids to `ended`.
    pub fn remove_all(&mut self, mut ended: impl FnMut(u64)) {
        for slot in 0..self.entries.all.len() as u32 {
            let id = self.id_in(slot);
            if id != 0 {
                self.remove(id);
                ended(id);
            }
        }
    }
}
