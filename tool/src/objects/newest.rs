//! Finds the newest name at each address, for perf maps, which have no times.

use std::ops::Range;

use jitsym::format::perf_map::{push_line, raw_lines};
use jitsym::Dialect;

use super::debug::name_of;
use super::ranges::Ranges;
use super::{Load, Loads};

/// The loads, or parts of loads, that no later load covers. The result is sorted by address, and has no overlaps.
pub(super) fn newest<'a>(loads: &[Load<'a>], covered: &mut Ranges) -> Vec<Load<'a>> {
    let mut out = Vec::new();
    for load in loads.iter().rev() {
        let range = load.range();
        let part = |part: Range<u64>| out.push(Load { addr: part.start, size: part.end - part.start, ..*load });
        covered.each_gap(range.clone(), part);
        covered.add(range);
    }
    out.sort_unstable_by_key(|load| load.addr);
    out
}

impl<'a> Loads<'a> {
    /// Adds the code in a perf map. If several lines describe an address, the last line counts. Code that was added before is
    /// newer than all lines.
    pub fn add_map(&mut self, map: &'a [u8]) {
        let (mut lines, mut covered) = (Vec::new(), Ranges::default());
        for fields in raw_lines(map).filter_map(|line| line.fields()) {
            let load = Load { addr: fields.start, size: fields.size, name: fields.name, ..Load::default() };
            match load.is_possible() {
                true => lines.push(load),
                false => self.impossible += 1,
            }
        }
        self.all.iter().for_each(|load| covered.add(load.range()));
        self.all.extend(newest(&lines, &mut covered));
    }

    /// A perf map of the newest code at each address, in the plain dialect and with clean names.
    pub fn to_map(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for load in newest(&self.all, &mut Ranges::default()) {
            push_line(&mut out, Dialect::Perf, load.addr, load.size, &name_of(&load));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(map: &str) -> String {
        let mut loads = Loads::new();
        loads.add_map(map.as_bytes());
        loads.finish();
        String::from_utf8(loads.to_map()).unwrap()
    }

    #[test]
    fn later_lines_win() {
        assert_eq!(cleaned("2000 10 second\n1000 10 first\n"), "1000 10 first\n2000 10 second\n");
        assert_eq!(cleaned("1000 10 old\n1000 10 new\n"), "1000 10 new\n");
        // The parts of a large entry that are not covered keep their name.
        assert_eq!(cleaned("1000 100 whole\n1010 10 part\n"), "1000 10 whole\n1010 10 part\n1020 e0 whole\n");
        assert_eq!(cleaned("1010 10 part\n1000 100 whole\n"), "1000 100 whole\n");
    }

    #[test]
    fn lines_of_any_dialect_become_plain() {
        let map = "0xABC0 0x10 a\n  2000\t20  spaces \r\nnonsense\n3000 0 empty\nffffffffffffffff 2 beyond\n4000 10 \n\
                   5000 10 torn";
        assert_eq!(cleaned(map), "2000 20 spaces\n4000 10 jit_4000\n5000 10 torn\nabc0 10 a()\n");
    }
}
