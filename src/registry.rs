//! Which code lies where: the live registrations, and for every address the code that lived there last.
//!
//! The second is what a perf map can say. The format has no time and is read after the fact, so freed code keeps its name
//! until its bytes are used again, and no two entries overlap: readers answer overlaps with whatever they find first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// How many entries of dead code are kept. Readers hold the whole map in memory, and so do we.
const DEAD_MAX: usize = 1 << 16;

/// A live registration.
#[derive(Debug)]
pub struct Live {
    pub addr: u64,
    pub size: u64,
    /// Where the bytes end that the caller said are free behind the code, and that unwind tables are mapped to.
    pub reach: u64,
    pub index: u64,
    pub name: Arc<[u8]>,
    /// Where the jitdump has its group, for a move.
    pub stored: Option<Stored>,
    /// Size of the unwind tables in it.
    pub tables_len: u32,
}

/// A place in the jitdump: that of a group, without the code bytes at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub offset: u64,
    pub len: usize,
}

/// A piece of the address space and the code that lived there last.
#[derive(Debug)]
struct Span {
    end: u64,
    name: Arc<[u8]>,
    /// Id of the registration while it is live, else 0.
    owner: u64,
    /// Which death this is, to find outdated entries of `Registry::deaths`.
    death: u64,
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

/// See the module's description.
#[derive(Debug, Default)]
pub struct Registry {
    live: HashMap<u64, Live>,
    spans: BTreeMap<u64, Span>,
    /// Start and death number of dead spans, oldest first; some outdated.
    deaths: VecDeque<(u64, u64)>,
    last_death: u64,
    dead: usize,
}

impl Registry {
    /// Number of live registrations.
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Number of spans, which is that of lines in the map.
    pub fn span_count(&self) -> usize {
        self.spans.len()
    }

    /// Start, size and name of all spans in order of address.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        self.spans.iter().map(|(&start, span)| (start, span.end - start, &*span.name))
    }

    /// Adds a registration; the newest wins. Live code that it overlaps is retired and its ids are pushed to `overwritten`.
    pub fn insert(&mut self, id: u64, live: Live, overwritten: &mut Vec<u64>) -> MapChange {
        let (start, end) = (live.addr, live.addr + live.size);
        let mut change = MapChange::Append;
        while let Some(old_start) = self.last_overlap(start, end) {
            let Some(old) = self.spans.remove(&old_start) else { break };
            let same_line = old_start == start && old.end == end && old.name == live.name;
            change = if same_line && change == MapChange::Append { MapChange::None } else { MapChange::Rewrite };
            if old.owner == 0 {
                self.dead -= 1;
            } else {
                self.live.remove(&old.owner);
                overwritten.push(old.owner);
            }
            if old_start < start {
                self.add_dead(old_start, start, old.name.clone());
            }
            if old.end > end {
                self.add_dead(end, old.end, old.name);
            }
        }
        self.spans.insert(start, Span { end, name: live.name.clone(), owner: id, death: 0 });
        self.live.insert(id, live);
        change
    }

    /// The highest span that has a byte in `[start, end)`.
    fn last_overlap(&self, start: u64, end: u64) -> Option<u64> {
        let (&found, span) = self.spans.range(..end).next_back()?;
        (span.end > start).then_some(found)
    }

    fn add_dead(&mut self, start: u64, end: u64, name: Arc<[u8]>) {
        self.last_death += 1;
        self.spans.insert(start, Span { end, name, owner: 0, death: self.last_death });
        self.deaths.push_back((start, self.last_death));
        self.dead += 1;
    }

    /// Ends a registration. Its span keeps the name.
    pub fn remove(&mut self, id: u64) -> Option<Live> {
        let live = self.live.remove(&id)?;
        if let Some(span) = self.spans.get_mut(&live.addr) {
            self.last_death += 1;
            span.owner = 0;
            span.death = self.last_death;
            self.deaths.push_back((live.addr, self.last_death));
            self.dead += 1;
        }
        Some(live)
    }

    /// Gives the live code that starts at an address another id. False if there is none.
    pub fn rename(&mut self, start: u64, id: u64) -> bool {
        let Some(span) = self.spans.get_mut(&start).filter(|span| span.owner != 0) else { return false };
        let old = std::mem::replace(&mut span.owner, id);
        match self.live.remove(&old) {
            Some(live) => self.live.insert(id, live).is_none(),
            None => false,
        }
    }

    /// The size of live code.
    pub fn size_of(&self, id: u64) -> Option<u64> {
        self.live.get(&id).map(|live| live.size)
    }

    /// Whether this id is live.
    pub fn is_live(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    /// Ids of the live code that has a byte in `[start, end)`.
    pub fn live_in(&self, start: u64, end: u64) -> Vec<u64> {
        let overlapping = self.spans.range(..end).rev().take_while(|(_, span)| span.end > start);
        overlapping.map(|(_, span)| span.owner).filter(|&owner| owner != 0).collect()
    }

    /// Whether live code begins in `[start, end)`.
    pub fn live_begins_in(&self, start: u64, end: u64) -> bool {
        start < end && self.spans.range(start..end).any(|(_, span)| span.owner != 0)
    }

    /// Whether the live code before `start` was declared to have free bytes that reach beyond `start`.
    pub fn claimed_free(&self, start: u64) -> bool {
        let before = self.spans.range(..start).next_back();
        before.and_then(|(_, span)| self.live.get(&span.owner)).is_some_and(|live| live.reach > start)
    }

    /// Ends all registrations, and returns their ids.
    pub fn remove_all(&mut self) -> Vec<u64> {
        let ids: Vec<u64> = self.live.keys().copied().collect();
        for &id in &ids {
            self.remove(id);
        }
        ids
    }

    /// Drops the oldest spans of dead code if there are too many, some more than needed so that it happens rarely. Returns
    /// how many.
    pub fn forget_oldest(&mut self) -> usize {
        let before = self.dead;
        if self.dead > DEAD_MAX {
            while self.dead > DEAD_MAX - DEAD_MAX / 8 {
                let Some((start, death)) = self.deaths.pop_front() else { break };
                if self.is_dead(start, death) {
                    self.spans.remove(&start);
                    self.dead -= 1;
                }
            }
        }
        // Bytes that are used again and again leave outdated entries.
        if self.deaths.len() > 2 * self.dead + 1024 {
            let mut deaths = std::mem::take(&mut self.deaths);
            deaths.retain(|&(start, death)| self.is_dead(start, death));
            self.deaths = deaths;
        }
        before - self.dead
    }

    fn is_dead(&self, start: u64, death: u64) -> bool {
        self.spans.get(&start).is_some_and(|span| span.owner == 0 && span.death == death)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(addr: u64, size: u64, name: &str) -> Live {
        Live { addr, size, reach: addr + size, index: 0, name: name.as_bytes().into(), stored: None, tables_len: 0 }
    }

    fn lines(registry: &Registry) -> String {
        let line = |(start, size, name): (u64, u64, &[u8])| format!("{start}+{size} {}", String::from_utf8_lossy(name));
        registry.spans().map(line).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn freed_code_keeps_its_name_until_its_bytes_are_used_again() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        assert_eq!(registry.insert(1, code(100, 50, "a"), &mut gone), MapChange::Append);
        registry.remove(1).unwrap();
        assert!(registry.remove(1).is_none());
        assert_eq!(lines(&registry), "100+50 a");
        assert_eq!(registry.insert(2, code(120, 10, "b"), &mut gone), MapChange::Rewrite);
        assert_eq!(lines(&registry), "100+20 a, 120+10 b, 130+20 a");
        assert!(gone.is_empty());
        assert_eq!(registry.live_count(), 1);
    }

    #[test]
    fn the_newest_wins_over_live_code() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        registry.insert(1, code(100, 50, "a"), &mut gone);
        registry.insert(2, code(150, 50, "b"), &mut gone);
        registry.insert(3, code(200, 50, "c"), &mut gone);
        assert_eq!(registry.insert(4, code(140, 100, "d"), &mut gone), MapChange::Rewrite);
        assert_eq!(lines(&registry), "100+40 a, 140+100 d, 240+10 c");
        gone.sort_unstable();
        assert_eq!((gone, registry.live_count()), (vec![1, 2, 3], 1));
        assert_eq!(registry.remove(1).map(|live| live.addr), None);
    }

    #[test]
    fn the_same_line_again_changes_nothing() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        registry.insert(1, code(100, 50, "a"), &mut gone);
        assert_eq!(registry.insert(2, code(100, 50, "a"), &mut gone), MapChange::None);
        assert_eq!(registry.insert(3, code(100, 50, "b"), &mut gone), MapChange::Rewrite);
        assert_eq!(gone, [1, 2]);
    }

    #[test]
    fn ranges() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        for n in 0..10 {
            registry.insert(n + 1, code(100 * n, 100, "x"), &mut gone);
        }
        let mut ids = registry.live_in(150, 301);
        ids.sort_unstable();
        assert_eq!(ids, [2, 3, 4]);
        assert!(registry.live_in(1000, 2000).is_empty());
        assert!(registry.live_begins_in(100, 101) && !registry.live_begins_in(101, 200));
        registry.remove(2);
        assert!(!registry.live_begins_in(100, 101));
        let mut all = registry.remove_all();
        all.sort_unstable();
        assert_eq!((all.len(), registry.live_count(), registry.span_count()), (9, 0, 10));
    }

    #[test]
    fn claims_of_free_bytes_are_checked() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        registry.insert(1, Live { reach: 200, ..code(100, 50, "a") }, &mut gone);
        assert!(registry.claimed_free(150) && registry.claimed_free(199) && !registry.claimed_free(200));
        registry.remove(1);
        assert!(!registry.claimed_free(150));
    }

    #[test]
    fn dead_entries_are_bounded_and_the_oldest_go() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        let total = DEAD_MAX as u64 + 100;
        for n in 0..total {
            registry.insert(n + 1, code(16 * n, 16, "x"), &mut gone);
            registry.remove(n + 1);
        }
        let forgotten = registry.forget_oldest();
        assert!(forgotten >= 100 && registry.span_count() <= DEAD_MAX);
        assert_eq!(registry.spans().next().unwrap().0, 16 * forgotten as u64);
        assert_eq!(registry.forget_oldest(), 0);
    }

    #[test]
    fn reuse_does_not_let_memory_grow() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        for n in 0..100_000 {
            registry.insert(n + 1, code(16 * (n % 7), 16, "x"), &mut gone);
            registry.remove(n + 1);
            registry.forget_oldest();
        }
        assert!(registry.deaths.len() < 2000 && registry.span_count() == 7);
    }

    #[test]
    fn spans_never_overlap_whatever_happens() {
        let (mut registry, mut gone) = (Registry::default(), Vec::new());
        let mut random = 1u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        // The truth, byte by byte.
        let mut bytes = vec![0u64; 600];
        for id in 1..5000u64 {
            if next(3) == 0 {
                registry.remove(next(id) + 1);
                continue;
            }
            let (addr, size) = (next(500), next(99) + 1);
            registry.insert(id, code(addr, size, &id.to_string()), &mut gone);
            bytes[addr as usize..(addr + size) as usize].fill(id);
            let mut said = vec![0u64; 600];
            let mut last_end = 0;
            for (start, size, name) in registry.spans() {
                assert!(start >= last_end && size > 0);
                last_end = start + size;
                said[start as usize..last_end as usize].fill(std::str::from_utf8(name).unwrap().parse().unwrap());
            }
            assert_eq!(said, bytes);
        }
    }
}
