//! Distributes code over files: by neighbourhood, and within a neighbourhood by layer.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::Load;

/// Code belongs to one neighbourhood as long as its gaps are not larger than this. A runtime's code memory has smaller gaps, and
/// two runtimes are usually farther apart. A gap takes no space on the disk, but programs that copy the file copy the gap too.
const GAP_MAX: u64 = 1 << 20;
/// All code of a file lies within this many bytes. Distances in unwind tables have 31 bits, and tables may lie as far away again.
pub(super) const SPAN_MAX: u64 = 1 << 30;
/// The maximum number of files. Each file takes some pages, even if it has only one function.
const OBJECTS_MAX: usize = 20_000;
/// The number of layers in which a place for a piece is looked for, above the layers that are certainly full. After that, the
/// piece goes above all other code at its addresses.
const PROBES_MAX: usize = 64;

/// The contents of a file: a part of the loads.
#[derive(Debug)]
pub(super) struct Layer {
    /// Indices of the loads, by address.
    pub pieces: Vec<usize>,
    /// The first layer of its neighbourhood.
    pub is_first: bool,
}

/// All files, and for each load its file. The file is `None` if there are too many files, or if the load is too large.
pub(super) struct Layers {
    pub all: Vec<Layer>,
    pub of: Vec<Option<usize>>,
}

/// Distributes the loads, which are in the order of time.
pub(super) fn distribute(loads: &[Load<'_>]) -> Layers {
    let (neighbourhood_of, count) = neighbourhoods(loads);
    let mut stacks: Vec<Stack> = (0..count).map(|_| Stack::default()).collect();
    let (mut all, mut of): (Vec<Layer>, Vec<Option<usize>>) = (Vec::new(), Vec::with_capacity(loads.len()));
    for (load, neighbourhood) in loads.iter().zip(neighbourhood_of) {
        let stack = neighbourhood.and_then(|number: usize| stacks.get_mut(number));
        of.push(stack.and_then(|stack| stack.place(load.addr..load.addr + load.size, &mut all)));
    }
    for (index, layer) in of.iter().enumerate() {
        if let Some(layer) = layer.and_then(|layer| all.get_mut(layer)) {
            layer.pieces.push(index);
        }
    }
    all.iter_mut().for_each(|layer| layer.pieces.sort_unstable_by_key(|&index| loads[index].addr));
    Layers { all, of }
}

/// The number of each load's neighbourhood, and how many there are. `None` for a load that is too large.
fn neighbourhoods(loads: &[Load<'_>]) -> (Vec<Option<usize>>, usize) {
    let mut order: Vec<usize> = (0..loads.len()).filter(|&index| loads[index].size <= SPAN_MAX).collect();
    order.sort_unstable_by_key(|&index| (loads[index].addr, index));
    let (mut of, mut count, mut span) = (vec![None; loads.len()], 0, 0..0);
    for index in order {
        let Load { addr, size, .. } = loads[index];
        let end = addr.saturating_add(size);
        if count == 0 || addr.saturating_sub(span.end) > GAP_MAX || end - span.start > SPAN_MAX {
            count += 1;
            span = addr..addr;
        }
        span.end = span.end.max(end);
        of[index] = Some(count - 1);
    }
    (of, count)
}

/// The layers of a neighbourhood.
#[derive(Default)]
struct Stack {
    /// The occupied ranges of each layer, from start to end, and the number of its file.
    layers: Vec<(BTreeMap<u64, u64>, usize)>,
    /// For each range, a number of layers that are occupied there. Code that is compiled again and again often has the same
    /// range.
    full: HashMap<(u64, u64), usize>,
    /// The number of layers below which all code of a range lies: from the start of each range to its end and this number.
    heights: BTreeMap<u64, (u64, usize)>,
}

impl Stack {
    /// Finds the first layer in which the range is free, and occupies it. Returns the number of the layer's file.
    fn place(&mut self, range: Range<u64>, all: &mut Vec<Layer>) -> Option<usize> {
        let key = (range.start, range.end);
        let full = self.full.get(&key).copied().unwrap_or(0);
        let found = (full..self.layers.len()).take(PROBES_MAX).find(|&number| is_free(&self.layers[number].0, &range));
        let number = found.unwrap_or_else(|| match self.layers.len().saturating_sub(full) {
            0..=PROBES_MAX => self.layers.len(),
            _ => self.height(&range),
        });
        if number >= self.layers.len() {
            if all.len() >= OBJECTS_MAX {
                return None;
            }
            all.push(Layer { pieces: Vec::new(), is_first: number == 0 });
            self.layers.push((BTreeMap::new(), all.len() - 1));
        }
        let (layer, file) = self.layers.get_mut(number)?;
        layer.insert(range.start, range.end);
        let file = *file;
        self.full.insert(key, number + 1);
        self.raise(&range, number + 1);
        Some(file)
    }

    /// The number of layers below which all code in the range lies.
    fn height(&self, range: &Range<u64>) -> usize {
        let before = self.heights.range(..=range.start).next_back().filter(|(_, &(end, _))| end > range.start);
        let within = self.heights.range(range.start..range.end);
        before.into_iter().chain(within).map(|(_, &(_, height))| height).max().unwrap_or(0)
    }

    fn raise(&mut self, range: &Range<u64>, height: usize) {
        let height = height.max(self.height(range));
        if let Some((&start, &(end, old))) = self.heights.range(..range.start).next_back() {
            if end > range.start {
                self.heights.insert(start, (range.start, old));
                if end > range.end {
                    self.heights.insert(range.end, (end, old));
                }
            }
        }
        while let Some((&start, &(end, old))) = self.heights.range(range.start..range.end).next() {
            self.heights.remove(&start);
            if end > range.end {
                self.heights.insert(range.end, (end, old));
            }
        }
        self.heights.insert(range.start, (range.end, height));
    }
}

/// Whether no range of the layer overlaps this range.
fn is_free(layer: &BTreeMap<u64, u64>, range: &Range<u64>) -> bool {
    layer.range(..range.end).next_back().is_none_or(|(_, &end)| end <= range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(addr: u64, size: u64) -> Load<'static> {
        Load { addr, size, ..Load::default() }
    }

    /// For each load the numbers of neighbourhood's first file and its own, as a model computes them that tries all layers.
    fn model(loads: &[Load<'_>]) -> Vec<usize> {
        let mut layers: Vec<Vec<Range<u64>>> = Vec::new();
        let mut of = Vec::new();
        for load in loads {
            let range = load.addr..load.addr + load.size;
            let is_free = |layer: &Vec<Range<u64>>| layer.iter().all(|r| r.end <= range.start || range.end <= r.start);
            let number = layers.iter().position(is_free).unwrap_or(layers.len());
            if number == layers.len() {
                layers.push(Vec::new());
            }
            layers[number].push(range);
            of.push(number);
        }
        of
    }

    #[test]
    fn the_first_free_layer() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..200 {
            let loads: Vec<_> = (0..100).map(|_| load(0x1000 + random(400), 1 + random(1 + round))).collect();
            let layers = distribute(&loads);
            let of: Vec<usize> = layers.of.iter().map(|of| of.unwrap()).collect();
            assert_eq!(of, model(&loads), "{round}");
            assert!(layers.all.iter().enumerate().all(|(number, layer)| layer.is_first == (number == 0)));
            for (number, layer) in layers.all.iter().enumerate() {
                assert!(layer.pieces.iter().all(|&index| of[index] == number));
                assert!(layer.pieces.windows(2).all(|two| loads[two[0]].addr < loads[two[1]].addr));
            }
        }
    }

    /// Deep stacks take no time in proportion to the square, and no two pieces of a file overlap.
    #[test]
    fn deep_stacks() {
        for (stride, grow) in [(0, 0), (1, 0), (0, 1), (2, 1)] {
            let loads: Vec<_> = (0..30_000).map(|n| load(0x10_0000 + n * stride, 70_000 - n * grow)).collect();
            let layers = distribute(&loads);
            assert!(layers.all.len() == OBJECTS_MAX, "{stride} {grow}: {}", layers.all.len());
            assert_eq!(layers.of.iter().flatten().count(), OBJECTS_MAX);
        }
        let loads: Vec<_> = (0..20_000).map(|n| load(0x10_0000 + n * 7 % 1000, 1 + n % 13)).collect();
        for layer in distribute(&loads).all {
            let end = |index: usize| loads[index].addr + loads[index].size;
            assert!(layer.pieces.windows(2).all(|two| end(two[0]) <= loads[two[1]].addr));
        }
    }

    #[test]
    fn near_and_far() {
        let far = 0x100_0000;
        let loads = [load(far, 16), load(0x1000, 16), load(0x1010 + GAP_MAX, 16), load(0x1000, SPAN_MAX + 1)];
        let layers = distribute(&loads);
        assert_eq!(layers.of, [Some(0), Some(1), Some(1), None]);
        // A chain without large gaps is cut.
        let loads: Vec<_> = (0..2050).map(|n| load(0x1000 + n * GAP_MAX, 16)).collect();
        let spans = distribute(&loads);
        assert_eq!(spans.all.len(), 3);
        assert!(spans.all.iter().all(|layer| layer.is_first));
    }
}
