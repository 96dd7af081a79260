//! What happens to the code of a process: code of its own, code of its parent at the time of a fork, other programs.

use std::collections::HashMap;

use super::resolve::Event;
use super::survey::Begin;

/// The most generations of processes that are followed.
pub const GENERATIONS: usize = 64;

/// The processes of a recording.
pub struct Families<'a> {
    pub begins: &'a HashMap<u32, Vec<Begin>>,
}

impl Families<'_> {
    /// The process, and all processes from which it can have inherited code.
    pub fn line(&self, pid: u32) -> Vec<u32> {
        let mut line = vec![pid];
        let mut at = 0;
        while at < line.len() && line.len() < GENERATIONS {
            for parent in self.begins_of(line[at]).iter().filter_map(|begin| begin.parent) {
                if !line.contains(&parent) && line.len() < GENERATIONS {
                    line.push(parent);
                }
            }
            at += 1;
        }
        line
    }

    fn begins_of(&self, pid: u32) -> &[Begin] {
        self.begins.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// All events of a process, ascending by time. `own` has the time and the index of each piece of a process's own code,
    /// ascending by time.
    pub fn life(&self, pid: u32, own: &HashMap<u32, Vec<(u64, usize)>>) -> Vec<(u64, Event)> {
        let begins = self.begins_of(pid);
        let mut life = Vec::new();
        // The process can have been there before the recording, or another process of this pid.
        let first = Begin { time: 0, parent: None };
        let starts = [first].into_iter().chain(begins.iter().copied());
        let ends = begins.iter().map(|begin| begin.time).chain([u64::MAX]);
        for (begin, end) in starts.zip(ends) {
            life.push((begin.time, Event::Clear));
            if let Some(parent) = begin.parent {
                let inherited = self.code_at(parent, begin.time, own, 0);
                life.extend(inherited.into_iter().map(|load| (begin.time, Event::Load(load))));
            }
            let own = own_between(own, pid, begin.time, end);
            life.extend(own.iter().map(|&(time, load)| (time, Event::Load(load))));
        }
        life
    }

    /// The code that a process has at a time, in the order in which it was loaded.
    fn code_at(&self, pid: u32, time: u64, own: &HashMap<u32, Vec<(u64, usize)>>, generation: usize) -> Vec<usize> {
        let begins = self.begins_of(pid);
        let number = begins.partition_point(|begin| begin.time < time);
        let begin = number.checked_sub(1).and_then(|number| begins.get(number));
        let mut code = Vec::new();
        if let Some((parent, since)) = begin.and_then(|begin| Some((begin.parent?, begin.time))) {
            if generation < GENERATIONS {
                code = self.code_at(parent, since, own, generation + 1);
            }
        }
        let since = begin.map_or(0, |begin| begin.time);
        code.extend(own_between(own, pid, since, time.saturating_add(1)).iter().map(|&(_, load)| load));
        code
    }
}

/// The code of a process between two times, without the end.
fn own_between(own: &HashMap<u32, Vec<(u64, usize)>>, pid: u32, since: u64, until: u64) -> &[(u64, usize)] {
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
        let families = Families { begins: &begins };
        let own = HashMap::from([
            (7, vec![(10, 0), (20, 1), (30, 2)]),
            (8, vec![(19, 3), (20, 7), (45, 4), (60, 5)]),
            (1, vec![(1, 6)]),
        ]);
        let life = |pid| families.life(pid, &own);
        let load = |time, load| (time, Event::Load(load));
        let clear = |time| (time, Event::Clear);
        assert_eq!(life(7), [clear(0), clear(5), load(10, 0), load(20, 1), load(30, 2)]);
        let before = [clear(0), load(19, 3), clear(20), load(20, 0), load(20, 1)];
        let after = [load(20, 7), load(45, 4), clear(50), load(60, 5)];
        assert_eq!(life(8), [&before[..], &after[..]].concat(), "another process had this pid before");
        assert_eq!(life(9), [clear(0), clear(40), load(40, 0), load(40, 1), load(40, 7)]);
        assert_eq!(life(100), [clear(0)]);
        assert_eq!(life(1)[..3], [clear(0), load(1, 6), clear(3)], "a circle ends");
        assert_eq!((families.line(9), families.line(1)), (vec![9, 8, 7], vec![1, 2]));
    }
}
