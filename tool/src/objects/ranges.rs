//! Sets of addresses, stored as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Address ranges, as a map from the start of each range to its end. Adjacent ranges are merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(pub BTreeMap<u64, u64>);

impl Ranges {
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut low, mut high) = (range.start, range.end);
        if let Some((&before, &end)) = self.0.range(..=low).next_back().filter(|(_, &end)| end >= range.start) {
            (low, high) = (before, high.max(end));
        }
        while let Some((&next, &end)) = self.0.range(low..).next().filter(|(&next, _)| next <= high) {
            high = high.max(end);
            self.0.remove(&next);
        }
        self.0.insert(low, high);
    }

    /// Whether no address of a range is in the set.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_none_or(|(_, &end)| end <= range.start)
    }

    /// Passes the parts of a range that are not in the set to `each`, in the order of addresses.
    pub fn each_gap(&self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let before = self.0.range(..=range.start).next_back().map(|(_, &end)| end);
        let mut at = before.filter(|&end| end > range.start).unwrap_or(range.start);
        while at < range.end {
            let next = self.0.range(at..range.end).next();
            let (start, end) = next.map_or((range.end, range.end), |(&start, &end)| (start, end));
            if start > at {
                each(at..start);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_in_it() {
        let mut ranges = Ranges::default();
        let gaps = |ranges: &Ranges, range| {
            let mut gaps = Vec::new();
            ranges.each_gap(range, |gap| gaps.push(gap));
            gaps
        };
        assert_eq!(gaps(&ranges, 1..5), std::slice::from_ref(&(1..5)));
        [10..20, 30..40, 20..25, 3..3].into_iter().for_each(|range| ranges.add(range));
        assert_eq!(ranges.0, BTreeMap::from([(10, 25), (30, 40)]));
        assert_eq!(gaps(&ranges, 0..50), [0..10, 25..30, 40..50]);
        assert_eq!(gaps(&ranges, 12..28), std::slice::from_ref(&(25..28)));
        assert!(gaps(&ranges, 10..25).is_empty() && gaps(&ranges, 31..39).is_empty());
        assert_eq!(gaps(&ranges, 39..u64::MAX), std::slice::from_ref(&(40..u64::MAX)));
        ranges.add(0..u64::MAX);
        assert_eq!(ranges.0.len(), 1);
    }
}
