//! Compares every record with golden bytes, and reads the records back.

use std::cell::Cell;

use super::raw::RawRecords;
use super::*;
use crate::api::code::{Line, LineTable};
use crate::api::error::Error;

const TIME: u64 = 0x1111_2222_3333_4444;

fn le32(value: u32) -> [u8; 4] {
    value.to_ne_bytes()
}

fn le64(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

fn line(offset: u32, line: u32, column: u32, file: &[u8]) -> Line<'_> {
    Line { offset, line, column, file }
}

fn ready() -> Tables {
    Tables::ready(&[1, 2, 3, 4, 5, 6], 2)
}

fn group<'a>(lines: &'a [Line<'a>], unwind: Option<&'a Tables>) -> Group<'a> {
    Group {
        pid: 100,
        tid: 101,
        index: 7 << 32,
        addr: 0x7f00_0000_1000,
        size: 8,
        name: b"fib",
        lines: Lines::Rows(lines),
        unwind,
    }
}

fn bytes(group: &Group<'_>) -> Vec<u8> {
    bytes_at(TIME, group)
}

fn bytes_at(time: u64, group: &Group<'_>) -> Vec<u8> {
    let size = group.size().unwrap();
    // `write` returns `None` if `out` is one byte too short for the group, or one byte too short for the group and the `behind`
    // bytes.
    assert_eq!(group.write(time, &mut vec![0; size - 1], 0), Ok(None));
    assert_eq!(group.write(time, &mut vec![0; size + 4], 5), Ok(None));
    let mut out = vec![0xee; size + 5];
    assert_eq!(group.write(time, &mut out, 5).unwrap().unwrap(), size);
    assert_eq!(out.split_off(size), [0xee; 5]);
    out
}

#[test]
fn golden_header() {
    let header = Header { machine: 62, pid: 4711, timestamp: 99, arch_timestamp: true };
    let expected =
        [&le32(0x4a69_5444)[..], &le32(1), &le32(40), &le32(62), &le32(0), &le32(4711), &le64(99), &le64(1)].concat();
    assert_eq!(header.to_bytes().as_slice(), expected);
    assert_eq!(Header::read(&header.to_bytes()), Some(header));
    assert_eq!(Header::read(&[0; 40]), None);
}

#[test]
fn golden_load() {
    let expected = [
        &le32(0)[..],
        &le32(56 + 4 + 8),
        &le64(0x1111_2222_3333_4444),
        &le32(100),
        &le32(101),
        &le64(0x7f00_0000_1000),
        &le64(0x7f00_0000_1000),
        &le64(8),
        &le64(7 << 32),
        b"fib\0",
    ]
    .concat();
    assert_eq!(bytes(&group(&[], None)), expected);
}

#[test]
fn golden_debug_info() {
    let lines = [line(0, 10, 1, b"/a.lua"), line(4, 11, 0, b"/b.lua")];
    let out = bytes(&group(&lines, None));
    let start = 0x7f00_0000_1000;
    let entry = |addr: u64, line: u32, column: u32, file: &str| {
        [&le64(addr)[..], &le32(line), &le32(column), file.as_bytes(), b"\0"].concat()
    };
    let expected = [
        &le32(2)[..],
        &le32(32 + 3 * 23),
        &le64(0x1111_2222_3333_4444),
        &le64(start),
        &le64(3),
        &entry(start, 10, 1, "/a.lua"),
        &entry(start + 4, 11, 0, "/b.lua"),
        &entry(start + 8, 11, 0, "/b.lua"),
    ]
    .concat();
    assert_eq!(out[..expected.len()], expected);
    assert_eq!(out.len(), expected.len() + 60);
}

#[test]
fn golden_unwinding_info() {
    let ready = ready();
    let out = bytes(&group(&[], Some(&ready)));
    let expected =
        [&le32(4)[..], &le32(46), &le64(0x1111_2222_3333_4444), &le64(6), &le64(2), &le64(0), &[1, 2, 3, 4, 5, 6]]
            .concat();
    assert_eq!(out[..46], expected);
}

#[test]
fn of_rows_with_one_offset_the_last_counts() {
    let lines = [
        line(0, 1, 0, b"long name"),
        line(0, 2, 0, b"b"),
        line(4, 3, 0, b"a"),
        line(4, 4, 0, b"c"),
        line(4, 5, 0, b"d"),
    ];
    let file = [&[0; HEADER_SIZE][..], &bytes(&group(&lines, None)), &[0x90; 8]].concat();
    let debug = RawRecords::from(&file, HEADER_SIZE).next().unwrap().debug_info().unwrap();
    let start = 0x7f00_0000_1000;
    let entries = [(start, 2, 0, &b"b"[..]), (start + 4, 5, 0, b"d"), (start + 8, 5, 0, b"d")];
    let found: Vec<_> = debug.entries().map(|entry| (entry.addr, entry.line, entry.column, entry.file)).collect();
    assert_eq!((debug.addr, debug.count, &found[..]), (start, 3, &entries[..]));
}

/// For any order of the rows, the record is the same as for rows sorted by offset. The sort is stable.
#[test]
fn rows_in_any_order() {
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let files: [&[u8]; 3] = [b"/a", b"/some/where/else.lua", b"c"];
    for round in 0..500 {
        let count = random(12) + 1;
        let given: Vec<Line<'_>> = (0..count)
            .map(|number| line(random(8) as u32, number as u32 + 1, random(3) as u32, files[random(3) as usize]))
            .collect();
        let mut sorted = given.clone();
        sorted.sort_by_key(|line| line.offset);
        let (made, expected) = (group(&given, None), group(&sorted, None));
        assert_eq!(bytes(&made), bytes(&expected), "round {round}: {given:?}");
        let code = made.write(TIME, &mut [0; 4000], 0).unwrap().unwrap();
        let too_small = made.write(TIME, &mut vec![0; code - 1], 0);
        assert_eq!(too_small, Ok(None), "round {round}: {given:?}");
    }
}

#[test]
fn bad_lines_are_named() {
    let status = |lines: &[Line<'_>]| {
        let group = group(lines, None);
        let error = group.size().unwrap_err();
        assert_eq!(group.write(TIME, &mut [0; 1000], 0), Err(error));
        error
    };
    assert_eq!(status(&[line(8, 1, 0, b"f")]), Error::LineOffset);
    // An error contains the index of the row in the caller's table.
    assert_eq!(status(&[line(4, 1, 0, b"f"), line(3, 1, 0, b"f"), line(8, 1, 0, b"f")]), Error::LineOffset);
    assert_eq!(status(&[line(4, 1, 0, b"f"), line(3, 1, 0, b"f"), line(5, 1, 0, b"")]), Error::LineFile);
    assert_eq!(status(&[line(8, 0, 0, b"")]), Error::LineOffset);
    assert_eq!(status(&[line(4, 1, 0, b"")]), Error::LineFile);
}

#[test]
fn rows_without_a_line_are_left_out() {
    let all = [line(6, 0, 0, b""), line(0, 0, 1, b"f"), line(4, 7, 0, b"f"), line(2, 5, 0, b"f"), line(4, 0, 0, b"f")];
    assert_eq!(bytes(&group(&all, None)), bytes(&group(&[line(2, 5, 0, b"f"), line(4, 7, 0, b"f")], None)));
    assert_eq!(bytes(&group(&all[..2], None)), bytes(&group(&[], None)));
}

/// After the record has become too large, no more rows are read, because each row could have a file name of any length.
#[test]
fn rows_are_read_as_far_as_a_record_goes() {
    struct Long<'a>(&'a [u8], Cell<usize>);
    impl LineTable for Long<'_> {
        fn len(&self) -> usize {
            100_000
        }

        fn row(&self, index: usize) -> Result<Line<'_>> {
            self.1.set(self.1.get() + 1);
            Ok(Line { offset: index as u32, line: 1, column: 0, file: self.0 })
        }
    }
    const LEN: usize = 1 << 20;
    let file = vec![b'f'; LEN];
    let lines = Long(&file, Cell::new(0));
    let group = Group {
        pid: 1,
        tid: 1,
        index: 1,
        addr: 0x1000,
        size: 1 << 20,
        name: b"long",
        lines: Lines::Table(&lines),
        unwind: None,
    };
    assert_eq!(group.size(), Err(Error::TooLarge));
    assert!(lines.1.get() <= u32::MAX as usize / LEN + 1, "{} rows are read", lines.1.get());
}

#[test]
fn records_come_back() {
    let lines = [line(0, 10, 3, b"/a.lua")];
    let ready = ready();
    let file = [&[0; HEADER_SIZE][..], &bytes(&group(&lines, Some(&ready))), &[0x90; 8], &le32(3), &le32(16), &le64(1)]
        .concat();
    let mut records = RawRecords::from(&file, HEADER_SIZE);
    assert_eq!(records.next().unwrap().id, id::DEBUG_INFO);
    let record = records.next().unwrap();
    let unwinding = record.unwinding_info().unwrap();
    assert_eq!((record.id, record.timestamp), (id::UNWINDING_INFO, 0x1111_2222_3333_4444));
    assert_eq!((unwinding.tables(), unwinding.mapped_size), (Some((&[1, 2, 3, 4][..], &[5, 6][..])), 0));
    let load = records.next().unwrap().load().unwrap();
    assert_eq!((load.name(), load.code(), load.tid), (Some(&b"fib"[..]), Some(&[0x90; 8][..]), 101));
    let close = records.next().unwrap();
    assert_eq!((close.id, close.timestamp), (id::CLOSE, 1));
    assert_eq!((records.next().is_none(), records.offset()), (true, file.len()));
}

#[test]
fn a_torn_record_ends_the_file() {
    let whole = [&[0; HEADER_SIZE][..], &bytes(&group(&[], None)), &[0x90; 8]].concat();
    for len in 0..whole.len() {
        assert_eq!(RawRecords::from(&whole[..len], HEADER_SIZE).count(), 0, "{len}");
    }
    assert_eq!(RawRecords::from(&whole, HEADER_SIZE).count(), 1);
}

#[test]
fn relocation_equals_a_fresh_group() {
    let lines = [line(0, 10, 3, b"/a.lua"), line(5, 12, 0, b"/b.lua")];
    let ready = ready();
    let fresh = bytes_at(77, &Group { tid: 5, addr: 0x1234_5678, index: 3, ..group(&lines, Some(&ready)) });
    let mut moved = bytes(&group(&lines, Some(&ready)));
    relocate(&mut moved, &Relocation { timestamp: 77, tid: 5, addr: 0x1234_5678, index: 3 });
    assert_eq!(moved, fresh);
}

#[test]
fn tables_are_mapped_in_a_gap() {
    let lines = [line(0, 10, 3, b"/a.lua")];
    let mapped = |tables_len: usize, size: u64, has_gap| {
        let mut ready = ready();
        ready.bytes = vec![7; tables_len];
        let before = bytes(&group(&lines, Some(&ready)));
        let mut out = before.clone();
        map_tables(&mut out, size, has_gap);
        let changed = (0..out.len()).filter(|&at| out[at] != before[at]).count();
        let mut records = RawRecords::from(&out, 0).filter(|record| record.id == id::UNWINDING_INFO);
        let mapped = records.next().unwrap().unwinding_info().unwrap().mapped_size;
        // Without a gap, a second call of `map_tables` undoes the first call.
        map_tables(&mut out, size, false);
        assert_eq!(out, before);
        (changed > 0, mapped)
    };
    assert_eq!(mapped(6, 8, false), (false, 0));
    assert_eq!(mapped(6, 8, true), (true, 6));
    // The tables begin at a multiple of 8.
    assert_eq!([mapped(256, 8, true).1, mapped(257, 8, true).1], [256, 0]);
    assert_eq!([mapped(249, 1, true).1, mapped(250, 1, true).1], [249, 0]);
    // A group without unwind tables does not change.
    let bare = bytes(&group(&lines, None));
    let mut out = bare.clone();
    map_tables(&mut out, 8, true);
    assert_eq!(out, bare);
}

#[test]
fn a_group_can_be_given_another_time() {
    let lines = [line(0, 10, 3, b"/a.lua")];
    let ready = ready();
    let unwind = Some(&ready);
    // The code bytes look like another record.
    let code = le32(4).repeat(2);
    let mut out = [bytes(&group(&lines, unwind)), code.clone()].concat();
    set_time(&mut out, 99);
    assert_eq!(out, [bytes_at(99, &group(&lines, unwind)), code].concat());
}

#[test]
fn a_group_of_another_process() {
    let (lines, tables) = ([line(0, 1, 0, b"a")], Tables::ready(&[1, 2, 3, 4], 2));
    let mut head = bytes(&group(&lines, Some(&tables)));
    let other = Group { pid: 7, tid: 7, ..group(&lines, Some(&tables)) };
    assert!(is_group_of(&head, 8, 7 << 32, b"fib"));
    for (size, index, name) in
        [(9, 7 << 32, &b"fib"[..]), (8, 6 << 32, b"fib"), (8, 7 << 32, b"fia"), (8, 7 << 32, b"ib")]
    {
        assert!(!is_group_of(&head, size, index, name), "{size} {index} {name:?}");
    }
    assert!(!is_group_of(&head[..head.len() - 1], 8, 7 << 32, b"fib") && !is_group_of(&[], 8, 7 << 32, b"fib"));
    set_process(&mut head, 7);
    assert_eq!(head, bytes(&other));
    // Only the first of two groups changes. The code of the first group lies between the two groups.
    let mut two = [&head[..], &[0x90; 8], &bytes(&group(&lines, None))].concat();
    set_process(&mut two, 9);
    assert_eq!(
        two,
        [&bytes(&Group { pid: 9, tid: 9, ..other })[..], &[0x90; 8], &bytes(&group(&lines, None))].concat()
    );
}
