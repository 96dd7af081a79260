//! Tracks the code of each process over time. A process loads code, inherits code of its parent at a fork, and loses all code
//! when it executes another program.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use super::resolve::{Event, Live};
use super::survey::Begin;

/// The maximum number of generations of processes that are followed.
pub const GENERATIONS: usize = 64;
/// The maximum number of pieces of code and mappings that all processes together inherit. Otherwise each of very many
/// processes could inherit the code of a large program.
const INHERITED_MOST: usize = 1 << 27;
/// The maximum number of pieces of code and mappings that one process inherits.
const LIFE_MOST: usize = 1 << 22;
/// The maximum number of pieces of parents' code that are kept for further children.
const KEPT_MOST: usize = 1 << 22;

/// For each process, times and indices of code or mappings, ascending by time.
pub type Own = HashMap<u32, Vec<(u64, usize)>>;

/// The processes of a recording.
pub struct Families<'a> {
    begins: &'a HashMap<u32, Vec<Begin>>,
    own: &'a Own,
    place: &'a dyn Fn(usize) -> Range<u64>,
    /// The known code of processes. The key is the pid, the number of beginnings, and the number of pieces since the last
    /// beginning.
    known: RefCell<HashMap<(u32, usize, usize), Rc<Live>>>,
    kept: Cell<usize>,
    left: Cell<usize>,
}

impl<'a> Families<'a> {
    /// Makes the families. `own` is the code that each process has loaded, and `place` returns the addresses of a piece.
    pub fn new(
        begins: &'a HashMap<u32, Vec<Begin>>,
        own: &'a Own,
        place: &'a dyn Fn(usize) -> Range<u64>,
    ) -> Families<'a> {
        let (known, kept, left) = (RefCell::default(), Cell::new(0), Cell::new(INHERITED_MOST));
        Families { begins, own, place, known, kept, left }
    }

    /// Whether processes inherit too much code, so that some of it is missing.
    pub fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }

    /// Returns these processes, and all processes that may have inherited code from them.
    pub fn with_children(&self, pids: HashSet<u32>) -> HashSet<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (&pid, begins) in self.begins {
            for parent in begins.iter().filter_map(|begin| begin.parent) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let (mut open, mut found): (Vec<u32>, _) = (pids.iter().copied().collect(), pids);
        while let Some(pid) = open.pop() {
            // The children of each process are added once.
            let own = children.remove(&pid).unwrap_or_default();
            open.extend(own.into_iter().filter(|&child| found.insert(child)));
        }
        found
    }

    fn begins_of(&self, pid: u32) -> &'a [Begin] {
        self.begins.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The times at which the code of a process changes, ascending. `mappings` are the mappings of each process.
    pub fn changes(&self, pid: u32, mappings: &Own) -> Vec<u64> {
        let own = [self.own, mappings].into_iter().filter_map(|own| own.get(&pid)).flatten().map(|&(time, _)| time);
        let mut times: Vec<u64> = self.begins_of(pid).iter().map(|begin| begin.time).chain(own).collect();
        times.sort_unstable();
        times.dedup();
        times
    }

    /// All events of a process, ascending by time.
    pub fn life(&self, pid: u32, mappings: &Own) -> Vec<(u64, Event)> {
        let begins = self.begins_of(pid);
        let mut life = Vec::new();
        // Before the recording, this process or another process with this pid may have existed.
        let first = Begin { time: 0, parent: None };
        let starts = [first].into_iter().chain(begins.iter().copied());
        let ends = begins.iter().map(|begin| begin.time).chain([u64::MAX]);
        let mut room = LIFE_MOST;
        for (begin, end) in starts.zip(ends) {
            let code = begin.parent.map_or_else(Rc::default, |parent| self.code_at(parent, begin.time, 0));
            let inherited = match begin.parent {
                Some(parent) if room > 0 => self.mappings_at(parent, begin.time, mappings, 0),
                _ => Vec::new(),
            };
            // No real process begins so often with so much code.
            let code = if room > code.len() { code } else { Rc::default() };
            room = room.saturating_sub(code.len() + inherited.len());
            life.push((begin.time, Event::Begin(code)));
            life.extend(inherited.into_iter().map(|mapping| (begin.time, Event::Map(mapping))));
            let new = own_between(self.own, pid, begin.time, end);
            life.extend(new.iter().map(|&(time, load)| (time, Event::Load(load))));
            let new = own_between(mappings, pid, begin.time, end);
            life.extend(new.iter().map(|&(time, mapping)| (time, Event::Map(mapping))));
        }
        // At the same time, the process begins first, and memory is mapped before it has code. Inherited mappings stay first.
        let rank = |event: &Event| match event {
            Event::Begin(_) => 0,
            Event::Map(_) => 1,
            Event::Load(_) => 2,
        };
        life.sort_by_key(|(time, event)| (*time, rank(event)));
        life
    }

    /// How many times the process has begun before a time, and the last of these beginnings.
    fn begin_before(&self, pid: u32, time: u64) -> (usize, Option<Begin>) {
        let begins = self.begins_of(pid);
        let number = begins.partition_point(|begin| begin.time < time);
        (number, number.checked_sub(1).and_then(|number| begins.get(number)).copied())
    }

    /// Counts inherited pieces. Returns false if there are too many.
    fn count(&self, inherited: usize) -> bool {
        self.left.set(self.left.get().saturating_sub(inherited));
        !self.is_exhausted()
    }

    /// The code that a process has at a time.
    fn code_at(&self, pid: u32, time: u64, generation: usize) -> Rc<Live> {
        let (number, begin) = self.begin_before(pid, time);
        let since = begin.map_or(0, |begin| begin.time);
        let own = own_between(self.own, pid, since, time.saturating_add(1));
        let key = (pid, number, own.len());
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let parent = begin.and_then(|begin| begin.parent).filter(|_| generation < GENERATIONS);
        let inherited = parent.map_or_else(Rc::default, |parent| self.code_at(parent, since, generation + 1));
        if own.is_empty() {
            return inherited;
        }
        if !self.count(inherited.len() + own.len()) {
            return Rc::default();
        }
        let mut code = (*inherited).clone();
        own.iter().for_each(|&(time, load)| super::resolve::load(&mut code, &(self.place)(load), time, load));
        self.kept.set(self.kept.get() + code.len());
        if self.kept.get() > KEPT_MOST {
            self.known.borrow_mut().clear();
            self.kept.set(code.len());
        }
        let code = Rc::new(code);
        self.known.borrow_mut().insert(key, code.clone());
        code
    }

    /// The mappings that a process has at a time, in the order in which they were made.
    fn mappings_at(&self, pid: u32, time: u64, own: &Own, generation: usize) -> Vec<usize> {
        let (_, begin) = self.begin_before(pid, time);
        let mut mappings = Vec::new();
        if let Some((parent, since)) = begin.and_then(|begin| Some((begin.parent?, begin.time))) {
            if generation < GENERATIONS {
                mappings = self.mappings_at(parent, since, own, generation + 1);
            }
        }
        let since = begin.map_or(0, |begin| begin.time);
        let new = own_between(own, pid, since, time.saturating_add(1));
        if self.count(mappings.len() + new.len()) {
            mappings.extend(new.iter().map(|&(_, mapping)| mapping));
        }
        mappings
    }
}

/// The pieces that a process has loaded from `since` up to `until`, which is not included.
fn own_between(own: &Own, pid: u32, since: u64, until: u64) -> &[(u64, usize)] {
    let own = own.get(&pid).map_or(&[][..], Vec::as_slice);
    let start = own.partition_point(|&(time, _)| time < since);
    let end = own.partition_point(|&(time, _)| time < until);
    own.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_have_the_code_of_their_parents() {
        let begin = |time, parent| Begin { time, parent };
        let begins = HashMap::from([
            (7, vec![begin(5, None)]),
            (8, vec![begin(20, Some(7)), begin(50, None)]),
            (9, vec![begin(40, Some(8))]),
            (1, vec![begin(3, Some(2))]),
            (2, vec![begin(2, Some(1))]),
        ]);
        let own = Own::from([
            (7, vec![(10, 0), (20, 1), (30, 2)]),
            (8, vec![(19, 3), (20, 7), (45, 4), (60, 5)]),
            (1, vec![(1, 6)]),
        ]);
        // The eighth piece overlaps the second piece.
        let place = |load: usize| if load == 7 { 108..112 } else { 100 * load as u64..100 * load as u64 + 10 };
        let families = Families::new(&begins, &own, &place);
        let life = |pid| -> Vec<(u64, char, Vec<usize>)> {
            let life = families.life(pid, &Own::new()).into_iter();
            life.map(|(time, event)| match event {
                Event::Begin(code) => (time, 'b', code.values().map(|(_, load)| load).collect()),
                Event::Load(load) => (time, 'l', vec![load]),
                Event::Map(mapping) => (time, 'm', vec![mapping]),
            })
            .collect()
        };
        let (begin, load) = (|time, code: &[usize]| (time, 'b', code.to_vec()), |time, load| (time, 'l', vec![load]));
        assert_eq!(life(7), [begin(0, &[]), begin(5, &[]), load(10, 0), load(20, 1), load(30, 2)]);
        let before = [begin(0, &[]), load(19, 3), begin(20, &[0, 1])];
        let after = [load(20, 7), load(45, 4), begin(50, &[]), load(60, 5)];
        assert_eq!(life(8), [&before[..], &after[..]].concat(), "another process had this pid before");
        assert_eq!(life(9), [begin(0, &[]), begin(40, &[0, 7])], "the code that was replaced is dead");
        assert_eq!(life(100), [begin(0, &[])]);
        assert_eq!(life(1)[..3], [begin(0, &[]), load(1, 6), begin(3, &[6])], "a circle ends");
        let all = |pids: &[u32]| families.with_children(pids.iter().copied().collect());
        assert_eq!((all(&[8]), all(&[1])), (HashSet::from([8, 9]), HashSet::from([1, 2])));
        let mappings = Own::from([(7, vec![(12, 0), (20, 1), (30, 2)]), (8, vec![(20, 3)])]);
        let maps = |pid| -> Vec<(u64, usize)> {
            let life = families.life(pid, &mappings).into_iter();
            life.filter_map(|(time, event)| if let Event::Map(mapping) = event { Some((time, mapping)) } else { None })
                .collect()
        };
        assert_eq!((maps(8), maps(9)), (vec![(20, 0), (20, 1), (20, 3)], vec![(40, 0), (40, 1), (40, 3)]));
        assert_eq!(families.changes(8, &mappings), [19, 20, 45, 50, 60]);
    }
}
