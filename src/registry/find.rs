//! Lookup of live code by its id or its address.

use super::address_pieces::Piece;
use super::entry::Entry;
use super::{Home, Live, Registry};

impl Registry {
    fn piece_of(&self, entry: &Entry) -> &Piece {
        &self.places[entry.home as usize].pieces[entry.piece]
    }

    pub(super) fn live(&self, entry: &Entry) -> Live {
        let piece = self.piece_of(entry);
        Live {
            addr: piece.start,
            size: piece.size.into(),
            index: entry.index,
            stored: entry.stored(),
            home: entry.home,
        }
    }

    pub fn get(&self, id: u64) -> Option<Live> {
        self.entries.get(id).map(|entry| self.live(entry))
    }

    pub fn size_of(&self, id: u64) -> Option<u64> {
        self.entries.get(id).map(|entry| self.piece_of(entry).size.into())
    }

    /// The number of live registrations of `home`.
    pub fn live_count(&self, home: Home) -> usize {
        self.entries.live[home as usize]
    }

    pub fn is_live(&self, id: u64) -> bool {
        self.entries.get(id).is_some()
    }

    pub fn name_of(&self, id: u64) -> Option<&[u8]> {
        self.entries.get(id).map(|entry| self.places[entry.home as usize].names.get(self.piece_of(entry).name))
    }

    /// The id of the live code of `home` that starts at this address.
    pub fn id_at(&self, home: Home, start: u64) -> Option<u64> {
        let places = &self.places[home as usize];
        let (_, number) = places.starts.from(start).next().filter(|&(at, _)| at == start)?;
        let slot = places.pieces[number].owner()?;
        Some(self.id_in(slot))
    }

    /// The ids of the live code of `home` that overlaps `[start, end)`. If memory is short, the list may be incomplete, but it
    /// is never empty if there is such code.
    pub fn live_in(&self, home: Home, start: u64, end: u64) -> Vec<u64> {
        if !self.may_be_live_in(home, start, end) {
            return Vec::new();
        }
        let places = &self.places[home as usize];
        let before = |addr| places.last_before(addr);
        let numbers = std::iter::successors(before(end), |&next| before(places.pieces[next].start));
        let pieces = numbers.map(|number| &places.pieces[number]);
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

    /// Whether any live code of `home` overlaps `[start, end)`.
    pub fn has_live_in(&self, home: Home, start: u64, end: u64) -> bool {
        self.may_be_live_in(home, start, end) && !self.live_in(home, start, end).is_empty()
    }

    /// A quick check whether live code of `home` may overlap `[start, end)`.
    pub fn may_be_live_in(&self, home: Home, start: u64, end: u64) -> bool {
        self.live_count(home) > 0 && self.places[home as usize].is_known_in(start, end)
    }
}
