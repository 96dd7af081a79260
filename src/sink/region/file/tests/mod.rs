//! Tests of region files: compares what independent readers (`object`, `gimli` and tools) find in a file with the registered
//! code.

mod faults;
mod growth;
mod parts;
mod seen;
mod stand_ins;
mod tools;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::time::Instant;

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

use seen::Seen;

use super::*;
use crate::api::code::{FixedFrame, FramePointer, Inline, Line, Lines, Unwind};
use crate::format::arch::{Arch, NATIVE};
use crate::format::cfi::{self, Tables};
use crate::format::code_info::Info;
use crate::format::elf::SYMBOL_SIZE;
use crate::format::jitdump::{inlines, Group, LOAD_FIXED_SIZE};

/// The address of the code in these tests. The address is high, so that a test fails if the library confuses addresses with
/// offsets.
const BASE: u64 = 0x7f12_3450_0000;
const ID: [u8; 20] = *b"twenty bytes of name";

/// Makes a file without a name, so that no file remains after the test. The file is in memory, because file systems on disks
/// differ in their abilities and in the disk space that a file takes.
fn unnamed() -> File {
    // SAFETY: the name ends with a zero.
    let descriptor = unsafe { libc::memfd_create(c"jitsym-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nobody else has it.
    unsafe { File::from_raw_fd(descriptor) }
}

fn bytes_of(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Makes pseudo-random numbers, which are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % most
    }
}

/// A registered piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Truth {
    size: u64,
    name: String,
    /// The offset of the CFA, if there are unwind tables.
    cfa: Option<i32>,
    /// The lines: an offset in the code, a line number and a file for each.
    lines: Vec<(u32, u32, &'static str)>,
    /// The inlined functions in the order of their addresses.
    inlines: Vec<Inline<'static>>,
}

/// Returns two levels of inlined functions. One function is inlined twice.
fn inlines(size: u32) -> Vec<Inline<'static>> {
    let inline = |begin, end, name, call_line, parent| {
        let call_file = if call_line == 7 { &b"/src/one.js"[..] } else { b"/src/three.js" };
        Inline { begin, end, name, call_file, call_line, call_column: call_line - 1, parent }
    };
    vec![
        inline(1, size / 2, &b"inlined"[..], 300, None),
        inline(size / 3, size / 2, b"inlined twice", 20, Some(0)),
        inline(size / 2, size, b"inlined twice", 7, None),
        inline(size - 1, size, b"last", 1, Some(2)),
    ]
}

impl Truth {
    fn new(number: u64, size: u64) -> Truth {
        let line = number as u32 % 60_000 + 1;
        let lines = match number % 3 {
            0 => Vec::new(),
            1 => vec![(0, line, "/src/one.js")],
            _ => vec![
                (0, line, "/src/one.js"),
                (size as u32 / 3, line + 2000, "/src/two.js"),
                (size as u32 / 2, 7, "/src/one.js"),
            ],
        };
        let cfa = (number % 5 != 4).then_some(16 + 8 * (number as i32 % 7));
        let inlines = if number % 6 == 5 { inlines(size as u32) } else { Vec::new() };
        Truth { size, name: format!("function {number}"), cfa, lines, inlines }
    }

    fn rows(&self) -> Vec<Line<'static>> {
        let row =
            |&(offset, line, file): &(u32, u32, &'static str)| Line { offset, line, column: 3, file: file.as_bytes() };
        self.lines.iter().map(row).collect()
    }

    fn tables(&self, addr: u64) -> Option<Tables> {
        let unwind = self.cfa.map_or(Unwind::None, |cfa_offset| Unwind::FixedFrame(FixedFrame::new(cfa_offset, &[])));
        cfi::encode(Arch::X86_64, &unwind, addr, self.size).unwrap()
    }

    fn info(&self, addr: u64) -> Vec<u8> {
        let info = info(addr, self.size, &self.name, &self.rows(), self.tables(addr).as_ref());
        if self.inlines.is_empty() {
            return info;
        }
        [inlines::record(&self.inlines, self.size).unwrap(), info].concat()
    }
}

/// Returns the records that a registration makes before the LOAD record.
fn info(addr: u64, size: u64, name: &str, lines: &[Line<'_>], tables: Option<&Tables>) -> Vec<u8> {
    let mut group = head(addr, size, name, lines, tables);
    group.truncate(group.len() - LOAD_FIXED_SIZE - name.len() - 1);
    group
}

/// Returns all records of the code, without the bytes of the code.
fn head(addr: u64, size: u64, name: &str, lines: &[Line<'_>], tables: Option<&Tables>) -> Vec<u8> {
    let (name, lines) = (name.as_bytes(), Lines::Rows(lines));
    let group = Group { pid: 1, tid: 2, index: 3, addr, size, name, lines, unwind: tables };
    let mut out = vec![0; group.size().unwrap()];
    let code_at = group.write(7, &mut out, 0).unwrap().unwrap();
    assert_eq!(code_at, out.len());
    out
}

/// A region, and the expected contents of its file.
struct Region {
    file: RegionFile,
    truth: BTreeMap<u64, Truth>,
}

impl Region {
    fn new(text_len: u64) -> Region {
        Region::with_file(unnamed(), text_len)
    }

    fn with_file(file: File, text_len: u64) -> Region {
        Region::mapped(file, text_len, false)
    }

    /// Makes a region with the minimum room for tables.
    fn with_least_tables() -> Region {
        let (text_len, text_room, tables, tables_len) = (1 << 20, 1 << 20, 2 << 20, RegionFile::tables_room(4096));
        let (is_private, has_object_above) = (false, false);
        let layout = Layout { text: PAGE, text_len, text_room, tables, tables_len, is_private, has_object_above };
        let file = RegionFile::create(Arc::new(Held::new(unnamed()).unwrap()), layout).unwrap();
        Region { file, truth: BTreeMap::new() }
    }

    fn mapped(file: File, text_len: u64, is_private: bool) -> Region {
        let tables_len = RegionFile::tables_room(text_len);
        let text = PAGE;
        let layout = Layout {
            text,
            text_len,
            text_room: 2 * text_len,
            tables: text + 2 * text_len + PAGE,
            tables_len,
            is_private,
            has_object_above: is_private,
        };
        Region { file: RegionFile::create(Arc::new(Held::new(file).unwrap()), layout).unwrap(), truth: BTreeMap::new() }
    }

    fn add(&mut self, offset: u64, truth: Truth) {
        let info = truth.info(BASE + offset);
        self.file.add(&Code { offset, size: truth.size, name: truth.name.as_bytes(), info: Info::new(&info) });
        let end = offset + truth.size;
        self.truth.retain(|&at, old| at >= end || at + old.size <= offset);
        self.truth.insert(offset, truth);
    }

    fn bytes(&self) -> Vec<u8> {
        bytes_of(self.file.disk.file())
    }

    /// Checks that the file describes all code, and nothing else.
    fn check(&self) {
        let seen = Seen::read(&self.bytes());
        assert_eq!((seen.begin, &seen.text), (self.file.begin, &self.file.text()));
        assert_eq!(seen.functions(), self.truth);
        assert_eq!(self.file.known.len(), self.truth.len());
    }
}

#[test]
fn a_new_file_is_an_object_without_code() {
    let region = Region::new(1 << 20);
    region.check();
    assert_eq!(Seen::read(&region.bytes()).build_id, None);
}

#[test]
fn code_in_any_order_is_found_after_each_write() {
    let orders: [fn(u64, &mut Random) -> u64; 3] = [|at, _| at, |at, _| 399 - at, |_, random| random.below(400)];
    for order in orders {
        let mut region = Region::new(1 << 20);
        let mut random = Random(9);
        for number in 0..400 {
            let slot = order(number, &mut random);
            // The sizes are random. If the order is random, some code replaces older code.
            let size = 20 + random.below(1200);
            let begin = slot * 2000 + random.below(700);
            region.add(begin, Truth::new(number, size));
            if number % 19 == 0 {
                region.file.write(true).unwrap();
                region.check();
            }
        }
        region.file.write(true).unwrap();
        region.check();
        assert_eq!(region.file.left_out(), 0);
        assert!(!region.file.has_work());
    }
}

#[test]
fn what_is_not_due_waits_and_names_do_not() {
    let waits = || {
        let mut region = Region::new(1 << 20);
        region.add(0x8000, Truth::new(0, 100));
        let begin = Instant::now();
        region.file.write(false).unwrap();
        region.check();
        // Adds a function above all other code, and a function below all other code. After the write, the file has all data of
        // the upper function, but the search table has no row for the lower function yet.
        region.add(0x9000, Truth::new(1, 100));
        region.add(0x1000, Truth::new(2, 100));
        region.file.write(false).unwrap();
        // On a busy machine, so much time may have passed that a new table is due.
        if begin.elapsed() >= Duration::from_millis(50) {
            return false;
        }
        let seen = Seen::read(&region.bytes());
        assert_eq!(seen.names.len(), 3);
        assert_eq!(seen.units.len(), 2);
        assert_eq!(seen.frames.len(), 2);
        assert!(region.file.has_work());
        std::thread::sleep(Duration::from_millis(60));
        region.file.write(false).unwrap();
        region.check();
        assert!(!region.file.has_work());
        true
    };
    assert!((0..1000).any(|_| waits()), "never in time");
}

#[test]
fn nothing_is_known_behind_a_reset() {
    let mut region = Region::new(1 << 20);
    for number in 0..300 {
        region.add(number * 1000, Truth::new(number, 900));
    }
    region.file.write(true).unwrap();
    region.file.set_begin(8192);
    region.file.reset();
    region.truth.clear();
    region.file.write(false).unwrap();
    region.check();
    assert_eq!(region.file.begin, 8192);
    for number in 0..20 {
        region.add(number * 3000, Truth::new(number + 5, 50));
    }
    region.file.write(true).unwrap();
    region.check();
}

#[test]
fn a_final_copy_says_the_same() {
    final_copy(false);
    final_copy(true);
}

fn final_copy(is_private: bool) {
    let mut region = Region::mapped(unnamed(), 1 << 20, is_private);
    let bytes_at = region.file.bytes.unwrap();
    for number in 0..200 {
        let offset = number * 1001 % 200 * 5000;
        // Only the first 300 bytes are registered as code.
        let bytes = [number as u8 | 1; 4999];
        match is_private {
            true => region.file.write_code(offset, &bytes).unwrap(),
            false => region.file.disk.write(bytes_at + offset, &bytes).unwrap(),
        }
        region.add(offset, Truth::new(number, 300));
        if number == 100 {
            region.file.write(false).unwrap();
        }
    }
    // Replaces code that is in the file, and code that is not in the file yet.
    region.add(5000, Truth::new(500, 10));
    region.add(5000 * (199 * 1001 % 200), Truth::new(501, 20));
    // The first copy brings the original file up to date, and later copies leave the original file unchanged.
    assert!(region.file.has_work());
    region.file.snapshot(unnamed(), |_| true, Some(ID)).unwrap();
    assert!(!region.file.has_work());
    let before = region.bytes();
    let text = region.file.text();
    let is_no_code = |byte: &u8| *byte == 0 || breakpoints().contains(byte);
    assert_eq!(before[text.start as usize..text.end as usize].iter().all(is_no_code), is_private);
    for with_text in [true, false] {
        let copy = unnamed();
        region.file.snapshot(copy.try_clone().unwrap(), |_| with_text, Some(ID)).unwrap();
        let bytes = bytes_of(&copy);
        let seen = Seen::read(&bytes);
        assert_eq!(seen.functions(), region.truth);
        assert_eq!(seen.build_id.as_deref(), Some(&ID[..]));
        for (&offset, truth) in &region.truth {
            let range = (seen.text.start + offset) as usize..(seen.text.start + offset + truth.size) as usize;
            let kept = &before[(bytes_at + offset) as usize..][..truth.size as usize];
            assert_eq!(&bytes[range.clone()] == kept, with_text, "{offset:#x}");
            assert_eq!(bytes[range.end + 300..range.start + 4999], [0; 4699][..4999 - 300 - truth.size as usize]);
        }
    }
    assert_eq!(region.bytes(), before);
    region.file.finish(Some(ID)).unwrap();
    region.check();
    assert_eq!(Seen::read(&region.bytes()).build_id.as_deref(), Some(&ID[..]));
    // If any part of the contents changes, the file must lose its build-id.
    region.file.set_text_len(region.file.layout.text_len - 4096);
    region.file.write(true).unwrap();
    assert_eq!(Seen::read(&region.bytes()).build_id, None);
}

fn breakpoints() -> [u8; 4] {
    NATIVE.map_or([0; 4], |arch| arch.abi().breakpoints)
}

/// A page of code that has only zeros may show the contents of the file, because the host may not have written to the page. So
/// the file has zeros for this page, and no breakpoints.
#[test]
fn the_text_of_private_memory_has_breakpoints_where_code_is() {
    const FOUR_KIB: usize = 4096;
    let mut region = Region::mapped(unnamed(), 1 << 20, true);
    let pages = |filled: &[usize], count: usize| {
        let mut bytes = vec![0; count * FOUR_KIB];
        filled.iter().for_each(|page| bytes[page * FOUR_KIB..][..FOUR_KIB].fill(1));
        bytes
    };
    let large = pages(&[2, 90], 100);
    // The first three pieces are neighbours. The last piece is so large that it is written at once.
    let pieces = [(0, pages(&[0, 2], 3)), (12_300, vec![1; 12]), (12_320, vec![1; 4]), (0x20000, large)];
    let mut expected = vec![0; 1 << 20];
    for (offset, bytes) in &pieces {
        region.file.write_code(*offset as u64, bytes).unwrap();
        for at in (0..bytes.len()).filter(|&at| bytes[at] != 0) {
            expected[offset + at] = breakpoints()[(offset + at) % 4];
        }
    }
    region.file.write(true).unwrap();
    let text = region.file.text();
    assert!(region.bytes()[text.start as usize..text.end as usize] == expected);
    let bytes_at = region.file.bytes.unwrap() as usize;
    for (offset, bytes) in &pieces {
        assert!(region.bytes()[bytes_at + offset..][..bytes.len()] == *bytes);
    }
}

/// perf may read the table of one copy at the offset that the header page of another copy states.
#[test]
fn all_copies_have_their_tables_at_the_same_place() {
    let mut region = Region::new(1 << 20);
    let (mut own, mut copies) = (Vec::new(), Vec::new());
    for number in 0..4 {
        // Each new function lies below the earlier functions, so a new search table is written to the unused range for search
        // tables.
        region.add((100 - number) * 1000, Truth::new(1, 300));
        let copy = unnamed();
        region.file.snapshot(copy.try_clone().unwrap(), |_| true, None).unwrap();
        let places = [region.bytes(), bytes_of(&copy)].map(|bytes| {
            let elf = ElfFile64::<object::Endianness>::parse(&bytes[..]).unwrap();
            [".eh_frame", ".eh_frame_hdr"].map(|name| elf.section_by_name(name).unwrap().address())
        });
        own.push(places[0]);
        copies.push(places[1]);
    }
    own.dedup();
    copies.dedup();
    assert!(own.len() == 4 && copies.len() == 1, "{own:x?} {copies:x?}");
}

#[test]
fn text_can_grow_within_its_room() {
    let mut region = Region::mapped(unnamed(), 1 << 20, true);
    region.add(0, Truth::new(1, 100));
    region.file.write(true).unwrap();
    let late = Code { offset: 1 << 20, size: 10, name: b"late", info: Info::NOTHING };
    region.file.add(&late);
    assert_eq!(region.file.left_out(), 1);
    region.file.set_text_len(2 << 20);
    region.add(1 << 20, Truth::new(2, 10));
    region.file.write_code((2 << 20) - 4, b"last").unwrap();
    region.file.write(true).unwrap();
    region.check();
    let least = region.file.loaded_room();
    assert_eq!(least, (2 << 20) - page_size() as u64);
    // The last page belongs to the segment once the page has code.
    region.add(least, Truth::new(3, 10));
    region.file.write(true).unwrap();
    region.check();
    assert_eq!(region.file.loaded_room(), 2 << 20);
    assert!(region.file.write_code((2 << 20) - 3, b"last").is_err());
}

#[test]
fn full_tables_leave_names_and_lines() {
    // The tables have room for 2046 rows and for 64 KiB of FDEs. The FDEs of this simple code are small, so the room for rows
    // is used up first.
    let mut region = Region::with_least_tables();
    for number in 0..4000 {
        region.add(number * 100, Truth::new(5 * number + 1, 90));
    }
    region.file.write(true).unwrap();
    let left_out = region.file.left_out();
    assert!(left_out > 1000, "{left_out}");
    let seen = Seen::read(&region.bytes());
    assert_eq!(seen.frames.len() as u64, 4000 - left_out);
    for (offset, truth) in &mut region.truth {
        truth.cfa = truth.cfa.filter(|_| seen.frames.contains_key(&(PAGE + offset)));
    }
    region.check();
}

#[test]
fn unwind_tables_end_where_the_search_tables_begin() {
    let mut region = Region::with_least_tables();
    let frame = cfi::encode(Arch::X86_64, &Unwind::FramePointer(FramePointer::default()), BASE, 90).unwrap().unwrap();
    for number in 0..4000 {
        let info = info(BASE + 100 * number, 90, "f", &[], Some(&frame));
        region.file.add(&Code { offset: 100 * number, size: 90, name: b"f", info: Info::new(&info) });
    }
    region.file.write(true).unwrap();
    let Layout { tables, tables_len, .. } = region.file.layout;
    let (eh_frame, slots) = split(tables, tables_len);
    let end = region.file.parts.eh_frame.range().end;
    assert!(end <= slots[0].start && end + 64 > eh_frame.end, "{end:#x} {slots:x?}");
    assert!(slots[0].end <= slots[1].start && slots[1].end <= (2 << 20) + tables_len);
    let bytes = region.bytes();
    let elf = ElfFile64::<object::Endianness>::parse(&bytes[..]).unwrap();
    let hdr = elf.section_by_name(".eh_frame_hdr").unwrap().size();
    assert_eq!((hdr - 12) / 8, 4000 - region.file.left_out());
}
