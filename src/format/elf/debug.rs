//! Writes the source lines of a region as DWARF. Each function has its own unit, made from two jitdump records: the record of
//! its lines and the record of its inlined functions.
//!
//! The format is DWARF 4, because all readers of these files support it: addr2line and objdump (called by `perf annotate` and
//! `perf report --srcline`), libdw, gdb, and the crates gimli and blazesym. DWARF 5 puts file names in a section that all units
//! share, and older binutils read this section wrongly. In DWARF 4, each line program has its own file names, so units can be
//! appended.

pub use super::dwarf_function::Function;
use super::dwarf_function::{set_length, Row};
use super::hidden;
use super::inlines::Inlines;
use super::line_program::{lines, Head};
use crate::format::code_info::Parts;
use crate::format::jitdump::raw::RawRecord;
use crate::format::put::{Put, WORD};

/// `.debug_abbrev`, the same for all units. Abbreviation 1 is for a unit, 2 for a function, and 3 for a function that
/// contains inlined functions. Abbreviation 4 is for a function that was inlined. An inlined instance of such a function has
/// abbreviation 5 if it contains other inlined functions, and 6 otherwise.
pub const ABBREV: &[u8] = &[
    1, 0x11, 1, // DW_TAG_compile_unit, DW_CHILDREN_yes
    0x11, 0x01, // DW_AT_low_pc, DW_FORM_addr
    0x12, 0x06, // DW_AT_high_pc, DW_FORM_data4
    0x10, 0x17, // DW_AT_stmt_list, DW_FORM_sec_offset
    0x03, 0x08, // DW_AT_name, DW_FORM_string
    0, 0, //
    2, 0x2e, 0, // DW_TAG_subprogram, DW_CHILDREN_no
    0x11, 0x01, // DW_AT_low_pc, DW_FORM_addr
    0x12, 0x06, // DW_AT_high_pc, DW_FORM_data4
    0x03, 0x08, // DW_AT_name, DW_FORM_string
    0, 0, //
    3, 0x2e, 1, // DW_TAG_subprogram, DW_CHILDREN_yes
    0x11, 0x01, // DW_AT_low_pc, DW_FORM_addr
    0x12, 0x06, // DW_AT_high_pc, DW_FORM_data4
    0x03, 0x08, // DW_AT_name, DW_FORM_string
    0, 0, //
    4, 0x2e, 0, // DW_TAG_subprogram, DW_CHILDREN_no
    0x03, 0x08, // DW_AT_name, DW_FORM_string
    0x6e, 0x08, // DW_AT_linkage_name, DW_FORM_string
    0x3a, 0x0f, // DW_AT_decl_file, DW_FORM_udata
    0x20, 0x0b, // DW_AT_inline, DW_FORM_data1
    0, 0, //
    5, 0x1d, 1, // DW_TAG_inlined_subroutine, DW_CHILDREN_yes
    0x31, 0x13, // DW_AT_abstract_origin, DW_FORM_ref4
    0x55, 0x17, // DW_AT_ranges, DW_FORM_sec_offset
    0x58, 0x0f, // DW_AT_call_file, DW_FORM_udata
    0x59, 0x0f, // DW_AT_call_line, DW_FORM_udata
    0x57, 0x0f, // DW_AT_call_column, DW_FORM_udata
    0, 0, //
    6, 0x1d, 0, // the same, DW_CHILDREN_no
    0x31, 0x13, //
    0x55, 0x17, //
    0x58, 0x0f, //
    0x59, 0x0f, //
    0x57, 0x0f, //
    0, 0, //
    0,
];

/// Size of a unit's entry in `.debug_aranges`.
pub const ARANGES_SIZE: u64 = 16 + 4 * WORD as u64;
/// Offset of the function's address in a unit's entry in `.debug_aranges`. Each unit has one entry.
const ARANGES_ADDR: u64 = 16;

/// The address that replaces the address of dead code in its DWARF unit. Addresses in the file of a
/// region are offsets, and no file has code at this offset.
pub const NOWHERE: u64 = if WORD == 8 { 1 << 62 } else { 0xff00_0000 };

/// Offset of the function's address in a unit.
const UNIT_ADDR: usize = 12;

/// The debug sections. Each pair contains the last bytes of a section, to which new bytes are appended, and the number of bytes
/// of the section before them.
#[derive(Debug)]
pub struct Sections<'a> {
    pub info: (u64, &'a mut Vec<u8>),
    pub line: (u64, &'a mut Vec<u8>),
    pub aranges: (u64, &'a mut Vec<u8>),
    pub ranges: (u64, &'a mut Vec<u8>),
    pub head: &'a mut Head,
}

/// For each section, the offsets of the fields in which a unit stores the address of its function. After `NOWHERE` is written
/// to these fields, the unit no longer describes code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub info: [u32; 2],
    pub line: u32,
    pub aranges: u32,
}

/// The total size of the record of the lines and the record of the inlined functions.
fn size_of_parts(parts: &Parts<'_>) -> usize {
    [parts.lines, parts.inlines].iter().flatten().map(RawRecord::size).sum()
}

/// The lines of the code after its first `skipped` bytes. The offsets of these lines count from the end of the skipped bytes.
/// `None` if there is no memory.
fn rows<'a>(parts: &Parts<'a>, skipped: u64) -> Option<Vec<Row<'a>>> {
    let mut rows = Vec::new();
    if let Some(debug) = parts.lines.and_then(|record| record.debug_info()) {
        let entries = debug.entries();
        rows.try_reserve_exact(entries.most().min(debug.count as usize)).ok()?;
        let offset = |addr: u64| Some(addr.checked_sub(debug.addr)?.saturating_sub(skipped));
        for entry in entries {
            let offset = offset(entry.addr);
            if skipped > 0 && offset == Some(0) {
                // Only the last line that begins in the skipped bytes can extend beyond these bytes.
                rows.clear();
            }
            rows.push((offset, entry));
        }
    }
    Some(rows)
}

/// Appends a unit with the inlined functions, the lines, or both. `function` can be all of the code that `parts` describes, or
/// a part of this code. `before` bytes of the code precede the part. Returns `None` and changes nothing if the inlined
/// functions or the lines are invalid, if a section is full, or if there is no memory.
pub fn append(parts: &Parts<'_>, function: &Function<'_>, before: u64, mut to: Sections<'_>) -> Option<Addresses> {
    let lens = (to.info.1.len(), to.line.1.len(), to.aranges.1.len(), to.ranges.1.len());
    let done = try_to_append(parts, function, before, &mut to);
    if done.is_none() {
        to.info.1.truncate(lens.0);
        to.line.1.truncate(lens.1);
        to.aranges.1.truncate(lens.2);
        to.ranges.1.truncate(lens.3);
    }
    done
}

fn try_to_append(parts: &Parts<'_>, function: &Function<'_>, before: u64, to: &mut Sections<'_>) -> Option<Addresses> {
    let hidden = hidden(function.addr);
    let skipped = u32::try_from(before + hidden).ok()?;
    let size = function.size.checked_sub(hidden).filter(|&size| size > 0)?;
    let function = &Function { addr: function.addr + hidden, size, ..*function };
    let size = u32::try_from(size).ok()?;
    let (info_at, line_at, aranges_at, ranges_at) =
        (end(&to.info)?, end(&to.line)?, end(&to.aranges)?, end(&to.ranges)?);
    let inlines = parts.inlines.map_or(Some(Inlines::default()), |record| Inlines::read(&record, skipped, size))?;
    let rows = &rows(parts, skipped.into())?[..];
    let first_file = rows.iter().map(|(_, row)| row.file).chain(inlines.files()).next()?;

    let line = &mut *to.line.1;
    // In the line program, a row needs at most 26 bytes in addition to its file name. In the record, a row needs 17 bytes in
    // addition to the file name, and an inlined function needs at least as much as a row. So twice the size of the records is
    // enough memory for the line program.
    line.try_reserve(2 * size_of_parts(parts) + 256).ok()?;
    let (set_address, mut files) = lines(rows, &inlines, function, to.head, line)?;
    let set_address = line_at.checked_add(set_address)?;

    let info = &mut *to.info.1;
    info.try_reserve(first_file.len() + function.name.len() + 64 + inlines.room()).ok()?;
    let begin = info.len();
    info.extend_from_slice(&unit_head(function.addr, size, line_at));
    info.extend_from_slice(first_file);
    info.push(0);
    let mut origins = inlines.append_origins(info, begin, &mut files, rows)?;
    info.push(if inlines.is_empty() { 2 } else { 3 });
    let function_addr = info.len() - begin;
    info.extend_from_slice(&place(function.addr, size));
    info.extend_from_slice(function.name);
    info.push(0);
    if !inlines.is_empty() {
        let ranges = &mut *to.ranges.1;
        ranges.try_reserve(inlines.room()).ok()?;
        inlines.append(function.size, &mut origins, &mut files, info, (ranges_at, ranges))?;
    }
    info.push(0);
    set_length(info, begin)?;

    let aranges = &mut *to.aranges.1;
    aranges.try_reserve(ARANGES_SIZE as usize).ok()?;
    aranges.extend_from_slice(&range(info_at, function));
    let in_info = |at: usize| info_at.checked_add(u32::try_from(at).ok()?);
    Some(Addresses {
        info: [in_info(UNIT_ADDR)?, in_info(function_addr)?],
        line: set_address,
        aranges: aranges_at.checked_add(ARANGES_ADDR as u32)?,
    })
}

/// The beginning of a unit, up to the name of its file. The unit's length is filled in later.
fn unit_head(addr: u64, size: u32, line_at: u32) -> [u8; UNIT_ADDR + PLACE + 4] {
    let mut out = [0; UNIT_ADDR + PLACE + 4];
    let mut put = Put::new(&mut out);
    put.u32(0);
    put.u16(4);
    put.u32(0);
    put.bytes(&[WORD as u8, 1]);
    put.bytes(&place(addr, size));
    put.u32(line_at);
    debug_assert!(put.is_full());
    out
}

/// Size of an address and of a size.
const PLACE: usize = WORD + 4;

fn place(addr: u64, size: u32) -> [u8; PLACE] {
    let mut out = [0; PLACE];
    let mut put = Put::new(&mut out);
    put.word(addr);
    put.u32(size);
    out
}

/// A unit's entry in `.debug_aranges`.
fn range(info_at: u32, function: &Function<'_>) -> [u8; ARANGES_SIZE as usize] {
    let mut out = [0; ARANGES_SIZE as usize];
    let mut put = Put::new(&mut out);
    put.u32(ARANGES_SIZE as u32 - 4);
    put.u16(2);
    put.u32(info_at);
    put.bytes(&[WORD as u8, 0, 0, 0, 0, 0]);
    // The two zeros end the ranges.
    [function.addr, function.size, 0, 0].into_iter().for_each(|word| put.word(word));
    debug_assert!(put.is_full());
    out
}

/// The offset at which a section ends. In DWARF with offsets of 32 bits, this offset must be below 4 GiB.
fn end((len, pending): &(u64, &mut Vec<u8>)) -> Option<u32> {
    u32::try_from(len.checked_add(pending.len() as u64)?).ok()
}
