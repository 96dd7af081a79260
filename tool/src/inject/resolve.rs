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
}

/// The code of the samples of one time.
pub struct Group {
    pub time: u64,
    /// Indices, ascending.
    pub loads: Vec<usize>,
    /// Whether all code was gone since the last group.
    pub is_after_clear: bool,
}

/// Finds the code at the address of each hit. `place` tells where a piece of code is. `life` and `hits` are ascending by time.
pub fn resolve(place: &dyn Fn(usize) -> Range<u64>, life: &[(u64, Event)], hits: &[Hit]) -> Vec<Group> {
    let mut life = life.iter().peekable();
    // By start: the end and the index of each piece that lives.
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let (mut groups, mut is_after_clear): (Vec<Group>, bool) = (Vec::new(), false);
    for same_time in hits.chunk_by(|one, next| one.0 == next.0) {
        let Some(&(time, _)) = same_time.first() else { continue };
        while let Some((_, event)) = life.next_if(|(at, _)| *at <= time) {
            match *event {
                Event::Clear => {
                    live.clear();
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
                    live.insert(range.start, (range.end, load));
                }
            }
        }
        let at = |addr: u64| {
            let (_, &(end, load)) = live.range(..=addr).next_back()?;
            (addr < end).then_some(load)
        };
        // A return address is behind a call, which can be the last instruction of its function.
        let both = same_time.iter().flat_map(|&(_, addr)| [at(addr), addr.checked_sub(1).and_then(at)]);
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

    /// Pieces of code by index: times and places.
    const CODE: &[(u64, Range<u64>)] =
        &[(10, 0x1000..0x1010), (11, 0x1010..0x1020), (20, 0x1008..0x1018), (30, 0x2000..0x2001)];

    fn all(more: &[(u64, Event)], hits: &[Hit]) -> Vec<(u64, Vec<usize>, bool)> {
        let mut life: Vec<(u64, Event)> = CODE.iter().enumerate().map(|(at, code)| (code.0, Event::Load(at))).collect();
        life.extend(more);
        life.sort_by_key(|event| event.0);
        let groups = resolve(&|load| CODE[load].1.clone(), &life, hits);
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
    fn another_program() {
        let more = [(35, Event::Clear), (36, Event::Load(0))];
        let hits = [(31, 0x1009), (35, 0x1009), (36, 0x1009), (37, 0x1009)];
        assert_eq!(all(&more, &hits), [(31, vec![2], false), (36, vec![0], true), (37, vec![0], false)]);
    }
}
