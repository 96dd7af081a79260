//! Distributes code over files, by address and by time.
//!
//! Code that lies close together is a *neighbourhood*. In an *epoch* of a neighbourhood, no address has two pieces of code that
//! are used. An epoch begins when code is used whose addresses other code of the epoch has. Each epoch has a file, which has all
//! code that is used in this epoch. So the number of files depends on how often used code replaces used code.

use std::collections::BTreeMap;
use std::ops::Range;

use super::taken::Taken;
use super::Load;

/// Code belongs to one neighbourhood as long as its gaps are smaller than this. A runtime's code memory has smaller gaps, and
/// two runtimes are usually farther apart. A gap takes no space on the disk, but a program that copies the file copies the gap.
const GAP_MAX: u64 = 1 << 20;
/// All code of a neighbourhood lies within this many bytes. Distances in unwind tables have 31 bits, and the tables lie beyond
/// the code.
const SPAN_MAX: u64 = 1 << 30;
/// The maximum number of epochs. Each file takes some pages, even if it has only one function.
const EPOCHS_MAX: usize = 20_000;

/// The contents of a file.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    /// When its first code was used.
    pub time: u64,
    pub neighbourhood: usize,
    /// Counts the epochs of the neighbourhood, from 0.
    pub number: usize,
    /// Indices of the loads.
    pub pieces: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Neighbourhood {
    /// From the first to the last byte of code, whether the code is used or not.
    pub range: Range<u64>,
    /// The number of epochs.
    pub count: usize,
    /// Index of the current epoch.
    current: usize,
    /// Whether no more code belongs to the current epoch.
    is_ended: bool,
    /// The ranges of its code, from start to end.
    held: BTreeMap<u64, u64>,
}

/// Which code is used when. All code of a recording that is used must be passed to [`Epochs::hit`], in the order of time.
#[derive(Debug)]
pub struct Epochs<'l, 'a> {
    loads: &'l [Load<'a>],
    pub(super) neighbourhoods: Vec<Neighbourhood>,
    pub(super) all: Vec<Epoch>,
    /// For each load, its neighbourhood.
    of: Vec<Option<usize>>,
    /// For each load, 1 more than the index of the last epoch that has it, or 0.
    seen: Vec<usize>,
    /// The number of uses of code that is in no file, because there are too many files or the code is too large.
    pub left_out: usize,
}

impl<'l, 'a> Epochs<'l, 'a> {
    /// No code is used yet. `taken` has the mappings of other files, which separate neighbourhoods.
    pub fn new(loads: &'l [Load<'a>], taken: &Taken) -> Self {
        let mut order: Vec<usize> = (0..loads.len()).filter(|&index| loads[index].size <= SPAN_MAX).collect();
        order.sort_unstable_by_key(|&index| (loads[index].addr, index));
        let (mut of, mut neighbourhoods) = (vec![None; loads.len()], Vec::<Neighbourhood>::new());
        for index in order {
            let Load { addr, size, .. } = loads[index];
            let end = addr.saturating_add(size);
            let near = neighbourhoods.last_mut().filter(|last| {
                let gap = last.range.end..addr.max(last.range.end);
                gap.end - gap.start < GAP_MAX && end - last.range.start <= SPAN_MAX && !taken.has_file_in(&gap)
            });
            match near {
                Some(near) => near.range.end = near.range.end.max(end),
                None => {
                    let (range, held) = (addr..end, BTreeMap::new());
                    neighbourhoods.push(Neighbourhood { range, count: 0, current: 0, is_ended: false, held });
                }
            }
            of[index] = Some(neighbourhoods.len() - 1);
        }
        Epochs { loads, neighbourhoods, all: Vec::new(), of, seen: vec![0; loads.len()], left_out: 0 }
    }

    /// All code is used when it is registered, and not afterwards.
    pub fn of_loads(loads: &'l [Load<'a>]) -> Self {
        let mut epochs = Epochs::new(loads, &Taken::new());
        (0..loads.len()).for_each(|index| epochs.hit(loads[index].time, index));
        epochs
    }

    /// Ends all epochs, because the process has new mappings: it was forked, or executes another program.
    pub fn end(&mut self) {
        self.neighbourhoods.iter_mut().for_each(|near| near.is_ended = true);
    }

    /// The code with this index in the loads is used at this time.
    pub fn hit(&mut self, time: u64, index: usize) {
        let place = self.of.get(index).copied().flatten();
        let (Some(number), Some(load)) = (place, self.loads.get(index)) else {
            self.left_out += 1;
            return;
        };
        let Some(near) = self.neighbourhoods.get_mut(number) else { return };
        if near.count > 0 && !near.is_ended && self.seen[index] == near.current + 1 {
            return;
        }
        let range = load.addr..load.addr.saturating_add(load.size);
        let is_free = near.held.range(..range.end).next_back().is_none_or(|(_, &end)| end <= range.start);
        if near.count == 0 || near.is_ended || !is_free {
            if self.all.len() >= EPOCHS_MAX {
                self.left_out += 1;
                return;
            }
            (near.current, near.is_ended) = (self.all.len(), false);
            near.held.clear();
            self.all.push(Epoch { time, neighbourhood: number, number: near.count, pieces: Vec::new() });
            near.count += 1;
        }
        near.held.insert(range.start, range.end);
        self.seen[index] = near.current + 1;
        self.all[near.current].pieces.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(addr: u64, size: u64) -> Load<'static> {
        Load { addr, size, ..Load::default() }
    }

    fn pieces(epochs: &Epochs) -> Vec<Vec<usize>> {
        epochs.all.iter().map(|epoch| epoch.pieces.clone()).collect()
    }

    #[test]
    fn an_epoch_ends_when_used_code_has_its_addresses() {
        let loads = [load(0x1000, 16), load(0x1010, 16), load(0x1008, 16), load(0x1020, 16)];
        assert_eq!(pieces(&Epochs::of_loads(&loads)), [vec![0, 1], vec![2, 3]]);
        let mut epochs = Epochs::new(&loads, &Taken::new());
        for (time, index) in [(1, 3), (2, 2), (3, 3), (4, 2), (5, 0), (6, 3), (7, 1), (8, 0), (9, 2)] {
            epochs.hit(time, index);
        }
        assert_eq!(pieces(&epochs), [vec![3, 2], vec![0, 3, 1], vec![2]]);
        assert_eq!(
            epochs.all.iter().map(|epoch| (epoch.time, epoch.number)).collect::<Vec<_>>(),
            [(1, 0), (5, 1), (9, 2)]
        );
        assert_eq!((epochs.neighbourhoods[0].range.clone(), epochs.neighbourhoods[0].count), (0x1000..0x1030, 3));
    }

    #[test]
    fn another_program() {
        let loads = [load(0x1000, 16), load(0x1010, 16)];
        let mut epochs = Epochs::new(&loads, &Taken::new());
        epochs.hit(1, 0);
        epochs.end();
        epochs.hit(2, 0);
        epochs.hit(3, 1);
        assert_eq!(pieces(&epochs), [vec![0], vec![0, 1]]);
    }

    #[test]
    fn near_and_far() {
        let far = 0x100_0000;
        let loads = [load(far, 16), load(0x1000, 16), load(0x100f + GAP_MAX, 16), load(0x1000, SPAN_MAX + 1)];
        let epochs = Epochs::of_loads(&loads);
        assert_eq!((pieces(&epochs), epochs.left_out), (vec![vec![0], vec![1, 2]], 1));
        // A mapping of another file separates them.
        let mut taken = Taken::new();
        taken.add(0x2000..0x3000);
        assert_eq!(Epochs::new(&loads, &taken).neighbourhoods.len(), 2);
        taken.add_file(0x3000..0x4000);
        assert_eq!(Epochs::new(&loads, &taken).neighbourhoods.len(), 3);
        // A chain without large gaps is cut.
        let loads: Vec<_> = (0..2050).map(|number| load(0x1000 + number * (GAP_MAX - 16), 16)).collect();
        assert_eq!(Epochs::of_loads(&loads).all.len(), 3);
    }

    /// Hostile code: all of it overlaps.
    #[test]
    fn no_more_files_than_there_may_be() {
        let loads: Vec<_> = (0..30_000).map(|number| load(0x10_0000 + number, 70_000 - number)).collect();
        let epochs = Epochs::of_loads(&loads);
        assert_eq!((epochs.all.len(), epochs.left_out), (EPOCHS_MAX, 10_000));
    }
}
