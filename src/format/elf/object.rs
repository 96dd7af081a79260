//! A whole object for a debugger, in memory: code at the addresses where it lies, with symbols, unwind tables, and lines.
//!
//! It has the form that gdb and lldb ask of `__jit_debug_register_code` (gdb/jit.c, `jit_bfd_try_read_symtab`; lldb,
//! JITLoaderGDB.cpp): sections with no bytes in the place of the code, and no program headers.

use std::ops::Range;

use super::debug::{self, ABBREV};
use super::frames::{self, Frames};
use super::header::{elf_header, section_header, Entry, ELF_HEADER, SECTION_HEADER};
use super::{symbol_in, SYMBOL_SIZE};
use crate::format::jitdump::id;
use crate::format::jitdump::raw::RawRecords;
use crate::format::jitdump::shadow;

/// The most functions of an object: each may need a separate section, and sections have numbers of 16 bits.
pub const FUNCTIONS_MAX: usize = 60_000;
/// All code of an object lies within this many bytes: distances in unwind tables have 32 bits with a sign.
pub const SPAN_MAX: u64 = 0x7000_0000;
/// Code that begins after other code of the object at the next multiple of this is in one section with it.
const ALIGN: u64 = 16;

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;

/// Names of sections, as `.shstrtab` begins.
const NAMES: &[u8] =
    b"\0.text\0.eh_frame\0.symtab\0.strtab\0.debug_abbrev\0.debug_info\0.debug_line\0.debug_ranges\0.shstrtab\0";

/// A function. No two of an object overlap.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    pub addr: u64,
    pub size: u64,
    /// Cleaned name without NUL.
    pub name: &'a [u8],
    /// The records before its LOAD: inlined functions, DEBUG_INFO, UNWINDING_INFO. Those of a shadow count for nothing.
    pub info_records: &'a [u8],
}

/// The object that says these things of functions, which are in the order of their addresses. `None` if there are too many, if they lie too far
/// apart, or if there is no memory. A function whose tables or lines make no sense goes without them.
pub fn object<'a>(functions: impl Iterator<Item = Function<'a>> + Clone) -> Option<Vec<u8>> {
    let mut texts: Vec<Range<u64>> = Vec::new();
    let mut parts = Parts::default();
    let first = functions.clone().next()?.addr;
    // Tables count from their own address to that of the code. They have none, so they may be anywhere.
    let eh_frame_at = first / 8 * 8;
    let mut frames = Frames::default();
    parts.symtab.extend_from_slice(&[0; SYMBOL_SIZE]);
    parts.strtab.push(0);
    for (number, function) in functions.enumerate() {
        let end = function.addr.checked_add(function.size)?;
        if number >= FUNCTIONS_MAX || end.checked_sub(first)? > SPAN_MAX {
            return None;
        }
        match texts.last_mut() {
            Some(text) if function.addr <= text.end.next_multiple_of(ALIGN) => text.end = text.end.max(end),
            _ => {
                texts.try_reserve(1).ok()?;
                texts.push(function.addr..end);
            }
        }
        parts.add(&function, texts.len() as u16, eh_frame_at, &mut frames)?;
    }
    parts.finish(&texts, eh_frame_at)
}

/// An object that says nothing.
pub fn empty() -> Vec<u8> {
    Parts::default().finish(&[], 0).unwrap_or_default()
}

/// The sections while they are put together.
#[derive(Default)]
struct Parts {
    eh_frame: Vec<u8>,
    symtab: Vec<u8>,
    strtab: Vec<u8>,
    info: Vec<u8>,
    line: Vec<u8>,
    ranges: Vec<u8>,
    /// Nobody reads these.
    aranges: Vec<u8>,
    rows: Vec<super::search::Row>,
}

impl Parts {
    fn add(&mut self, function: &Function<'_>, section: u16, eh_frame_at: u64, frames: &mut Frames) -> Option<()> {
        let name = u32::try_from(self.strtab.len()).ok()?;
        self.symtab.try_reserve(SYMBOL_SIZE).ok()?;
        self.strtab.try_reserve(function.name.len() + 1).ok()?;
        self.symtab.extend_from_slice(&symbol_in(section, name, function.addr, function.size));
        self.strtab.extend_from_slice(function.name);
        self.strtab.push(0);

        let mut records = debug::Records::default();
        for record in RawRecords::from(function.info_records, shadow::len(function.info_records)) {
            match record.id {
                id::INLINES => records.inlines = Some(record),
                id::DEBUG_INFO => records.lines = Some(record),
                id::UNWINDING_INFO => {
                    let Some((section, _)) = record.unwinding_info().and_then(|unwinding| unwinding.tables()) else {
                        continue;
                    };
                    let to = frames::Target {
                        code_size: function.size,
                        code: function.addr.wrapping_sub(eh_frame_at) as i64,
                        at: self.eh_frame.len() as u64,
                        room: u32::MAX.into(),
                    };
                    self.rows.clear();
                    let _ = frames.append(section, &to, &mut self.eh_frame, &mut self.rows);
                }
                _ => {}
            }
        }
        if records.lines.is_some() || records.inlines.is_some() {
            let function = debug::Function { name: function.name, addr: function.addr, size: function.size };
            self.aranges.clear();
            let to = debug::Sections {
                info: (0, &mut self.info),
                line: (0, &mut self.line),
                aranges: (0, &mut self.aranges),
                ranges: (0, &mut self.ranges),
            };
            let _ = debug::append(&records, &function, to);
        }
        Some(())
    }

    fn finish(mut self, texts: &[Range<u64>], eh_frame_at: u64) -> Option<Vec<u8>> {
        if !self.eh_frame.is_empty() {
            // The end of the entries.
            self.eh_frame.try_reserve(4).ok()?;
            self.eh_frame.extend_from_slice(&[0; 4]);
        }
        let abbrev = if self.info.is_empty() { &[] } else { ABBREV };
        let names = section_names(texts.len())?;
        let sections: [(&str, u32, u64, &[u8]); 8] = [
            (".eh_frame", SHT_PROGBITS, 8, &self.eh_frame),
            (".symtab", SHT_SYMTAB, 8, &self.symtab),
            (".strtab", SHT_STRTAB, 1, &self.strtab),
            (".debug_abbrev", SHT_PROGBITS, 1, abbrev),
            (".debug_info", SHT_PROGBITS, 1, &self.info),
            (".debug_line", SHT_PROGBITS, 1, &self.line),
            (".debug_ranges", SHT_PROGBITS, 1, &self.ranges),
            (".shstrtab", SHT_STRTAB, 1, &names),
        ];
        let sections = sections.iter().filter(|(_, _, _, bytes)| !bytes.is_empty());
        let count = 1 + texts.len() + sections.clone().count();
        let bytes: usize = sections.clone().map(|(_, _, _, bytes)| bytes.len().next_multiple_of(8)).sum();
        let headers_at = ELF_HEADER as usize + bytes;
        let mut out = Vec::new();
        out.try_reserve_exact(headers_at + count * SECTION_HEADER as usize).ok()?;
        out.extend_from_slice(&elf_header(0, count as u16, headers_at as u64));
        for (_, _, _, bytes) in sections.clone() {
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        out.extend_from_slice(&[0; SECTION_HEADER as usize]);
        for (number, text) in texts.iter().enumerate() {
            let len = text.end - text.start;
            out.extend_from_slice(&section_header(&Entry {
                name: text_name_of(number),
                kind: SHT_NOBITS,
                flags: SHF_ALLOC | SHF_EXECINSTR,
                addr: text.start,
                at: u64::from(ELF_HEADER),
                len,
                align: 1,
                ..Entry::default()
            }));
        }
        let mut at = u64::from(ELF_HEADER);
        for (index, &(name, kind, align, bytes)) in sections.enumerate() {
            let len = bytes.len() as u64;
            // The strings of the symbols are in the section after that of the symbols; all symbols are local.
            let (link, info, entry_size) = match kind {
                SHT_SYMTAB => {
                    ((texts.len() + index + 2) as u32, (bytes.len() / SYMBOL_SIZE) as u32, SYMBOL_SIZE as u64)
                }
                _ => (0, 0, 0),
            };
            let addr = if name == ".eh_frame" { eh_frame_at } else { 0 };
            out.extend_from_slice(&section_header(&Entry {
                name: name_of(name),
                kind,
                flags: 0,
                addr,
                at,
                len,
                link,
                info,
                align,
                entry_size,
            }));
            at += len.next_multiple_of(8);
        }
        Some(out)
    }
}

fn name_of(section: &str) -> u32 {
    NAMES.windows(section.len()).position(|name| name == section.as_bytes()).unwrap_or(0) as u32
}

/// How long the name of a section of code is that is not the first, with its NUL: `.text.00001`.
const TEXT_NAME: usize = 12;

/// The names for so many sections of code, and of the others. lldb 14 looks for the section of a symbol by name.
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
        None => name_of(".text"),
        Some(before) => (NAMES.len() + TEXT_NAME * before) as u32,
    }
}
