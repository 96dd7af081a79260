//! Finds the code of a process at the address of a sample.

use std::ops::Range;
use std::rc::Rc;

use super::hits::Hits;
use crate::spans::Spans;

/// The code of a process at one time: the load time and the index of each piece.
pub type Live = Spans<(u64, usize)>;

/// An event that affects the code of a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// The process begins with this code of its parent, or executes another program.
    Begin(Rc<Live>),
    /// The code with this index is loaded.
    Load(usize),
    /// Memory is mapped, which can be a region or a library.
    Map(usize),
}

/// The effects of a mapping.
#[derive(Debug, Default)]
pub struct Change {
    /// Whether the mapping hides objects.
    pub hides: bool,
    /// The ranges in which the mapping has replaced memory with code.
    pub taken: Vec<Range<u64>>,
}

/// The mappings of a process, as far as they affect its code.
pub trait Mapped {
    /// Removes all mappings.
    fn clear(&mut self);
    /// Adds the mapping with this index.
    fn map(&mut self, mapping: usize) -> Change;
    /// Whether an address is in a region.
    fn is_region(&self, addr: u64) -> bool;
    /// The code at an address. `dumped` is the code of a jitdump at this address, with its load time.
    fn code_at(&mut self, addr: u64, dumped: Option<(u64, usize)>) -> Option<usize>;
}

/// The code of the samples between two changes of a process's code.
#[derive(Debug, Default)]
pub struct Group {
    /// The time of the first sample.
    pub time: u64,
    /// Indices, ascending.
    pub loads: Vec<usize>,
    /// Addresses in samples at which no code is known.
    pub unknown: Vec<u64>,
    /// Whether all code was removed since the last group, or objects were hidden.
    pub is_after_clear: bool,
}

/// Loads a piece of code. Earlier code at its addresses is dead.
pub fn load(live: &mut Live, place: &Range<u64>, time: u64, load: usize) {
    live.remove(place);
    live.add(place, (time, load));
}

/// If the recording does not show when code is used, the code is used this long after it was loaded, and so after a fork at
/// the same time.
const SOON: u64 = 2;

/// Finds the code at the address of each hit. `place` returns the addresses of a piece of code. `life` is in ascending order
/// of time. If `all` is true, all code counts as used when it is loaded.
pub fn resolve(
    place: &dyn Fn(usize) -> Range<u64>,
    life: &[(u64, Event)],
    hits: &Hits,
    all: bool,
    mapped: &mut dyn Mapped,
) -> Vec<Group> {
    let mut life = life.iter().peekable();
    let mut live = Rc::<Live>::default();
    let (mut groups, mut is_after_clear): (Vec<Group>, bool) = (Vec::new(), false);
    let mut hits = hits.groups().peekable();
    loop {
        let time = match hits.peek() {
            Some(&(time, _)) => time,
            None if all => u64::MAX,
            None => break,
        };
        while let Some((since, event)) = life.next_if(|(at, _)| *at <= time) {
            let mut used = Vec::new();
            match event {
                Event::Begin(code) => {
                    live = code.clone();
                    mapped.clear();
                    is_after_clear = true;
                    used.extend(live.values().map(|(_, load)| load).filter(|_| all));
                }
                Event::Load(index) => {
                    load(Rc::make_mut(&mut live), &place(*index), *since, *index);
                    used.extend(Some(*index).filter(|_| all));
                }
                Event::Map(mapping) => {
                    let change = mapped.map(*mapping);
                    is_after_clear |= change.hides;
                    for range in &change.taken {
                        Rc::make_mut(&mut live).remove(range);
                    }
                }
            }
            if !used.is_empty() {
                used.sort_unstable();
                let (time, unknown) = (since.saturating_add(SOON), Vec::new());
                groups.push(Group { time, loads: used, unknown, is_after_clear: std::mem::take(&mut is_after_clear) });
            }
        }
        let Some((time, addrs)) = hits.next() else { break };
        let mut at = |addr: u64| mapped.code_at(addr, live.at(addr));
        let (mut loads, mut unknown) = (Vec::new(), Vec::new());
        for &addr in addrs {
            // A return address follows a call, which can be the last instruction of its function.
            let both = [at(addr), addr.checked_sub(1).and_then(&mut at)];
            if both == [None, None] {
                unknown.push(addr);
            }
            loads.extend(both.into_iter().flatten());
        }
        unknown.retain(|&addr| !mapped.is_region(addr));
        loads.sort_unstable();
        loads.dedup();
        if !loads.is_empty() || !unknown.is_empty() {
            // A group with only unknown addresses needs no object.
            let is_after_clear = !loads.is_empty() && std::mem::take(&mut is_after_clear);
            groups.push(Group { time, loads, unknown, is_after_clear });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process without regions.
    struct Nothing;

    impl Mapped for Nothing {
        fn clear(&mut self) {}

        fn map(&mut self, mapping: usize) -> Change {
            Change { hides: true, taken: TAKEN[mapping].to_vec() }
        }

        fn is_region(&self, addr: u64) -> bool {
            addr >= 0x9000
        }

        fn code_at(&mut self, _: u64, dumped: Option<(u64, usize)>) -> Option<usize> {
            dumped.map(|(_, load)| load)
        }
    }

    /// The ranges that mappings replace, by index.
    const TAKEN: &[&[Range<u64>]] = &[&[], &[0x1000..0x1004, 0x1004..0x100a]];

    /// Pieces of code by index, with times and addresses.
    const CODE: &[(u64, Range<u64>)] =
        &[(10, 0x1000..0x1010), (11, 0x1010..0x1020), (20, 0x1008..0x1018), (30, 0x2000..0x2001)];

    fn groups(more: &[(u64, Event)], hits: &[(u64, u64)], all: bool) -> Vec<Group> {
        let mut life: Vec<(u64, Event)> = CODE.iter().enumerate().map(|(at, code)| (code.0, Event::Load(at))).collect();
        life.extend(more.iter().cloned());
        life.sort_by_key(|event| event.0);
        let changes: Vec<u64> = life.iter().map(|event| event.0).collect();
        resolve(&|load| CODE[load].1.clone(), &life, &Hits::of(changes, hits), all, &mut Nothing)
    }

    fn all(more: &[(u64, Event)], hits: &[(u64, u64)]) -> Vec<(u64, Vec<usize>, bool)> {
        let groups = groups(more, hits, false).into_iter().filter(|group| !group.loads.is_empty());
        groups.map(|group| (group.time, group.loads, group.is_after_clear)).collect()
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
        assert_eq!(all(&[], &[(25, 0x1000), (25, 0x101f), (26, 0x1009)]), [(25, vec![2], false)]);
    }

    #[test]
    fn mappings_that_hide_objects() {
        let found = all(&[(35, Event::Map(0))], &[(31, 0x1009), (35, 0x1009), (36, 0x1009)]);
        assert_eq!(found, [(31, vec![2], false), (35, vec![2], true)]);
    }

    #[test]
    fn another_program() {
        let more = [(35, Event::Begin(Rc::default())), (36, Event::Load(0))];
        let hits = [(31, 0x1009), (35, 0x1009), (36, 0x1009), (37, 0x1009)];
        assert_eq!(all(&more, &hits), [(31, vec![2], false), (36, vec![0], true)]);
        let mut code = Live::default();
        load(&mut code, &CODE[3].1, 5, 3);
        let more = [(35, Event::Begin(Rc::new(code)))];
        assert_eq!(
            all(&more, &[(34, 0x2000), (36, 0x2000), (36, 0x1009)]),
            [(34, vec![3], false), (36, vec![3], true)]
        );
    }

    /// Code is removed even if a library replaces only a part of it.
    #[test]
    fn memory_that_is_used_for_something_else() {
        let hits = [(31, 0x1009), (36, 0x1009), (36, 0x1017), (36, 0x2000)];
        assert_eq!(all(&[(35, Event::Map(1))], &hits), [(31, vec![2], false), (36, vec![3], true)]);
    }

    #[test]
    fn code_that_nobody_knows() {
        let hits = [(31, 0x1009), (32, 0x1000), (33, 0x101f), (33, 0x9000), (36, 0x5000)];
        let found = groups(&[(35, Event::Begin(Rc::default()))], &hits, false);
        let found: Vec<_> = found.iter().map(|group| (group.time, &*group.unknown, group.is_after_clear)).collect();
        assert_eq!(found, [(31, &[0x1000, 0x101f][..], false), (36, &[0x5000], false)]);
    }

    /// Without samples, all code is used when it is loaded.
    #[test]
    fn all_code() {
        let mut code = Live::default();
        load(&mut code, &CODE[1].1, 5, 1);
        load(&mut code, &CODE[0].1, 5, 0);
        let found = groups(&[(35, Event::Begin(Rc::new(code)))], &[(40, 0x1011)], true);
        let found: Vec<_> = found.into_iter().map(|group| (group.time, group.loads, group.is_after_clear)).collect();
        let one = |time, load| (time, vec![load], false);
        let expected = [one(12, 0), one(13, 1), one(22, 2), one(32, 3), (37, vec![0, 1], true), (40, vec![1], false)];
        assert_eq!(found, expected);
    }
}
