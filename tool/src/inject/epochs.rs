//! Which code goes into which object. The samples decide: only code that a sample has is needed.
//!
//! An object is an *epoch* of a neighbourhood, which is code that lies close together. An epoch ends when a sample has code at
//! addresses that other code of the epoch has. perf's unwinders keep what they once read of an object, and of two objects that
//! overlap they use the newer one; so the code of a sample must be in one object, and no older object may be needed again.

use std::collections::BTreeMap;
use std::ops::Range;

use super::hits::Hit;

/// Code that is farther away is another neighbourhood.
const GAP: u64 = 1 << 20;

/// Something that happens to the code of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All code is gone: the process is new, or executes another program.
    Clear,
    /// The code with this index is there.
    Load(usize),
}

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// From when on the object is needed.
    pub time: u64,
    /// Indices of pieces of code. They do not overlap.
    pub loads: Vec<usize>,
}

/// Code that lies close together, and its epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbourhood {
    pub range: Range<u64>,
    /// Ascending by time.
    pub epochs: Vec<Epoch>,
}

/// The neighbourhoods of a process. `place` tells where a piece of code is. `life` and `hits` are ascending by time.
pub fn neighbourhoods(place: &dyn Fn(usize) -> Range<u64>, life: &[(u64, Event)], hits: &[Hit]) -> Vec<Neighbourhood> {
    let groups = resolve(place, life, hits);
    let mut all: Vec<usize> = groups.iter().flat_map(|group| group.loads.iter().copied()).collect();
    all.sort_unstable_by_key(|&load| (place(load).start, load));
    all.dedup();
    let (mut found, mut number_of): (Vec<Neighbourhood>, BTreeMap<usize, usize>) = (Vec::new(), BTreeMap::new());
    for load in all {
        let range = place(load);
        match found.last_mut().filter(|last| range.start <= last.range.end.saturating_add(GAP)) {
            Some(last) => last.range.end = last.range.end.max(range.end),
            None => found.push(Neighbourhood { range, epochs: Vec::new() }),
        }
        number_of.insert(load, found.len() - 1);
    }
    let mut opened: Vec<Open> = found.iter().map(|_| Open::default()).collect();
    for group in &groups {
        if group.is_after_clear {
            opened.iter_mut().zip(&mut found).for_each(|(open, neighbourhood)| open.close(neighbourhood));
        }
        // The hits of each neighbourhood.
        let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for load in &group.loads {
            if let Some(&number) = number_of.get(load) {
                parts.entry(number).or_default().push(*load);
            }
        }
        for (number, loads) in parts {
            if let (Some(open), Some(neighbourhood)) = (opened.get_mut(number), found.get_mut(number)) {
                open.add(place, group.time, &loads, neighbourhood);
            }
        }
    }
    opened.iter_mut().zip(&mut found).for_each(|(open, neighbourhood)| open.close(neighbourhood));
    found
}

/// The epoch of a neighbourhood that has not ended.
#[derive(Default)]
struct Open {
    time: u64,
    /// By start: the end and the index of each piece.
    pieces: BTreeMap<u64, (u64, usize)>,
}

impl Open {
    /// Adds the code of the samples of one time.
    fn add(&mut self, place: &dyn Fn(usize) -> Range<u64>, time: u64, loads: &[usize], into: &mut Neighbourhood) {
        let is_taken = |load: &usize| {
            let range = place(*load);
            let last = self.pieces.range(..range.end).next_back();
            last.is_some_and(|(_, &(end, other))| end > range.start && other != *load)
        };
        if loads.iter().any(is_taken) {
            self.close(into);
        }
        if self.pieces.is_empty() {
            // Before the sample, and not without a time.
            self.time = time.saturating_sub(1).max(1);
        }
        for &load in loads {
            let range = place(load);
            self.pieces.insert(range.start, (range.end, load));
        }
    }

    fn close(&mut self, into: &mut Neighbourhood) {
        if !self.pieces.is_empty() {
            let loads = std::mem::take(&mut self.pieces).into_values().map(|(_, load)| load).collect();
            into.epochs.push(Epoch { time: self.time, loads });
        }
    }
}

/// The code of the samples of one time.
struct Group {
    time: u64,
    loads: Vec<usize>,
    /// Whether all code was gone since the last group.
    is_after_clear: bool,
}

/// Finds the code at the address of each hit.
fn resolve(place: &dyn Fn(usize) -> Range<u64>, life: &[(u64, Event)], hits: &[Hit]) -> Vec<Group> {
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
                    while let Some((&start, _)) = live.range(..range.end).next_back().filter(|(_, at)| at.0 > range.start) {
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
        &[(10, 0x1000..0x1010), (11, 0x1010..0x1020), (20, 0x1008..0x1018), (12, 0x90_0000..0x90_0010), (30, 0x2000..0x2001)];

    fn all(life: &[(u64, Event)], hits: &[Hit]) -> Vec<(Range<u64>, Vec<(u64, Vec<usize>)>)> {
        let found = neighbourhoods(&|load| CODE[load].1.clone(), life, hits);
        let epochs = |all: Vec<Epoch>| all.into_iter().map(|epoch| (epoch.time, epoch.loads)).collect();
        found.into_iter().map(|one| (one.range, epochs(one.epochs))).collect()
    }

    fn life() -> Vec<(u64, Event)> {
        let mut life: Vec<(u64, Event)> = CODE.iter().enumerate().map(|(at, code)| (code.0, Event::Load(at))).collect();
        life.sort_by_key(|event| event.0);
        life
    }

    #[test]
    fn samples_make_epochs() {
        assert_eq!(all(&life(), &[]), []);
        assert_eq!(all(&life(), &[(9, 0x1000), (10, 0x1010 + 1), (50, 0x5000)]), [], "no code at that time");
        // A return address at the end of a function, and code that is used again.
        let hits = [(15, 0x1010), (16, 0x1000), (25, 0x1010), (26, 0x90_0000), (40, 0x2000), (41, 0x1008)];
        let expected = vec![
            (0x1000..0x2001, vec![(14, vec![0, 1]), (24, vec![2, 4])]),
            (0x90_0000..0x90_0010, vec![(25, vec![3])]),
        ];
        assert_eq!(all(&life(), &hits), expected);
        // Code that was partly overwritten is dead.
        assert_eq!(all(&life(), &[(25, 0x1000), (25, 0x101f)]), []);
    }

    #[test]
    fn code_of_one_time_is_in_one_epoch() {
        let hits = [(15, 0x1000), (31, 0x1008), (31, 0x2000)];
        assert_eq!(all(&life(), &hits), [(0x1000..0x2001, vec![(14, vec![0]), (30, vec![2, 4])])]);
    }

    #[test]
    fn another_program() {
        let mut life = life();
        life.push((35, Event::Clear));
        life.push((36, Event::Load(0)));
        let hits = [(15, 0x1000), (31, 0x1008), (35, 0x1008), (36, 0x1000)];
        assert_eq!(all(&life, &hits), [(0x1000..0x1018, vec![(14, vec![0]), (30, vec![2]), (35, vec![0])])]);
    }
}
