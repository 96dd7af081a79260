//! For each address, the live code at this address, or the code that was live there last. A value of `Places` covers one home
//! (`Home`): either the code in regions, or all other code.

use super::address_pieces::Pieces;
use super::entry::{Entries, Entry, Live};
use super::names::{Name, Names};
use super::ordered::Ordered;
use crate::api::limits::NAME_MAX;

/// Number of registrations for which memory is reserved at once.
const ROOM: u32 = 16;

/// How a registration changes the perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// No change, because the perf map already has the same line.
    None,
    /// The perf map gets one more line.
    Append,
    /// Older lines of the perf map have to be changed or removed.
    Rewrite,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    pub pieces: Pieces,
    /// The pieces, which do not overlap, sorted by start address.
    pub starts: Ordered,
    pub names: Names,
    /// Number of registrations for which `pieces`, `starts` and `names` have room.
    room: u32,
}

impl Places {
    /// Reserves the memory that a registration with a name of this length may need. False if memory is short.
    #[inline(always)]
    pub fn make_room(&mut self, name_len: usize) -> bool {
        if (self.room == 0 || name_len > NAME_MAX) && !self.make_more_room(name_len) {
            return false;
        }
        self.room -= 1;
        true
    }

    /// Reserves memory for `ROOM` registrations, or for one if memory is short. A registration may split a piece in two, so it
    /// adds at most two pieces and two names. Only a name from the spool of another process can be longer than `NAME_MAX`.
    #[cold]
    #[inline(never)]
    fn make_more_room(&mut self, name_len: usize) -> bool {
        let name_len = name_len.max(NAME_MAX);
        let made = [ROOM, 1].into_iter().find(|&count| {
            let count = count as usize;
            self.pieces.make_room(2 * count)
                && self.starts.make_room(2 * count)
                && self.names.0.make_room(2 * count * name_len)
        });
        self.room = made.unwrap_or(0);
        made.is_some()
    }

    /// Adds a registration, for which `make_room` has made room. If the new code overlaps live code, the registrations of the
    /// older code end, and their ids are pushed to `overwritten`.
    #[inline(always)]
    pub fn insert(
        &mut self,
        entries: &mut Entries,
        id: u64,
        live: &Live,
        name: &[u8],
        overwritten: &mut Vec<u64>,
    ) -> MapChange {
        let (start, end) = (live.addr, live.addr + live.size);
        let mut change = MapChange::Append;
        let place = self.starts.place(end);
        let highest = self.starts.before(place).map(|(_, number)| number);
        let overlapped = highest.filter(|&number| self.pieces[number].end() > start);
        let number = match overlapped {
            // New code often has exactly the same range as older code, because code caches reuse addresses.
            Some(number) if (self.pieces[number].start, self.pieces[number].end()) == (start, end) => {
                self.vacate(entries, number, overwritten);
                let old = self.pieces[number].name;
                if self.names.get(old) == name {
                    change = MapChange::None;
                } else {
                    change = MapChange::Rewrite;
                    self.names.drop(old);
                    self.pieces[number].name = self.names.add(name);
                }
                number
            }
            _ => {
                let mut place = place;
                if overlapped.is_some() {
                    change = MapChange::Rewrite;
                    self.clear(entries, start, end, overwritten);
                    place = self.starts.place(start);
                }
                let name = self.names.add(name);
                let number = self.pieces.add(start, live.size as u32, name);
                self.starts.insert(place, start, number);
                number
            }
        };
        self.pieces.assign(number, id as u32);
        let entry = Entry {
            index: live.index,
            stored_offset: live.stored.map_or(0, |stored| stored.offset),
            stored_len: live.stored.map_or(0, |stored| stored.len as u32),
            piece: number,
            generation: (id >> 32) as u32,
            home: live.home,
        };
        entries.set(id as u32, entry);
        change
    }

    /// Adds dead code, for which `make_room` has made room. No other code may overlap the range from `start` to `start + size`.
    pub fn insert_dead(&mut self, start: u64, size: u32, name: &[u8]) {
        let name = self.names.add(name);
        self.add_dead(start, size, name);
    }

    fn add_dead(&mut self, start: u64, size: u32, name: Name) {
        let number = self.pieces.add(start, size, name);
        self.pieces.retire(number);
        self.starts.insert(self.starts.place(start), start, number);
    }

    /// The last piece that begins before an address.
    pub fn last_before(&self, addr: u64) -> Option<u32> {
        self.starts.last_below(addr).map(|(_, number)| number)
    }

    /// Removes the range `[start, end)` from all pieces. The parts of these pieces that lie outside of the range stay as
    /// dead code.
    fn clear(&mut self, entries: &mut Entries, start: u64, end: u64, overwritten: &mut Vec<u64>) {
        while let Some(number) = self.last_before(end).filter(|&number| self.pieces[number].end() > start) {
            self.vacate(entries, number, overwritten);
            let old = self.pieces[number];
            if old.end() > end {
                let name = self.names.copy(old.name);
                self.add_dead(end, (old.end() - end) as u32, name);
            }
            if old.start < start {
                self.pieces[number].size = (start - old.start) as u32;
                self.pieces.retire(number);
            } else {
                self.forget(number);
            }
        }
    }

    /// Ends the registration that owns a piece, or takes a dead piece out of the list of dead pieces.
    fn vacate(&mut self, entries: &mut Entries, number: u32, overwritten: &mut Vec<u64>) {
        match self.pieces[number].owner() {
            None => self.pieces.unlink(number),
            Some(slot) => {
                if overwritten.try_reserve(1).is_ok() {
                    overwritten.push(entries.id_in(slot));
                }
                entries.end(slot);
            }
        }
    }

    /// Drops a piece that `vacate` has vacated.
    fn forget(&mut self, number: u32) {
        let piece = self.pieces[number];
        self.starts.remove(piece.start);
        self.names.drop(piece.name);
        self.pieces.release(number);
    }

    /// Drops a piece of dead code.
    pub fn forget_dead(&mut self, number: u32) {
        self.pieces.unlink(number);
        self.forget(number);
    }

    /// Whether live or dead code overlaps `[start, end)`.
    pub fn is_known_in(&self, start: u64, end: u64) -> bool {
        self.last_before(end).is_some_and(|number| self.pieces[number].end() > start)
    }

    /// The numbers of the pieces that begin in `[start, end)`.
    pub fn numbers_in(&self, start: u64, end: u64) -> impl Iterator<Item = u32> + '_ {
        self.starts.from(start).take_while(move |&(at, _)| at < end).map(|(_, number)| number)
    }

    /// Frees the memory of dropped names if they use much memory.
    pub fn tidy_names(&mut self) {
        if self.names.0.is_wasteful() {
            self.names.compact(self.pieces.names_mut());
            self.room = 0;
        }
    }
}
