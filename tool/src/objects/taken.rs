//! The addresses that a process uses, and free places between them.

use std::collections::BTreeMap;
use std::ops::Range;

/// The lowest address that is given out: Linux maps nothing below it (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x10000;
/// The first address that no process of a 64-bit Linux can have.
const HIGHEST: u64 = 0x7fff_ffff_f000;
pub(super) const PAGE: u64 = 4096;

/// Address ranges, merged where they touch.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// From the start of each range to its end.
    ranges: BTreeMap<u64, u64>,
}

impl Taken {
    /// No address is used.
    pub fn new() -> Taken {
        Taken::default()
    }

    /// Marks all pages of a range as used.
    pub fn add(&mut self, range: Range<u64>) {
        let start = range.start / PAGE * PAGE;
        let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if range.is_empty() {
            return;
        }
        let (mut low, mut high) = (start, end);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back().filter(|(_, &end)| end >= start) {
            (low, high) = (before, high.max(before_end));
        }
        while let Some((&next, &next_end)) = self.ranges.range(low..).next().filter(|(&next, _)| next <= high) {
            high = high.max(next_end);
            self.ranges.remove(&next);
        }
        self.ranges.insert(low, high);
    }

    /// The free place of `len` bytes that is nearest to `near`, and lies within `window`. Prefers places above `near`.
    pub fn free_near(&self, near: u64, len: u64, window: Range<u64>) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE)?;
        let window = window.start.max(LOWEST)..window.end.min(HIGHEST);
        let above = self.free_above(near, len, &window);
        let below = self.free_below(near, len, &window);
        match (above, below) {
            (Some(above), Some(below)) if near.abs_diff(below) < above.abs_diff(near) => Some(below),
            (above, below) => above.or(below),
        }
    }

    /// The first free place from `near` on.
    fn free_above(&self, near: u64, len: u64, window: &Range<u64>) -> Option<u64> {
        let mut at = near.max(window.start).checked_next_multiple_of(PAGE)?;
        if let Some((_, &end)) = self.ranges.range(..=at).next_back() {
            at = at.max(end);
        }
        loop {
            let end = at.checked_add(len).filter(|&end| end <= window.end)?;
            match self.ranges.range(at..end).next() {
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
            match self.ranges.range(..end).next_back().filter(|(_, &taken)| taken > at) {
                Some((&start, _)) => end = start,
                None => return Some(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_free_and_near() {
        let mut taken = Taken::new();
        for range in [0x10_0000..0x10_1000, 0x10_1000..0x10_2001, 0x20_0000..0x30_0000, 0x28_0000..0x38_0000] {
            taken.add(range);
        }
        taken.add(5..5);
        assert_eq!(taken.ranges, BTreeMap::from([(0x10_0000, 0x10_3000), (0x20_0000, 0x38_0000)]));
        let all = 0..u64::MAX;
        assert_eq!(taken.free_near(0x10_0000, 1, all.clone()), Some(0xf_f000));
        assert_eq!(taken.free_near(0x10_2fff, 1, all.clone()), Some(0x10_3000));
        assert_eq!(taken.free_near(0x10_1000, 0x1000, 0x10_0000..u64::MAX), Some(0x10_3000));
        assert_eq!(taken.free_near(0x10_1000, 0xf_e000, 0x10_0000..u64::MAX), Some(0x38_0000));
        assert_eq!(taken.free_near(0x10_1000, 0xf_e000, 0x10_0000..0x40_0000), None);
        assert_eq!(taken.free_near(0x30_0000, 0x1000, all.clone()), Some(0x38_0000));
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
        assert_eq!(taken.ranges, BTreeMap::from([(0x1000, 0x2000), (0x4000, 0x9000)]));
        taken.add(0..u64::MAX);
        assert_eq!(taken.ranges.len(), 1);
        assert_eq!(taken.free_near(0x1000, 1, 0..u64::MAX), None);
    }
}
