//! Spans: the lines of the perf map and the symbols of regions. This file also limits how many spans of dead code are kept.

use super::places::Places;
use super::{Home, Registry, TOO_LARGE};
use crate::sys::sort::sort_by_key;

/// How many spans of dead code outside of regions are kept. The limit exists because readers and this library hold the whole
/// map in memory.
pub(super) const DEAD_MAX: usize = 1 << 16;

impl Registry {
    pub(super) fn plain(&self) -> &Places {
        &self.places[Home::Plain as usize]
    }

    fn plain_mut(&mut self) -> &mut Places {
        &mut self.places[Home::Plain as usize]
    }

    /// Number of spans outside of regions, which is the number of lines in the perf map.
    pub fn span_count(&self) -> usize {
        self.plain().starts.len()
    }

    /// Start, size and name of all spans outside of regions, in order of address.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        self.plain().starts.values().map(|number| self.plain().span(number))
    }

    /// Start, size and name of all spans outside of regions, in the order in which the code was registered; dead code comes
    /// last. `None` if memory is short.
    pub fn spans_by_age(&self) -> Option<impl Iterator<Item = (u64, u64, &[u8])>> {
        let places = self.plain();
        let mut numbers: Vec<u32> = Vec::new();
        numbers.try_reserve_exact(places.starts.len()).ok()?;
        numbers.extend(places.starts.values());
        let index_of = |slot| self.entries.all[slot as usize].index;
        sort_by_key(&mut numbers, |&number| places.pieces[number].owner().map_or(u64::MAX, index_of));
        Some(numbers.into_iter().map(|number| places.span(number)))
    }

    /// Start, size, name and id of all spans that belong to regions and begin in `[start, end)`. The id of dead code is 0.
    pub fn region_spans_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &[u8], u64)> {
        let places = &self.places[Home::Region as usize];
        places.numbers_in(start, end).map(|number| {
            let (start, size, name) = places.span(number);
            (start, size, name, places.pieces[number].owner().map_or(0, |slot| self.id_in(slot)))
        })
    }

    /// Adds dead code. Changes nothing and returns false in three cases: newer code overlaps the range of the dead code, there
    /// is too much dead code, or memory is short.
    pub fn insert_dead(&mut self, start: u64, size: u64, name: &[u8]) -> bool {
        let places = self.plain_mut();
        let has_room = size < TOO_LARGE
            && places.pieces.dead() < DEAD_MAX
            && !places.is_known_in(start, start + size)
            && places.make_room(name.len());
        if has_room {
            places.insert_dead(start, size as u32, name);
        }
        has_room
    }

    /// Drops spans of dead code outside of regions, the oldest first, as long as `more` returns true for the name of the
    /// next span.
    pub fn forget_while(&mut self, more: impl FnMut(&[u8]) -> bool) {
        self.plain_mut().forget_while(more);
    }

    /// Drops all spans of dead code of `home`.
    pub fn forget_dead(&mut self, home: Home) {
        self.places[home as usize].forget_while(|_| true);
    }

    /// Drops the spans that belong to dead code in regions and begin in `[start, end)`.
    pub fn forget_dead_in_regions(&mut self, start: u64, end: u64) {
        let places = &mut self.places[Home::Region as usize];
        let mut next = start;
        let next_in = |places: &Places, next| places.numbers_in(next, end).next();
        while let Some(number) = next_in(places, next) {
            next = places.pieces[number].end();
            if places.pieces[number].owner().is_none() {
                places.forget_dead(number);
            }
        }
    }

    /// If there are too many spans of dead code outside of regions, drops the oldest ones. Drops more spans than necessary, so
    /// that later calls rarely have to drop any. Returns the number of dropped spans.
    pub fn forget_oldest(&mut self) -> usize {
        let places = self.plain_mut();
        let before = places.pieces.dead();
        let mut more = if before > DEAD_MAX { before - (DEAD_MAX - DEAD_MAX / 8) } else { 0 };
        places.forget_while(|_| {
            let goes_on = more > 0;
            more = more.saturating_sub(1);
            goes_on
        });
        before - places.pieces.dead()
    }
}

impl Places {
    fn span(&self, number: u32) -> (u64, u64, &[u8]) {
        let piece = &self.pieces[number];
        (piece.start, piece.size.into(), self.names.get(piece.name))
    }

    fn forget_while(&mut self, mut more: impl FnMut(&[u8]) -> bool) {
        while let Some(oldest) = self.pieces.oldest_dead() {
            if !more(self.names.get(self.pieces[oldest].name)) {
                break;
            }
            self.forget_dead(oldest);
        }
    }
}
