//! Makes the header page of a region's file: one block that is written at once, and contains the offsets of all parts of the
//! file.

use std::ops::Range;

use super::debug::ABBREV;
use super::SYMBOL_SIZE;
use crate::format::arch::ELF_MACHINE;
use crate::format::put::{Put, WORD};

pub const HEADER_SIZE: usize = 4096;

/// The file has 32-bit or 64-bit format (`ELFCLASS32`, `ELFCLASS64`), as this machine's addresses.
const CLASS: u8 = (WORD / 4) as u8;
const IS_64_BIT: bool = WORD == 8;

pub const ELF_HEADER: u16 = 40 + 3 * WORD as u16;
pub const PROGRAM_HEADER: u16 = 8 + 6 * WORD as u16;
pub const SECTION_HEADER: u16 = 16 + 6 * WORD as u16;

pub const ET_EXEC: u16 = 2;
pub const ET_DYN: u16 = 3;
pub const PT_LOAD: u32 = 1;
pub const PT_NOTE: u32 = 4;
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub const PF_X: u32 = 1;
pub const PF_W: u32 = 2;
pub const PF_R: u32 = 4;
pub const SHT_PROGBITS: u32 = 1;
pub const SHT_SYMTAB: u32 = 2;
pub const SHT_STRTAB: u32 = 3;
pub const SHT_NOTE: u32 = 7;
pub const SHT_NOBITS: u32 = 8;
pub const SHF_ALLOC: u64 = 2;
pub const SHF_EXECINSTR: u64 = 4;
pub const NT_GNU_BUILD_ID: u32 = 3;

/// Offsets of the parts of the header page. Four program headers fit before the first of these parts.
const NOTE_AT: usize = 288;
const NOTE_SIZE: usize = 36;
const ABBREV_AT: usize = NOTE_AT + NOTE_SIZE + 4;
const NAMES_AT: usize = 448;
const SECTIONS_AT: usize = 704;

/// Names of sections: the content of `.shstrtab`.
const NAMES: &[u8] = b"\0.text\0.note.gnu.build-id\0.eh_frame\0.eh_frame_hdr\0.symtab\0.strtab\0\
    .debug_abbrev\0.debug_info\0.debug_line\0.debug_aranges\0.debug_ranges\0.shstrtab\0";

const _: () = assert!(ABBREV_AT + ABBREV.len() <= NAMES_AT && NAMES_AT + NAMES.len() <= SECTIONS_AT);

/// The ranges of a file's parts. Empty sections are left out, except for `.text`, which is always the first section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Start of the loaded segment: 0, or the end of the header page.
    pub begin: u64,
    /// The code. The loaded segment ends with the code.
    pub text: Range<u64>,
    /// How much memory the loaded segment reserves for code. Code beyond this size is not in the segment.
    pub text_room: u64,
    /// Empty if the text does not begin at file offset 0. If the text begins at file offset 0, the header page takes the place
    /// of the beginning of the text, and `first` is the range of the header page. Only a final copy contains the bytes of the
    /// code. In a final copy, `first` is the range in which the beginning of the text is stored instead.
    pub first: Range<u64>,
    pub eh_frame: Range<u64>,
    pub eh_frame_hdr: Range<u64>,
    /// The symbol table is also left out if the null symbol is the only symbol.
    pub symtab: Range<u64>,
    pub strtab: Range<u64>,
    pub debug_info: Range<u64>,
    pub debug_line: Range<u64>,
    pub debug_aranges: Range<u64>,
    pub debug_ranges: Range<u64>,
    /// `None` for a file that changes, because perf's cache keeps only the first content for each build ID.
    pub build_id: Option<[u8; 20]>,
}

impl Image {
    /// Makes the header page, which is the first page of the file.
    pub fn header_page(&self) -> [u8; HEADER_SIZE] {
        let mut page = [0; HEADER_SIZE];
        let in_page = |at: usize, len: usize| at as u64..(at + len) as u64;
        let note = if self.build_id.is_some() { in_page(NOTE_AT, NOTE_SIZE) } else { 0..0 };
        let abbrev = if self.debug_info.is_empty() { 0..0 } else { in_page(ABBREV_AT, ABBREV.len()) };
        let names = in_page(NAMES_AT, NAMES.len());
        let has_symbols = self.symtab.end - self.symtab.start > SYMBOL_SIZE as u64;
        let (symtab, strtab) = if has_symbols { (&self.symtab, &self.strtab) } else { (&(0..0), &(0..0)) };

        let section = |name, kind, flags, range: &Range<u64>, align| Entry {
            name,
            kind,
            flags,
            addr: if flags & SHF_ALLOC == 0 { 0 } else { range.start },
            at: range.start,
            len: range.end.saturating_sub(range.start),
            align,
        };
        let code = SHF_ALLOC | SHF_EXECINSTR;
        let text = &(self.text.start + self.first.end - self.first.start..self.text.end);
        let all = [
            section(name_at!(".text"), SHT_PROGBITS, code, text, 16),
            // If the text begins at file offset 0, the header page takes the place of the beginning of the text. So the code at
            // the beginning has a separate section, whose range is `first`. But the symbols of this code refer to the `.text`
            // section above. Old readers change a symbol's value by the difference between the file offset and the address of
            // the symbol's section. In a final copy, the separate section has such a difference, so symbols must not refer to
            // it.
            Entry { addr: self.text.start, ..section(name_at!(".text"), SHT_PROGBITS, code, &self.first, 16) },
            section(name_at!(".note.gnu.build-id"), SHT_NOTE, if self.begin == 0 { SHF_ALLOC } else { 0 }, &note, 4),
            section(name_at!(".eh_frame"), SHT_PROGBITS, SHF_ALLOC, &self.eh_frame, 8),
            // perf with libunwind subtracts the start of the first segment from the address of the section `.eh_frame_hdr`
            // (linux tools/perf/util/unwind-libunwind-local.c, `read_unwind_spec_eh_frame`). libdw uses the program header
            // `PT_GNU_EH_FRAME` instead of this section.
            Entry {
                addr: self.eh_frame_hdr.start.wrapping_add(self.begin),
                ..section(name_at!(".eh_frame_hdr"), SHT_PROGBITS, SHF_ALLOC, &self.eh_frame_hdr, 4)
            },
            section(name_at!(".symtab"), SHT_SYMTAB, 0, symtab, 8),
            section(name_at!(".strtab"), SHT_STRTAB, 0, strtab, 1),
            section(name_at!(".debug_abbrev"), SHT_PROGBITS, 0, &abbrev, 1),
            section(name_at!(".debug_info"), SHT_PROGBITS, 0, &self.debug_info, 1),
            section(name_at!(".debug_line"), SHT_PROGBITS, 0, &self.debug_line, 1),
            section(name_at!(".debug_aranges"), SHT_PROGBITS, 0, &self.debug_aranges, 1),
            section(name_at!(".debug_ranges"), SHT_PROGBITS, 0, &self.debug_ranges, 1),
            section(name_at!(".shstrtab"), SHT_STRTAB, 0, &names, 1),
        ];
        let mut at = SECTIONS_AT + usize::from(SECTION_HEADER);
        let mut count = 1;
        for section in all[..1].iter().chain(all[1..].iter().filter(|section| section.len > 0)) {
            page[at..at + usize::from(SECTION_HEADER)].copy_from_slice(&section_header(section, count));
            at += usize::from(SECTION_HEADER);
            count += 1;
        }

        let mut segments = 0;
        let mut put_segment = |kind, flags, range: &Range<u64>, room, align| {
            let at = usize::from(ELF_HEADER + segments * PROGRAM_HEADER);
            let words = [range.start, range.start, range.start, range.end - range.start, room, align];
            page[at..at + usize::from(PROGRAM_HEADER)].copy_from_slice(&program_header(kind, flags, words));
            segments += 1;
        };
        // libdw identifies an object by its start and end. So the start and the end of the object stay the same in all epochs,
        // and for all lengths of the code.
        let end = self.text.start + self.text_room;
        let align = HEADER_SIZE as u64;
        let mut begin = self.begin;
        if begin == 0 && self.text.start > align {
            // Continuous profilers look for an executable segment that begins where the mapping of the code begins. libdw and
            // perf treat the beginning of the first segment as the beginning of the object.
            put_segment(PT_LOAD, PF_R, &(0..align), align, align);
            begin = self.text.start;
        }
        put_segment(PT_LOAD, PF_R | PF_X, &(begin..self.text.end.min(end)), end - begin, align);
        for (kind, range) in [(PT_GNU_EH_FRAME, &self.eh_frame_hdr), (PT_NOTE, &note)] {
            if !range.is_empty() {
                put_segment(kind, PF_R, range, range.end - range.start, 4);
            }
        }
        if let Some(build_id) = &self.build_id {
            let mut put = Put::new(&mut page[NOTE_AT..NOTE_AT + NOTE_SIZE]);
            put.u32(4);
            put.u32(build_id.len() as u32);
            put.u32(NT_GNU_BUILD_ID);
            put.bytes(b"GNU\0");
            put.bytes(build_id);
            debug_assert!(put.is_full());
        }
        page[ABBREV_AT..ABBREV_AT + ABBREV.len()].copy_from_slice(ABBREV);
        page[NAMES_AT..NAMES_AT + NAMES.len()].copy_from_slice(NAMES);
        page[..usize::from(ELF_HEADER)].copy_from_slice(&elf_header(
            ET_DYN,
            segments,
            count as u16,
            SECTIONS_AT as u64,
        ));
        page
    }
}

/// The ELF header of a file of the type `kind` (`ET_*`). The program headers follow the ELF header. The last section contains
/// the names of the sections.
pub fn elf_header(kind: u16, segments: u16, sections: u16, sections_at: u64) -> [u8; ELF_HEADER as usize] {
    let mut header = [0; ELF_HEADER as usize];
    let mut put = Put::new(&mut header);
    // The file has this machine's byte order, ELF version 1 and the System V ABI.
    put.bytes(b"\x7fELF");
    put.bytes(&[CLASS, if cfg!(target_endian = "little") { 1 } else { 2 }, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    put.bytes(&kind.to_ne_bytes());
    put.bytes(&(ELF_MACHINE as u16).to_ne_bytes());
    put.u32(1);
    put.word(0);
    put.word(u64::from(ELF_HEADER));
    put.word(sections_at);
    put.u32(0);
    for value in [ELF_HEADER, PROGRAM_HEADER, segments, SECTION_HEADER, sections, sections - 1] {
        put.bytes(&value.to_ne_bytes());
    }
    debug_assert!(put.is_full());
    header
}

/// A program header. `words` contains the offset, two addresses, the size in the file, the size in memory, and the alignment.
pub fn program_header(kind: u32, flags: u32, words: [u64; 6]) -> [u8; PROGRAM_HEADER as usize] {
    let mut out = [0; PROGRAM_HEADER as usize];
    let mut put = Put::new(&mut out);
    put.u32(kind);
    let (before_align, align) = words.split_at(5);
    // The flags are in front of the words in the 64-bit format, and in front of the alignment in the 32-bit format.
    if IS_64_BIT {
        put.u32(flags);
    }
    before_align.iter().for_each(|&word| put.word(word));
    if !IS_64_BIT {
        put.u32(flags);
    }
    align.iter().for_each(|&word| put.word(word));
    debug_assert!(put.is_full());
    out
}

/// Returns the offset of `name` in `names`, the contents of `.shstrtab`. Only `name_at!` uses this function, because the search
/// is slow.
pub(super) const fn find_name(names: &[u8], name: &[u8]) -> u32 {
    let (mut at, mut same) = (0, 0);
    while same < name.len() {
        let is_same = names[at + same] == name[same];
        (at, same) = if is_same { (at, same + 1) } else { (at + 1, 0) };
    }
    assert!(names[at + same] == 0);
    at as u32
}

/// Offset of a section's name in the constant `NAMES` of the calling module, computed when the library is built.
macro_rules! name_at {
    ($name:literal) => {
        const { $crate::format::elf::header::find_name(NAMES, $name.as_bytes()) }
    };
}
pub(super) use name_at;

/// The fields of a section header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Offset of the section's name in `.shstrtab`.
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    /// Offset in the file, and size.
    pub at: u64,
    pub len: u64,
    pub align: u64,
}

/// The header of the section with this number.
pub fn section_header(entry: &Entry, number: u32) -> [u8; SECTION_HEADER as usize] {
    // The section after `.symtab` contains the symbols' names. All symbols are local.
    let (link, info, entry_size) = match entry.kind {
        SHT_SYMTAB => (number + 1, (entry.len / SYMBOL_SIZE as u64) as u32, SYMBOL_SIZE as u64),
        _ => (0, 0, 0),
    };
    let mut header = [0; SECTION_HEADER as usize];
    let mut put = Put::new(&mut header);
    put.u32(entry.name);
    put.u32(entry.kind);
    put.word(entry.flags);
    put.word(entry.addr);
    put.word(entry.at);
    put.word(entry.len);
    put.u32(link);
    put.u32(info);
    put.word(entry.align);
    put.word(entry_size);
    debug_assert!(put.is_full());
    header
}
