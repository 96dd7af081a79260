//! Reads functions, lines and unwind tables from the objects that runtimes pass to debuggers. Objects must be 64-bit, and of
//! this machine's type and byte order. An object may be relocatable, that is, not linked yet (System V ABI, "Object Files").
//! The psABIs describe the relocations. Every field is checked.

use std::borrow::Cow;
use std::ops::Range;

pub use super::dwarf_function::Function;
use super::header::{SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_SYMTAB};
use super::SYMBOL_SIZE;
use crate::format::arch::ELF_MACHINE;
use crate::format::get::{u16_at, u32_at, u64_at};
use crate::sys::reserve;
use crate::sys::sort::sort_by_key;

const HEADER_SIZE: usize = 64;
const SECTION_SIZE: usize = 64;
const RELA_SIZE: usize = 24;

const ET_REL: u16 = 1;
const SHT_RELA: u32 = 4;
const STT_FUNC: u8 = 2;
const STT_NOTYPE: u8 = 0;
const STB_LOCAL: u8 = 0;

/// The maximum length of a name in bytes. Longer names are cut. C++ names may have thousands of bytes.
const NAME_MAX: usize = 4096;
const SECTION_NAME_MAX: usize = 64;

/// An ELF object whose section headers were read.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    len: usize,
    is_linked: bool,
    sections: Vec<Section<'a>>,
}

/// A section of an object: the header fields that this module needs, and the bytes.
#[derive(Clone, Copy, Debug)]
struct Section<'a> {
    name: &'a [u8],
    kind: u32,
    flags: u64,
    addr: u64,
    offset: u64,
    data: &'a [u8],
    size: u64,
    link: u32,
    info: u32,
}

/// A symbol with its address at run time.
struct Symbol {
    name: u32,
    kind: u8,
    bind: u8,
    section: u16,
    addr: u64,
    size: u64,
}

impl<'a> Image<'a> {
    /// Returns `None` if this module cannot read the object. Also returns `None` if the object's tables of symbols and
    /// relocations together are larger than the object: the tables then overlap, and the same bytes would be read several
    /// times.
    pub fn parse(bytes: &'a [u8]) -> Option<Image<'a>> {
        let is_elf = bytes.starts_with(b"\x7fELF\x02")
            && bytes.get(5) == Some(&if cfg!(target_endian = "little") { 1 } else { 2 });
        if !is_elf || u32::from(u16_at(bytes, 18)?) != ELF_MACHINE {
            return None;
        }
        let (table, count) = (usize::try_from(u64_at(bytes, 40)?).ok()?, usize::from(u16_at(bytes, 60)?));
        let headers = bytes.get(table..)?.chunks_exact(SECTION_SIZE).take(count);
        let mut sections: Vec<Section<'a>> = Vec::new();
        sections.try_reserve_exact(headers.len()).ok()?;
        let mut names = Vec::new();
        names.try_reserve_exact(headers.len()).ok()?;
        for header in headers {
            let (kind, offset, size) = (u32_at(header, 4)?, u64_at(header, 24)?, u64_at(header, 32)?);
            let place = usize::try_from(offset).ok()..usize::try_from(offset.checked_add(size)?).ok();
            let data = match (kind, place) {
                (SHT_NOBITS, _) => &[][..],
                (_, Range { start: Some(start), end: Some(end) }) => bytes.get(start..end).unwrap_or_default(),
                _ => &[],
            };
            names.push(u32_at(header, 0)?);
            let (flags, addr) = (u64_at(header, 8)?, u64_at(header, 16)?);
            let (link, info) = (u32_at(header, 40)?, u32_at(header, 44)?);
            sections.push(Section { name: &[], kind, flags, addr, offset, data, size, link, info });
        }
        let tables = sections.iter().filter(|section| matches!(section.kind, SHT_SYMTAB | SHT_RELA));
        if tables.map(|table| table.data.len()).sum::<usize>() > bytes.len() {
            return None;
        }
        let strings = sections.get(usize::from(u16_at(bytes, 62)?)).map_or(&[][..], |section| section.data);
        for (section, name) in sections.iter_mut().zip(names) {
            section.name = text_at(strings, name as usize, SECTION_NAME_MAX);
        }
        Some(Image { len: bytes.len(), is_linked: u16_at(bytes, 16)? != ET_REL, sections })
    }

    /// The size of the object.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The range of an object's section headers. `start` is the beginning of the object.
    pub fn header_range(start: &[u8]) -> Option<Range<u64>> {
        let (table, count) = (u64_at(start, 40)?, u64::from(u16_at(start, 60)?));
        Some(table..table.checked_add(count * SECTION_SIZE as u64)?)
    }

    /// The end of the object: the largest offset at which a section or the section headers end. `start` is the beginning of the
    /// object.
    pub fn end(start: &[u8], headers: &[u8]) -> u64 {
        let sections = headers.chunks_exact(SECTION_SIZE).filter(|header| u32_at(header, 4) != Some(SHT_NOBITS));
        let ends = sections.filter_map(|header| u64_at(header, 24)?.checked_add(u64_at(header, 32)?));
        ends.chain(Image::header_range(start).map(|range| range.end)).max().unwrap_or_default()
    }

    /// The ranges of the symbol tables, and of the sections that contain the symbols' names: at most eight ranges. Each range
    /// is cut to the first 32 KiB of its section.
    pub fn name_ranges(headers: &[u8]) -> Vec<Range<u64>> {
        const MOST: u64 = 32 << 10;
        let header = |number: usize| headers.chunks_exact(SECTION_SIZE).nth(number);
        let range = |header: &[u8]| {
            let (start, size) = (u64_at(header, 24)?, u64_at(header, 32)?);
            Some(start..start.checked_add(size.min(MOST))?)
        };
        let is_table = |header: &&[u8]| u32_at(header, 4) == Some(SHT_SYMTAB);
        let tables = headers.chunks_exact(SECTION_SIZE).filter(is_table);
        let both = tables.flat_map(|table| [Some(table), u32_at(table, 40).and_then(|link| header(link as usize))]);
        both.flatten().filter_map(range).take(8).collect()
    }

    /// The number of bytes at the beginning of an object that [`header_range`](Image::header_range) needs.
    pub const START_LEN: usize = HEADER_SIZE;

    fn symbol(&self, raw: &[u8]) -> Option<Symbol> {
        let (info, section) = (*raw.get(4)?, u16_at(raw, 6)?);
        let (value, size) = (u64_at(raw, 8)?, u64_at(raw, 16)?);
        let of = self.sections.get(usize::from(section));
        // In relocatable objects, and in the linked objects of wasmtime, the value of a symbol is an offset in the symbol's
        // section. In all other objects, the value of a symbol is an address.
        let addr = match of {
            Some(of) if !(of.addr..of.addr.saturating_add(of.size)).contains(&value) && value <= of.size => {
                of.addr.wrapping_add(value)
            }
            _ => value,
        };
        Some(Symbol { name: u32_at(raw, 0)?, kind: info & 15, bind: info >> 4, section, addr, size })
    }

    /// The functions that have code, sorted by address, each with one name.
    pub fn functions(&self) -> Vec<Function<'a>> {
        let mut found: Vec<(u64, Function<'a>, u64)> = Vec::new();
        for table in self.sections.iter().filter(|section| section.kind == SHT_SYMTAB) {
            let strings = self.sections.get(table.link as usize).map_or(&[][..], |section| section.data);
            for symbol in table.data.chunks_exact(SYMBOL_SIZE).filter_map(|raw| self.symbol(raw)) {
                let Some(section) = self.sections.get(usize::from(symbol.section)) else { continue };
                let is_code = section.flags & SHF_EXECINSTR != 0 && section.addr != 0;
                let is_function = symbol.kind == STT_FUNC || symbol.kind == STT_NOTYPE && symbol.size > 0;
                let name = text_at(strings, symbol.name as usize, NAME_MAX);
                let end = section.addr.saturating_add(section.size);
                if !is_code || !is_function || name.is_empty() || !(section.addr..end).contains(&symbol.addr) {
                    continue;
                }
                if found.try_reserve(1).is_err() {
                    return Vec::new();
                }
                let size = symbol.size.min(end - symbol.addr);
                // If code has several names, the name of a symbol with a size is preferred, then the name of a symbol that is
                // not local, then the first name.
                let rank = u64::from(symbol.bind == STB_LOCAL) << 32 | found.len() as u64;
                found.push((rank, Function { addr: symbol.addr, size, name }, end));
            }
        }
        sort_by_key(&mut found, |(rank, function, _)| (function.addr, function.size == 0, *rank));
        found.dedup_by_key(|(_, function, _)| function.addr);
        for at in 0..found.len() {
            // A function without a size ends where the next function begins.
            let next = found.get(at + 1).map_or(u64::MAX, |(_, next, _)| next.addr);
            let (_, function, end) = &mut found[at];
            let room = next.min(*end) - function.addr;
            function.size = if function.size == 0 { room } else { function.size.min(room) };
        }
        let mut functions = Vec::new();
        if functions.try_reserve_exact(found.len()).is_ok() {
            functions.extend(found.into_iter().map(|(_, function, _)| function).filter(|function| function.size > 0));
        }
        functions
    }

    /// The bytes and the address of a section. Applies relocations if the object is not linked. `None` if the object has no
    /// section of this name, or if there is no memory.
    pub fn section(&self, name: &[u8]) -> Option<(Cow<'a, [u8]>, u64)> {
        let number = self.sections.iter().position(|section| section.name == name && !section.data.is_empty())?;
        let section = &self.sections[number];
        let mut data = Cow::Borrowed(section.data);
        if !self.is_linked {
            let tables = self.sections.iter().filter(|table| table.kind == SHT_RELA && table.info as usize == number);
            for table in tables {
                let mut relocated = match data {
                    Cow::Owned(relocated) => relocated,
                    Cow::Borrowed(data) => reserve::copy_of(data).ok()?,
                };
                self.relocate(&mut relocated, section.addr, table);
                data = Cow::Owned(relocated);
            }
        }
        Some((data, self.addr_of(section)))
    }

    /// Address of the first section with code.
    pub fn text_addr(&self) -> Option<u64> {
        self.text().map(|text| text.addr)
    }

    fn text(&self) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.flags & SHF_EXECINSTR != 0 && section.addr != 0)
    }

    /// Address of a section. wasmtime sets only the address of the code section. The distance between another section and the
    /// code section is the same in memory as in the file.
    fn addr_of(&self, section: &Section<'a>) -> u64 {
        match self.text() {
            Some(code) if self.is_linked && section.addr == 0 && section.flags & SHF_ALLOC != 0 => {
                code.addr.wrapping_add(section.offset).wrapping_sub(code.offset)
            }
            _ => section.addr,
        }
    }

    fn relocate(&self, data: &mut [u8], addr: u64, table: &Section<'a>) {
        let Some(symbols) = self.sections.get(table.link as usize) else { return };
        for entry in table.data.chunks_exact(RELA_SIZE) {
            let number = |at| u64_at(entry, at).unwrap_or_default();
            let (place, info, addend) = (number(0), number(8), number(16));
            let raw = ((info >> 32) as usize).checked_mul(SYMBOL_SIZE);
            let raw = raw.and_then(|at| symbols.data.get(at..at.checked_add(SYMBOL_SIZE)?));
            let Some(symbol) = raw.and_then(|raw| self.symbol(raw)) else { continue };
            let Some((len, is_relative)) = kind_of(info as u32) else { continue };
            let base = if is_relative { addr.wrapping_add(place) } else { 0 };
            let value = symbol.addr.wrapping_add(addend).wrapping_sub(base);
            let at = usize::try_from(place).ok().and_then(|at| data.get_mut(at..at.checked_add(len)?));
            if let Some(at) = at {
                at.copy_from_slice(&value.to_ne_bytes()[..len]);
            }
        }
    }
}

/// Returns how many bytes a relocation of this type changes in data. The `bool` is true if the stored value is relative to the
/// address of the changed bytes.
fn kind_of(number: u32) -> Option<(usize, bool)> {
    if cfg!(target_arch = "x86_64") {
        match number {
            1 => Some((8, false)),
            10 | 11 => Some((4, false)),
            2 => Some((4, true)),
            24 => Some((8, true)),
            _ => None,
        }
    } else if cfg!(target_arch = "aarch64") {
        match number {
            257 => Some((8, false)),
            258 => Some((4, false)),
            260 => Some((8, true)),
            261 => Some((4, true)),
            _ => None,
        }
    } else {
        None
    }
}

/// The text at an offset. The text ends at a NUL, or after `most` bytes. If `strings` ends before the text ends, the result is
/// empty. The limit `most` is necessary because texts can overlap, so that all texts together are much larger than `strings`.
pub fn text_at(strings: &[u8], at: usize, most: usize) -> &[u8] {
    let from = strings.get(at..).unwrap_or_default();
    let part = &from[..from.len().min(most)];
    match part.iter().position(|&byte| byte == 0) {
        Some(end) => &part[..end],
        None if part.len() < from.len() => part,
        None => &[],
    }
}

/// Returns the value of the symbol `name` of an ELF file. Searches the dynamic symbols first, and then all symbols.
/// `read(offset, len)` returns bytes of the file.
pub fn find_symbol(name: &[u8], read: &mut dyn FnMut(u64, u64) -> Option<Vec<u8>>) -> Option<u64> {
    const SHT_DYNSYM: u32 = 11;
    let start = read(0, HEADER_SIZE as u64)?;
    if !start.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let table = Image::header_range(&start)?;
    let headers = read(table.start, table.end - table.start)?;
    let headers = || headers.chunks_exact(SECTION_SIZE);
    let mut contents = |header: &[u8]| read(u64_at(header, 24)?, u64_at(header, 32)?);
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Some(header) = headers().find(|header| u32_at(header, 4) == Some(kind)) else { continue };
        let Some(strings) = headers().nth(u32_at(header, 40)? as usize).and_then(&mut contents) else {
            continue;
        };
        let places = places_of(name, &strings);
        if places.is_empty() {
            continue;
        }
        let Some(symbols) = contents(header) else { continue };
        let is_it = |raw: &&[u8]| u32_at(raw, 0).is_some_and(|at| places.contains(&at)) && u16_at(raw, 6) != Some(0);
        if let Some(raw) = symbols.chunks_exact(SYMBOL_SIZE).find(is_it) {
            return u64_at(raw, 8);
        }
    }
    None
}

/// Returns all offsets at which `strings` contains `name` followed by a NUL. The name may be the end of a longer string,
/// because strings may share their ends. Uses Horspool's algorithm, because files have megabytes of names.
fn places_of(name: &[u8], strings: &[u8]) -> Vec<u32> {
    let mut skip = [name.len() + 1; 256];
    for (at, &byte) in name.iter().enumerate() {
        skip[usize::from(byte)] = name.len() - at;
    }
    let (mut places, mut at) = (Vec::new(), 0);
    // Each window has room for the name and its NUL.
    while let Some(window) = strings.get(at..=at + name.len()) {
        let last = window[name.len()];
        if last == 0 && &window[..name.len()] == name {
            places.push(at as u32);
        }
        at += skip[usize::from(last)];
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_they_end_a_string() {
        let strings = b"\0abc\0xabc\0abcd\0ab\0abc\0\0abc";
        let naive = |name: &[u8]| {
            let at = |&at: &usize| strings[at..].starts_with(&[name, b"\0"].concat());
            (0..strings.len()).filter(at).map(|at| at as u32).collect::<Vec<_>>()
        };
        for name in [&b"abc"[..], b"ab", b"c", b"abcd", b"bc", b"nothing"] {
            assert_eq!(places_of(name, strings), naive(name), "{}", name.escape_ascii());
        }
        assert_eq!(places_of(b"abc", strings), [1, 6, 18]);
    }
}
