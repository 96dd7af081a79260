//! Collects the addresses in samples that may be in compiled code.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use crate::objects::GAP_MAX;
use crate::open;
use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, Events};
use crate::perf_data::{invalid, Layout};

/// The addresses of all code of all processes.
#[derive(Debug, Default)]
pub struct Filter {
    /// Sorted, without overlaps.
    parts: Vec<(u64, u64)>,
}

impl Filter {
    pub fn of(mut ranges: Vec<Range<u64>>) -> Filter {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for range in ranges {
            match parts.last_mut().filter(|(_, end)| range.start <= *end) {
                Some((_, end)) => *end = (*end).max(range.end),
                None => parts.push((range.start, range.end)),
            }
        }
        Filter { parts }
    }

    /// Whether an address of this range has code.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let next = self.parts.partition_point(|&(_, end)| end <= range.start);
        self.parts.get(next).is_some_and(|&(start, _)| start < range.end)
    }

    /// Returns the address itself if there may be code. The end of code also counts, because a call at the end returns there.
    /// An address between code, for which an object may have room, becomes the first address after the gap. For all other
    /// addresses, returns `None`.
    fn find(&self, addr: u64) -> Option<u64> {
        let next = self.parts.partition_point(|&(_, end)| end < addr);
        let &(start, _) = self.parts.get(next)?;
        if start <= addr {
            return Some(addr);
        }
        let &(_, before) = self.parts.get(next.checked_sub(1)?)?;
        (start - before < GAP_MAX).then_some(before + 1)
    }
}

/// The number of changes of the process's code so far, and an address in samples before the next change.
type Hit = (u32, u64);

/// The addresses in the samples of a process.
#[derive(Debug, Default)]
pub struct Hits {
    /// The times at which the code of the process changed, ascending.
    changes: Vec<u64>,
    /// For each number of changes, the time of the first sample.
    first: HashMap<u32, u64>,
    /// Sorted and without duplicates after `finish`.
    all: Vec<Hit>,
    /// When the list has this length, duplicates are removed.
    limit: usize,
}

/// The minimum of this limit.
const LIMIT_LEAST: usize = 1 << 16;

impl Hits {
    pub fn new(changes: Vec<u64>) -> Hits {
        Hits { changes, limit: LIMIT_LEAST, ..Hits::default() }
    }

    /// The number of changes up to a time.
    fn number(&self, time: u64) -> u32 {
        u32::try_from(self.changes.partition_point(|&change| change <= time)).unwrap_or(u32::MAX)
    }

    /// Adds the addresses of a sample. Returns by how many hits the memory has grown.
    fn add(&mut self, time: u64, addrs: &[u64]) -> usize {
        let number = self.number(time);
        let first = self.first.entry(number).or_insert(time);
        *first = (*first).min(time);
        let before = self.all.capacity();
        self.all.extend(addrs.iter().map(|&addr| (number, addr)));
        if self.all.len() >= self.limit {
            self.finish();
            self.limit = LIMIT_LEAST.max(2 * self.all.len());
        }
        self.all.capacity() - before
    }

    fn finish(&mut self) {
        self.all.sort_unstable();
        self.all.dedup();
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The addresses of the samples between two changes, with the time of the first sample.
    pub fn groups(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = &u64>)> {
        let groups = self.all.chunk_by(|one, next| one.0 == next.0);
        groups.filter_map(|hits| {
            let time = *self.first.get(&hits.first()?.0)?;
            Some((time, hits.iter().map(|(_, addr)| addr)))
        })
    }

    #[cfg(test)]
    pub fn of(mut changes: Vec<u64>, hits: &[(u64, u64)]) -> Hits {
        changes.dedup();
        let mut all = Hits::new(changes);
        for &(time, addr) in hits {
            all.add(time, &[addr]);
        }
        all.finish();
        all
    }
}

/// Reads all samples of the processes in `hits`. Every word of a sample can be an address in code: the instruction pointer,
/// an entry of a call chain, or a return address on a copied stack.
pub fn read(
    file: &File,
    layout: &Layout,
    forms: &Forms<'_>,
    filter: &Filter,
    hits: &mut HashMap<u32, Hits>,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = open::most() as usize / size_of::<Hit>();
    let mut found = Vec::new();
    let (low, high) =
        (filter.parts.first().map_or(u64::MAX, |part| part.0), filter.parts.last().map_or(0, |part| part.1));
    Events::new(file, layout)?.each(progress, &mut |event| {
        // perf 7 can record the call chain of a sample in a separate event, which comes later.
        if !matches!(event.kind(), kind::SAMPLE | kind::CALLCHAIN_DEFERRED) {
            return Ok(());
        }
        let (Some(pid), Some(time)) = (forms.pid(event), forms.time(event)) else { return Ok(()) };
        let Some(hits) = hits.get_mut(&pid) else { return Ok(()) };
        found.clear();
        let words = event.bytes[8..].as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        found.extend(words.filter(|&word| low <= word && word <= high).filter_map(|word| filter.find(word)));
        if !found.is_empty() {
            match left.checked_sub(hits.add(time, &found)) {
                Some(less) => left = less,
                None => return invalid("has more addresses of compiled code than there is memory for"),
            }
        }
        Ok(())
    })?;
    hits.values_mut().for_each(Hits::finish);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_code() {
        let far = 0x1000_0000;
        let filter = Filter::of(vec![0x9000..0x9010, far..far + 1, 0x1000..0x1010, 0x1010..0x1900, 0x1000..0x1008]);
        assert_eq!(filter.parts, [(0x1000, 0x1900), (0x9000, 0x9010), (far, far + 1)]);
        for addr in [0x1000, 0x1900, 0x9000, 0x9010, far, far + 1] {
            assert_eq!(filter.find(addr), Some(addr));
        }
        assert_eq!([0x1901, 0x8fff].map(|addr| filter.find(addr)), [Some(0x1901); 2], "between code");
        assert!(![0, 0xfff, 0x9011, far - 1, far + 2, u64::MAX].iter().any(|&addr| filter.find(addr).is_some()));
        assert!(Filter::default().find(0).is_none());
        let overlaps = [0..0x1000, 0..0x1001, 0x1900..0x9000, 0x1900..0x9001, 0x18ff..0x1900, far + 1..far + 9];
        assert_eq!(overlaps.map(|range| filter.overlaps(&range)), [false, true, false, true, true, false]);
    }

    /// Repeated addresses need no memory, as long as the code does not change.
    #[test]
    fn addresses_are_kept_once() {
        let mut hits = Hits::new(vec![50, 100]);
        let addrs: Vec<u64> = (0..100).collect();
        for time in (0..200).rev() {
            for _ in 0..100 {
                hits.add(time, &addrs);
            }
        }
        assert!(hits.all.capacity() < 4 * LIMIT_LEAST, "{}", hits.all.capacity());
        hits.finish();
        let groups: Vec<(u64, Vec<u64>)> =
            hits.groups().map(|(time, addrs)| (time, addrs.copied().collect())).collect();
        assert_eq!(groups, [0, 50, 100].map(|time| (time, addrs.clone())));
        // Different addresses are counted.
        let grown: usize =
            (0..10).map(|time| hits.add(time, &(1000 * time..1000 * time + 1000).collect::<Vec<_>>())).sum();
        assert_eq!(hits.all.len(), 10_000 + 300);
        assert!(grown <= hits.all.capacity());
    }
}
