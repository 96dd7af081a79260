//! Sorts lists slowly, but with little machine code. For each type of element, the standard library's sort has some 4 KB of
//! code, and this heapsort has 300 bytes.

use std::collections::BinaryHeap;

/// Sorts a list in place, without allocating memory. The order of equal elements may change.
pub fn sort<T: Ord>(all: &mut Vec<T>) {
    *all = BinaryHeap::from(std::mem::take(all)).into_sorted_vec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_in_place() {
        let mut all: Vec<u32> = (0..1000_u32).map(|number| number.wrapping_mul(2_654_435_761) % 777).collect();
        let (at, mut expected) = (all.as_ptr(), all.clone());
        expected.sort_unstable();
        sort(&mut all);
        assert_eq!((all.as_ptr(), all), (at, expected));
    }
}
