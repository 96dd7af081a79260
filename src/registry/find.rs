//! Lookup of live code by its id or its address.

use super::{Entry, Live, Registry};

impl Registry {
    pub(super) fn entry(&self, id: u64) -> Option<&Entry> {
        let generation = (id >> 32) as u32;
        self.entries.get(id as u32 as usize).filter(|entry| generation != 0 && entry.generation == generation)
    }

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

    pub fn size_of(&self, id: u64) -> Option<u64> {
        self.entry(id).map(|entry| self.pieces[entry.piece].size.into())
    }

    pub fn is_live(&self, id: u64) -> bool {
        self.entry(id).is_some()
    }

    pub fn name_of(&self, id: u64) -> Option<&[u8]> {
        self.entry(id).map(|entry| self.names.get(self.pieces[entry.piece].name))
    }

    /// The id of the live code that starts at an address.
    pub fn id_at(&self, start: u64) -> Option<u64> {
        let (_, number) = self.starts.from(start).next().filter(|&(at, _)| at == start)?;
        let slot = self.pieces[number].owner()?;
        Some(self.id_in(slot))
    }

    /// Ids of the live code that has a byte in `[start, end)`. If memory is short, some of the ids are missing, but never all.
    pub fn live_in(&self, start: u64, end: u64) -> Vec<u64> {
        if self.live == 0 || !self.is_known_in(start, end) {
            return Vec::new();
        }
        let numbers = std::iter::successors(self.last_before(end), |&next| self.last_before(self.pieces[next].start));
        let pieces = numbers.map(|number| &self.pieces[number]);
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

    /// Whether live code has a byte in `[start, end)`.
    pub fn has_live_in(&self, start: u64, end: u64) -> bool {
        !self.live_in(start, end).is_empty()
    }

    /// Whether live or dead code has a byte in `[start, end)`.
    fn is_known_in(&self, start: u64, end: u64) -> bool {
        self.last_before(end).is_some_and(|number| self.pieces[number].end() > start)
    }

    /// The numbers of the pieces that begin in `[start, end)`.
    pub(super) fn numbers_in(&self, start: u64, end: u64) -> impl Iterator<Item = u32> + '_ {
        self.starts.from(start).take_while(move |&(at, _)| at < end).map(|(_, number)| number)
    }

    /// Whether live code begins in `[start, end)`.
    pub fn live_begins_in(&self, start: u64, end: u64) -> bool {
        start < end && self.numbers_in(start, end).any(|number| self.pieces[number].owner().is_some())
    }
}
