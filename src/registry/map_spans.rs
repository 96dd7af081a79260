//! Spans: the lines of the perf map, and how long dead code keeps its line.

use super::Registry;

/// How many spans of dead code are kept. Readers hold the whole map in memory, and so does this library.
pub(super) const DEAD_MAX: usize = 1 << 16;

impl Registry {
    /// Number of spans, which is the number of lines in the map.
    pub fn span_count(&self) -> usize {
        self.starts.len()
    }

    /// Start, size and name of all spans in order of address.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        self.starts.values().map(|number| {
            let piece = &self.pieces[number];
            (piece.start, piece.size.into(), self.names.get(piece.name))
        })
    }

    /// Start, size and name of all spans in the order in which the code was registered; dead code comes last. `None` if there
    /// is no memory.
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

    /// Start, size, name and id of all spans that begin in `[start, end)`. The id of dead code is 0.
    pub fn spans_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &[u8], u64)> {
        self.numbers_in(start, end).map(|number| {
            let piece = &self.pieces[number];
            let id = piece.owner().map_or(0, |slot| self.id_in(slot));
            (piece.start, piece.size.into(), self.names.get(piece.name), id)
        })
    }

    /// Drops spans of dead code, the oldest first, as long as `more` returns true for the name of the next one.
    pub fn forget_while(&mut self, mut more: impl FnMut(&[u8]) -> bool) {
        while let Some(oldest) = self.pieces.oldest_dead() {
            if !more(self.names.get(self.pieces[oldest].name)) {
                break;
            }
            self.pieces.unlink(oldest);
            self.forget(oldest);
        }
    }

    pub fn forget_dead(&mut self) {
        self.forget_dead_until(0);
    }

    /// Drops the spans of dead code that begin in `[start, end)`.
    pub fn forget_dead_in(&mut self, start: u64, end: u64) {
        let mut next = start;
        let next_in = |registry: &Registry, next| registry.numbers_in(next, end).next();
        while let Some(number) = next_in(self, next) {
            next = self.pieces[number].end();
            if self.pieces[number].owner().is_none() {
                self.pieces.unlink(number);
                self.forget(number);
            }
        }
    }

    /// Drops the oldest spans of dead code if there are too many, and some more, so that this is rarely necessary. Returns the
    /// number of dropped spans.
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
