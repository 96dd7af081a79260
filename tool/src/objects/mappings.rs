//! The mappings that show the code at its time: at each moment, the newest code at an address is the one that is mapped there.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layers::Layers;
use super::{Load, Mapping, Object};

/// Code that is the first at its addresses gets a common mapping as long as its gaps are smaller than this. Larger gaps may
/// belong to something else.
const GAP_MAX: u64 = 4096;

/// All mappings, in the order of time. `tables` has, for each object, the address, size and offset of its unwind tables.
pub(super) fn all(
    loads: &[Load<'_>],
    layers: &Layers,
    objects: &[Object],
    tables: &[Option<(u64, u64, u64)>],
) -> Vec<Mapping> {
    let mut mapped = Mapped::default();
    let mut begun = vec![false; objects.len()];
    let runs: Vec<BTreeMap<u64, u64>> = layers.all.iter().map(|layer| runs(loads, layer)).collect();
    let mut out = Vec::new();
    for (load, of) in loads.iter().zip(&layers.of) {
        let Some(number) = *of else { continue };
        let (Some(object), Some(runs)) = (objects.get(number), runs.get(number)) else { continue };
        if !std::mem::replace(&mut begun[number], true) {
            if let Some((start, len, offset)) = tables[number] {
                out.push(Mapping { time: load.time, start, len, object: number, offset });
            }
        }
        let piece = load.addr..load.addr.saturating_add(load.size);
        if mapped.is_all(&piece, number) {
            continue;
        }
        let run = runs.range(..=piece.start).next_back().map(|(&start, &end)| start..end);
        let range = run.filter(|run| run.end >= piece.end && mapped.is_none(run)).unwrap_or(piece);
        let (start, len) = (range.start, range.end - range.start);
        out.push(Mapping { time: load.time, start, len, object: number, offset: start.wrapping_sub(object.origin) });
        mapped.map(range, number);
    }
    out
}

/// The ranges of code without large gaps, from start to end. Only the first code at its addresses has such ranges: later code
/// must not be mapped before its time.
fn runs(loads: &[Load<'_>], layer: &super::layers::Layer) -> BTreeMap<u64, u64> {
    let mut runs: BTreeMap<u64, u64> = BTreeMap::new();
    if !layer.is_first {
        return runs;
    }
    for load in layer.pieces.iter().filter_map(|&index| loads.get(index)) {
        let end = load.addr.saturating_add(load.size);
        match runs.last_entry().filter(|last| load.addr.saturating_sub(*last.get()) < GAP_MAX) {
            Some(mut last) => *last.get_mut() = end,
            None => drop(runs.insert(load.addr, end)),
        }
    }
    runs
}

/// What is mapped where: from the start of each range to its end and its object.
#[derive(Default)]
struct Mapped(BTreeMap<u64, (u64, usize)>);

impl Mapped {
    fn around<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, usize)> + 'a {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let (low, high) = (range.start, range.end);
        let within = self.0.range(first..high).filter(move |(_, &(end, _))| end > low);
        within.map(|(&start, &(end, object))| (start..end, object))
    }

    /// Whether nothing is mapped in a range.
    fn is_none(&self, range: &Range<u64>) -> bool {
        self.around(range).next().is_none()
    }

    /// Whether the object is mapped in all of a range.
    fn is_all(&self, range: &Range<u64>, object: usize) -> bool {
        let mut at = range.start;
        for (there, of) in self.around(range) {
            if of != object || there.start > at {
                return false;
            }
            at = there.end;
        }
        at >= range.end
    }

    fn map(&mut self, range: Range<u64>, object: usize) {
        let old: Vec<_> = self.around(&range).collect();
        for (there, of) in old {
            self.0.remove(&there.start);
            if there.start < range.start {
                self.0.insert(there.start, (range.start, of));
            }
            if there.end > range.end {
                self.0.insert(range.end, (there.end, of));
            }
        }
        self.0.insert(range.start, (range.end, object));
    }
}
