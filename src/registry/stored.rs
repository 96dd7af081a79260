//! Where the groups of live code are in the jitdump, and the info records of code that is in no jitdump.

use super::entry::{Entry, Stored, IN_MEMORY};
use super::Registry;
use crate::format::info::Info;
use crate::sys::sort::sort;

impl Registry {
    /// All live registrations whose group was handed to the jitdump: id, where the group is, and how long the code is.
    pub fn stored(&self) -> impl Iterator<Item = (u64, Stored, u64)> + '_ {
        let known = |(slot, entry): (usize, &Entry)| {
            let stored = entry.stored().filter(|_| entry.generation != 0)?;
            Some((self.id_in(slot as u32), stored, self.pieces[entry.piece].size.into()))
        };
        self.entries.iter().enumerate().filter_map(known)
    }

    /// The ids of all live registrations, sorted by the place of the group in the jitdump, or of the info records in memory.
    /// `None` if there is no memory.
    pub fn live_by_place(&self) -> Option<impl Iterator<Item = u64>> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.generation != 0);
        let mut ids: Vec<(u64, u64)> = Vec::new();
        ids.try_reserve_exact(self.live).ok()?;
        ids.extend(live.map(|(slot, entry)| (entry.stored_offset, u64::from(entry.generation) << 32 | slot as u64)));
        sort(&mut ids);
        Some(ids.into_iter().map(|(_, id)| id))
    }

    /// Notes where the jitdump has the group of live code, and the size of the tables in it.
    #[inline]
    pub fn set_stored(&mut self, id: u64, stored: Option<Stored>, tables_len: u32) {
        if self.entry(id).is_some() {
            let entry = &mut self.entries[id as u32 as usize];
            if let Some((_, len)) = entry.info() {
                self.info.drop(len);
            }
            entry.tables_len = tables_len;
            entry.stored_offset = stored.map_or(0, |stored| stored.offset);
            entry.stored_len = stored.map_or(0, |stored| stored.len as u32);
        }
    }

    /// Keeps the info records of live code, and forgets its place in the jitdump. Without memory the info records are not
    /// kept.
    pub fn keep_info(&mut self, id: u64, info: Info<'_>) {
        let tables_len = self.entry(id).map_or(0, |entry| entry.tables_len);
        self.set_stored(id, None, tables_len);
        if info.is_empty() || self.entry(id).is_none() {
            return;
        }
        if let Some(at) = self.info.add(info.bytes()) {
            let entry = &mut self.entries[id as u32 as usize];
            (entry.stored_offset, entry.stored_len) = (at as u64 | IN_MEMORY, info.bytes().len() as u32);
        }
    }

    /// The info records of live code, if they are kept.
    pub fn info_of(&self, id: u64) -> Info<'_> {
        let place = self.entry(id).and_then(Entry::info);
        place.map_or(Info::NOTHING, |(at, len)| Info::new(self.info.get(at, len)))
    }
}
