//! Tracks which addresses of a process have compiled code at which time.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Range, RangeInclusive};

use super::family::GENERATIONS;
use super::survey::Begin;
use crate::objects::Ranges;

/// The code of one process: parts of the address space without overlaps, each with the time of the first code there.
#[derive(Debug, Default)]
pub struct Cover {
    /// Start and end of each part, ascending.
    parts: Vec<(u64, u64)>,
    /// A tree over the times of the parts. Each node has the minimum of the times of its two children, and the leaves are
    /// last.
    least: Vec<u64>,
}

impl Cover {
    /// Makes the cover. `mappings` are in ascending order of time.
    pub fn of(mappings: impl Iterator<Item = (u64, Range<u64>)>) -> Cover {
        // Each part is stored as its start, its end and its time.
        let mut parts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (time, range) in mappings {
            let mut at = range.start;
            if let Some((_, &(end, _))) = parts.range(..=at).next_back() {
                at = at.max(end);
            }
            // Fills the gaps between existing parts.
            while at < range.end {
                let next = parts.range(at..).next().map(|(&start, &(end, _))| (start, end));
                let (gap_end, after) = match next {
                    Some((start, end)) if start < range.end => (start, end),
                    _ => (range.end, range.end),
                };
                if at < gap_end {
                    parts.insert(at, (gap_end, time));
                }
                at = after;
            }
        }
        let size = parts.len().next_power_of_two();
        let mut least = vec![u64::MAX; 2 * size];
        for (leaf, &(_, time)) in least[size..].iter_mut().zip(parts.values()) {
            *leaf = time;
        }
        for node in (1..size).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        Cover { parts: parts.into_iter().map(|(start, (end, _))| (start, end)).collect(), least }
    }

    /// The time of the first code in a range.
    fn first(&self, range: &Range<u64>) -> Option<u64> {
        let size = self.least.len() / 2;
        let mut low = size + self.parts.partition_point(|&(_, end)| end <= range.start);
        let mut high = size + self.parts.partition_point(|&(start, _)| start < range.end);
        let mut first = u64::MAX;
        while low < high {
            if low % 2 == 1 {
                first = first.min(self.least[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                first = first.min(self.least[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        (first != u64::MAX && !range.is_empty()).then_some(first)
    }
}

/// The maximum number of parts of a mapping that are examined. Addresses after these parts count as code.
const PARTS_MOST: usize = 256;

/// The code of all processes.
#[derive(Debug)]
pub struct Covers<'a> {
    pub by_pid: HashMap<u32, Cover>,
    pub begins: &'a HashMap<u32, Vec<Begin>>,
}

impl Covers<'_> {
    /// Whether a range of a process has code at this time. Code that the process has inherited counts. Code of a program that
    /// was executed earlier does not count.
    pub fn has_code(&self, pid: u32, range: &Range<u64>, time: u64) -> bool {
        self.each(pid, time, &mut |cover, times| cover.first(range).is_some_and(|first| times.contains(&first)))
    }

    /// The parts of a range without code.
    pub fn gaps(&self, pid: u32, range: &Range<u64>, time: u64) -> Vec<Range<u64>> {
        let mut covered = Ranges::default();
        self.each(pid, time, &mut |cover, times| {
            let size = cover.least.len() / 2;
            let first = cover.parts.partition_point(|&(_, end)| end <= range.start);
            let parts = cover.parts.iter().zip(&cover.least[size..]).skip(first);
            let parts = parts.take_while(|(part, _)| part.0 < range.end).filter(|(_, time)| times.contains(time));
            for (number, ((start, end), _)) in parts.enumerate() {
                if number == PARTS_MOST {
                    covered.add(*start..range.end);
                    break;
                }
                covered.add(*start..*end);
            }
            false
        });
        let mut gaps = Vec::new();
        covered.each_gap(range.clone(), |gap| gaps.push(gap));
        gaps
    }

    /// Passes the code of a process, and of those processes from which it has inherited code, to `found`, until `found`
    /// returns true. Code counts if it was loaded at one of the times.
    fn each(&self, pid: u32, time: u64, found: &mut dyn FnMut(&Cover, RangeInclusive<u64>) -> bool) -> bool {
        let (mut pid, mut time) = (pid, time);
        for _ in 0..GENERATIONS {
            let begins = self.begins.get(&pid).map_or(&[][..], Vec::as_slice);
            let begin = begins[..begins.partition_point(|begin| begin.time <= time)].last();
            // Code of a process that existed before the recording can be older than the recording.
            let since = begin.map_or(0, |begin| begin.time);
            if self.by_pid.get(&pid).is_some_and(|cover| found(cover, since..=time)) {
                return true;
            }
            match begin.and_then(|begin| begin.parent) {
                Some(parent) => (pid, time) = (parent, since),
                None => return false,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_code() {
        let cover = Cover::of([(5, 10..20), (6, 30..40), (7, 0..50), (8, 12..35), (9, 60..70)].into_iter());
        assert_eq!(cover.parts, [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (60, 70)]);
        for (range, first) in [
            (0..10, Some(7)),
            (9..11, Some(5)),
            (19..20, Some(5)),
            (20..21, Some(7)),
            (20..31, Some(6)),
            (40..65, Some(7)),
            (50..60, None),
            (65..u64::MAX, Some(9)),
            (0..u64::MAX, Some(5)),
            (12..12, None),
        ] {
            assert_eq!(cover.first(&range), first, "{range:?}");
        }
        assert_eq!(Cover::of(std::iter::empty()).first(&(0..u64::MAX)), None);
    }

    #[test]
    fn children_and_programs() {
        let by_pid = HashMap::from([(7, Cover::of([(10, 100..200), (30, 300..400)].into_iter()))]);
        let begin = |time, parent| Begin { time, parent };
        let begins = HashMap::from([
            (8, vec![begin(20, Some(7)), begin(50, None)]),
            (9, vec![begin(40, Some(8))]),
            (1, vec![begin(0, Some(2))]),
            (2, vec![begin(0, Some(1))]),
        ]);
        let covers = Covers { by_pid, begins: &begins };
        assert!(covers.has_code(7, &(150..160), 10) && !covers.has_code(7, &(150..160), 9));
        assert!(covers.has_code(8, &(150..160), 49), "inherited");
        let gaps = |pid, time| covers.gaps(pid, &(50..500), time);
        let whole = std::slice::from_ref(&(50..500));
        assert!(gaps(7, 9) == whole && gaps(8, 50) == whole);
        assert_eq!(gaps(7, 10), [50..100, 200..500]);
        assert_eq!(gaps(7, 30), [50..100, 200..300, 400..500]);
        assert_eq!(gaps(9, 41), [50..100, 200..500]);
        assert!(!covers.has_code(8, &(300..400), 49), "newer than the fork");
        assert!(!covers.has_code(8, &(150..160), 50), "another program");
        assert!(covers.has_code(9, &(0..1000), 41), "inherited from the parent's parent");
        assert!(!covers.has_code(1, &(0..1000), 41), "a circle");
    }

    /// If there are very many parts, the end of the range counts as code.
    #[test]
    fn many_parts() {
        let parts = (0..1000).map(|number| (1, 10 * number..10 * number + 5));
        let (by_pid, begins) = (HashMap::from([(7, Cover::of(parts))]), HashMap::new());
        let gaps = Covers { by_pid, begins: &begins }.gaps(7, &(0..20_000), 1);
        assert_eq!((gaps.len(), gaps.last().cloned()), (PARTS_MOST, Some(2555..2560)));
    }
}
