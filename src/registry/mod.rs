//! Which code lies where: the live registrations, and for every address the code that lived there last.
//!
//! The second is what a perf map can say. The format has no time and is read after the fact, so freed code keeps its name
//! until its bytes are used again, and no two entries overlap: readers answer overlaps with whatever they find first.
//!
//! A large program has hundreds of thousands of live registrations, and every one that comes or goes passes through here. So
//! nothing is hashed and nothing allocated for itself: ids lead to their entries and entries to their pieces by number, and
//! only addresses are searched for, in a tree of numbers.

pub mod ids;
mod names;
mod pieces;
mod prefaces;

use std::collections::BTreeMap;

use names::Names;
use pieces::Pieces;
use prefaces::Prefaces;

use crate::sys::table::Table;

/// How many entries of dead code are kept. Readers hold the whole map in memory, and so do we.
const DEAD_MAX: usize = 1 << 16;

/// A live registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub addr: u64,
    /// Below 4 GiB.
    pub size: u64,
    /// Where the bytes end that the caller said are free behind the code, and that unwind tables are mapped to.
    pub reach: u64,
    pub index: u64,
    /// Where the jitdump has its group, for a move.
    pub stored: Option<Stored>,
    /// Size of the unwind tables in it.
    pub tables_len: u32,
}

/// A place in the jitdump: that of a group, without the code bytes at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Never 0: the file begins with its header.
    pub offset: u64,
    pub len: usize,
}

/// What is kept of a live registration, besides its piece.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    index: u64,
    /// Where the jitdump has its group, or the registry its preface (`IN_MEMORY`); 0 for neither.
    stored_offset: u64,
    stored_len: u32,
    tables_len: u32,
    /// How far it reaches beyond its end.
    beyond: u32,
    piece: u32,
    /// That of its id; 0, which no id has, if there is no registration with this slot.
    generation: u32,
}

const _: () = assert!(size_of::<Entry>() == 40);

/// In `stored_offset`: what is below is a place among the prefaces. No file is that long.
const IN_MEMORY: u64 = 1 << 63;

impl Entry {
    fn stored(&self) -> Option<Stored> {
        let is_in_file = self.stored_offset != 0 && self.stored_offset & IN_MEMORY == 0;
        is_in_file.then_some(Stored { offset: self.stored_offset, len: self.stored_len as usize })
    }

    /// Where its preface is, if it is kept here, and how long it is.
    fn preface(&self) -> Option<(u64, u32)> {
        (self.stored_offset & IN_MEMORY != 0).then_some((self.stored_offset & !IN_MEMORY, self.stored_len))
    }
}

/// What registering did to the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Nothing: the same line is there already.
    None,
    /// One line more.
    Append,
    /// Older lines had to change or go.
    Rewrite,
}

/// What registering found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    pub change: MapChange,
    /// The live code before was declared to have free bytes that reach into the new code.
    pub was_claimed: bool,
    /// There is no memory for it: nothing is known of it.
    pub was_refused: bool,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Registry {
    /// By the slot of the id, its lower half. Slots are few: those of ids that have ended are used again.
    entries: Table<Entry>,
    live: usize,
    pieces: Pieces,
    /// The pieces by their start. They do not overlap.
    starts: BTreeMap<u64, u32>,
    names: Names,
    prefaces: Prefaces,
}

impl Registry {
    /// Number of live registrations.
    pub fn live_count(&self) -> usize {
        self.live
    }

    /// Number of spans, which is that of lines in the map.
    pub fn span_count(&self) -> usize {
        self.starts.len()
    }

    /// Start, size and name of all spans in order of address.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        self.starts.values().map(|&number| {
            let piece = &self.pieces[number];
            (piece.start, piece.size.into(), self.names.get(piece.name))
        })
    }

    /// The same in the order in which the code was registered; dead code last. `None` if there is no memory.
    pub fn spans_by_age(&self) -> Option<impl Iterator<Item = (u64, u64, &[u8])>> {
        let mut numbers: Vec<u32> = Vec::new();
        numbers.try_reserve_exact(self.starts.len()).ok()?;
        numbers.extend(self.starts.values());
        let age = |number: u32| self.pieces[number].owner().map_or(u64::MAX, |slot| self.entries[slot as usize].index);
        numbers.sort_unstable_by_key(|&number| age(number));
        let span = |number| {
            let piece = &self.pieces[number];
            (piece.start, piece.size.into(), self.names.get(piece.name))
        };
        Some(numbers.into_iter().map(span))
    }

    /// Start, size, name and id of all spans that begin in `[start, end)`; the id of dead code is 0.
    pub fn spans_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &[u8], u64)> {
        self.starts.range(start..end).map(|(_, &number)| {
            let piece = &self.pieces[number];
            let id = piece.owner().map_or(0, |slot| self.id_in(slot));
            (piece.start, piece.size.into(), self.names.get(piece.name), id)
        })
    }

    /// All live registrations whose group was handed to the jitdump: id, where the group is, and how long the code is.
    pub fn stored(&self) -> impl Iterator<Item = (u64, Stored, u64)> + '_ {
        let known = |(slot, entry): (usize, &Entry)| {
            let stored = entry.stored().filter(|_| entry.generation != 0)?;
            Some((self.id_in(slot as u32), stored, self.pieces[entry.piece].size.into()))
        };
        self.entries.iter().enumerate().filter_map(known)
    }

    /// Drops spans of dead code, the oldest first, as long as `more` says so to the next one's name.
    pub fn forget_while(&mut self, mut more: impl FnMut(&[u8]) -> bool) {
        while let Some(oldest) = self.pieces.oldest_dead() {
            if !more(self.names.get(self.pieces[oldest].name)) {
                break;
            }
            self.pieces.exhume(oldest);
            self.forget(oldest);
        }
    }

    /// Adds a registration; the newest wins. Live code that it overlaps is retired and its ids are pushed to `overwritten`.
    pub fn insert(&mut self, id: u64, live: &Live, name: &[u8], overwritten: &mut Vec<u64>) -> Inserted {
        // Without consequence for ids that are made as they should be: their slot is free.
        self.remove(self.id_in(id as u32));
        let (start, end) = (live.addr, live.addr + live.size);
        let mut inserted = Inserted { change: MapChange::Append, was_claimed: false, was_refused: false };
        if !self.make_room(id as u32 as usize, name) {
            return Inserted { change: MapChange::None, was_refused: true, ..inserted };
        }
        let highest = self.starts.range(..end).next_back().map(|(_, &number)| number);
        let overlapped = highest.filter(|&number| self.pieces[number].end() > start);
        let before = if overlapped.is_none() { highest } else { self.last_before(start) };
        // Code that reaches into the new code itself made no claim there: it is overwritten.
        inserted.was_claimed =
            before.is_some_and(|number| self.pieces[number].end() <= start && self.reach(number) > start);
        let number = match overlapped {
            // Code caches use the same places again.
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
                if overlapped.is_some() {
                    inserted.change = MapChange::Rewrite;
                    self.clear(start, end, overwritten);
                }
                let name = self.names.add(name);
                let number = self.pieces.add(start, live.size as u32, name);
                self.starts.insert(start, number);
                number
            }
        };
        self.pieces.revive(number, id as u32);
        self.set_entry(id, live, number);
        if self.names.are_wasteful() {
            self.names.compact(self.pieces.names_mut());
        }
        inserted
    }

    /// What an insertion needs at most in large pieces of memory.
    fn make_room(&mut self, slot: usize, name: &[u8]) -> bool {
        let more = (slot + 1).saturating_sub(self.entries.len());
        self.entries.try_reserve(more).is_ok() && self.pieces.make_room() && self.names.make_room(name)
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
        self.starts.range(..addr).next_back().map(|(_, &number)| number)
    }

    /// Where the bytes end that a piece claims; 0 if it is dead.
    fn reach(&self, number: u32) -> u64 {
        let piece = &self.pieces[number];
        piece.owner().map_or(0, |slot| piece.end() + u64::from(self.entries[slot as usize].beyond))
    }

    /// Takes all pieces out of `[start, end)`. What they have outside of it stays, as that of dead code.
    fn clear(&mut self, start: u64, end: u64, overwritten: &mut Vec<u64>) {
        while let Some(number) = self.last_before(end).filter(|&number| self.pieces[number].end() > start) {
            self.vacate(number, overwritten);
            let old = self.pieces[number];
            if old.end() > end {
                let name = self.names.copy(old.name);
                let rest = self.pieces.add(end, (old.end() - end) as u32, name);
                self.pieces.bury(rest);
                self.starts.insert(end, rest);
            }
            if old.start < start {
                self.pieces[number].size = (start - old.start) as u32;
                self.pieces.bury(number);
            } else {
                self.forget(number);
            }
        }
    }

    /// Makes a piece one that nobody owns and that is not among the dead.
    fn vacate(&mut self, number: u32, overwritten: &mut Vec<u64>) {
        match self.pieces[number].owner() {
            None => self.pieces.exhume(number),
            Some(slot) => {
                if overwritten.try_reserve(1).is_ok() {
                    overwritten.push(self.id_in(slot));
                }
                self.end(slot);
            }
        }
    }

    /// Makes a slot that of no registration.
    fn end(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.generation = 0;
        self.live -= 1;
        if let Some((_, len)) = entry.preface() {
            entry.stored_offset = 0;
            self.prefaces.drop(len);
        }
    }

    /// Drops a piece that is vacated.
    fn forget(&mut self, number: u32) {
        let piece = self.pieces[number];
        self.starts.remove(&piece.start);
        self.names.drop(piece.name);
        self.pieces.release(number);
    }

    /// The id of the registration with a slot; 0, which is none, if there is none.
    pub fn id_in(&self, slot: u32) -> u64 {
        let generation = self.entries.get(slot as usize).map_or(0, |entry| entry.generation);
        if generation == 0 {
            0
        } else {
            u64::from(generation) << 32 | u64::from(slot)
        }
    }

    fn entry(&self, id: u64) -> Option<&Entry> {
        let generation = (id >> 32) as u32;
        self.entries.get(id as u32 as usize).filter(|entry| generation != 0 && entry.generation == generation)
    }

    /// Ends a registration. Its span keeps the name.
    pub fn remove(&mut self, id: u64) -> Option<Live> {
        let live = self.get(id)?;
        let piece = self.entries[id as u32 as usize].piece;
        self.end(id as u32);
        self.pieces.bury(piece);
        Some(live)
    }

    /// A live registration.
    pub fn get(&self, id: u64) -> Option<Live> {
        let entry = self.entry(id)?;
        let piece = &self.pieces[entry.piece];
        Some(Live {
            addr: piece.start,
            size: piece.size.into(),
            reach: piece.end() + u64::from(entry.beyond),
            index: entry.index,
            stored: entry.stored(),
            tables_len: entry.tables_len,
        })
    }

    /// The ids of all live registrations, in the order in which the jitdump has them or they came. `None` if there is no
    /// memory.
    pub fn live_by_place(&self) -> Option<impl Iterator<Item = u64>> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.generation != 0);
        let mut ids: Vec<(u64, u64)> = Vec::new();
        ids.try_reserve_exact(self.live).ok()?;
        ids.extend(live.map(|(slot, entry)| (entry.stored_offset, u64::from(entry.generation) << 32 | slot as u64)));
        ids.sort_unstable();
        Some(ids.into_iter().map(|(_, id)| id))
    }

    /// Notes where the jitdump has the group of live code, and the size of the tables in it.
    pub fn set_stored(&mut self, id: u64, stored: Option<Stored>, tables_len: u32) {
        if self.entry(id).is_some() {
            let entry = &mut self.entries[id as u32 as usize];
            if let Some((_, len)) = entry.preface() {
                self.prefaces.drop(len);
            }
            entry.tables_len = tables_len;
            entry.stored_offset = stored.map_or(0, |stored| stored.offset);
            entry.stored_len = stored.map_or(0, |stored| stored.len as u32);
        }
    }

    /// Keeps the preface of live code, in place of where the jitdump has it. One that there is no memory for is not kept.
    pub fn keep_preface(&mut self, id: u64, preface: &[u8]) {
        let tables_len = self.entry(id).map_or(0, |entry| entry.tables_len);
        self.set_stored(id, None, tables_len);
        if preface.is_empty() || self.entry(id).is_none() {
            return;
        }
        if let Some(at) = self.prefaces.add(preface) {
            let entry = &mut self.entries[id as u32 as usize];
            (entry.stored_offset, entry.stored_len) = (at | IN_MEMORY, preface.len() as u32);
        }
    }

    /// The preface of live code; an empty one if none is kept.
    pub fn preface_of(&self, id: u64) -> &[u8] {
        let place = self.entry(id).and_then(Entry::preface);
        place.map_or(&[], |(at, len)| self.prefaces.get(at, len))
    }

    /// Gives memory of what was dropped back, if it is worth the while.
    pub fn tidy(&mut self) {
        if self.prefaces.are_wasteful() {
            self.prefaces.compact(self.entries.iter_mut().filter_map(|entry| {
                let (at, len) = entry.preface()?;
                Some((at, len, &mut entry.stored_offset))
            }));
        }
        if self.names.are_wasteful() {
            self.names.compact(self.pieces.names_mut());
        }
    }

    /// Drops all spans of dead code.
    pub fn forget_dead(&mut self) {
        self.forget_dead_until(0);
    }

    /// Drops the spans of dead code that begin in `[start, end)`.
    pub fn forget_dead_in(&mut self, start: u64, end: u64) {
        let mut next = start;
        while let Some((&at, &number)) = self.starts.range(next..end).next() {
            next = at + 1;
            if self.pieces[number].owner().is_none() {
                self.pieces.exhume(number);
                self.forget(number);
            }
        }
    }

    /// The size of live code.
    pub fn size_of(&self, id: u64) -> Option<u64> {
        self.entry(id).map(|entry| self.pieces[entry.piece].size.into())
    }

    /// Whether this id is live.
    pub fn is_live(&self, id: u64) -> bool {
        self.entry(id).is_some()
    }

    /// The name of live code.
    pub fn name_of(&self, id: u64) -> Option<&[u8]> {
        self.entry(id).map(|entry| self.names.get(self.pieces[entry.piece].name))
    }

    /// The id of the live code that starts at an address.
    pub fn id_at(&self, start: u64) -> Option<u64> {
        let slot = self.pieces[*self.starts.get(&start)?].owner()?;
        Some(self.id_in(slot))
    }

    /// Ids of the live code that has a byte in `[start, end)`; fewer, but some, if memory is short.
    pub fn live_in(&self, start: u64, end: u64) -> Vec<u64> {
        let pieces = self.starts.range(..end).rev().map(|(_, &number)| &self.pieces[number]);
        let overlapping = pieces.take_while(|piece| piece.end() > start);
        let mut ids = Vec::with_capacity(64);
        for slot in overlapping.filter_map(|piece| piece.owner()) {
            if ids.try_reserve(1).is_err() {
                break;
            }
            ids.push(self.id_in(slot));
        }
        ids
    }

    /// Whether anything is known in `[start, end)`, of live code or dead.
    pub fn is_known_in(&self, start: u64, end: u64) -> bool {
        self.last_before(end).is_some_and(|number| self.pieces[number].end() > start)
    }

    /// Whether live code begins in `[start, end)`.
    pub fn live_begins_in(&self, start: u64, end: u64) -> bool {
        start < end && self.starts.range(start..end).any(|(_, &number)| self.pieces[number].owner().is_some())
    }

    /// Ends all registrations, and hands out their ids.
    pub fn remove_all(&mut self, mut ended: impl FnMut(u64)) {
        for slot in 0..self.entries.len() {
            let Entry { generation, piece, .. } = self.entries[slot];
            if generation != 0 {
                self.end(slot as u32);
                self.pieces.bury(piece);
                ended(u64::from(generation) << 32 | slot as u64);
            }
        }
    }

    /// Drops the oldest spans of dead code if there are too many, some more than needed so that it happens rarely. Returns
    /// how many.
    pub fn forget_oldest(&mut self) -> usize {
        let before = self.pieces.dead();
        if before > DEAD_MAX {
            self.forget_dead_until(DEAD_MAX - DEAD_MAX / 8);
        }
        before - self.pieces.dead()
    }

    fn forget_dead_until(&mut self, left: usize) {
        let mut more = self.pieces.dead().saturating_sub(left);
        self.forget_while(|_| {
            let goes_on = more > 0;
            more = more.saturating_sub(1);
            goes_on
        });
    }
}

#[cfg(test)]
mod tests;
