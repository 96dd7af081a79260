//! A map from address ranges to values.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges without overlaps, each with a value.
#[derive(Clone, Debug)]
pub struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Spans(BTreeMap::new())
    }
}

impl<T: Copy> Spans<T> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The values, ascending by address.
    pub fn values(&self) -> impl Iterator<Item = T> + use<'_, T> {
        self.0.values().map(|&(_, value)| value)
    }

    pub fn at(&self, addr: u64) -> Option<T> {
        let (_, &(end, value)) = self.0.range(..=addr).next_back()?;
        (addr < end).then_some(value)
    }

    /// Removes all ranges that overlap this range, and returns them.
    pub fn remove(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, T)> {
        let mut removed = Vec::new();
        if range.is_empty() {
            return removed;
        }
        while let Some((&start, &(end, value))) =
            self.0.range(..range.end).next_back().filter(|(_, &(end, _))| end > range.start)
        {
            self.0.remove(&start);
            removed.push((start..end, value));
        }
        removed
    }

    /// Removes the addresses of this range, and returns the parts that were removed.
    pub fn cut(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, T)> {
        let mut removed = self.remove(range);
        for (part, value) in &mut removed {
            if part.end > range.end {
                self.0.insert(range.end, (part.end, *value));
            }
            if part.start < range.start {
                self.0.insert(part.start, (range.start, *value));
            }
            *part = part.start.max(range.start)..part.end.min(range.end);
        }
        removed
    }

    /// Adds a range whose addresses have no value.
    pub fn add(&mut self, range: &Range<u64>, value: T) {
        if !range.is_empty() {
            self.0.insert(range.start, (range.end, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(spans: &Spans<u32>) -> Vec<(u64, u64, u32)> {
        spans.0.iter().map(|(&start, &(end, value))| (start, end, value)).collect()
    }

    #[test]
    fn whole_ranges_and_parts() {
        let mut spans = Spans::default();
        for (range, value) in [(10..20, 1), (20..30, 2), (40..50, 3), (7..7, 4)] {
            spans.add(&range, value);
        }
        assert_eq!(
            [9, 10, 19, 20, 30, 49].map(|addr| spans.at(addr)),
            [None, Some(1), Some(1), Some(2), None, Some(3)]
        );
        let mut whole = spans.clone();
        assert_eq!(whole.remove(&(19..21)), [(20..30, 2), (10..20, 1)]);
        assert_eq!(all(&whole), [(40, 50, 3)]);
        assert!(whole.remove(&(30..40)).is_empty() && whole.remove(&(45..45)).is_empty());
        assert_eq!(spans.cut(&(15..45)), [(40..45, 3), (20..30, 2), (15..20, 1)]);
        assert_eq!(all(&spans), [(10, 15, 1), (45, 50, 3)]);
        assert_eq!(spans.cut(&(11..12)), std::slice::from_ref(&(11..12, 1)));
        assert_eq!(all(&spans), [(10, 11, 1), (12, 15, 1), (45, 50, 3)]);
        assert_eq!((spans.values().collect::<Vec<_>>(), spans.len()), (vec![1, 1, 3], 3));
    }
}
