//! Which code lies where: the live registrations, and for every address the code that lived there last.
//!
//! A perf map can only say which code lived at an address last: the format has no time and is read after the fact. So freed
//! code keeps its name until its bytes are used again. No two entries overlap: readers answer overlaps with the entry that
//! they find first.
//!
//! A large program has hundreds of thousands of live registrations, and every registration passes through here. So nothing is
//! hashed, and no entry is a separate allocation. An id contains the number of its entry, and an entry contains the number of
//! its piece. Only addresses are searched for (`ordered`).

mod address_pieces;
mod entry;
mod find;
mod heap;
pub mod ids;
mod map_spans;
mod names;
pub mod ordered;
mod stored;
#[cfg(test)]
mod tests;

use address_pieces::Pieces;
pub use entry::Stored;
use entry::{Entry, IN_MEMORY};
use heap::Heap;
use names::Names;
use ordered::Ordered;

use crate::api::limits::NAME_MAX;
use crate::sys::mapping::Table;

/// A live registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub addr: u64,
    /// Below 4 GiB.
    pub size: u64,
    /// The end of the bytes after the code that the caller declared free. Unwind tables are mapped there.
    pub reach: u64,
    pub index: u64,
    /// Where the code's group lies in the jitdump. A move of the code needs it.
    pub stored: Option<Stored>,
    /// Size of the unwind tables in the group.
    pub tables_len: u32,
}

/// What registering did to the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Nothing: the map already has the same line.
    None,
    /// One more line.
    Append,
    /// Older lines had to change or to be removed.
    Rewrite,
}

/// The result of `Registry::insert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    pub change: MapChange,
    /// The live code before the new code was declared to have free bytes that reach into the new code.
    pub was_claimed: bool,
}

#[derive(Debug, Default)]
pub struct Registry {
    /// The index is the slot of the id, which is the id's lower half. Slots are few, because those of ended ids are used
    /// again.
    entries: Table<Entry>,
    live: usize,
    pieces: Pieces,
    /// The pieces, sorted by start address. They do not overlap.
    starts: Ordered,
    names: Names,
    info: Heap,
    /// Number of registrations for which `pieces`, `starts` and `names` have room.
    room: u32,
}

/// Number of registrations for which room is made at once.
const ROOM: u32 = 16;

impl Registry {
    pub fn live_count(&self) -> usize {
        self.live
    }

    /// Adds a registration, for which `make_room` has made room. If the new code overlaps live code, the live code ends, and
    /// its ids are pushed to `overwritten`.
    pub fn insert(&mut self, id: u64, live: &Live, name: &[u8], overwritten: &mut Vec<u64>) -> Inserted {
        // This has no effect for ids from `Ids`, because their slot is free.
        if self.id_in(id as u32) != 0 {
            self.remove(self.id_in(id as u32));
        }
        let (start, end) = (live.addr, live.addr + live.size);
        let mut inserted = Inserted { change: MapChange::Append, was_claimed: false };
        let place = self.starts.place(end);
        let highest = self.starts.before(place).map(|(_, number)| number);
        let overlapped = highest.filter(|&number| self.pieces[number].end() > start);
        let before = if overlapped.is_none() { highest } else { self.last_before(start) };
        // Code that itself overlaps the new code does not count: it is overwritten.
        inserted.was_claimed =
            before.is_some_and(|number| self.pieces[number].end() <= start && self.reach(number) > start);
        let number = match overlapped {
            // A frequent case: code caches use the same places again.
            Some(number) if (self.pieces[number].start, self.pieces[number].end()) == (start, end) => {
                self.vacate(number, overwritten);
                let old = self.pieces[number].name;
                if self.names.get(old) == name {
                    inserted.change = MapChange::None;
                } else {
                    inserted.change = MapChange::Rewrite;
                    self.names.drop(old);
                    self.pieces[number].name = self.names.add(name);
                }
                number
            }
            _ => {
                let mut place = place;
                if overlapped.is_some() {
                    inserted.change = MapChange::Rewrite;
                    self.clear(start, end, overwritten);
                    place = self.starts.place(start);
                }
                let name = self.names.add(name);
                let number = self.pieces.add(start, live.size as u32, name);
                self.starts.insert(place, start, number);
                number
            }
        };
        self.pieces.assign(number, id as u32);
        self.set_entry(id, live, number);
        self.tidy_names();
        inserted
    }

    /// Reserves what the tables may need for a registration with this id, and with a name and info records of these lengths.
    /// False if there is no memory.
    #[inline(always)]
    pub fn make_room(&mut self, id: u64, name_len: usize, info_len: usize) -> bool {
        if (self.room == 0 || name_len > NAME_MAX) && !self.make_more_room(name_len) {
            return false;
        }
        self.room -= 1;
        let more = (id as u32 as usize + 1).saturating_sub(self.entries.len());
        (more == 0 || self.entries.try_reserve(more).is_ok()) && (info_len == 0 || self.info.make_room(info_len))
    }

    /// A registration may split a piece in two, so it adds at most two pieces and two names. No name is longer than
    /// `NAME_MAX`, unless it comes from the spool of another process.
    #[cold]
    #[inline(never)]
    fn make_more_room(&mut self, name_len: usize) -> bool {
        let name_len = name_len.max(NAME_MAX);
        let made = [ROOM, 1].into_iter().find(|&count| {
            let count = count as usize;
            self.pieces.make_room(2 * count)
                && self.starts.make_room(2 * count)
                && self.names.make_room(2 * count * name_len)
        });
        self.room = made.unwrap_or(0);
        made.is_some()
    }

    fn set_entry(&mut self, id: u64, live: &Live, piece: u32) {
        let slot = id as u32 as usize;
        if slot >= self.entries.len() {
            let missing = slot + 1 - self.entries.len();
            (0..missing).for_each(|_| self.entries.push(Entry::default()));
        }
        self.entries[slot] = Entry {
            index: live.index,
            stored_offset: live.stored.map_or(0, |stored| stored.offset),
            stored_len: live.stored.map_or(0, |stored| stored.len as u32),
            tables_len: live.tables_len,
            beyond: (live.reach - live.addr - live.size).try_into().unwrap_or(u32::MAX),
            piece,
            generation: (id >> 32) as u32,
        };
        self.live += 1;
    }

    /// The last piece that begins before an address.
    fn last_before(&self, addr: u64) -> Option<u32> {
        self.starts.last_below(addr).map(|(_, number)| number)
    }

    /// The end of a piece with the free bytes that its code claims after it; 0 if the piece is dead.
    fn reach(&self, number: u32) -> u64 {
        let piece = &self.pieces[number];
        piece.owner().map_or(0, |slot| piece.end() + u64::from(self.entries[slot as usize].beyond))
    }

    /// Removes the range `[start, end)` from all pieces. The parts of these pieces outside of the range stay, as dead code.
    fn clear(&mut self, start: u64, end: u64, overwritten: &mut Vec<u64>) {
        while let Some(number) = self.last_before(end).filter(|&number| self.pieces[number].end() > start) {
            self.vacate(number, overwritten);
            let old = self.pieces[number];
            if old.end() > end {
                let name = self.names.copy(old.name);
                let rest = self.pieces.add(end, (old.end() - end) as u32, name);
                self.pieces.retire(rest);
                self.starts.insert(self.starts.place(end), end, rest);
            }
            if old.start < start {
                self.pieces[number].size = (start - old.start) as u32;
                self.pieces.retire(number);
            } else {
                self.forget(number);
            }
        }
    }

    /// Ends the registration that owns a piece, or takes a dead piece out of its list.
    fn vacate(&mut self, number: u32, overwritten: &mut Vec<u64>) {
        match self.pieces[number].owner() {
            None => self.pieces.unlink(number),
            Some(slot) => {
                if overwritten.try_reserve(1).is_ok() {
                    overwritten.push(self.id_in(slot));
                }
                self.end(slot);
            }
        }
    }

    fn end(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.generation = 0;
        self.live -= 1;
        if let Some((_, len)) = entry.info() {
            entry.stored_offset = 0;
            self.info.drop(len);
        }
    }

    /// Drops a vacated piece.
    fn forget(&mut self, number: u32) {
        let piece = self.pieces[number];
        self.starts.remove(piece.start);
        self.names.drop(piece.name);
        self.pieces.release(number);
    }

    /// The id of the live registration with this slot. 0, which is no id, if there is none.
    pub fn id_in(&self, slot: u32) -> u64 {
        let generation = self.entries.get(slot as usize).map_or(0, |entry| entry.generation);
        if generation == 0 {
            0
        } else {
            u64::from(generation) << 32 | u64::from(slot)
        }
    }

    /// Ends a registration. Its piece keeps the name.
    pub fn remove(&mut self, id: u64) -> Option<Live> {
        let live = self.get(id)?;
        let piece = self.entries[id as u32 as usize].piece;
        self.end(id as u32);
        self.pieces.retire(piece);
        Some(live)
    }

    /// Gives back the memory of dropped names and info records, if there is much of it.
    pub fn tidy(&mut self) {
        if self.info.is_wasteful() {
            let owned = self.entries.iter_mut().filter_map(|entry| {
                let (at, len) = entry.info()?;
                Some((at, len, &mut entry.stored_offset))
            });
            self.info.compact(owned, |place, at| *place = at as u64 | IN_MEMORY);
        }
        self.tidy_names();
    }

    #[inline(always)]
    fn tidy_names(&mut self) {
        if self.names.are_wasteful() {
            self.compact_names();
        }
    }

    #[cold]
    #[inline(never)]
    fn compact_names(&mut self) {
        self.names.compact(self.pieces.names_mut());
        self.room = 0;
    }

    /// Ends all registrations, and passes their ids to `ended`.
    pub fn remove_all(&mut self, mut ended: impl FnMut(u64)) {
        for slot in 0..self.entries.len() {
            let Entry { generation, piece, .. } = self.entries[slot];
            if generation != 0 {
                self.end(slot as u32);
                self.pieces.retire(piece);
                ended(u64::from(generation) << 32 | slot as u64);
            }
        }
    }
}
