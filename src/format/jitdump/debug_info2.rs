//! Makes and reads the record in which samply finds the inlined functions of the next LOAD. perf skips this record with a
//! warning.
//!
//! samply's reader is the specification: `SAMPLY_JIT_CODE_DEBUG_INFO2` in `samply-symbols/src/jitdump.rs` of mstange/samply, in
//! the branch `support-inlines` (commit 1d15c553; no release contains the reader). All numbers have the file's byte order:
//!
//! ```text
//! | prefix | u64 code_addr, code_offset_count, source_position_count, string_count |
//! | code offsets: u32 code_offset, source_position                                 |
//! | source positions: i32 caller_index; u32 function_name; i32 file;               |
//! |     u32 function_start_line, function_start_column, line, column               |
//! | strings, each with a NUL                                                       |
//! ```
//!
//! The source position at a code offset applies up to the next code offset. The code offsets are sorted, because the reader
//! uses a binary search. `source_position`, `function_name` and `file` are indices. `caller_index` is the index of the call's
//! source position, or -1 if the function is not inlined. An unknown `file` is -1, and an unknown line or column is 0. If there
//! is a DEBUG_INFO2 record, the reader ignores the lines of the DEBUG_INFO record.

use super::raw::{c_string, Fields, RawDebug, RawEntry, RawRecord, RawRecords};
use super::record::{id, put_prefix};
use super::{inlines, Group};
use crate::api::code::Inline;
use crate::api::error::{Error, Result};
use crate::format::put::Put;
use crate::sys::sort::sort;

/// Size of the record before its code offsets.
pub const DEBUG2_FIXED_SIZE: usize = 48;
const OFFSET_SIZE: usize = 8;
const POSITION_SIZE: usize = 28;

/// The value of a missing index.
const NONE: u32 = u32::MAX;

/// Makes the record for a group. `inlines` is the record of the group's inlined functions (`inlines::record`). The time stamp
/// is 0.
pub fn record(group: &Group<'_>, inlines: &[u8]) -> Result<Vec<u8>> {
    let mut debug = Vec::new();
    if !group.lines.is_empty() {
        let size = super::debug_size(group.lines, group.addr, group.size)?;
        debug.try_reserve_exact(size).map_err(|_| Error::NoMemory)?;
        debug.resize(size, 0);
        super::put_debug_of_any(group.lines, group.addr, group.size, 0, &mut debug)?;
    }
    let mut parts = Parts::default();
    let mut out = parts.fill(group, inlines, &debug).and_then(|()| parts.whole(group)).ok_or(Error::NoMemory)?;
    // Record sizes are 32 bits wide.
    let size = u32::try_from(out.len()).map_err(|_| Error::TooLarge)?;
    put_prefix(&mut Put::new(&mut out), 0, id::DEBUG_INFO2, size as usize);
    Ok(out)
}

/// The parts of a record. All functions return `None` if there is no memory.
#[derive(Default)]
struct Parts<'a> {
    all: Vec<Inline<'a>>,
    rows: Vec<RawEntry<'a>>,
    /// The upper 32 bits of each number are an offset at which a function or a row begins or ends. The lower 32 bits are the
    /// index of the function that begins at this offset, or `NONE` if none begins there. So a function comes before the
    /// functions that are inlined into it.
    places: Vec<u64>,
    /// Names and files in sorted order. The number in each pair is always 0. Pairs are used because the library already has
    /// code that sorts pairs of this type.
    strings: Vec<(&'a [u8], u32)>,
    offsets: Vec<u8>,
    positions: Vec<u8>,
}

impl<'a> Parts<'a> {
    /// Reads the records of a group's inlined functions and lines. The record of lines may be empty.
    fn fill(&mut self, group: &Group<'a>, inlines: &'a [u8], debug: &'a [u8]) -> Option<()> {
        push(&mut self.strings, (group.name, 0))?;
        push(&mut self.places, u64::from(NONE))?;
        for inline in RawRecords::from(inlines, 0).next().iter().flat_map(inlines::entries) {
            push(&mut self.places, u64::from(inline.begin) << 32 | self.all.len() as u64)?;
            push(&mut self.places, u64::from(inline.end) << 32 | u64::from(NONE))?;
            push(&mut self.strings, (inline.name, 0))?;
            push(&mut self.strings, (inline.call_file, 0))?;
            push(&mut self.all, inline)?;
        }
        let debug = RawRecords::from(debug, 0).next().and_then(|record| record.debug_info());
        for row in debug.iter().flat_map(RawDebug::entries) {
            push(&mut self.places, (row.addr - group.addr) << 32 | u64::from(NONE))?;
            push(&mut self.strings, (row.file, 0))?;
            push(&mut self.rows, row)?;
        }
        sort(&mut self.places);
        sort(&mut self.strings);
        self.strings.dedup();
        Some(())
    }

    /// Makes the record, with zeros in place of its prefix.
    fn whole(&mut self, group: &Group<'_>) -> Option<Vec<u8>> {
        // For each inlined function, the source position of its call has the same index as the function.
        for index in 0..self.all.len() {
            let Inline { parent, call_file, call_line, call_column, .. } = self.all[index];
            self.put_position(group, parent.unwrap_or(NONE), call_file, call_line, call_column)?;
        }
        let (mut function, mut rows_before) = (NONE, 0);
        for index in 0..self.places.len() {
            let place = self.places[index];
            let (offset, begins) = ((place >> 32) as u32, place as u32);
            while let Some(ended) = self.all.get(function as usize).filter(|inline| inline.end <= offset) {
                function = ended.parent.unwrap_or(NONE);
            }
            if begins != NONE {
                function = begins;
            }
            let goes_on = self.places.get(index + 1).is_some_and(|next| next >> 32 == u64::from(offset));
            if goes_on || u64::from(offset) >= group.size {
                continue;
            }
            while self.rows.get(rows_before).is_some_and(|row| row.addr <= group.addr + u64::from(offset)) {
                rows_before += 1;
            }
            put(&mut self.offsets, &offset.to_ne_bytes())?;
            put(&mut self.offsets, &((self.positions.len() / POSITION_SIZE) as u32).to_ne_bytes())?;
            let row = rows_before.checked_sub(1).and_then(|index| self.rows.get(index));
            let (file, line, column) = row.map_or((&[][..], 0, 0), |row| (row.file, row.line, row.column));
            self.put_position(group, function, file, line, column)?;
        }
        let mut out = Vec::new();
        let counts = [self.offsets.len() / OFFSET_SIZE, self.positions.len() / POSITION_SIZE, self.strings.len()];
        for word in [0, 0, group.addr].into_iter().chain(counts.map(|count| count as u64)) {
            put(&mut out, &word.to_ne_bytes())?;
        }
        put(&mut out, &self.offsets)?;
        put(&mut out, &self.positions)?;
        for (string, _) in &self.strings {
            put(&mut out, string)?;
            put(&mut out, &[0])?;
        }
        Some(out)
    }

    /// Adds the source position of a row or a call. `function` is the index of the inlined function that contains the position.
    fn put_position(&mut self, group: &Group<'_>, function: u32, file: &[u8], line: u32, column: u32) -> Option<()> {
        let name = self.all.get(function as usize).map_or(group.name, |inline| inline.name);
        let words = [function, self.string(name), self.string(file), 0, 0, line, column];
        words.iter().try_for_each(|word| put(&mut self.positions, &word.to_ne_bytes()))
    }

    /// The index of a string; `NONE` for the empty name of an unknown file.
    fn string(&self, string: &[u8]) -> u32 {
        self.strings.binary_search_by(|(other, _)| (*other).cmp(string)).map_or(NONE, |index| index as u32)
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Option<()> {
    list.try_reserve(1).ok()?;
    list.push(item);
    Some(())
}

#[inline(never)]
fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.try_reserve(bytes.len()).ok()?;
    out.extend_from_slice(bytes);
    Some(())
}

/// The fields of a DEBUG_INFO2 record.
#[derive(Clone, Copy, Debug)]
pub struct RawDebug2<'a> {
    /// Start of the code.
    pub addr: u64,
    /// The number of strings that the record states.
    pub string_count: u64,
    offsets: Fields<'a>,
    positions: Fields<'a>,
    strings: &'a [u8],
}

/// A source position. An unknown file is -1, and an unknown line or column is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPosition {
    /// The index of the call's source position, or -1 if the function is not inlined.
    pub caller: i32,
    /// Index of the string with the function's name.
    pub function: u32,
    /// Index of the string with the file's name, or -1 if the file is unknown.
    pub file: i32,
    pub line: u32,
    pub column: u32,
}

impl<'a> RawRecord<'a> {
    /// The fields of a DEBUG_INFO2. `None` if the record is too short for the stated numbers of code offsets and positions.
    pub fn debug_info2(&self) -> Option<RawDebug2<'a>> {
        let fields = self.fields;
        let count = |at| usize::try_from(fields.u64_at(at)?).ok();
        let (offsets, rest) = self.tail(DEBUG2_FIXED_SIZE).split_at_checked(count(24)?.checked_mul(OFFSET_SIZE)?)?;
        let (positions, strings) = rest.split_at_checked(count(32)?.checked_mul(POSITION_SIZE)?)?;
        Some(RawDebug2 {
            addr: fields.u64_at(16)?,
            string_count: fields.u64_at(40)?,
            offsets: Fields { bytes: offsets, ..fields },
            positions: Fields { bytes: positions, ..fields },
            strings,
        })
    }
}

impl<'a> RawDebug2<'a> {
    /// Each code offset with the index of its source position.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        let offsets = self.offsets;
        let word = move |at| offsets.u32_at(at);
        (0..offsets.bytes.len()).step_by(OFFSET_SIZE).map_while(move |at| Some((word(at)?, word(at + 4)?)))
    }

    pub fn position_count(&self) -> usize {
        self.positions.bytes.len() / POSITION_SIZE
    }

    pub fn position(&self, index: usize) -> Option<RawPosition> {
        let at = index.checked_mul(POSITION_SIZE)?;
        let word = |number: usize| self.positions.u32_at(at.checked_add(4 * number)?);
        Some(RawPosition {
            caller: word(0)? as i32,
            function: word(1)?,
            file: word(2)? as i32,
            line: word(5)?,
            column: word(6)?,
        })
    }

    /// The strings, up to the first string without a NUL.
    pub fn strings(&self) -> impl Iterator<Item = &'a [u8]> {
        let (mut left, mut rest) = (self.string_count, self.strings);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let string = c_string(rest)?;
            rest = rest.get(string.len() + 1..)?;
            Some(string)
        })
    }

    /// Whether all strings are present.
    pub fn is_whole(&self) -> bool {
        self.strings().count() as u64 == self.string_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::code::{Line, Lines};
    use crate::format::jitdump::{is_group_head, places, relocate, Relocation, PREFIX_SIZE};
    use crate::sink::test_random::{Random, Seed};

    const ADDR: u64 = 0x7f00_0000_1000;

    fn group<'a>(name: &'a [u8], lines: &'a [Line<'a>], size: u64) -> Group<'a> {
        Group { pid: 1, tid: 1, index: 1, addr: ADDR, size, name, lines: Lines::Rows(lines), unwind: None }
    }

    fn made(group: &Group<'_>, all: &[Inline<'_>]) -> Vec<u8> {
        record(group, &inlines::record(all, group.size).unwrap()).unwrap()
    }

    /// Finds the functions at an offset in the same way as samply, the innermost first. For each function, returns name, file,
    /// line and column.
    fn frames<'a>(debug: &RawDebug2<'a>, offset: u32) -> Vec<(&'a [u8], &'a [u8], u32, u32)> {
        let strings: Vec<&[u8]> = debug.strings().collect();
        let at = debug.offsets().take_while(|&(at, _)| at <= offset).last().unwrap().1;
        let mut frames = Vec::new();
        let mut next = at as i32;
        while let Some(position) = usize::try_from(next).ok().map(|index| debug.position(index).unwrap()) {
            let file = usize::try_from(position.file).map_or(&b""[..], |index| strings[index]);
            frames.push((strings[position.function as usize], file, position.line, position.column));
            assert!(position.caller < next);
            next = position.caller;
        }
        frames
    }

    #[test]
    fn golden_debug_info2() {
        let lines = [
            Line { offset: 2, line: 10, column: 1, file: b"/a.js" },
            Line { offset: 4, line: 50, column: 0, file: b"/b.js" },
        ];
        let inline =
            Inline { begin: 4, end: 8, name: b"map", call_file: b"/a.js", call_line: 11, call_column: 7, parent: None };
        let expected = |addr: u64| {
            let words = |words: &[i32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            let wide = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            let offsets = words(&[0, 1, 2, 2, 4, 3, 8, 4]);
            let positions = words(
                &[
                    [-1, 2, 0, 0, 0, 11, 7],
                    [-1, 2, -1, 0, 0, 0, 0],
                    [-1, 2, 0, 0, 0, 10, 1],
                    [0, 3, 1, 0, 0, 50, 0],
                    [-1, 2, 1, 0, 0, 50, 0],
                ]
                .concat(),
            );
            let strings = b"/a.js\0/b.js\0main\0map\0";
            let size = 48 + offsets.len() + positions.len() + strings.len();
            let prefix = [827_346_260_u32, size as u32].map(u32::to_le_bytes).concat();
            [&prefix[..], &wide(&[0, addr, 4, 5, 4]), &offsets, &positions, strings].concat()
        };
        let mut made = made(&group(b"main", &lines, 12), &[inline]);
        assert_eq!(made, expected(ADDR));
        relocate(&mut made, &Relocation { timestamp: 0, tid: 1, addr: 0x5000, index: 1 });
        assert_eq!(made, expected(0x5000));
    }

    /// Checks the frames at each offset of random code. The frames must be the functions whose ranges contain the offset, with
    /// the right lines.
    #[test]
    fn frames_at_each_offset() {
        const SIZE: u32 = 40;
        const NAMES: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
        const FILES: [&[u8]; 3] = [b"/a", b"/b", b"one"];
        let seed = Seed::new();
        let mut random = Random(seed.0);
        let mut any = |below: usize| random.below(below as u64) as usize;
        for _ in 0..500 {
            let mut all: Vec<Inline<'_>> = Vec::new();
            for number in 0..any(12) {
                let parent = Some(any(all.len() + 1)).filter(|&parent| parent < all.len()).map(|parent| parent as u32);
                let around = parent.map_or((0, SIZE), |parent| (all[parent as usize].begin, all[parent as usize].end));
                let begin = around.0 + any((around.1 - around.0) as usize) as u32;
                let end = begin + 1 + any((around.1 - begin) as usize) as u32;
                let (name, call_file) = (NAMES[any(4)], FILES[any(3)]);
                all.push(Inline { begin, end, name, call_file, call_line: number as u32 + 1, call_column: 3, parent });
                if inlines::check(&all, SIZE.into()).is_err() {
                    all.pop();
                }
            }
            let mut lines = Vec::new();
            for line in 0..any(10) {
                lines.push(Line {
                    offset: any(SIZE as usize) as u32,
                    line: line as u32,
                    column: 2,
                    file: FILES[any(3)],
                });
            }
            let made = made(&group(NAMES[any(4)], &lines, SIZE.into()), &all);
            let read = RawRecords::from(&made, 0).next().unwrap();
            let debug = read.debug_info2().unwrap();
            assert!(debug.is_whole() && debug.strings().all(|string| !string.is_empty()));
            assert!(debug.offsets().map(|(at, _)| at).is_sorted_by(|one, other| one < other));
            lines.sort_by_key(|line| line.offset);
            for offset in 0..SIZE {
                let row = lines.iter().rev().find(|row| row.offset <= offset && row.line != 0);
                let mut place = row.map_or((&b""[..], 0, 0), |row| (row.file, row.line, row.column));
                // The functions that contain the offset, from the outermost to the innermost.
                let around: Vec<&Inline<'_>> =
                    all.iter().filter(|inline| (inline.begin..inline.end).contains(&offset)).collect();
                let mut expected = Vec::new();
                for inline in around.iter().rev() {
                    expected.push((inline.name, place.0, place.1, place.2));
                    place = (inline.call_file, inline.call_line, inline.call_column);
                }
                let found = frames(&debug, offset);
                assert_eq!(found[..expected.len()], expected, "{offset}: {all:?} {lines:?}");
                let (outer, rest) = found[expected.len()..].split_first().unwrap();
                assert_eq!(((outer.1, outer.2, outer.3), rest.len()), (place, 0));
            }
        }
    }

    /// A group with a complete DEBUG_INFO2 record is recognized as a group. A group with an incomplete DEBUG_INFO2 record is
    /// not recognized.
    #[test]
    fn torn_records_are_no_groups() {
        let inline =
            Inline { begin: 0, end: 4, name: b"map", call_file: b"/a", call_line: 1, call_column: 0, parent: None };
        let group = group(b"main", &[], 8);
        let before = made(&group, &[inline]);
        let mut rest = vec![0; group.fixed_size()];
        group.write(1, &mut rest, 0).unwrap().unwrap();
        let head = [&before[..], &rest].concat();
        assert!(is_group_head(&head, 8, 4));
        let (file, mut found) = ([&head[..], &[0x90; 8]].concat(), Vec::new());
        let read = |bytes: &mut [u8], at: u64| {
            bytes.copy_from_slice(&file[at as usize..][..bytes.len()]);
            Ok(())
        };
        places(0..file.len() as u64, read, |place| {
            found.push((place.offset, place.head_len));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(0, head.len())]);
        for len in PREFIX_SIZE..before.len() {
            let mut torn = before[..len].to_vec();
            torn[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
            assert!(!is_group_head(&[&torn[..], &rest].concat(), 8, 4), "{len}");
        }
    }
}
