//! The addresses in samples that may lie in compiled code.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;

use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, Events};
use crate::perf_data::Layout;

/// Parts of the address space that are nearer to each other are one part, so that there are few of them.
const GAP: u64 = 4096;

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
            match parts.last_mut().filter(|(_, end)| range.start <= end.saturating_add(GAP)) {
                Some((_, end)) => *end = (*end).max(range.end),
                None => parts.push((range.start, range.end)),
            }
        }
        Filter { parts }
    }

    /// Whether there may be code at an address. The end of code counts too, because a call at the end returns there.
    fn has(&self, addr: u64) -> bool {
        let next = self.parts.partition_point(|&(_, end)| end < addr);
        self.parts.get(next).is_some_and(|&(start, _)| start <= addr)
    }
}

/// A time, and an address that a sample of this time has.
pub type Hit = (u64, u64);

/// Reads all samples of these processes. Every word of a sample can be an address in code: the instruction pointer, a call chain,
/// a return address on a copied stack. Returns the hits of each process, ascending by time.
pub fn read(
    file: &File,
    layout: &Layout,
    forms: &Forms<'_>,
    filter: &Filter,
    pids: &HashSet<u32>,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<HashMap<u32, Vec<Hit>>> {
    let mut hits: HashMap<u32, Vec<Hit>> = HashMap::new();
    let mut found = Vec::new();
    let (low, high) =
        (filter.parts.first().map_or(u64::MAX, |part| part.0), filter.parts.last().map_or(0, |part| part.1));
    Events::new(file, layout)?.each(progress, &mut |event| {
        if event.kind() == kind::SAMPLE {
            if let (Some(pid), Some(time)) = (forms.pid(event).filter(|pid| pids.contains(pid)), forms.time(event)) {
                found.clear();
                let words = event.bytes[8..].as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
                found.extend(words.filter(|&word| low <= word && word <= high && filter.has(word)));
                found.sort_unstable();
                found.dedup();
                if !found.is_empty() {
                    hits.entry(pid).or_default().extend(found.iter().map(|&addr| (time, addr)));
                }
            }
        }
        Ok(())
    })?;
    hits.values_mut().for_each(|hits| hits.sort_unstable());
    Ok(hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_code() {
        let filter = Filter::of(vec![0x9000..0x9010, 0x1000..0x1010, 0x1800..0x1900, 0x1000..0x1008]);
        assert_eq!(filter.parts, [(0x1000, 0x1900), (0x9000, 0x9010)]);
        assert!([0x1000, 0x1900, 0x9010].iter().all(|&addr| filter.has(addr)));
        assert!(![0xfff, 0x1901, 0x8fff, 0x9011].iter().any(|&addr| filter.has(addr)));
        assert!(!Filter::default().has(0));
    }
}
