//! Records where the groups of live code are in the jitdump. If code has no group in a jitdump, keeps the info records of the
//! code in memory.

use super::entry::{Entry, Stored, IN_MEMORY};
use super::{Home, Registry};
use crate::format::code_info::Info;
use crate::sys::sort::sort;

impl Registry {
    /// The id, the group's offset and length, and the size of the code, for all live registrations that have a group in the
    /// jitdump.
    pub fn stored(&self) -> impl Iterator<Item = (u64, Stored, u64)> + '_ {
        self.entries.live().filter_map(|(id, entry)| Some((id, entry.stored()?, self.size_of(id)?)))
    }

    /// Whether every live registration outside of regions has a group in the jitdump.
    pub fn are_all_stored(&self) -> bool {
        self.entries.live().all(|(_, entry)| entry.home != Home::Plain || entry.stored().is_some())
    }

    /// The ids of the live registrations of `home`, or of all registrations if `home` is `None`. Registrations without a group
    /// in the jitdump and without info records in memory come first. Registrations with a group follow, in the order of the
    /// groups in the jitdump. Registrations with info records come last, in the order of the info records in memory. `None` if
    /// memory is short.
    pub fn live_by_place(&self, home: Option<Home>) -> Option<impl Iterator<Item = u64>> {
        let mut ids: Vec<(u64, u64)> = Vec::new();
        ids.try_reserve_exact(self.entries.live.iter().sum()).ok()?;
        let wanted = |entry: &Entry| home.is_none_or(|home| entry.home == home);
        let live = self.entries.live().filter(|(_, entry)| wanted(entry));
        ids.extend(live.map(|(id, entry)| (entry.stored_offset, id)));
        sort(&mut ids);
        Some(ids.into_iter().map(|(_, id)| id))
    }

    /// Records where the group of live code is in the jitdump.
    #[inline]
    pub fn set_stored(&mut self, id: u64, stored: Option<Stored>) {
        if self.is_live(id) {
            let entry = &mut self.entries.all[id as u32 as usize];
            if let Some((_, len)) = entry.info() {
                self.entries.info.drop(len);
            }
            entry.stored_offset = stored.map_or(0, |stored| stored.offset);
            entry.stored_len = stored.map_or(0, |stored| stored.len as u32);
        }
    }

    /// Keeps the info records of live code in memory, and forgets the position of the code's group in the jitdump. If memory is
    /// short, the info records are not kept.
    pub fn keep_info(&mut self, id: u64, info: Info<'_>) {
        self.set_stored(id, None);
        if info.is_empty() || !self.is_live(id) {
            return;
        }
        if let Some(at) = self.entries.info.add(info.bytes()) {
            let entry = &mut self.entries.all[id as u32 as usize];
            (entry.stored_offset, entry.stored_len) = (at as u64 | IN_MEMORY, info.bytes().len() as u32);
        }
    }

    /// The info records of live code, if they are kept.
    pub fn info_of(&self, id: u64) -> Info<'_> {
        let place = self.entries.get(id).and_then(Entry::info);
        place.map_or(Info::NOTHING, |(at, len)| Info::new(self.entries.info.get(at, len)))
    }
}
