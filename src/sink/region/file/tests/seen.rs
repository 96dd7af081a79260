//! Reads a region's file with independent readers. `object` reads the sections and symbols, and `gimli` reads the contents of
//! the sections.

use gimli::read::{BaseAddresses, CfaRule, Dwarf, EhFrame, EhFrameHdr, EndianSlice, UnwindContext, UnwindSection};
use gimli::LittleEndian;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::*;
use crate::format::elf::debug::NOWHERE;

/// The data that a reader finds in a file.
#[derive(Debug)]
pub struct Seen {
    /// The start of the loaded segment.
    pub begin: u64,
    pub text: Range<u64>,
    /// The symbols. Each key is the address of a symbol, and each value is the name and the size of this symbol.
    pub names: BTreeMap<u64, (String, u64)>,
    /// The rows of the search table. Each key is the start of a row. Each value is the size and the CFA offset in the row's
    /// FDE.
    pub frames: BTreeMap<u64, (u64, i32)>,
    /// The DWARF units. Each key is the address of the function that a unit describes.
    pub units: Units,
    pub build_id: Option<Vec<u8>>,
}

impl Seen {
    pub fn read(bytes: &[u8]) -> Seen {
        let elf = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
        let section = |name: &str| elf.section_by_name(name);
        let data = |name: &str| section(name).map_or(&[][..], |section| section.data().unwrap());
        let text = section(".text").unwrap();
        let text = text.address()..text.address() + text.size();
        let endian = object::Endianness::Little;
        let headers = elf.elf_program_headers();
        let loads = headers.iter().filter(|header| header.p_type(endian) == object::elf::PT_LOAD);
        let loads: Vec<_> = loads.map(|load| (load.p_flags(endian), load.p_vaddr(endian), load)).collect();
        let begin = loads[0].1;
        // The executable segment begins where the mapping of the code begins.
        let &(flags, code, load) = loads.last().unwrap();
        assert_eq!((flags, loads.len()), (object::elf::PF_R | object::elf::PF_X, 1 + usize::from(begin < code)));
        assert!(code == text.start || code == begin);
        // The text may reach beyond the end of the segment.
        let end = code + load.p_memsz(endian);
        assert_eq!((load.p_offset(endian), load.p_filesz(endian)), (code, text.end.min(end) - code));
        for section in elf.sections() {
            // Every section lies within the file, even if the text ends with a hole.
            assert!(section.file_range().is_none_or(|(at, len)| at + len <= bytes.len() as u64));
            let beyond = if section.name() == Ok(".eh_frame_hdr") { begin } else { 0 };
            assert!(section.address() == 0 || section.address() == section.file_range().unwrap().0 + beyond);
        }
        let mut names = BTreeMap::new();
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
            let (start, size) = (symbol.address(), symbol.size());
            assert!(text.contains(&start) && start + size <= text.end.min(end) && size > 0);
            assert!(names.insert(start, (symbol.name().unwrap().to_owned(), size)).is_none());
        }
        Seen {
            names,
            frames: frames(&elf, data(".eh_frame"), data(".eh_frame_hdr")),
            units: units(&data, true),
            begin,
            text,
            build_id: elf.build_id().unwrap().map(<[u8]>::to_vec),
        }
    }

    pub fn functions(&self) -> BTreeMap<u64, Truth> {
        for addr in self.frames.keys().chain(self.units.keys()) {
            assert!(self.names.contains_key(addr), "{addr:#x} has no name");
        }
        let functions = self.names.iter().map(|(&addr, (name, size))| {
            let cfa = self.frames.get(&addr).map(|&(len, cfa)| {
                assert_eq!(len, *size);
                cfa
            });
            let unit = self.units.get(&addr).map(|unit| {
                assert_eq!((&unit.name, &unit.size), (name, size));
                let files = ["/src/one.js", "/src/two.js"];
                let known = |file: &str| *files.iter().find(|known| **known == file).unwrap();
                let lines = unit.lines.iter().map(|(offset, line, file)| (*offset, *line, known(file)));
                (lines.collect(), unit.inlines.clone())
            });
            let (lines, inlines) = unit.unwrap_or_default();
            (addr - self.text.start, Truth { size: *size, name: name.clone(), cfa, lines, inlines })
        });
        functions.collect()
    }
}

/// Looks up each row of the search table as an unwinder does, and then reads `.eh_frame` from its start as libdw does.
fn frames(elf: &ElfFile64<'_>, eh_frame: &[u8], hdr: &[u8]) -> BTreeMap<u64, (u64, i32)> {
    // The address of loaded bytes is their offset in the file. This function uses the offsets, because perf needs another
    // address in the section header of `.eh_frame_hdr`.
    let address =
        |name: &str| elf.section_by_name(name).and_then(|section| section.file_range()).map_or(0, |(at, _)| at);
    let bases = BaseAddresses::default().set_eh_frame(address(".eh_frame")).set_eh_frame_hdr(address(".eh_frame_hdr"));
    let (section, endian) = (EhFrame::new(eh_frame, LittleEndian), object::Endianness::Little);
    let mut found = BTreeMap::new();
    if hdr.is_empty() {
        return found;
    }
    let segment = elf.elf_program_headers().iter().find(|header| header.p_type(endian) == object::elf::PT_GNU_EH_FRAME);
    let segment = segment.map(|header| (header.p_offset(endian), header.p_vaddr(endian), header.p_filesz(endian)));
    assert_eq!(segment, Some((address(".eh_frame_hdr"), address(".eh_frame_hdr"), hdr.len() as u64)));
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

/// An offset in the code, a line number and a file for each row.
type Rows = Vec<(u32, u32, String)>;

/// The contents of a DWARF unit.
#[derive(Debug)]
pub struct Unit {
    pub name: String,
    pub size: u64,
    pub lines: Rows,
    pub inlines: Vec<Inline<'static>>,
}

pub type Units = BTreeMap<u64, Unit>;

/// Reads all DWARF units. `settled` is false while dead code is being removed.
pub fn units<'a>(data: &dyn Fn(&str) -> &'a [u8], settled: bool) -> Units {
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
        let agree = |one, other| {
            assert!(one == other || !settled && (one == NOWHERE || other == NOWHERE), "{one:#x} {other:#x}")
        };
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
        // The entries that describe the inlined functions come before the entry of the unit's function.
        while entries.current().unwrap().attr(gimli::DW_AT_inline).is_some() {
            entries.next_entry().unwrap();
        }
        let function = entries.current().unwrap();
        let name = dwarf.attr_string(&unit, function.attr_value(gimli::DW_AT_name).unwrap()).unwrap();
        let own = dwarf.die_ranges(&unit, function).unwrap().next().unwrap().unwrap();
        agree(own.begin, range.begin);
        assert_eq!(own.end - own.begin, sequence_end);
        let name = name.to_string().unwrap().to_owned();
        let inlines = inlines(&dwarf, &unit, entries, &range);
        if settled && range.begin != NOWHERE {
            let unit = Unit { name, size: range.end - range.begin, lines, inlines };
            assert!(found.insert(range.begin, unit).is_none());
        }
    }
    assert!(aranges.is_empty());
    found
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Returns the inlined functions, whose entries follow the entry of the unit's function, and are the last entries of the unit.
fn inlines<'a>(
    dwarf: &Dwarf<Reader<'a>>,
    unit: &gimli::Unit<Reader<'a>>,
    mut entries: gimli::EntriesCursor<'_, Reader<'a>>,
    of_unit: &gimli::Range,
) -> Vec<Inline<'static>> {
    let text = |value| -> &'static [u8] {
        let text = dwarf.attr_string(unit, value).unwrap().to_vec();
        // The names are leaked because they are compared with the expected names, which are `'static`.
        Box::leak(text.into_boxed_slice())
    };
    let depth = entries.current().unwrap().depth();
    let mut found: Vec<Inline<'static>> = Vec::new();
    let mut open: Vec<(isize, u32)> = Vec::new();
    while entries.next_entry().unwrap() {
        let Some(entry) = entries.current() else { continue };
        assert!(entry.depth() > depth && entry.tag() == gimli::DW_TAG_inlined_subroutine);
        open.retain(|&(other, _)| other < entry.depth());
        let parent = open.last().map(|&(_, index)| index);
        open.push((entry.depth(), found.len() as u32));
        let mut ranges = dwarf.die_ranges(unit, entry).unwrap();
        let range = ranges.next().unwrap().unwrap();
        assert!(ranges.next().unwrap().is_none() && range.begin >= of_unit.begin && range.end <= of_unit.end);
        let gimli::AttributeValue::UnitRef(origin) = entry.attr_value(gimli::DW_AT_abstract_origin).unwrap() else {
            panic!("no origin");
        };
        let origin = unit.entry(origin).unwrap();
        assert_eq!(origin.tag(), gimli::DW_TAG_subprogram);
        let number = |at| entry.attr(at).unwrap().udata_value().unwrap();
        let header = unit.line_program.as_ref().unwrap().header();
        let file = header.file(number(gimli::DW_AT_call_file)).unwrap().path_name();
        found.push(Inline {
            begin: (range.begin - of_unit.begin) as u32,
            end: (range.end - of_unit.begin) as u32,
            name: text(origin.attr_value(gimli::DW_AT_name).unwrap()),
            call_file: text(file),
            call_line: number(gimli::DW_AT_call_line) as u32,
            call_column: number(gimli::DW_AT_call_column) as u32,
            parent,
        });
    }
    found
}
