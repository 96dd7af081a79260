//! Distributes code over files, by address and by time.
//!
//! Code that is close together is a *neighbourhood*. In an *epoch* of a neighbourhood, no address has two pieces of code that
//! are used. A new epoch begins when code is used whose addresses overlap other code of the epoch. Each epoch has a file with
//! all code that is used in this epoch. So the number of files depends on how often used code replaces used code.

use std::collections::HashMap;
use std::ops::Range;

use super::ranges::Ranges;
use super::taken::{Taken, PAGE};
use super::Load;

/// Code belongs to one neighbourhood if its gaps are smaller than this. A runtime's code memory has smaller gaps, and two
/// runtimes are usually farther apart. A gap takes no space on the disk, but a program that copies the file copies the gap.
pub const GAP_MAX: u64 = 1 << 20;
/// The maximum size of a neighbourhood. Distances in unwind tables have 31 bits, and the tables are beyond the code.
const SPAN_MAX: u64 = 1 << 30;
/// The maximum number of files. Each file takes some pages, even if it has only one function.
pub const FILES_MAX: usize = 20_000;
/// The approximate size of a file without its code, in bytes.
const FILE: u64 = 4096;
/// The maximum number of files of a neighbourhood in which a free range is searched for.
const PROBES_MAX: usize = 64;

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The time at which its first code was used.
    pub time: u64,
    /// The addresses of all code of the neighbourhood, the same in each of its epochs.
    pub neighbourhood: Range<u64>,
    /// Indices of the loads.
    pub pieces: Vec<usize>,
    /// Addresses between the pieces that are used, but that no load contains. So the file must not be mapped there.
    pub unknown: Vec<u64>,
}

/// The neighbourhoods of loads.
#[derive(Clone, Debug)]
struct Neighbourhoods {
    ranges: Vec<Range<u64>>,
    /// For each load, the index of its neighbourhood. The value is `None` if the load is too large. It is also `None` if the
    /// load begins in a neighbourhood and ends too far away, because neighbourhoods do not overlap.
    of: Vec<Option<usize>>,
}

impl Neighbourhoods {
    fn new(loads: &[Load<'_>], taken: &Taken) -> Self {
        let mut order: Vec<usize> = (0..loads.len()).filter(|&index| loads[index].size <= SPAN_MAX).collect();
        order.sort_unstable_by_key(|&index| (loads[index].addr, index));
        let (mut of, mut ranges) = (vec![None; loads.len()], Vec::<Range<u64>>::new());
        for index in order {
            let Load { addr, size, .. } = loads[index];
            let end = addr.saturating_add(size);
            let last_end = ranges.last().map_or(0, |last| last.end);
            let near = ranges.last_mut().filter(|last| {
                let gap = last.end..addr.max(last.end);
                // A gap without a whole page cannot contain a mapping of another file. In that case the code is in a file
                // itself, like the builtins of V8. If each piece were a neighbourhood, it would begin in the file of the
                // previous piece.
                let is_apart = gap.end - gap.start >= PAGE && taken.has_file_in(&gap);
                gap.end - gap.start < GAP_MAX && end - last.start <= SPAN_MAX && !is_apart
            });
            match near {
                Some(near) => near.end = near.end.max(end),
                None if addr < last_end => continue,
                None => ranges.push(addr..end),
            }
            of[index] = Some(ranges.len() - 1);
        }
        Neighbourhoods { ranges, of }
    }

    /// The index of the neighbourhood that contains an address.
    fn at(&self, addr: u64) -> Option<usize> {
        let index = self.ranges.partition_point(|range| range.end <= addr);
        self.ranges.get(index).is_some_and(|range| range.start <= addr).then_some(index)
    }
}

/// The present state of a neighbourhood.
#[derive(Clone, Debug, Default)]
struct Current {
    /// The index of the epoch, and the code in it.
    epoch: Option<(usize, Ranges)>,
    /// The time of the last use, and all code that is used at this time.
    time: u64,
    now: Vec<usize>,
    held_now: Ranges,
}

/// Makes the epochs of a recording. All code that is used must be passed to [`Epochs::hit`], in the order of time. All code
/// that is used at one time, such as that of a sample with its callers, is in one epoch.
#[derive(Debug)]
pub struct Epochs<'l, 'a> {
    loads: &'l [Load<'a>],
    near: Neighbourhoods,
    current: Vec<Current>,
    /// For each load, 1 more than the index of the last epoch that has it, or 0.
    seen: Vec<usize>,
    /// All epochs, in the order in which they began.
    pub all: Vec<Epoch>,
    /// The number of uses of code that is in no epoch, because there are too many epochs, the code is too large, or other
    /// code is used at its addresses at the same time.
    pub left_out: usize,
    /// How many bytes of code further epochs may have.
    pub bytes_left: u64,
    /// How many files further epochs may have.
    pub files_left: usize,
}

impl<'l, 'a> Epochs<'l, 'a> {
    /// Makes epochs without code. `taken` has the mappings of other files, which separate neighbourhoods.
    pub fn new(loads: &'l [Load<'a>], taken: &Taken) -> Self {
        let near = Neighbourhoods::new(loads, taken);
        let (current, seen) = (vec![Current::default(); near.ranges.len()], vec![0; loads.len()]);
        Epochs { loads, near, current, seen, all: Vec::new(), left_out: 0, bytes_left: u64::MAX, files_left: FILES_MAX }
    }

    /// Ends all epochs, because the process has new mappings: it was forked, or executes another program.
    pub fn end(&mut self) {
        self.current.fill_with(Current::default);
    }

    /// Notes that the code with this index in the loads is used at this time.
    pub fn hit(&mut self, time: u64, index: usize) {
        let place = self.near.of.get(index).copied().flatten();
        let (Some(number), Some(load)) = (place, self.loads.get(index)) else {
            self.left_out += 1;
            return;
        };
        let range = load.range();
        let current = &mut self.current[number];
        if current.now.is_empty() || current.time != time {
            (current.time, current.now, current.held_now) = (time, Vec::new(), Ranges::default());
        }
        let is_in = |epoch: usize| self.seen[index] == epoch + 1;
        let bytes = |index: &usize| self.loads.get(*index).map_or(0, |load| load.bytes() as u64);
        let needed = match &current.epoch {
            Some((epoch, _)) if is_in(*epoch) => 0,
            Some((_, held)) if held.is_free(&range) => bytes(&index),
            _ => current.now.iter().chain([&index]).map(bytes).fold(FILE, u64::saturating_add),
        };
        let Some(bytes_left) = self.bytes_left.checked_sub(needed) else {
            self.left_out += 1;
            return;
        };
        match &current.epoch {
            Some((epoch, _)) if is_in(*epoch) => {}
            Some((_, held)) if held.is_free(&range) => {}
            // Two pieces cannot be used at one address at the same time.
            _ if self.files_left == 0 || !current.held_now.is_free(&range) => {
                self.left_out += 1;
                return;
            }
            _ => {
                // The new epoch also has the code that is already known to be used at this time.
                let epoch = self.all.len();
                current.epoch = Some((epoch, current.held_now.clone()));
                current.now.iter().for_each(|&index| self.seen[index] = epoch + 1);
                let neighbourhood = self.near.ranges[number].clone();
                self.all.push(Epoch { time, neighbourhood, pieces: current.now.clone(), unknown: Vec::new() });
                self.files_left -= 1;
            }
        }
        self.bytes_left = bytes_left;
        let Some((epoch, held)) = &mut current.epoch else { return };
        if std::mem::replace(&mut self.seen[index], *epoch + 1) != *epoch + 1 {
            held.add(range.clone());
            self.all[*epoch].pieces.push(index);
        }
        if current.held_now.is_free(&range) {
            current.held_now.add(range);
            current.now.push(index);
        }
    }

    /// Notes that an address without known code is used. The caller must first pass all known code that is used at the same
    /// time.
    pub fn hit_unknown(&mut self, addr: u64) {
        let Some(current) = self.near.at(addr).and_then(|number| self.current.get_mut(number)) else { return };
        let Some((epoch, held)) = &mut current.epoch else { return };
        let here = addr..addr.saturating_add(1);
        // Code that is used there later begins a new epoch.
        if held.is_free(&here) {
            held.add(here);
            self.all[*epoch].unknown.push(addr);
        }
    }
}

/// The numbers of loads that are in no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Loads that are larger than 1 GiB, or that extend too far out of the neighbourhood in which they begin.
    pub too_large: usize,
    /// Loads for which there would be too many files.
    pub too_many: usize,
}

/// Distributes all loads over few files, whatever the times of their use. Each piece is put into the first file in which its
/// addresses are free. Returns the files, and the numbers of loads that are in no file.
pub fn few_files(loads: &[Load<'_>]) -> (Vec<Epoch>, LeftOut) {
    let near = Neighbourhoods::new(loads, &Taken::new());
    let mut files_of: Vec<Vec<(usize, Ranges)>> = vec![Vec::new(); near.ranges.len()];
    // For each range, the number of leading files in which it is occupied. Code that is compiled again often has the same
    // range.
    let mut full: HashMap<(u64, u64), usize> = HashMap::new();
    let (mut all, mut left_out) = (Vec::<Epoch>::new(), LeftOut::default());
    for (index, load) in loads.iter().enumerate() {
        let Some(number) = near.of[index] else {
            left_out.too_large += 1;
            continue;
        };
        let (files, range) = (&mut files_of[number], load.range());
        let known = full.entry((range.start, range.end)).or_default();
        // Beyond the limit, the last file is the most likely candidate.
        let probes = (*known..files.len()).take(PROBES_MAX).chain(files.len().checked_sub(1));
        let found = probes.into_iter().find(|&file| files[file].1.is_free(&range));
        let file = found.unwrap_or(files.len());
        if file == files.len() {
            if all.len() >= FILES_MAX {
                left_out.too_many += 1;
                continue;
            }
            files.push((all.len(), Ranges::default()));
            let neighbourhood = near.ranges[number].clone();
            all.push(Epoch { time: load.time, neighbourhood, pieces: Vec::new(), unknown: Vec::new() });
        }
        // Files beyond the limit may be free.
        *known = (*known + PROBES_MAX).min(file + 1);
        files[file].1.add(range);
        all[files[file].0].pieces.push(index);
    }
    (all, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(addr: u64, size: u64) -> Load<'static> {
        Load { addr, size, ..Load::default() }
    }

    fn pieces(epochs: &[Epoch]) -> Vec<Vec<usize>> {
        epochs.iter().map(|epoch| epoch.pieces.clone()).collect()
    }

    #[test]
    fn an_epoch_ends_when_used_code_has_its_addresses() {
        let loads = [load(0x1000, 16), load(0x1010, 16), load(0x1008, 16), load(0x1020, 16)];
        let mut epochs = Epochs::new(&loads, &Taken::new());
        for (time, index) in [(1, 3), (2, 2), (3, 3), (4, 2), (5, 0), (6, 3), (7, 1), (8, 0), (9, 2)] {
            epochs.hit(time, index);
        }
        assert_eq!(pieces(&epochs.all), [vec![3, 2], vec![0, 3, 1], vec![2]]);
        // All code of one time is in one epoch.
        epochs.hit(9, 3);
        epochs.hit(10, 3);
        epochs.hit(10, 0);
        assert_eq!(pieces(&epochs.all)[2..], [vec![2, 3], vec![3, 0]]);
        let epochs = &Epochs { all: epochs.all[..3].to_vec(), ..epochs };
        assert_eq!(epochs.all.iter().map(|epoch| epoch.time).collect::<Vec<_>>(), [1, 5, 9]);
        assert!(epochs.all.iter().all(|epoch| epoch.neighbourhood == (0x1000..0x1030)));
    }

    #[test]
    fn another_program() {
        let loads = [load(0x1000, 16), load(0x1010, 16)];
        let mut epochs = Epochs::new(&loads, &Taken::new());
        epochs.hit(1, 0);
        epochs.end();
        epochs.hit(2, 0);
        epochs.hit(3, 1);
        assert_eq!(pieces(&epochs.all), [vec![0], vec![0, 1]]);
    }

    #[test]
    fn addresses_of_other_code() {
        let loads = [load(0x1000, 16), load(0x1020, 16), load(0x1018, 16)];
        let mut epochs = Epochs::new(&loads, &Taken::new());
        epochs.hit_unknown(0x1018);
        epochs.hit(1, 0);
        // The first two addresses are in a gap, the third is in code, and the last two are outside.
        [0x1018, 0x1018, 0x1008, 0xfff, 0x1030].into_iter().for_each(|addr| epochs.hit_unknown(addr));
        epochs.hit(2, 1);
        epochs.hit(3, 2);
        epochs.hit(3, 0);
        let found: Vec<_> = epochs.all.iter().map(|epoch| (&*epoch.pieces, &*epoch.unknown)).collect();
        assert_eq!(found, [(&[0, 1][..], &[0x1018][..]), (&[2, 0], &[])], "code there begins an epoch");
    }

    #[test]
    fn near_and_far() {
        let far = 0x100_0000;
        let loads = [load(far, 16), load(0x1000, 16), load(0x100f + GAP_MAX, 16), load(0x1000, SPAN_MAX + 1)];
        let (files, left_out) = few_files(&loads);
        assert_eq!((pieces(&files), left_out), (vec![vec![0], vec![1, 2]], LeftOut { too_large: 1, too_many: 0 }));
        let ranges = |taken: &Taken| Neighbourhoods::new(&loads, taken).ranges.len();
        // A mapping of another file separates the neighbourhoods.
        let mut taken = Taken::new();
        taken.add(0x2000..0x3000);
        assert_eq!(ranges(&taken), 2);
        taken.add_file(0x3000..0x4000);
        assert_eq!(ranges(&taken), 3);
        // A chain without large gaps is cut.
        let loads: Vec<_> = (0..2060).map(|number| load(0x1000 + number * (GAP_MAX - 16), 16)).collect();
        assert_eq!(few_files(&loads).0.len(), 3);
    }

    #[test]
    fn neighbourhoods_do_not_overlap() {
        let loads = [load(0x1000, SPAN_MAX), load(0x2000, SPAN_MAX), load(0x3000, 16), load(0x2000 + SPAN_MAX, 16)];
        let near = Neighbourhoods::new(&loads, &Taken::new());
        assert_eq!(near.of, [Some(0), None, Some(0), Some(1)]);
        assert!(near.ranges[0].end <= near.ranges[1].start);
        let (files, left_out) = few_files(&loads);
        assert_eq!(pieces(&files), [vec![0], vec![2], vec![3]]);
        assert_eq!(left_out, LeftOut { too_large: 1, too_many: 0 });
    }

    /// For code of one size that is compiled again at the same addresses, the number of files is minimal.
    #[test]
    fn the_first_free_file() {
        let loads: Vec<_> = (0..1000).map(|number| load(0x1000 + number * number % 31 * 16, 16)).collect();
        let deepest = |index: usize| loads[..=index].iter().filter(|load| load.addr == loads[index].addr).count() - 1;
        let (files, left_out) = few_files(&loads);
        assert_eq!(left_out, LeftOut::default());
        for (number, file) in files.iter().enumerate() {
            assert!(file.pieces.iter().all(|&index| deepest(index) == number), "{number}");
        }
        // For code of all sizes, no two pieces of a file overlap, and each piece is in one file.
        let loads: Vec<_> = (0..20_000).map(|number| load(0x10_0000 + number * 7 % 1000, 1 + number % 13)).collect();
        let (files, left_out) = few_files(&loads);
        let mut count = 0;
        for file in &files {
            let mut ranges: Vec<_> =
                file.pieces.iter().map(|&index| (loads[index].addr, loads[index].addr + loads[index].size)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0));
            count += ranges.len();
        }
        assert_eq!((count, left_out), (20_000, LeftOut::default()));
    }

    /// A free file is found after more files than are examined in one step.
    #[test]
    fn a_free_file_behind_many() {
        let kinds = [(0x1000, 100), (0x2000, 65), (0x2008, 2)];
        let loads: Vec<_> = kinds.iter().flat_map(|&(addr, count)| (0..count).map(move |_| load(addr, 16))).collect();
        let (files, left_out) = few_files(&loads);
        assert_eq!((files.len(), left_out), (100, LeftOut::default()));
        assert_eq!(
            [99, 65].map(|file: usize| files[file].pieces.len()),
            [2, 2],
            "the last file, and the first free one"
        );
    }

    #[test]
    fn no_more_bytes_than_there_may_be() {
        let loads: Vec<_> = (0..10).map(|_| Load { code: Some(&[0; 100]), ..load(0x1000, 16) }).collect();
        let mut epochs = Epochs::new(&loads, &Taken::new());
        epochs.bytes_left = 3 * (FILE + 100) + 99;
        (0..loads.len()).for_each(|index| epochs.hit(index as u64, index));
        assert_eq!((epochs.all.len(), epochs.left_out, epochs.bytes_left), (3, 7, 99));
    }

    #[test]
    fn one_time_has_one_epoch() {
        let loads: Vec<_> = (0..1000).map(|number| load(0x10_0000 + number % 100 * 8, 16)).collect();
        let mut epochs = Epochs::new(&loads, &Taken::new());
        epochs.hit(1, 5);
        (0..loads.len()).for_each(|index| epochs.hit(2, index));
        assert_eq!(pieces(&epochs.all)[0], [5, 0, 2]);
        assert_eq!((epochs.all.len(), epochs.all[1].pieces.len(), epochs.left_out), (2, 50, 950));
    }

    /// Hostile code: all of it overlaps.
    #[test]
    fn no_more_files_than_there_may_be() {
        for (stride, grow) in [(0, 0), (1, 0), (0, 1), (1, 2)] {
            let loads: Vec<_> = (0..30_000).map(|n| load(0x10_0000 + n * stride, 70_000 - n * grow)).collect();
            let mut epochs = Epochs::new(&loads, &Taken::new());
            (0..loads.len()).for_each(|index| epochs.hit(index as u64, index));
            assert_eq!((epochs.all.len(), epochs.left_out), (FILES_MAX, 10_000));
            let (files, left_out) = few_files(&loads);
            assert_eq!((files.len(), left_out.too_many), (FILES_MAX, 10_000));
        }
    }
}
