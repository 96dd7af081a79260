//! Reads the headers and symbols of a program or library that the loader has mapped, one by one, without allocating memory
//! (System V ABI, "Object Files" and "Program Loading").

use super::header::{PT_GNU_EH_FRAME, PT_LOAD, SHT_SYMTAB};
use super::SYMBOL_SIZE;
use crate::format::get::{u16_at, u32_at, u64_at};

pub const HEADER_SIZE: usize = 64;
pub const SEGMENT_SIZE: usize = 56;
pub const SECTION_SIZE: usize = 64;

const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// The places of the two tables of headers in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub segments_at: u64,
    pub segment_count: usize,
    pub sections_at: u64,
    pub section_count: usize,
    /// The number of the section with the names of the sections.
    pub names: usize,
}

impl Header {
    /// Reads an ELF header. `None` if the bytes are not the header of a 64-bit object.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        if !bytes.starts_with(b"\x7fELF\x02") {
            return None;
        }
        Some(Header {
            segments_at: u64_at(bytes, 32)?,
            segment_count: u16_at(bytes, 56)?.into(),
            sections_at: u64_at(bytes, 40)?,
            section_count: u16_at(bytes, 60)?.into(),
            names: u16_at(bytes, 62)?.into(),
        })
    }
}

/// The kind and the address of a segment, without the bias that the loader has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub is_loaded: bool,
    pub is_eh_frame_hdr: bool,
    pub addr: u64,
}

impl Segment {
    /// Reads the header with this number from a table of segments.
    pub fn read(table: &[u8], number: usize) -> Option<Segment> {
        let bytes = table.get(number * SEGMENT_SIZE..(number + 1) * SEGMENT_SIZE)?;
        let kind = u32_at(bytes, 0)?;
        Some(Segment { is_loaded: kind == PT_LOAD, is_eh_frame_hdr: kind == PT_GNU_EH_FRAME, addr: u64_at(bytes, 16)? })
    }
}

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where the section's name begins in the section of names.
    pub name: u32,
    /// The address, without the bias that the loader has chosen.
    pub addr: u64,
    /// Whether the section is the table of all symbols, or the table for the loader.
    pub has_all_symbols: bool,
    pub has_exported_symbols: bool,
    pub offset: u64,
    pub size: u64,
    /// The number of the section with the names of the symbols.
    pub link: u32,
}

impl Section {
    /// Reads the header of a section.
    pub fn read(bytes: &[u8]) -> Option<Section> {
        let kind = u32_at(bytes, 4)?;
        Some(Section {
            name: u32_at(bytes, 0)?,
            addr: u64_at(bytes, 16)?,
            has_all_symbols: kind == SHT_SYMTAB,
            has_exported_symbols: kind == SHT_DYNSYM,
            offset: u64_at(bytes, 24)?,
            size: u64_at(bytes, 32)?,
            link: u32_at(bytes, 40)?,
        })
    }
}

/// Finds the function that contains an address in a part of a symbol table. Returns the offset of the function's name in the
/// section of names, and the distance of the address from the function's beginning.
pub fn function_in(symbols: &[u8], addr: u64) -> Option<(u32, u64)> {
    symbols.chunks_exact(SYMBOL_SIZE).find_map(|symbol| {
        let distance = addr.wrapping_sub(u64_at(symbol, 8)?);
        let is_code = matches!(symbol[4] & 15, STT_FUNC | STT_GNU_IFUNC) && u16_at(symbol, 6)? != 0;
        (is_code && distance < u64_at(symbol, 16)?).then_some((u32_at(symbol, 0)?, distance))
    })
}
