//! Makes an ELF object in memory for a debugger. The object describes code at the code's own addresses, with symbols, unwind
//! tables and lines.
//!
//! The object has the form that gdb and lldb require for `__jit_debug_register_code` (gdb/jit.c, `jit_bfd_try_read_symtab`;
//! lldb, JITLoaderGDB.cpp): the sections of the code have no bytes, and there are no program headers.

use std::ops::Range;

use super::debug::{self, ABBREV};
use super::frames::{self, Frames};
use super::header::{
    elf_header, name_at, section_header, Entry, ELF_HEADER, ET_DYN, SECTION_HEADER, SHF_ALLOC, SHF_EXECINSTR,
    SHT_NOBITS, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB,
};
use super::line_program::Head;
use super::{symbol_in, SYMBOL_SIZE};
use crate::format::code_info::Info;
use crate::format::name_and_file::without_tier;

/// The maximum number of functions in an object. Each function may need a separate section, and section numbers have only 16
/// bits.
pub const FUNCTIONS_MAX: usize = 60_000;
/// All code of an object must be within this number of bytes, because distances in unwind tables are signed 32-bit numbers.
pub const SPAN_MAX: u64 = 0x7000_0000;
/// Functions share a section if the gaps between them have at most this number of bytes. Fewer sections are better, because a
/// debugger sorts all sections of all objects again for each new object.
pub const GAP_MAX: u64 = 4096;

/// Names of sections: the beginning of `.shstrtab`.
pub(super) const NAMES: &[u8] =
    b"\0.text\0.eh_frame\0.symtab\0.strtab\0.debug_abbrev\0.debug_info\0.debug_line\0.debug_ranges\0.debug_frame\0.shstrtab\0";

/// A function. The functions of an object do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    pub addr: u64,
    pub size: u64,
    /// Cleaned name without NUL.
    pub name: &'a [u8],
    pub info: Info<'a>,
}

/// The object for these functions, which must be sorted by address. The `bool` is true if other code may lie between a function
/// and its predecessor. Such a function and its predecessor have separate sections. A common section could overlap a section of
/// the code between them, and debuggers use only one of two sections that overlap. Returns `None` if there are too many
/// functions, if the functions are too far apart, or if there is no memory. Invalid tables and invalid lines of a function are
/// left out of the object.
pub fn object<'a>(functions: impl Iterator<Item = (Function<'a>, bool)> + Clone) -> Option<Vec<u8>> {
    let mut texts: Vec<Range<u64>> = Vec::new();
    let mut parts = Parts::default();
    let first = functions.clone().next()?.0.addr;
    // Unwind tables contain the distance from their own address to the code. The tables are not loaded, so their section may
    // have any address near the code.
    let eh_frame_at = first / 8 * 8;
    let mut frames = Frames::default();
    let (mut eh_frame, mut rows) = (Vec::new(), Vec::new());
    for (number, (function, is_apart)) in functions.enumerate() {
        let end = function.addr.checked_add(function.size)?;
        if number >= FUNCTIONS_MAX || end.checked_sub(first)? > SPAN_MAX {
            return None;
        }
        match texts.last_mut() {
            Some(text) if !is_apart && function.addr <= text.end.saturating_add(GAP_MAX) => {
                text.end = text.end.max(end)
            }
            _ => {
                texts.try_reserve(1).ok()?;
                texts.push(function.addr..end);
            }
        }
        // The name of the first symbol lacks the tier, so that `break NAME` finds code of each tier. If there is a tier, the
        // name of a second symbol contains the tier, and gdb's `info symbol` prints the second symbol.
        let bare = Function { name: without_tier(function.name), ..function };
        let added = parts.add(&bare, texts.len() as u16, function.addr..end)?;
        if bare.name.len() < function.name.len() {
            parts.add_other_name(function.name, texts.len() as u16, function.addr..end)?;
        }
        if let Some(section) = added {
            let to = frames::Target {
                code_size: function.size,
                code: function.addr.wrapping_sub(eh_frame_at) as i64,
                at: eh_frame.len() as u64,
                room: u32::MAX.into(),
            };
            rows.clear();
            let _ = frames.append(section, &to, &mut eh_frame, &mut rows);
        }
    }
    if !eh_frame.is_empty() {
        // A zero word ends the entries of `.eh_frame`.
        eh_frame.try_reserve(4).ok()?;
        eh_frame.extend_from_slice(&[0; 4]);
    }
    let (entry, bytes) = section(name_at!(".eh_frame"), SHT_PROGBITS, 8, &eh_frame);
    in_memory(&texts, &parts, (Entry { addr: eh_frame_at, ..entry }, bytes))
}

/// An object without functions.
pub fn empty() -> Vec<u8> {
    in_memory(&[], &Parts::default(), section(name_at!(".eh_frame"), SHT_PROGBITS, 8, &[])).unwrap_or_default()
}

/// Makes the whole object. For each range in `texts`, the object has a code section, which has no bytes.
fn in_memory(texts: &[Range<u64>], parts: &Parts, eh_frame: (Entry, &[u8])) -> Option<Vec<u8>> {
    let texts = texts.iter().enumerate().map(|(number, text)| Entry {
        name: text_name_of(number),
        kind: SHT_NOBITS,
        flags: SHF_ALLOC | SHF_EXECINSTR,
        addr: text.start,
        at: u64::from(ELF_HEADER),
        len: text.end - text.start,
        align: 1,
    });
    let mut out = Vec::new();
    out.try_reserve(ELF_HEADER.into()).ok()?;
    out.resize(ELF_HEADER.into(), 0);
    let (count, headers_at) = parts.finish(texts, eh_frame, 0, &mut out)?;
    out[..ELF_HEADER.into()].copy_from_slice(&elf_header(ET_DYN, 0, count, headers_at));
    Some(out)
}

/// The sections while they are being built.
#[derive(Default)]
pub(super) struct Parts {
    pub head: Head,
    symtab: Vec<u8>,
    strtab: Vec<u8>,
    info: Vec<u8>,
    line: Vec<u8>,
    ranges: Vec<u8>,
    /// The bytes of `.debug_aranges`, which are discarded, because no debugger reads this section.
    aranges: Vec<u8>,
}

/// A section whose bytes are stored in the file. The section's offset in the file is filled in later.
pub(super) fn section(name: u32, kind: u32, align: u64, bytes: &[u8]) -> (Entry, &[u8]) {
    let len = bytes.len() as u64;
    (Entry { name, kind, align, len, ..Entry::default() }, bytes)
}

impl Parts {
    /// Adds a function, whose code is in the section with the index `section`. `symbol` is the address range of the function's
    /// symbol. Returns the function's `.eh_frame`, if the function has one. The pointers of this `.eh_frame` are right if it
    /// lies directly after the code. The outer `Option` is `None` if there is no memory.
    pub fn add<'a>(&mut self, function: &Function<'a>, section: u16, symbol: Range<u64>) -> Option<Option<&'a [u8]>> {
        self.add_symbol(function.name, section, symbol)?;

        let parts = function.info.parts();
        if parts.lines.is_some() || parts.inlines.is_some() {
            let function = debug::Function { name: function.name, addr: function.addr, size: function.size };
            self.aranges.clear();
            let to = debug::Sections {
                info: (0, &mut self.info),
                line: (0, &mut self.line),
                aranges: (0, &mut self.aranges),
                ranges: (0, &mut self.ranges),
                head: &mut self.head,
            };
            let _ = debug::append(&parts, &function, 0, to);
        }
        Some(parts.eh_frame())
    }

    /// Adds a second symbol for a function.
    #[cold]
    #[inline(never)]
    fn add_other_name(&mut self, name: &[u8], section: u16, symbol: Range<u64>) -> Option<()> {
        self.add_symbol(name, section, symbol)
    }

    #[inline(always)]
    fn add_symbol(&mut self, name: &[u8], section: u16, symbol: Range<u64>) -> Option<()> {
        if self.symtab.is_empty() {
            self.symtab.try_reserve(SYMBOL_SIZE).ok()?;
            self.symtab.extend_from_slice(&[0; SYMBOL_SIZE]);
            self.strtab.push(0);
        }
        let at = u32::try_from(self.strtab.len()).ok()?;
        self.symtab.try_reserve(SYMBOL_SIZE).ok()?;
        self.strtab.try_reserve(name.len() + 1).ok()?;
        self.symtab.extend_from_slice(&symbol_in(section, at, symbol.start, symbol.end - symbol.start));
        self.strtab.extend_from_slice(name);
        self.strtab.push(0);
        Some(())
    }

    /// Appends all sections and their headers. `out` begins at offset `base` in the file. Returns the number of headers, and
    /// their offset in the file.
    pub fn finish(
        &self,
        texts: impl ExactSizeIterator<Item = Entry>,
        frames: (Entry, &[u8]),
        base: u64,
        out: &mut Vec<u8>,
    ) -> Option<(u16, u64)> {
        let abbrev = if self.info.is_empty() { &[] } else { ABBREV };
        let names = section_names(texts.len())?;
        let sections = [
            frames,
            section(name_at!(".symtab"), SHT_SYMTAB, 8, &self.symtab),
            section(name_at!(".strtab"), SHT_STRTAB, 1, &self.strtab),
            section(name_at!(".debug_abbrev"), SHT_PROGBITS, 1, abbrev),
            section(name_at!(".debug_info"), SHT_PROGBITS, 1, &self.info),
            section(name_at!(".debug_line"), SHT_PROGBITS, 1, &self.line),
            section(name_at!(".debug_ranges"), SHT_PROGBITS, 1, &self.ranges),
            section(name_at!(".shstrtab"), SHT_STRTAB, 1, &names),
        ];
        let sections = sections.iter().filter(|(_, bytes)| !bytes.is_empty());
        let count = 1 + texts.len() + sections.clone().count();
        let bytes: usize = sections.clone().map(|(_, bytes)| bytes.len().next_multiple_of(8)).sum();
        out.try_reserve_exact(8 + bytes + count * SECTION_HEADER as usize).ok()?;
        // A header of the 32-bit format does not end at a multiple of 8.
        out.resize(out.len().next_multiple_of(8), 0);
        let mut at = base + out.len() as u64;
        for (_, bytes) in sections.clone() {
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        let headers_at = base + out.len() as u64;
        out.extend_from_slice(&[0; SECTION_HEADER as usize]);
        let placed = sections.map(|&(entry, _)| {
            let entry = Entry { at, ..entry };
            at += entry.len.next_multiple_of(8);
            entry
        });
        for (number, entry) in (1..).zip(texts.chain(placed)) {
            out.extend_from_slice(&section_header(&entry, number));
        }
        Some((count as u16, headers_at))
    }
}

/// The length of the name of a code section such as `.text.00001`, with the NUL. Only the first code section is called
/// `.text`.
const TEXT_NAME: usize = 12;

/// The names of all sections. `texts` is the number of code sections. Each code section has a different name, because lldb 14
/// finds the section of a symbol by name.
fn section_names(texts: usize) -> Option<Vec<u8>> {
    let mut names = Vec::new();
    names.try_reserve_exact(NAMES.len() + TEXT_NAME * texts).ok()?;
    names.extend_from_slice(NAMES);
    for number in 1..texts {
        let digits = [10_000, 1000, 100, 10, 1].map(|unit| b'0' + (number / unit % 10) as u8);
        names.extend_from_slice(b".text.");
        names.extend_from_slice(&digits);
        names.push(0);
    }
    Some(names)
}

fn text_name_of(number: usize) -> u32 {
    match number.checked_sub(1) {
        None => name_at!(".text"),
        Some(before) => (NAMES.len() + TEXT_NAME * before) as u32,
    }
}
