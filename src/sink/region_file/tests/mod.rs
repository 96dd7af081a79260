//! A region's file held against what was said of its code, by readers that are not ours: `object`, `gimli`, and the tools.

mod faults;
mod growth;
mod tools;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use gimli::read::{BaseAddresses, CfaRule, Dwarf, EhFrame, EhFrameHdr, EndianSlice, UnwindContext, UnwindSection};
use gimli::LittleEndian;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::*;
use crate::code::{Line, Lines, Unwind};
use crate::format::cfi;
use crate::format::jitdump::{Group, Unwinding};
use crate::sys::arch::Arch;

/// Where the code of these tests runs, so that what is taken for an offset by mistake is none.
const BASE: u64 = 0x7f12_3450_0000;
const ID: [u8; 20] = *b"twenty bytes of name";

/// A file without a name, so that nothing is left behind.
fn unnamed() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

fn bytes_of(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Numbers that look random and are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % most
    }
}

/// What is known of a piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Truth {
    size: u64,
    name: String,
    /// The CFA, if there are unwind tables.
    cfa: Option<i32>,
    /// Offset, line and file.
    lines: Vec<(u32, u32, &'static str)>,
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
        Truth { size, name: format!("function {number}"), cfa, lines }
    }

    /// The records before the LOAD, as the producer makes them.
    fn preface(&self, addr: u64) -> Vec<u8> {
        let rows: Vec<_> = self
            .lines
            .iter()
            .map(|&(offset, line, file)| Line { offset, line, column: 3, file: file.as_bytes() })
            .collect();
        let unwind = self.cfa.map_or(Unwind::None, |cfa_offset| Unwind::FixedFrame { cfa_offset, saved: &[] });
        let tables = cfi::encode(Arch::X86_64, &unwind, addr, self.size).unwrap();
        let unwinding = tables.as_ref().map(|tables| Unwinding {
            tables: &tables.bytes,
            hdr_size: tables.hdr_size,
            mapped_size: 0,
        });
        let (name, lines) = (self.name.as_bytes(), Lines::Rows(&rows));
        let group = Group { pid: 1, tid: 2, index: 3, addr, size: self.size, name, lines, unwind: unwinding };
        let mut out = vec![0; group.size().unwrap()];
        let layout = group.write(7, &mut out, 0).unwrap().unwrap();
        out.truncate(layout.load);
        out
    }
}

/// A region, and what its file should say.
struct Region {
    file: RegionFile,
    truth: BTreeMap<u64, Truth>,
}

impl Region {
    fn new(text_len: u64) -> Region {
        Region::with_file(unnamed(), text_len)
    }

    fn with_file(file: File, text_len: u64) -> Region {
        let tables_len = RegionFile::tables_room(text_len);
        let place = Place { text: tables_len, text_len, text_room: 2 * text_len, tables_len, spare: 0 };
        Region { file: RegionFile::create(file, place).unwrap(), truth: BTreeMap::new() }
    }

    fn add(&mut self, offset: u64, truth: Truth) {
        let preface = truth.preface(BASE + offset);
        self.file.add(&Code { offset, size: truth.size, name: truth.name.as_bytes(), preface: &preface });
        let end = offset + truth.size;
        self.truth.retain(|&at, old| at >= end || at + old.size <= offset);
        self.truth.insert(offset, truth);
    }

    fn bytes(&self) -> Vec<u8> {
        bytes_of(self.file.disk.file())
    }

    /// The file says all of it, and nothing else.
    fn check(&self) {
        let seen = Seen::read(&self.bytes());
        assert_eq!(seen.text, self.file.text());
        assert_eq!(seen.functions(), self.truth);
        assert_eq!(self.file.len(), self.truth.len());
    }
}

/// What a reader finds in a file.
#[derive(Debug)]
struct Seen {
    text: Range<u64>,
    /// By address, from the symbols.
    names: BTreeMap<u64, (String, u64)>,
    /// Of each start in the search table the size that its FDE has, and the CFA there.
    frames: BTreeMap<u64, (u64, i32)>,
    /// Of each unit's function the name, the size and the lines.
    units: Units,
    build_id: Option<Vec<u8>>,
}

impl Seen {
    fn read(bytes: &[u8]) -> Seen {
        let elf = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
        let section = |name: &str| elf.section_by_name(name);
        let data = |name: &str| section(name).map_or(&[][..], |section| section.data().unwrap());
        let text = section(".text").unwrap();
        let text = text.address()..text.address() + text.size();
        let load = elf.elf_program_headers()[0];
        let endian = object::Endianness::Little;
        assert_eq!((load.p_vaddr(endian), load.p_filesz(endian)), (0, text.end));
        for section in elf.sections() {
            // The text of a file may be a hole at its end.
            assert!(section.file_range().is_none_or(|(at, len)| at + len <= bytes.len() as u64));
            assert!(section.address() == 0 || section.address() == section.file_range().unwrap().0);
        }
        let mut names = BTreeMap::new();
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
            let (start, size) = (symbol.address(), symbol.size());
            assert!(text.contains(&start) && start + size <= text.end && size > 0);
            assert!(names.insert(start, (symbol.name().unwrap().to_owned(), size)).is_none());
        }
        Seen {
            names,
            frames: frames(&elf, data(".eh_frame"), data(".eh_frame_hdr")),
            units: units(&data, true),
            text,
            build_id: elf.build_id().unwrap().map(<[u8]>::to_vec),
        }
    }

    fn functions(&self) -> BTreeMap<u64, Truth> {
        for addr in self.frames.keys().chain(self.units.keys()) {
            assert!(self.names.contains_key(addr), "{addr:#x} has no name");
        }
        let functions = self.names.iter().map(|(&addr, (name, size))| {
            let cfa = self.frames.get(&addr).map(|&(len, cfa)| {
                assert_eq!(len, *size);
                cfa
            });
            let lines = self.units.get(&addr).map(|(unit, len, rows)| {
                assert_eq!((unit, len), (name, size));
                let files = ["/src/one.js", "/src/two.js"];
                let known = |file: &str| *files.iter().find(|known| **known == file).unwrap();
                rows.iter().map(|(offset, line, file)| (*offset, *line, known(file))).collect()
            });
            let lines = lines.unwrap_or_default();
            (addr - self.text.start, Truth { size: *size, name: name.clone(), cfa, lines })
        });
        functions.collect()
    }
}

/// Goes by the search table as an unwinder does, and then over the section from its start, as libdw does.
fn frames(elf: &ElfFile64<'_>, eh_frame: &[u8], hdr: &[u8]) -> BTreeMap<u64, (u64, i32)> {
    let address = |name: &str| elf.section_by_name(name).map_or(0, |section| section.address());
    let bases = BaseAddresses::default().set_eh_frame(address(".eh_frame")).set_eh_frame_hdr(address(".eh_frame_hdr"));
    let section = EhFrame::new(eh_frame, LittleEndian);
    let mut found = BTreeMap::new();
    if hdr.is_empty() {
        return found;
    }
    let parsed = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).unwrap();
    assert_eq!(parsed.eh_frame_ptr().pointer(), address(".eh_frame"));
    let table = parsed.table().unwrap();
    let mut rows = table.iter(&bases);
    let (mut last, mut count) = (0, 0);
    while let Some((start, _)) = rows.next().unwrap() {
        let start = start.pointer();
        assert!(start > last, "the table is not in order");
        (last, count) = (start, count + 1);
        let cfa_at = |addr: u64| {
            let fde = table.fde_for_address(&section, &bases, addr, EhFrame::cie_from_offset).unwrap();
            let mut context = UnwindContext::new();
            let row = fde.unwind_info_for_address(&section, &bases, &mut context, addr).unwrap();
            let CfaRule::RegisterAndOffset { offset, .. } = *row.cfa() else { panic!("{row:?}") };
            (fde.initial_address(), fde.len(), offset as i32)
        };
        let (initial, len, cfa) = cfa_at(start);
        assert_eq!(initial, start);
        assert_eq!(cfa_at(start + len - 1), (initial, len, cfa));
        found.insert(start, (len, cfa));
    }
    assert_eq!(hdr.len(), 12 + 8 * count, "the header's size and its count differ");
    let mut all = BTreeMap::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        if fde.len() > 0 {
            assert!(all.insert(fde.initial_address(), fde.len()).is_none());
        }
    }
    assert!(found.iter().all(|(start, (len, _))| all.get(start) == Some(len)));
    found
}

/// Offset, line and file.
type Rows = Vec<(u32, u32, String)>;
type Units = BTreeMap<u64, (String, u64, Rows)>;

/// `settled`: nobody is in the middle of taking out what is gone.
fn units<'a>(data: &dyn Fn(&str) -> &'a [u8], settled: bool) -> Units {
    let dwarf = Dwarf::load(|id| Ok::<_, gimli::Error>(EndianSlice::new(data(id.name()), LittleEndian))).unwrap();
    let mut aranges = BTreeMap::new();
    let mut sets = dwarf.debug_aranges.headers();
    while let Some(set) = sets.next().unwrap() {
        let mut entries = set.entries();
        while let Some(entry) = entries.next().unwrap() {
            aranges.insert(set.debug_info_offset().0, (entry.address(), entry.length()));
        }
    }
    let mut found = BTreeMap::new();
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().unwrap() {
        let at = header.offset().0;
        let unit = dwarf.unit(header).unwrap();
        let mut ranges = dwarf.unit_ranges(&unit).unwrap();
        let range = ranges.next().unwrap().unwrap();
        let program = unit.line_program.clone().unwrap();
        let mut rows = program.rows();
        let mut lines: Rows = Vec::new();
        let agree = |one, other| assert!(one == other || !settled && (one == 0 || other == 0), "{one:#x} {other:#x}");
        let mut begin = None;
        let mut sequence_end = 0;
        while let Some((header, row)) = rows.next_row().unwrap() {
            let begin = *begin.get_or_insert(row.address());
            if row.end_sequence() {
                sequence_end = row.address() - begin;
                continue;
            }
            assert_eq!(row.column(), gimli::ColumnType::Column(3.try_into().unwrap()));
            let file = row.file(header).unwrap().path_name();
            let file = dwarf.attr_string(&unit, file).unwrap().to_string().unwrap().to_owned();
            lines.push(((row.address() - begin) as u32, row.line().unwrap().get() as u32, file));
        }
        agree(begin.unwrap(), range.begin);
        assert_eq!(sequence_end, range.end - range.begin);
        let (arange, len) = aranges.remove(&at).unwrap();
        agree(arange, range.begin);
        assert_eq!(len, sequence_end);
        let mut entries = unit.entries();
        entries.next_entry().unwrap();
        let root = entries.current().unwrap();
        let name = dwarf.attr_string(&unit, root.attr_value(gimli::DW_AT_name).unwrap()).unwrap();
        assert_eq!(name.to_string().unwrap(), lines[0].2);
        entries.next_entry().unwrap();
        let function = entries.current().unwrap();
        let name = dwarf.attr_string(&unit, function.attr_value(gimli::DW_AT_name).unwrap()).unwrap();
        let own = dwarf.die_ranges(&unit, function).unwrap().next().unwrap().unwrap();
        agree(own.begin, range.begin);
        assert_eq!(own.end - own.begin, sequence_end);
        // At address 0 there is what is gone.
        if settled && range.begin > 0 {
            let name = name.to_string().unwrap().to_owned();
            assert!(found.insert(range.begin, (name, range.end - range.begin, lines)).is_none());
        }
    }
    assert!(aranges.is_empty());
    found
}

#[test]
fn a_new_file_is_an_object_without_code() {
    let region = Region::new(1 << 20);
    region.check();
    assert_eq!(region.bytes().len() as u64, region.file.text().end);
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
            // Sizes that are no multiples of anything; in the random order some code takes the place of older code.
            let size = 20 + random.below(1200);
            let begin = slot * 2000 + random.below(700);
            region.add(begin, Truth::new(number, size));
            if number % 7 == 0 {
                region.file.write(true).unwrap();
                region.check();
            }
        }
        region.file.write(true).unwrap();
        region.check();
        assert_eq!(region.file.left_out(), LeftOut::default());
        assert!(!region.file.has_work());
    }
}

#[test]
fn what_is_not_due_waits_and_names_do_not() {
    let mut region = Region::new(1 << 20);
    region.add(0x8000, Truth::new(0, 100));
    region.file.write(false).unwrap();
    region.check();
    // Behind all others, and before them: of the first there is all, of the second all but the row.
    region.add(0x9000, Truth::new(1, 100));
    region.add(0x1000, Truth::new(2, 100));
    region.file.write(false).unwrap();
    let seen = Seen::read(&region.bytes());
    assert_eq!(seen.names.len(), 3);
    assert_eq!(seen.units.len(), 2);
    assert_eq!(seen.frames.len(), 2);
    assert!(region.file.has_work());
    std::thread::sleep(Duration::from_millis(60));
    region.file.write(false).unwrap();
    region.check();
    assert!(!region.file.has_work());
}

#[test]
fn nothing_is_known_behind_a_reset() {
    let mut region = Region::new(1 << 20);
    for number in 0..300 {
        region.add(number * 1000, Truth::new(number, 900));
    }
    region.file.write(true).unwrap();
    region.file.reset(0);
    region.truth.clear();
    region.file.write(false).unwrap();
    region.check();
    for number in 0..20 {
        region.add(number * 3000, Truth::new(number + 5, 50));
    }
    region.file.write(true).unwrap();
    region.check();
}

#[test]
fn a_final_copy_says_the_same() {
    let mut region = Region::new(1 << 20);
    for number in 0..200 {
        let offset = number * 1001 % 200 * 5000;
        region.file.write_code(offset, &[number as u8 | 1; 300]).unwrap();
        region.add(offset, Truth::new(number, 300));
        if number == 100 {
            region.file.write(false).unwrap();
        }
    }
    // Code that the file has, and code that it has not yet, is replaced.
    region.add(5000, Truth::new(500, 10));
    region.add(5000 * (199 * 1001 % 200), Truth::new(501, 20));
    let before = region.bytes();
    for with_text in [true, false] {
        let copy = unnamed();
        region.file.snapshot(copy.try_clone().unwrap(), with_text, ID).unwrap();
        let bytes = bytes_of(&copy);
        let seen = Seen::read(&bytes);
        assert_eq!(seen.functions(), region.truth);
        assert_eq!(seen.build_id.as_deref(), Some(&ID[..]));
        for (&offset, truth) in &region.truth {
            let range = (seen.text.start + offset) as usize..(seen.text.start + offset + truth.size) as usize;
            assert_eq!(bytes[range.clone()] == before[range.clone()], with_text, "{offset:#x}");
        }
    }
    assert_eq!(region.bytes(), before);
    region.file.finish(ID).unwrap();
    region.check();
    assert_eq!(Seen::read(&region.bytes()).build_id.as_deref(), Some(&ID[..]));
}

#[test]
fn text_can_grow_within_its_room() {
    let mut region = Region::new(1 << 20);
    region.add(0, Truth::new(1, 100));
    region.file.write(true).unwrap();
    let late = Code { offset: 1 << 20, size: 10, name: b"late", preface: &[] };
    region.file.add(&late);
    assert_eq!(region.file.left_out().names, 1);
    region.file.set_text_len(2 << 20).unwrap();
    region.add(1 << 20, Truth::new(2, 10));
    region.file.write_code((2 << 20) - 4, b"last").unwrap();
    region.file.write(true).unwrap();
    region.check();
    assert!(region.file.set_text_len((2 << 20) + 1).is_err());
    assert!(region.file.write_code((2 << 20) - 3, b"last").is_err());
}

#[test]
fn full_tables_leave_names_and_lines() {
    let mut region = Region::new(4096);
    // The least room: 2046 rows, which come before 64 KiB of FDEs do with code that has nothing to say.
    let tables_len = RegionFile::tables_room(4096);
    let place = Place { text: tables_len, text_len: 1 << 20, text_room: 1 << 20, tables_len, spare: 0 };
    region.file = RegionFile::create(unnamed(), place).unwrap();
    for number in 0..4000 {
        region.add(number * 100, Truth::new(5 * number + 1, 90));
    }
    region.file.write(true).unwrap();
    let left_out = region.file.left_out();
    assert!(left_out.tables > 1000 && left_out.names == 0 && left_out.lines == 0, "{left_out:?}");
    let seen = Seen::read(&region.bytes());
    assert_eq!(seen.frames.len() as u64, 4000 - left_out.tables);
    for (offset, truth) in &mut region.truth {
        truth.cfa = truth.cfa.filter(|_| seen.frames.contains_key(&(tables_len + offset)));
    }
    region.check();
}
