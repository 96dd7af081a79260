//! Which code of a process a sample has.

use std::collections::BTreeMap;
use std::ops::Range;

use super::hits::Hit;

/// Something that happens to the code of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All code is gone: the process is new, or executes another program.
    Clear,
    /// The code with this index is there.
    Load(usize),
    /// Memory is mapped, which can be a region.
    Map(usize),
}

/// What mappings tell about the code of a process.
pub trait Mapped {
    /// Forgets all mappings.
    fn clear(&mut self);
    /// The mapping with this index is there. Returns whether it hides objects.
    fn map(&mut self, mapping: usize) -> bool;
    /// The code at an address. `dumped`: the code there of a jitdump, and when it was loaded.
    fn code_at(&mut self, addr: u64, dumped: Option<(u64, usize)>) -> Option<usize>;
}

/// The code of the samples of one time.
pub struct Group {
    pub time: u64,
    /// Indices, ascending.
    pub loads: Vec<usize>,
    /// Whether all code was gone since the last group, or objects were hidden.
    pub is_after_clear: bool,
}

/// Finds the code at the address of each hit. `place` tells where a piece of code is. `life` and `hits` are ascending by time.
pub fn resolve(
    place: &dyn Fn(usize) -> Range<u64>,
    life: &[(u64, Event)],
    hits: &[Hit],
    mapped: &mut dyn Mapped,
) -> Vec<Group> {
    let mut life = life.iter().peekable();
    // By start: the end, the time and the index of each piece that lives.
    let mut live: BTreeMap<u64, (u64, u64, usize)> = BTreeMap::new();
    let (mut groups, mut is_after_clear): (Vec<Group>, bool) = (Vec::new(), false);
    for same_time in hits.chunk_by(|one, next| one.0 == next.0) {
        let Some(&(time, _)) = same_time.first() else { continue };
        while let Some((since, event)) = life.next_if(|(at, _)| *at <= time) {
            match *event {
                Event::Clear => {
                    live.clear();
                    mapped.clear();
                    is_after_clear = true;
                }
                Event::Load(load) => {
                    // Code dies when its addresses are used again.
                    let range = place(load);
                    while let Some((&start, _)) =
                        live.range(..range.end).next_back().filter(|(_, at)| at.0 > range.start)
                    {
                        live.remove(&start);
                    }
                    live.insert(range.start, (range.end, *since, load));
                }
                Event::Map(mapping) => is_after_clear |= mapped.map(mapping),
            }
        }
        let mut at = |addr: u64| {
            let piece = live.range(..=addr).next_back().filter(|(_, (end, ..))| addr < *end);
            mapped.code_at(addr, piece.map(|(_, &(_, since, load))| (since, load)))
        };
        // A return address is behind a call, which can be the last instruction of its function.
        let both = same_time.iter().flat_map(|&(_, addr)| [at(addr), addr.checked_sub(1).and_then(&mut at)]);
        let mut loads: Vec<usize> = both.flatten().collect();
        loads.sort_unstable();
        loads.dedup();
        if !loads.is_empty() {
            groups.push(Group { time, loads, is_after_clear: std::mem::take(&mut is_after_clear) });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No region.
    struct Nothing;

    impl Mapped for Nothing {
        fn clear(&mut self) {}

        fn map(&mut self, _: usize) -> bool {
            true
        }

        fn code_at(&mut self, _: u64, dumped: Option<(u64, usize)>) -> Option<usize> {
            dumped.map(|(_, load)| load)
        }
    }

    /// Pieces of code by index: times and places.
    const CODE: &[(u64, Range<u64>)] =
        &[(10, 0x1000..0x1010), (11, 0x1010..0x1020), (20, 0x1008..0x1018), (30, 0x2000..0x2001)];

    fn all(more: &[(u64, Event)], hits: &[Hit]) -> Vec<(u64, Vec<usize>, bool)> {
        let mut life: Vec<(u64, Event)> = CODE.iter().enumerate().map(|(at, code)| (code.0, Event::Load(at))).collect();
        life.extend(more);
        life.sort_by_key(|event| event.0);
        let groups = resolve(&|load| CODE[load].1.clone(), &life, hits, &mut Nothing);
        groups.into_iter().map(|group| (group.time, group.loads, group.is_after_clear)).collect()
    }

    #[test]
    fn code_at_addresses() {
        assert_eq!(all(&[], &[]), []);
        assert_eq!(all(&[], &[(9, 0x1000), (10, 0x1011), (50, 0x5000)]), [], "no code at that time");
        // A return address at the end of a function can belong to both neighbours.
        assert_eq!(all(&[], &[(15, 0x1010)]), [(15, vec![0, 1], false)]);
        assert_eq!(
            all(&[], &[(15, 0x1000), (15, 0x1020), (40, 0x2000)]),
            [(15, vec![0, 1], false), (40, vec![3], false)]
        );
        // Code that was partly overwritten is dead.
        assert_eq!(all(&[], &[(25, 0x1000), (25, 0x101f), (26, 0x1009)]), [(26, vec![2], false)]);
    }

    #[test]
    fn mappings_that_hide_objects() {
        let found = all(&[(35, Event::Map(0))], &[(31, 0x1009), (35, 0x1009), (36, 0x1009)]);
        assert_eq!(found, [(31, vec![2], false), (35, vec![2], true), (36, vec![2], false)]);
    }

    #[test]
    fn another_program() {
        let more = [(35, Event::Clear), (36, Event::Load(0))];
        let hits = [(31, 0x1009), (35, 0x1009), (36, 0x1009), (37, 0x1009)];
        assert_eq!(all(&more, &hits), [(31, vec![2], false), (36, vec![0], true), (37, vec![0], false)]);
    }
}
