//! Compares parts of ELF files with golden bytes, and checks that hostile input does no harm. Tests with real readers and whole
//! files are in `sink/region/file`.

use super::eh_frame_hdr::Row;
use super::frames::{Frames, Target};
use super::header::Image;
use super::*;
use crate::api::code::{FixedFrame, Inline, Line, Lines, Unwind};
use crate::format::arch::Arch;
use crate::format::cfi;
use crate::format::code_info::Info;
use crate::format::jitdump::LOAD_FIXED_SIZE;
use crate::format::jitdump::{inlines, Group, PREFIX_SIZE};

#[test]
fn golden_symbol() {
    let expected =
        [&7u32.to_ne_bytes()[..], &[2, 0, 1, 0], &0x1_2345u64.to_ne_bytes(), &0x67u64.to_ne_bytes()].concat();
    assert_eq!(symbol(7, 0x1_2345, 0x67).as_slice(), expected);
}

#[test]
fn golden_search_table() {
    let places = eh_frame_hdr::Places { hdr: 0x5000, eh_frame: 0x1000, text: 0x1_0000 };
    let word = |value: i32| value.to_ne_bytes();
    assert_eq!(places.head(3).as_slice(), [[1, 0x1b, 3, 0x3b], word(-0x4004), word(3)].concat());
    let row = Row { start: 0x20, fde: 0x18 };
    assert_eq!(places.row(&row).as_slice(), [word(0xb020), word(-0x3fe8)].concat());
}

/// Checks the numbers of segments and sections in a header page. Tests with real readers check the other fields.
#[test]
fn what_is_empty_is_left_out() {
    let counts = |page: &[u8]| [56, 60, 62].map(|at| u16::from_ne_bytes([page[at], page[at + 1]]));
    let mut image = Image { text: 0x2000..0x3000, ..Image::default() };
    let page = image.header_page();
    assert_eq!(&page[..7], b"\x7fELF\x02\x01\x01");
    assert_eq!(&page[16..20], [3u16.to_ne_bytes(), (crate::format::arch::ELF_MACHINE as u16).to_ne_bytes()].concat());
    // The page has two segments and three sections: the null section, `.text` and `.shstrtab`.
    assert_eq!(counts(&page), [2, 3, 2]);
    // If the null symbol is the only symbol, there is no `.symtab`.
    (image.symtab, image.strtab) = (0x3000..0x3018, 0x4000..0x4001);
    assert_eq!(counts(&image.header_page()), [2, 3, 2]);
    image.symtab.end += 24;
    assert_eq!(counts(&image.header_page()), [2, 5, 4]);
    (image.eh_frame, image.eh_frame_hdr) = (0x1000..0x1100, 0x1800..0x1814);
    assert_eq!(counts(&image.header_page()), [3, 7, 6]);
    image.build_id = Some([9; 20]);
    assert_eq!(counts(&image.header_page()), [4, 8, 7]);
    // The file has abbreviations if it has `.debug_info`.
    (image.debug_info, image.debug_line, image.debug_aranges) = (0x5000..0x5010, 0x6000..0x6010, 0x7000..0x7030);
    assert_eq!(counts(&image.header_page()), [4, 12, 11]);
    // There is only one loaded segment if `begin` is the start of the code, or if the code directly follows the header page.
    image.begin = 0x2000;
    assert_eq!(counts(&image.header_page()), [3, 12, 11]);
    (image.begin, image.text) = (0, 0x1000..0x3000);
    assert_eq!(counts(&image.header_page()), [3, 12, 11]);
}

fn tables(code_size: u64, cfa_offset: i32) -> Vec<u8> {
    let tables = cfi::encode(Arch::X86_64, &Unwind::FixedFrame(FixedFrame::new(cfa_offset, &[])), 0, code_size)
        .unwrap()
        .unwrap();
    tables.bytes[..tables.eh_frame_size()].to_vec()
}

#[test]
fn a_cie_is_there_once_and_pointers_are_those_of_the_new_place() {
    let (mut frames, mut out, mut rows) = (Frames::default(), Vec::new(), Vec::new());
    let section = tables(45, 16);
    let mut target = Target { code_size: 45, code: 0x2003, at: 0, room: 1000 };
    frames.append(&section, &target, &mut out, &mut rows).unwrap();
    // The output equals the input, except for the zero word and the distance to the code.
    let fde = rows[0].fde as usize;
    assert_eq!(rows, [Row { start: 0, fde: fde as u32 }]);
    assert_eq!(out.len(), section.len() - 4);
    let word = |out: &[u8], at: usize| i32::from_ne_bytes(out[at..at + 4].try_into().unwrap());
    assert_eq!(word(&out, fde + 8), 0x2003 - (fde as i32 + 8));
    assert_eq!((&out[..fde + 8], &out[fde + 12..]), (&section[..fde + 8], &section[fde + 12..section.len() - 4]));

    // The second FDE uses the CIE of the first FDE, but is farther away from this CIE.
    let fde_len = out.len() - fde;
    (target.at, target.code, target.code_size) = (out.len() as u64, 0x1000, 8);
    let mut more = Vec::new();
    frames.append(&tables(8, 24), &target, &mut more, &mut rows).unwrap();
    assert_eq!(more.len(), fde_len);
    assert_eq!(word(&more, 4) as u64, target.at + 4);
    assert_eq!(word(&more, 8) as i64, 0x1000 - (target.at as i64 + 8));

    // If there is no room, nothing changes, and the new CIE is not remembered.
    let other = cfi::encode(Arch::Aarch64, &Unwind::FixedFrame(FixedFrame::new(16, &[])), 0, 8).unwrap().unwrap();
    let other = &other.bytes[..other.eh_frame_size()];
    let (old, old_rows) = (more.clone(), rows.clone());
    target.at += more.len() as u64;
    let mut full = target;
    full.room = target.at + 40;
    let mut third = Vec::new();
    assert_eq!(frames.append(other, &full, &mut third, &mut rows), None);
    assert_eq!((third.len(), &rows, &more), (0, &old_rows, &old));
    frames.append(other, &target, &mut third, &mut rows).unwrap();
    assert_eq!(third.len(), other.len() - 4);
    // The code is too far away for a distance of 32 bits.
    let far = Target { code: (1 << 31) + 1000, ..target };
    assert_eq!(frames.append(other, &far, &mut third, &mut rows), None);
}

fn record(lines: &[Line<'_>]) -> Vec<u8> {
    let group = Group {
        pid: 1,
        tid: 1,
        index: 1,
        addr: 0x70_0000,
        size: 64,
        name: b"f",
        lines: Lines::Rows(lines),
        unwind: None,
    };
    let mut out = vec![0; group.size().unwrap()];
    let code_at = group.write(1, &mut out, 0).unwrap().unwrap();
    out.truncate(code_at - LOAD_FIXED_SIZE - 2);
    out
}

/// The bytes of a unit in `.debug_info`, `.debug_line`, `.debug_aranges` and `.debug_ranges`.
fn unit(records: &[u8]) -> Option<[Vec<u8>; 4]> {
    unit_at(0x2000, records)
}

fn unit_at(addr: u64, records: &[u8]) -> Option<[Vec<u8>; 4]> {
    let [mut info, mut line, mut aranges, mut ranges] = [(); 4].map(|()| Vec::new());
    let function = debug::Function { name: b"f", addr, size: 64 };
    let to = debug::Sections {
        info: (100, &mut info),
        line: (200, &mut line),
        aranges: (48, &mut aranges),
        ranges: (64, &mut ranges),
        head: &mut line_program::Head::default(),
    };
    let done = debug::append(&Info::new(records).parts(), &function, 0, to);
    let all = [info, line, aranges, ranges];
    assert!(done.is_some() || all.iter().all(Vec::is_empty));
    done.map(|_| all)
}

#[test]
fn golden_lines() {
    let row = |offset, line, file| Line { offset, line, column: 0, file };
    // A row is encoded as one special opcode if possible.
    let rows = [row(0, 10, &b"a"[..]), row(3, 12, b"a"), row(60, 1000, b"/b"), row(61, 12, b"a")];
    let [info, line, aranges, ranges] = unit(&record(&rows)).unwrap();
    let info_tail = [&b"a\0\x02"[..], &0x2000u64.to_ne_bytes(), &64u32.to_ne_bytes(), b"f\0\0"].concat();
    let (head, tail) = info.split_at(28);
    assert_eq!(tail, info_tail);
    assert_eq!(head[..4], (info.len() as u32 - 4).to_ne_bytes());
    assert_eq!(head[12..], [&0x2000u64.to_ne_bytes()[..], &64u32.to_ne_bytes(), &200u32.to_ne_bytes()].concat());
    let program = [
        &[0, 9, 2][..],
        &0x2000u64.to_ne_bytes(),
        &[3, 9, 2, 0, 1, 62],
        &[4, 2, 3, 0xdc, 7, 2, 57, 1],
        &[4, 1, 3, 0xa4, 0x78, 2, 1, 1],
        &[2, 3, 0, 1, 1],
    ];
    assert!(line.ends_with(&program.concat()), "{line:x?}");
    assert!(line.windows(13).any(|bytes| bytes == b"\0a\0\0\0\0/b\0\0\0\0\0"));
    assert_eq!(aranges.len() as u64, debug::ARANGES_SIZE);
    assert_eq!(aranges[6..10], 100u32.to_ne_bytes());
    assert!(ranges.is_empty());
}

/// A record of inlined functions. `outer` is inlined from 8 to 40, and contains `inner` from 8 to 16 and another `outer` from
/// 20 to 40. After these functions, `inner` is inlined from 40 to the end.
fn inlined() -> Vec<u8> {
    let inline = |begin, end, name, call_line, parent| {
        let (call_file, call_column) = (&b"a"[..], 0);
        Inline { begin, end, name, call_file, call_line, call_column, parent }
    };
    let (outer, inner) = (inline(8, 40, &b"outer"[..], 5, None), inline(8, 16, &b"inner"[..], 300, Some(0)));
    let again = Inline { call_file: b"/b", call_column: 9, ..inline(20, 40, b"outer", 6, Some(0)) };
    inlines::record(&[outer, again, inner, inline(40, 64, b"inner", 7, None)], 64).unwrap()
}

#[test]
fn golden_inlined_functions() {
    let lines = record(&[Line { offset: 0, line: 10, column: 0, file: b"a" }]);
    let [plain_info, plain_line, plain_aranges, _] = unit(&lines).unwrap();
    let [info, line, aranges, ranges] = unit(&[inlined(), lines].concat()).unwrap();
    assert_eq!(aranges, plain_aranges);
    // In the table of files, the files that contain inlined calls come after the files of source lines.
    let (with, without) = (&b"\0a\0\0\0\0/b\0\0\0\0\0"[..], &b"\0a\0\0\0\0\0"[..]);
    assert!(line.windows(with.len()).any(|bytes| bytes == with));
    assert_eq!(line.len() - with.len(), plain_line.len() - without.len());
    let place = |begin: u64, end: u64| [begin, end, 0, 0].map(u64::to_ne_bytes).concat();
    assert_eq!(ranges, [place(8, 40), place(8, 16), place(20, 40), place(40, 64)].concat());

    // The unit with inlined functions and the unit without them begin with the same bytes, except for their lengths.
    let head = 30;
    assert_eq!(info[..4], (info.len() as u32 - 4).to_ne_bytes());
    assert_eq!(info[4..head], plain_info[4..head]);
    let (outer, inner) = (head as u32, head as u32 + 15);
    let instance = |abbrev: u8, origin: u32, range: u32, call: &[u8]| {
        [&[abbrev][..], &origin.to_ne_bytes(), &(64 + 32 * range).to_ne_bytes(), call].concat()
    };
    let expected = [
        &b"\x04outer\0outer\0\x01\x01\x04inner\0inner\0\x01\x01\x03"[..],
        &0x2000u64.to_ne_bytes(),
        &64u32.to_ne_bytes(),
        b"f\0",
        &instance(5, outer, 0, &[1, 5, 0]),
        &instance(6, inner, 1, &[1, 0xac, 2, 0]),
        &instance(6, outer, 2, &[2, 6, 9]),
        // The null entry that ends the children of the first `outer`.
        &[0],
        &instance(6, inner, 3, &[1, 7, 0]),
        // The null entry that ends the children of the function, and the null entry that ends the children of the unit.
        &[0, 0],
    ];
    assert_eq!(info[head..], expected.concat());

    // If there are no lines, the unit has the file of the first call.
    let [info, line, ..] = unit(&inlined()).unwrap();
    assert_eq!(info[28..30], *b"a\0");
    assert!(line.ends_with(&[&0x2000u64.to_ne_bytes()[..], &[2, 64, 0, 1, 1]].concat()));
}

/// The information for code at address 0 begins at address 1, so that no line covers address 0.
#[test]
fn address_0_has_no_line() {
    let rows = |first| record(&[first, 6, 50].map(|offset| Line { offset, line: offset + 1, column: 0, file: b"a" }));
    let [info, line, aranges, _] = unit_at(0, &rows(0)).unwrap();
    let range = [&1u64.to_ne_bytes()[..], &63u32.to_ne_bytes()].concat();
    assert_eq!(info.windows(range.len()).filter(|bytes| *bytes == range).count(), 2);
    let program = [&[0, 9, 2][..], &1u64.to_ne_bytes(), &[18, 94, 3, 44, 2, 44, 1, 2, 14, 0, 1, 1]].concat();
    assert!(line.ends_with(&program), "{line:x?}");
    assert_eq!(aranges[16..32], [1u64, 63].map(u64::to_ne_bytes).concat());

    let inline =
        |begin, end, parent| Inline { begin, end, name: b"g", call_file: b"a", call_line: 1, call_column: 0, parent };
    let all = [inline(0, 8, None), inline(0, 1, Some(0)), inline(1, 2, Some(0)), inline(8, 64, None)];
    let [_, _, _, ranges] = unit_at(0, &inlines::record(&all, 64).unwrap()).unwrap();
    assert_eq!(ranges, [0u64, 7, 0, 0, 0, 1, 0, 0, 7, 63, 0, 0].map(u64::to_ne_bytes).concat());
}

/// Very deeply nested inlined functions do not overflow the stack.
#[test]
fn inlined_functions_may_be_deep() {
    const DEPTH: u32 = 100_000;
    let inline = |index: u32| Inline {
        begin: 0,
        end: 64,
        name: b"f",
        call_file: b"a",
        call_line: 1,
        call_column: 0,
        parent: index.checked_sub(1),
    };
    let record = inlines::record(&(0..DEPTH).map(inline).collect::<Vec<_>>(), 64).unwrap();
    let [info, ..] = unit(&record).unwrap();
    // After the innermost inlined function, the unit contains only end marks: one for each of the other inlined functions, one
    // for the function, and one for the unit.
    let ends = vec![0; DEPTH as usize - 1 + 2];
    assert!(info.ends_with(&[&[1, 1, 0][..], &ends].concat()) && info[info.len() - ends.len() - 12] == 6);
}

/// A damaged record is either refused or becomes a unit. A refused record adds no bytes to the sections.
#[test]
fn broken_records_do_no_harm() {
    let row = |offset, line| Line { offset, line, column: 9, file: b"file.js" };
    let good = record(&[row(0, 1), row(8, 300), row(40, 2)]);
    assert!(unit(&good).is_some());
    let with_inlined = [inlined(), good.clone()].concat();
    let mut refused = 0;
    for at in PREFIX_SIZE..with_inlined.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bad = with_inlined.clone();
            bad[at] = value;
            refused += u32::from(unit(&bad).is_none());
        }
    }
    assert!(refused > 0);
    // A record without lines gives no unit, and neither does a record whose addresses decrease.
    assert!(unit(&record(&[])).is_none());
    let mut back = good.clone();
    let second = PREFIX_SIZE + 16 + 16 + 8;
    back[second..second + 8].copy_from_slice(&0x70_0030u64.to_ne_bytes());
    assert!(unit(&back).is_none());

    let section = tables(45, 16);
    for at in 0..section.len() {
        for value in [0, 1, 0x14, 0x7f, 0x80, 0xff] {
            let mut bad = section.clone();
            bad[at] = value;
            let (mut out, mut rows) = (Vec::new(), Vec::new());
            let target = Target { code_size: 45, code: 0x2003, at: 8, room: 1000 };
            if Frames::default().append(&bad, &target, &mut out, &mut rows).is_none() {
                assert!(out.is_empty() && rows.is_empty());
            }
        }
    }
}
