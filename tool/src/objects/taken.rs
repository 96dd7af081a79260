//! The addresses that a process uses, and free places between them.

use std::ops::Range;

use super::ranges::Ranges;

/// The lowest address that is given out: Linux maps nothing below it (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x10000;
/// The first address that no process of a 64-bit Linux can have.
const HIGHEST: u64 = 0x7fff_ffff_f000;
pub(super) const PAGE: u64 = 4096;

/// The pages that are in use.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    ranges: Ranges,
}

impl Taken {
    /// No address is used.
    pub fn new() -> Taken {
        Taken::default()
    }

    /// Marks all pages of a range as used.
    pub fn add(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            self.ranges.add(range.start / PAGE * PAGE..end);
        }
    }

    /// A free place of `len` bytes within `window`, which consists of whole pages. The place ends at `near` or below if there is
    /// such a place, and else begins at `near` or above.
    pub fn free_near(&self, near: u64, len: u64, window: Range<u64>) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE)?;
        let window = window.start.max(LOWEST)..window.end.min(HIGHEST);
        self.free_below(near, len, &window).or_else(|| self.free_above(near, len, &window))
    }

    /// The first free place from `near` on.
    fn free_above(&self, near: u64, len: u64, window: &Range<u64>) -> Option<u64> {
        let mut at = near.max(window.start).checked_next_multiple_of(PAGE)?;
        if let Some((_, &end)) = self.ranges.0.range(..=at).next_back() {
            at = at.max(end);
        }
        loop {
            let end = at.checked_add(len).filter(|&end| end <= window.end)?;
            match self.ranges.0.range(at..end).next() {
                Some((_, &taken)) => at = taken,
                None => return Some(at),
            }
        }
    }

    /// The last free place that ends at `near` or before.
    fn free_below(&self, near: u64, len: u64, window: &Range<u64>) -> Option<u64> {
        let mut end = near.min(window.end) / PAGE * PAGE;
        loop {
            let at = end.checked_sub(len).filter(|&at| at >= window.start)?;
            match self.ranges.0.range(..end).next_back().filter(|(_, &taken)| taken > at) {
                Some((&start, _)) => end = start,
                None => return Some(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn places_are_free_and_near() {
        let mut taken = Taken::new();
        for range in [0x10_0000..0x10_1000, 0x10_1000..0x10_2001, 0x20_0000..0x30_0000, 0x28_0000..0x38_0000] {
            taken.add(range);
        }
        taken.add(5..5);
        assert_eq!(taken.ranges.0, BTreeMap::from([(0x10_0000, 0x10_3000), (0x20_0000, 0x38_0000)]));
        let all = 0..u64::MAX;
        assert_eq!(taken.free_near(0x10_0000, 1, all.clone()), Some(0xf_f000));
        assert_eq!(taken.free_near(0x10_2fff, 1, all.clone()), Some(0xf_f000));
        assert_eq!(taken.free_near(0x10_4fff, 0x1000, all.clone()), Some(0x10_3000));
        assert_eq!(taken.free_near(0x10_1000, 0x1000, 0x10_0000..u64::MAX), Some(0x10_3000));
        assert_eq!(taken.free_near(0x10_1000, 0xf_e000, 0x10_0000..u64::MAX), Some(0x38_0000));
        assert_eq!(taken.free_near(0x10_1000, 0xf_e000, 0x10_0000..0x40_0000), None);
        assert_eq!(taken.free_near(0x30_0000, 0x1000, 0x20_0000..u64::MAX), Some(0x38_0000));
        assert_eq!(taken.free_near(0, 0x1000, all.clone()), Some(LOWEST));
        assert_eq!(taken.free_near(u64::MAX, 0x1000, all), Some(HIGHEST - 0x1000));
    }

    #[test]
    fn overlapping_ranges_merge() {
        let mut taken = Taken::new();
        taken.add(0x5000..0x6000);
        taken.add(0x8000..0x9000);
        taken.add(0x1000..0x2000);
        taken.add(0x4000..0x8000);
        assert_eq!(taken.ranges.0, BTreeMap::from([(0x1000, 0x2000), (0x4000, 0x9000)]));
        taken.add(0..u64::MAX);
        assert_eq!(taken.ranges.0.len(), 1);
        assert_eq!(taken.free_near(0x1000, 1, 0..u64::MAX), None);
    }
}
