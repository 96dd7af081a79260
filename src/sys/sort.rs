//! Sorts lists slowly, but with little machine code. For each type of element, the standard library's sort has some 4 KB of
//! code, and this heapsort has 300 bytes.

/// Sorts a list in place, without allocating memory. The order of equal elements may change.
pub fn sort<T: Ord>(all: &mut [T]) {
    heapsort(all, |one, other| one < other);
}

/// Like [`sort`], by a key of each element.
pub fn sort_by_key<T, K: Ord>(all: &mut [T], key: impl Fn(&T) -> K) {
    heapsort(all, |one, other| key(one) < key(other));
}

fn heapsort<T>(all: &mut [T], is_less: impl Fn(&T, &T) -> bool) {
    // Many lists are sorted already.
    if all.is_sorted_by(|one, next| !is_less(next, one)) {
        return;
    }
    let len = all.len();
    // The first turns make a heap, in which no element is less than the elements at twice its index, plus 1 and plus 2. Each
    // later turn moves the greatest element of the heap behind the heap.
    for turn in (0..len + len / 2).rev() {
        let (mut at, end) = if turn >= len {
            (turn - len, len)
        } else {
            all.swap(0, turn);
            (0, turn)
        };
        loop {
            let mut child = 2 * at + 1;
            if child + 1 < end && is_less(&all[child], &all[child + 1]) {
                child += 1;
            }
            if child >= end || !is_less(&all[at], &all[child]) {
                break;
            }
            all.swap(at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_in_place() {
        for len in [0, 1, 2, 3, 4, 5, 6, 7, 8, 63, 1000] {
            let mut all: Vec<u32> = (0..len).map(|number: u32| number.wrapping_mul(2_654_435_761) % 777).collect();
            let mut descending = all.clone();
            let mut expected = all.clone();
            expected.sort_unstable();
            sort(&mut all);
            assert_eq!(all, expected);
            sort_by_key(&mut descending, |&number| std::cmp::Reverse(number));
            expected.reverse();
            assert_eq!(descending, expected);
        }
    }
}
