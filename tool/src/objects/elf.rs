//! The ELF file of a part of the code. The tables that unwinders read in memory begin at the file's first byte, and the code
//! lies above them or below them. Everything else follows at the end.

use std::borrow::Cow;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use jitsym::format::elf::debug::ABBREV;
use jitsym::format::elf::eh_frame_hdr::Places;
use jitsym::format::elf::header::{
    elf_header, program_header, section_header, Entry, ELF_HEADER, ET_DYN, NT_GNU_BUILD_ID, PF_R, PF_X, PROGRAM_HEADER,
    PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, SECTION_HEADER, SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_NOTE, SHT_PROGBITS,
    SHT_STRTAB, SHT_SYMTAB,
};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::debug::Debug;
use super::frames::Tables;
use super::taken::PAGE;
use super::Load;

/// The program headers: two loaded segments, the search table, and the note.
const SEGMENTS: u16 = 4;
const NOTE_AT: u64 = ELF_HEADER as u64 + SEGMENTS as u64 * PROGRAM_HEADER as u64;
const NOTE_SIZE: u64 = 36;
/// Where the unwind tables begin, if they are at the beginning of the file.
const TABLES_AT: u64 = (NOTE_AT + NOTE_SIZE).next_multiple_of(8);
/// Offset of `e_machine` in the ELF header.
const MACHINE_AT: usize = 18;
/// Bytes that are written at once.
const BLOCK: usize = 1 << 20;

/// Where the parts of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The address of the file's first byte, modulo 2^64.
    pub origin: u64,
    /// Offset of the unwind tables.
    tables_at: u64,
    /// Offset of the code.
    pub text_at: u64,
}

/// The size of the part of a file that lies in memory besides the code, for tables of these sizes.
pub(super) fn size_in_memory(tables: &Tables) -> u64 {
    let (eh_frame, hdr) = tables.sizes();
    (TABLES_AT + eh_frame.next_multiple_of(8) + hdr).next_multiple_of(PAGE)
}

impl Layout {
    /// For code at an address, and tables at the beginning of the page `at`. If the tables lie below the code, the file begins
    /// there. If not, the file begins one page before the code.
    pub fn new(code: u64, at: u64) -> Layout {
        match at <= code {
            true => Layout { origin: at, tables_at: TABLES_AT, text_at: code - at },
            false => {
                let origin = (code / PAGE * PAGE).wrapping_sub(PAGE);
                Layout { origin, tables_at: at.wrapping_sub(origin), text_at: code.wrapping_sub(origin) }
            }
        }
    }

    /// For code at an address, with tables right below it, even if there is no address below it.
    pub fn close(code: u64, size: u64) -> Layout {
        let origin = (code / PAGE * PAGE).wrapping_sub(size);
        Layout { origin, tables_at: TABLES_AT, text_at: code.wrapping_sub(origin) }
    }
}

/// A whole file, in parts by offset. Between the parts, the file has holes.
pub(super) struct Image<'a> {
    pub build_id: [u8; 20],
    parts: Vec<(u64, Cow<'a, [u8]>)>,
    /// Where the tables are mapped: address, number of bytes, and offset in the file. `None` if there are no tables.
    pub tables: Option<(u64, u64, u64)>,
}

impl<'a> Image<'a> {
    /// The file of these pieces, which are sorted by address and do not overlap. If `machine` is 0, it is this machine. If the tables are too far away from the code,
    /// the file has none.
    pub fn new(machine: u32, pieces: &[&Load<'a>], layout: &Layout, tables: Tables) -> Image<'a> {
        let debug = Debug::new(layout.origin, pieces.iter().copied());
        let end_of = |load: &Load<'_>| load.addr.wrapping_sub(layout.origin).saturating_add(load.size);
        let text = layout.text_at..pieces.last().map_or(layout.text_at, |load| end_of(load));
        let (eh_frame_size, hdr_size) = tables.sizes();
        let hdr_at = layout.tables_at + eh_frame_size.next_multiple_of(8);
        let places = Places { hdr: hdr_at, eh_frame: layout.tables_at, text: layout.text_at };
        let placed = if tables.is_empty() { None } else { tables.place(&places) };
        let (eh_frame, hdr) = placed.unwrap_or_default();
        let tables_end = hdr_at + hdr_size;
        let is_below = layout.tables_at < layout.text_at;
        let has_code = pieces.iter().all(|load| load.code.is_some());

        let mut sections = Sections::default();
        let begin = if is_below { 0 } else { layout.text_at / PAGE * PAGE };
        let (code, data) = (SHF_ALLOC | SHF_EXECINSTR, SHF_ALLOC);
        let text_kind = if has_code { SHT_PROGBITS } else { SHT_NOBITS };
        sections.add(".text", text_kind, code, &text, 16);
        let note = NOTE_AT..NOTE_AT + NOTE_SIZE;
        sections.add(".note.gnu.build-id", SHT_NOTE, if is_below { data } else { 0 }, &note, 4);
        let mut parts: Vec<(u64, Cow<'a, [u8]>)> = Vec::new();
        let hdr_place = hdr_at..tables_end;
        let mut end = if is_below { TABLES_AT } else { PAGE };
        if !hdr.is_empty() {
            let eh_frame_place = layout.tables_at..layout.tables_at + eh_frame_size;
            sections.add(".eh_frame", SHT_PROGBITS, data, &eh_frame_place, 8);
            sections.add(".eh_frame_hdr", SHT_PROGBITS, data, &hdr_place, 4);
            // perf with libunwind uses the section's address, and subtracts the start of the first segment (linux
            // tools/perf/util/unwind-libunwind-local.c, `read_unwind_spec_eh_frame`).
            sections.raise_last(begin);
            parts.push((layout.tables_at, eh_frame.into()));
            parts.push((hdr_at, hdr.into()));
            end = end.max(tables_end);
        }
        let in_memory = end.next_multiple_of(PAGE);
        if has_code {
            let bytes = |load: &&Load<'a>| Some((load.addr.wrapping_sub(layout.origin), load.code?.into()));
            parts.extend(pieces.iter().filter_map(bytes));
            end = end.max(text.end);
        }

        let abbrev = if debug.info.is_empty() { &[] } else { ABBREV };
        let Debug { symtab, strtab, info, line, aranges, ranges } = debug;
        let rest: [(&'static str, u32, u64, Cow<'a, [u8]>); 7] = [
            (".symtab", SHT_SYMTAB, 8, symtab.into()),
            (".strtab", SHT_STRTAB, 1, strtab.into()),
            (".debug_abbrev", SHT_PROGBITS, 1, abbrev.into()),
            (".debug_info", SHT_PROGBITS, 1, info.into()),
            (".debug_line", SHT_PROGBITS, 1, line.into()),
            (".debug_aranges", SHT_PROGBITS, 1, aranges.into()),
            (".debug_ranges", SHT_PROGBITS, 1, ranges.into()),
        ];
        for (name, kind, align, bytes) in rest.into_iter().filter(|(.., bytes)| !bytes.is_empty()) {
            let at = end.next_multiple_of(8);
            end = at + bytes.len() as u64;
            sections.add(name, kind, 0, &(at..end), align);
            parts.push((at, bytes));
        }
        let at = end.next_multiple_of(8);
        let (count, sections_at, bytes) = sections.finish(at);
        parts.push((at, bytes.into()));

        let text_memory = text.start / PAGE * PAGE..text.end;
        let text_in_file = if has_code { text_memory.end - text_memory.start } else { 0 };
        let text_segment = (PT_LOAD, PF_R | PF_X, text_memory, text_in_file, PAGE);
        let data_segment = |kind, range: Range<u64>, align| (kind, PF_R, range.clone(), range.end - range.start, align);
        let tables_begin = if is_below { 0 } else { layout.tables_at };
        let tables_segment = data_segment(PT_LOAD, tables_begin..tables_end.max(note.end), PAGE);
        let mut segments = match (is_below, sections.has_tables) {
            (true, _) => vec![tables_segment, text_segment],
            (false, true) => vec![text_segment, tables_segment],
            (false, false) => vec![text_segment],
        };
        segments.push(data_segment(PT_NOTE, note, 4));
        if sections.has_tables {
            segments.push(data_segment(PT_GNU_EH_FRAME, hdr_place, 4));
        }
        let mut head = elf_header(ET_DYN, segments.len() as u16, count, sections_at).to_vec();
        if machine != 0 {
            head[MACHINE_AT..MACHINE_AT + 2].copy_from_slice(&(machine as u16).to_ne_bytes());
        }
        for (kind, flags, range, in_file, align) in segments {
            let words = [range.start, range.start, range.start, in_file, range.end - range.start, align];
            head.extend_from_slice(&program_header(kind, flags, words));
        }
        head.resize(NOTE_AT as usize, 0);
        head.extend_from_slice(&note_head());
        let mut image = Image { build_id: [0; 20], parts, tables: None };
        if sections.has_tables {
            image.tables = Some(match is_below {
                true => (layout.origin, in_memory, 0),
                false => {
                    let at = layout.tables_at / PAGE * PAGE;
                    (layout.origin.wrapping_add(at), tables_end.next_multiple_of(PAGE) - at, at)
                }
            });
        }
        image.build_id = image.hash(&head);
        head.extend_from_slice(&image.build_id);
        image.parts.insert(0, (0, head.into()));
        image
    }

    /// A hash of the whole file, whose first bytes are `head`.
    fn hash(&self, head: &[u8]) -> [u8; 20] {
        let mut hasher = SipHasher13::new();
        hasher.write(head);
        let mut len = head.len() as u64;
        for (at, part) in &self.parts {
            hasher.write_u64(*at);
            hasher.write_u64(part.len() as u64);
            hasher.write(part);
            len = len.wrapping_add(part.len() as u64);
        }
        let mut id = [0; 20];
        id[..16].copy_from_slice(&hasher.finish128().as_u128().to_be_bytes());
        id[16..].copy_from_slice(&(len as u32).to_be_bytes());
        id
    }

    /// The first bytes of the file, which contain the build ID.
    pub fn head(&self) -> &[u8] {
        self.parts.first().map_or(&[], |(_, bytes)| bytes)
    }

    pub fn len(&self) -> u64 {
        self.parts.iter().map(|(at, bytes)| at + bytes.len() as u64).max().unwrap_or(0)
    }

    /// Writes the parts. Parts that lie close together are written at once.
    pub fn write(&self, file: &File) -> io::Result<()> {
        let (mut block, mut block_at) = (Vec::with_capacity(2 * BLOCK), 0);
        for (at, bytes) in &self.parts {
            let gap = at.wrapping_sub(block_at).wrapping_sub(block.len() as u64);
            if gap < PAGE && block.len() + bytes.len() <= 2 * BLOCK {
                block.resize(block.len() + gap as usize, 0);
            } else {
                file.write_all_at(&block, block_at)?;
                block.clear();
                block_at = *at;
            }
            if bytes.len() > BLOCK {
                file.write_all_at(&block, block_at)?;
                file.write_all_at(bytes, *at)?;
                block.clear();
                block_at = at + bytes.len() as u64;
            } else {
                block.extend_from_slice(bytes);
            }
        }
        file.write_all_at(&block, block_at)
    }
}

/// The section headers while they are collected.
#[derive(Default)]
struct Sections {
    names: Vec<u8>,
    headers: Vec<Entry>,
    has_tables: bool,
}

impl Sections {
    fn add(&mut self, name: &str, kind: u32, flags: u64, range: &Range<u64>, align: u64) {
        if self.names.is_empty() {
            self.names.push(0);
        }
        let entry = Entry {
            name: self.names.len() as u32,
            kind,
            flags,
            addr: if flags & SHF_ALLOC == 0 { 0 } else { range.start },
            at: range.start,
            len: range.end - range.start,
            align,
        };
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        self.headers.push(entry);
        self.has_tables |= name == ".eh_frame_hdr";
    }

    /// Adds to the address of the section that was added last.
    fn raise_last(&mut self, by: u64) {
        if let Some(last) = self.headers.last_mut() {
            last.addr = last.addr.wrapping_add(by);
        }
    }

    /// The section of names and all headers, for this offset: the number of headers, their offset, and the bytes.
    fn finish(&mut self, at: u64) -> (u16, u64, Vec<u8>) {
        self.add(".shstrtab", SHT_STRTAB, 0, &(at..at), 1);
        let len = self.names.len() as u64;
        if let Some(last) = self.headers.last_mut() {
            last.len = len;
        }
        let headers_at = (at + len).next_multiple_of(8);
        let mut bytes = std::mem::take(&mut self.names);
        bytes.resize((headers_at - at) as usize + usize::from(SECTION_HEADER), 0);
        for (number, entry) in (1..).zip(&self.headers) {
            bytes.extend_from_slice(&section_header(entry, number));
        }
        (self.headers.len() as u16 + 1, headers_at, bytes)
    }
}

/// The note without the build ID.
fn note_head() -> [u8; 16] {
    let mut note = [0; 16];
    for (at, word) in [4, 20, NT_GNU_BUILD_ID].into_iter().enumerate() {
        note[4 * at..4 * at + 4].copy_from_slice(&u32::to_ne_bytes(word));
    }
    note[12..].copy_from_slice(b"GNU\0");
    note
}
