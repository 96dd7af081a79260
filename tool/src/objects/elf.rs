//! Makes the ELF file of an epoch: a header, the code, the unwind tables, and at the end the sections without addresses in
//! memory.
//!
//! In files of this form, perf 6.1, 6.12 and 7.2 find names and callers. Addresses are file offsets. One segment extends from
//! the header to the end of the neighbourhood. If the unwind tables have a mapping, they are in no segment, because the
//! segments of neighbourhoods must not overlap.

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

/// The program headers: the loaded segment, the note, and the search table.
const SEGMENTS: u16 = 3;
const NOTE_AT: u64 = ELF_HEADER as u64 + SEGMENTS as u64 * PROGRAM_HEADER as u64;
const NOTE_SIZE: u64 = 36;
const HEAD_SIZE: u64 = NOTE_AT + NOTE_SIZE;
/// The alignment of sections.
const ALIGN: u64 = 16;
/// Offset of `e_machine` in the ELF header.
const MACHINE_AT: usize = 18;
/// The number of bytes that are written at once.
const BLOCK: usize = 1 << 20;

/// The offsets of the parts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The address of the file's first byte, modulo 2^64.
    pub origin: u64,
    /// Offset at which all code of the neighbourhood ends.
    pub end: u64,
    /// Offset of the unwind tables.
    pub tables_at: u64,
    /// Whether the tables have a separate mapping. Otherwise the tables are a part of the loaded segment.
    pub are_mapped: bool,
}

impl Layout {
    /// Makes the layout of an epoch. The neighbourhood has `count` epochs, of which `later` begin later. Each epoch begins at
    /// a higher address than the previous epoch, because perf 7 distinguishes the objects at an address by their first
    /// addresses. All epochs end at the same address.
    ///
    /// If `is_near` is true, the range of the file includes as few addresses below the code as possible, because other code
    /// may be there. Otherwise sections are aligned.
    pub fn new(neighbourhood: &Range<u64>, count: u64, later: u64, is_near: bool) -> Layout {
        let Range { start, end } = *neighbourhood;
        let origin = match (is_near, count) {
            (true, _) => start.wrapping_sub(HEAD_SIZE + later),
            (false, 1) => (start / PAGE * PAGE).wrapping_sub(PAGE),
            _ => (start / ALIGN * ALIGN).wrapping_sub(HEAD_SIZE.next_multiple_of(ALIGN) + ALIGN * later),
        };
        let end = end.wrapping_sub(origin);
        Layout { origin, end, tables_at: end.next_multiple_of(ALIGN), are_mapped: false }
    }
}

/// The number of bytes that the tables take in memory.
pub(super) fn size_in_memory(tables: &Tables) -> u64 {
    let (eh_frame, hdr) = tables.sizes();
    eh_frame.next_multiple_of(8) + hdr
}

/// A whole file, as a list of parts and their offsets. Between the parts, the file has holes.
pub(super) struct Image<'a> {
    pub build_id: [u8; 20],
    parts: Vec<(u64, Cow<'a, [u8]>)>,
    pub has_tables: bool,
}

impl<'a> Image<'a> {
    /// The file of these pieces, which are sorted by address and do not overlap. If `machine` is 0, this machine's number is
    /// used. If the tables are too far away from the code, the file has no tables.
    pub fn new(machine: u32, pieces: &[&Load<'a>], layout: &Layout, tables: Tables) -> Image<'a> {
        let debug = Debug::new(layout.origin, pieces.iter().copied());
        let offset = |load: &Load<'_>| load.addr.wrapping_sub(layout.origin);
        let end_of = |load: &Load<'_>| offset(load).saturating_add(load.size);
        let text = pieces.first().map_or(0, |load| offset(load))..pieces.last().map_or(0, |load| end_of(load));
        // Code of a perf map has no bytes. In a file with other code, such code reads as zeros.
        let has_code = pieces.iter().any(|load| load.code.is_some());
        let mut sections = Sections::default();
        let mut parts: Vec<(u64, Cow<'a, [u8]>)> = Vec::new();

        let (text_kind, text_in_file) = if has_code { (SHT_PROGBITS, text.end) } else { (SHT_NOBITS, HEAD_SIZE) };
        sections.add(".text", text_kind, SHF_ALLOC | SHF_EXECINSTR, &text, 16);
        let note = NOTE_AT..HEAD_SIZE;
        sections.add(".note.gnu.build-id", SHT_NOTE, SHF_ALLOC, &note, 4);
        let mut end = text_in_file;
        if has_code {
            parts.extend(pieces.iter().filter_map(|load| Some((offset(load), load.code?.into()))));
        }
        let (eh_frame_size, hdr_size) = tables.sizes();
        let eh_frame_place = layout.tables_at..layout.tables_at + eh_frame_size;
        let hdr_at = eh_frame_place.end.next_multiple_of(8);
        let hdr_place = hdr_at..hdr_at + hdr_size;
        let places = Places { hdr: hdr_at, eh_frame: layout.tables_at, text: text.start };
        let placed = if tables.is_empty() { None } else { tables.place(&places) };
        let has_tables = placed.is_some();
        if let Some((eh_frame, hdr)) = placed {
            sections.add(".eh_frame", SHT_PROGBITS, SHF_ALLOC, &eh_frame_place, 8);
            sections.add(".eh_frame_hdr", SHT_PROGBITS, SHF_ALLOC, &hdr_place, 4);
            parts.push((layout.tables_at, eh_frame.into()));
            parts.push((hdr_at, hdr.into()));
            end = hdr_place.end;
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

        let (loaded, in_memory) = match has_tables && !layout.are_mapped {
            true => (0..hdr_place.end, hdr_place.end),
            false => (0..text_in_file, layout.end),
        };
        let segments = [
            Some((PT_LOAD, PF_R | PF_X, loaded, in_memory, PAGE)),
            Some((PT_NOTE, PF_R, note, NOTE_SIZE, 4)),
            has_tables.then_some((PT_GNU_EH_FRAME, PF_R, hdr_place, hdr_size, 4)),
        ];
        let segments: Vec<_> = segments.into_iter().flatten().collect();
        let mut head = elf_header(ET_DYN, segments.len() as u16, count, sections_at).to_vec();
        if machine != 0 {
            head[MACHINE_AT..MACHINE_AT + 2].copy_from_slice(&(machine as u16).to_ne_bytes());
        }
        for (kind, flags, range, in_memory, align) in segments {
            let words = [range.start, range.start, range.start, range.end - range.start, in_memory, align];
            head.extend_from_slice(&program_header(kind, flags, words));
        }
        head.resize(NOTE_AT as usize, 0);
        head.extend_from_slice(&note_head());
        let mut image = Image { build_id: [0; 20], parts, has_tables };
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

    /// Writes the parts. Parts that are close together are written in one call.
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
pub(crate) struct Sections {
    names: Vec<u8>,
    headers: Vec<Entry>,
}

impl Sections {
    pub fn add(&mut self, name: &str, kind: u32, flags: u64, range: &Range<u64>, align: u64) {
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
    }

    /// The section of names and all headers, for this offset. Returns the number of headers, their offset, and the bytes.
    pub fn finish(&mut self, at: u64) -> (u16, u64, Vec<u8>) {
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
