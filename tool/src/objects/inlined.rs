//! Converts the inlined functions of a DEBUG_INFO2 record, which has source positions, to the ranges of code that DWARF
//! describes.

use jitsym::format::jitdump::debug_info2::{RawDebug2, RawPosition};
use jitsym::format::{jitdump::inlines, name};
use jitsym::Inline;

/// The maximum length of a chain of callers. Positions may refer to each other in a circle.
const DEPTH_MAX: usize = 256;
/// The limits for the callers of all positions together: `STEPS_MORE`, plus `STEPS_TIMES` for each code offset.
const STEPS_MORE: usize = 1 << 16;
const STEPS_TIMES: usize = 64;
/// The limits for the memory of all names: `BYTES_MORE` bytes, plus `BYTES_TIMES` times the size of the strings.
const BYTES_MORE: usize = 1 << 20;
const BYTES_TIMES: usize = 16;

/// Makes the library's own record of the inlined functions (`inlines::record`). Returns `None` if there are none. A function
/// is left out if it has no name or if the position of its call is unknown. All functions that are inlined into it are then
/// left out too.
pub(super) fn record(debug: &RawDebug2<'_>, code_size: u64) -> Option<Vec<u8>> {
    let all = ranges(debug, code_size);
    if all.is_empty() {
        return None;
    }
    inlines::record(&all, code_size).ok()
}

/// An inlined function that has not ended at the present code offset.
struct Open {
    /// The index of the position of its call.
    call: i32,
    /// The string with its name.
    function: u32,
    /// The index of its range.
    range: usize,
}

fn ranges<'a>(debug: &RawDebug2<'a>, code_size: u64) -> Vec<Inline<'a>> {
    let strings: Vec<&[u8]> = debug.strings().collect();
    let string = |index: u32| strings.get(index as usize).copied().filter(|string| !string.is_empty());
    let position = |index: i32| debug.position(usize::try_from(index).ok()?);
    let offsets = || debug.offsets().map(|(offset, _)| offset);
    let mut steps_left = STEPS_MORE.saturating_add(offsets().count().saturating_mul(STEPS_TIMES));
    let bytes: usize = strings.iter().map(|string| string.len()).sum();
    let mut bytes_left = BYTES_MORE.saturating_add(bytes.saturating_mul(BYTES_TIMES));
    let code_end = u32::try_from(code_size).unwrap_or(u32::MAX);
    let ends = offsets().skip(1).chain([code_end]);
    let (mut all, mut open, mut chain) = (Vec::<Inline<'a>>::new(), Vec::<Open>::new(), Vec::<RawPosition>::new());
    let mut last_end = 0;
    for ((begin, index), end) in debug.offsets().zip(ends) {
        let end = end.min(code_end);
        if begin < last_end || begin >= end {
            continue;
        }
        chain.clear();
        let mut next = i32::try_from(index).ok().and_then(position);
        while let Some(position_here) = next.filter(|_| chain.len() < DEPTH_MAX) {
            chain.push(position_here);
            next = position(position_here.caller);
        }
        let Some(left) = steps_left.checked_sub(chain.len()) else { break };
        steps_left = left;
        // Functions that are open before a gap end at the gap.
        if begin != last_end {
            open.clear();
        }
        last_end = end;
        // The outermost function is the code itself.
        for (depth, called) in chain.iter().rev().skip(1).enumerate() {
            if let Some(same) = open.get(depth).filter(|it| (it.call, it.function) == (called.caller, called.function))
            {
                all[same.range].end = end;
                continue;
            }
            open.truncate(depth);
            let file = |call: RawPosition| u32::try_from(call.file).ok().and_then(string).map(|file| (file, call));
            let call = position(called.caller).and_then(file).filter(|(_, call)| call.line != 0);
            let name = string(called.function).filter(|text| !name::clean(text).is_empty());
            let (Some((call_file, call)), Some(name)) = (call, name) else { break };
            let Some(left) = bytes_left.checked_sub(call_file.len() + name.len()) else { return all };
            bytes_left = left;
            let parent = open.last().and_then(|outer| u32::try_from(outer.range).ok());
            open.push(Open { call: called.caller, function: called.function, range: all.len() });
            let (call_line, call_column) = (call.line, call.column);
            all.push(Inline { begin, end, name, call_file, call_line, call_column, parent });
        }
        open.truncate(chain.len().saturating_sub(1));
    }
    all
}

#[cfg(test)]
mod tests {
    use jitsym::format::jitdump::raw::RawRecords;
    use jitsym::format::jitdump::{debug_info2, Group};
    use jitsym::{Line, Lines};

    use super::*;

    const ADDR: u64 = 0x7f00_0000_1000;
    const SIZE: u64 = 64;

    fn inline(begin: u32, end: u32, name: &'static [u8], parent: Option<u32>) -> Inline<'static> {
        Inline { begin, end, name, call_file: b"/a.js", call_line: begin + 1, call_column: 2, parent }
    }

    fn dumped(all: &[Inline<'_>], lines: &[Line<'_>]) -> Vec<u8> {
        let lines = Lines::Rows(lines);
        let group = Group { pid: 1, tid: 1, index: 1, addr: ADDR, size: SIZE, name: b"main", lines, unwind: None };
        debug_info2::record(&group, &inlines::record(all, SIZE).unwrap()).unwrap()
    }

    fn read(record: &[u8]) -> Vec<Inline<'_>> {
        ranges(&RawRecords::from(record, 0).next().unwrap().debug_info2().unwrap(), SIZE)
    }

    #[test]
    fn ranges_come_back() {
        let all = [
            inline(4, 32, b"one", None),
            inline(8, 16, b"two", Some(0)),
            inline(8, 12, b"three", Some(1)),
            // The same function is called again at another position.
            inline(16, 32, b"two", Some(0)),
            inline(32, 64, b"one", None),
        ];
        let line = |offset, line| Line { offset, line, column: 0, file: b"/b.js" };
        for lines in [&[][..], &[line(0, 1), line(10, 2), line(12, 3), line(40, 4)]] {
            assert_eq!(read(&dumped(&all, lines)), all);
        }
        assert!(read(&dumped(&[], &[line(0, 1)])).is_empty());
    }

    /// Whatever a damaged record contains, the ranges are those of a valid record.
    #[test]
    fn damaged_records() {
        let whole = dumped(&[inline(4, 32, b"one", None), inline(8, 16, b"two", Some(0))], &[]);
        for at in debug_info2::DEBUG2_FIXED_SIZE..whole.len() {
            for value in [0, 1, 2, 5, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let all = read(&damaged);
                assert!(inlines::check(&all, SIZE).is_ok(), "{at} {value}: {all:?}");
            }
        }
    }

    /// A circle of callers ends.
    #[test]
    fn a_circle() {
        let mut record = dumped(&[inline(4, 32, b"one", None)], &[]);
        let debug = RawRecords::from(&record, 0).next().unwrap().debug_info2().unwrap();
        let positions = debug_info2::DEBUG2_FIXED_SIZE + 8 * debug.offsets().count();
        // The position of the call refers to itself as its caller.
        record[positions..positions + 4].copy_from_slice(&0_i32.to_ne_bytes());
        assert!(read(&record).len() < DEPTH_MAX);
    }
}
