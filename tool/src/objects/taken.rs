//! Tracks the addresses that a process uses, and finds free ranges between them.

use std::ops::Range;

use super::ranges::Ranges;
use crate::tables::EM_X86_64;

/// The lowest address of a free range. Linux maps nothing below this address (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x10000;

/// The first address that no process has on this machine (`e_machine`). If `e_machine` is 0, the machine is the machine of
/// this program. On x86-64, addresses of processes have 47 bits. On other machines, addresses have up to 48 bits (AArch64).
fn highest(machine: u32) -> u64 {
    match machine {
        EM_X86_64 => HIGHEST_X86_64,
        0 if cfg!(target_arch = "x86_64") => HIGHEST_X86_64,
        _ => 0xffff_ffff_f000,
    }
}

const HIGHEST_X86_64: u64 = 0x7fff_ffff_f000;
pub(super) const PAGE: u64 = 4096;
/// The maximum number of used ranges after which a free range is searched for. A recording can have very many mappings.
const PROBES_MAX: usize = 4096;

/// The pages that are in use.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    ranges: Ranges,
    /// Mappings of files that are not files of compiled code.
    files: Ranges,
}

impl Taken {
    /// Makes a set in which no address is used.
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

    /// Marks all pages of a range as used by a mapping of a file, such as a library. No object contains such a range, because
    /// a profiler would attribute the code of the library to the object.
    pub fn add_file(&mut self, range: Range<u64>) {
        self.files.add(range.clone());
        self.add(range);
    }

    pub(super) fn has_file_in(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && !self.files.is_free(range)
    }

    /// The first free range of `len` bytes from `near` on that ends at or below `limit`, and that a process can have on this
    /// machine. The range consists of whole pages.
    pub(super) fn free_above(&self, near: u64, len: u64, limit: u64, machine: u32) -> Option<u64> {
        let (len, limit) = (len.checked_next_multiple_of(PAGE)?, limit.min(highest(machine)));
        let mut at = near.max(LOWEST).checked_next_multiple_of(PAGE)?;
        if let Some((_, &end)) = self.ranges.0.range(..=at).next_back() {
            at = at.max(end);
        }
        for _ in 0..PROBES_MAX {
            let end = at.checked_add(len).filter(|&end| end <= limit)?;
            match self.ranges.0.range(at..end).next() {
                Some((_, &taken)) => at = taken,
                None => return Some(at),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tables::EM_AARCH64;

    #[test]
    fn places_are_free_and_near() {
        let mut taken = Taken::new();
        for range in [0x10_0000..0x10_1000, 0x10_1000..0x10_2001, 0x20_0000..0x30_0000, 0x28_0000..0x38_0000] {
            taken.add(range);
        }
        taken.add(5..5);
        assert_eq!(taken.ranges.0, BTreeMap::from([(0x10_0000, 0x10_3000), (0x20_0000, 0x38_0000)]));
        let free_above = |near, len, limit| taken.free_above(near, len, limit, EM_X86_64);
        assert_eq!(free_above(0x10_0000, 1, u64::MAX), Some(0x10_3000));
        assert_eq!(free_above(0x10_2001, 1, u64::MAX), Some(0x10_3000));
        assert_eq!(free_above(0x10_3001, 1, u64::MAX), Some(0x10_4000));
        assert_eq!(free_above(0x10_1000, 0xf_e000, u64::MAX), Some(0x38_0000));
        assert_eq!(free_above(0x10_1000, 0xf_e000, 0x40_0000), None);
        assert_eq!(free_above(0, 0x1000, u64::MAX), Some(LOWEST));
        for (machine, highest) in [(EM_X86_64, 0x7fff_ffff_f000), (EM_AARCH64, 0xffff_ffff_f000)] {
            let last = highest - 0x1000;
            assert_eq!(taken.free_above(last, 0x1000, u64::MAX, machine), Some(last));
            assert_eq!(taken.free_above(last + 1, 0x1000, u64::MAX, machine), None);
        }
        assert_eq!(free_above(u64::MAX, u64::MAX, u64::MAX), None);
    }

    #[test]
    fn files_are_known() {
        let mut taken = Taken::new();
        taken.add(0x5000..0x6000);
        taken.add_file(0x8000..0x9000);
        let files = [0x5000..0x8000, 0x5000..0x8001, 0x8800..0x8801, 0x9000..0xa000, 0x8000..0x8000];
        assert_eq!(files.map(|range| taken.has_file_in(&range)), [false, true, true, false, false]);
        assert_eq!(taken.free_above(0x8000, 1, u64::MAX, EM_X86_64), Some(LOWEST));
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
        assert_eq!(taken.free_above(0x1000, 1, u64::MAX, EM_X86_64), None);
    }
}
