//! Reads the line tables and unwind tables of an object, and splits them by function, for registrations.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use gimli::constants::{DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_textrel, DW_EH_PE_udata4};
use gimli::read::{
    AttributeValue, BaseAddresses, CieOrFde, CommonInformationEntry, DebugLine, EhFrame, EndianSlice, FileEntry,
    UnwindSection,
};
use gimli::{DebugLineOffset, NativeEndian};

use crate::api::code::Line;
use crate::format::arch::NATIVE;
use crate::format::cfi::{b_key, CIE_MAX};
use crate::format::elf::read::{text_at, Image};
use crate::sys::reserve;
use crate::sys::sort::sort_by_key;

type Reader<'a> = EndianSlice<'a, NativeEndian>;

/// The limit for the data that is copied from an object, as a multiple of the object's size. The limit is high enough for a
/// line table with a path in each row, and for an unwind table with a CIE for each function. Object files of compilers use
/// about a tenth of the limit.
const GROWTH: usize = 64;
/// The number of bytes that may be copied even from a very small object.
const GROWTH_LEAST: usize = 64 << 10;
/// The maximum number of bytes that are read of a path. No system has longer paths. The limit is for damaged objects, in which
/// many long paths may overlap, so that all paths together are far larger than the object.
const PATH_MAX: usize = 4096;

/// A row of a line table. `file` is the number of the row's file in `LineTables::files`, and `number` counts the rows in the
/// order in which they were read.
#[derive(Clone, Copy, Debug)]
struct Row {
    addr: u64,
    file: u32,
    number: u32,
    line: u32,
    column: u32,
}

/// The line tables of an object, merged and sorted by address.
#[derive(Debug, Default)]
pub struct LineTables {
    files: Vec<Vec<u8>>,
    rows: Vec<Row>,
}

impl LineTables {
    pub fn of(image: &Image<'_>) -> LineTables {
        let mut tables = LineTables::default();
        // If an error occurs or memory runs out, `tables` keeps the rows that were read before.
        let _ = tables.read(image);
        // At an address where one sequence ends and the next sequence begins, the row of the next sequence applies.
        sort_by_key(&mut tables.rows, |row| (row.addr, row.line != 0, row.number));
        tables
    }

    /// Reads the line programs, which follow one another. Each program is complete, except for the base directory of relative
    /// names in DWARF 4.
    fn read(&mut self, image: &Image<'_>) -> Option<()> {
        let section = |name: &[u8]| image.section(name).map(|(data, _)| data).unwrap_or_default();
        let (lines, line_strings, strings) =
            (section(b".debug_line"), section(b".debug_line_str"), section(b".debug_str"));
        let debug_line = DebugLine::new(&lines, NativeEndian);
        let text = |value| text(value, &line_strings, &strings);
        let mut room = image.size().saturating_mul(GROWTH).max(GROWTH_LEAST);
        let mut take = |bytes: usize| room.checked_sub(bytes).map(|left| room = left);
        let mut next = 0;
        while next < lines.len() {
            // gimli makes lists of the directories and files. Each entry takes at least one byte of the unit, so the unit's
            // length limits the memory for the lists.
            let most = unit_len(&lines[next..])?.saturating_mul(2 * size_of::<FileEntry<Reader<'_>>>());
            if !reserve::may_take(most) {
                return None;
            }
            let program = debug_line.program(DebugLineOffset(next), 8, None, None).ok()?;
            let (len, format) = (program.header().unit_length(), program.header().format());
            next = next.saturating_add(len).saturating_add(usize::from(format.initial_length_size()));
            let mut numbers = HashMap::new();
            let mut rows = program.rows();
            while let Some((header, row)) = rows.next_row().ok()? {
                let file = match numbers.get(&row.file_index()) {
                    Some(file) => *file,
                    None => {
                        let mut path = Vec::new();
                        path.try_reserve_exact(3 * (PATH_MAX + 1)).ok()?;
                        path.extend_from_slice(header.directory(0).map_or(&[], text));
                        if let Some(file) = header.file(row.file_index()) {
                            join(&mut path, file.directory(header).map_or(&[], text));
                            join(&mut path, text(file.path_name()));
                        }
                        path.shrink_to_fit();
                        take(path.len())?;
                        let number = u32::try_from(self.files.len()).ok()?;
                        self.files.try_reserve(1).ok()?;
                        self.files.push(path);
                        numbers.try_reserve(1).ok()?;
                        numbers.insert(row.file_index(), number);
                        number
                    }
                };
                let number = |value: u64| u32::try_from(value).unwrap_or_default();
                let line = if row.end_sequence() { 0 } else { row.line().map_or(0, |line| number(line.get())) };
                let column = match row.column() {
                    gimli::ColumnType::LeftEdge => 0,
                    gimli::ColumnType::Column(column) => number(column.get()),
                };
                take(size_of::<Row>() + self.files[file as usize].len())?;
                self.rows.try_reserve(1).ok()?;
                let number = u32::try_from(self.rows.len()).ok()?;
                self.rows.push(Row { addr: row.address(), file, number, line, column });
            }
        }
        Some(())
    }

    /// The rows of a function. Empty if there is no memory.
    pub fn of_function(&self, addr: u64, size: u64) -> Vec<Line<'_>> {
        let first = self.rows.partition_point(|row| row.addr < addr);
        // The row before `addr` may reach into the function.
        let first =
            if self.rows.get(first).is_some_and(|row| row.addr == addr) { first } else { first.saturating_sub(1) };
        let rows = &self.rows[first..];
        let rows = &rows[..rows.partition_point(|row| row.addr < addr + size)];
        let file = |row: &Row| self.files[row.file as usize].as_slice();
        let mut known = Vec::new();
        if known.try_reserve_exact(rows.len()).is_ok() {
            known.extend(rows.iter().filter(|row| row.line != 0 && !file(row).is_empty()).map(|row| Line {
                offset: row.addr.saturating_sub(addr) as u32,
                line: row.line,
                column: row.column,
                file: file(row),
            }));
        }
        known
    }
}

/// A text of a line table. The text is stored in the table itself, in `line_strings`, or in `strings`.
fn text<'a>(value: AttributeValue<Reader<'a>>, line_strings: &'a [u8], strings: &'a [u8]) -> &'a [u8] {
    match value {
        AttributeValue::String(text) => &text.slice()[..text.len().min(PATH_MAX)],
        AttributeValue::DebugLineStrRef(at) => text_at(line_strings, at.0, PATH_MAX),
        AttributeValue::DebugStrRef(at) => text_at(strings, at.0, PATH_MAX),
        _ => &[],
    }
}

/// Returns the length of the unit that begins at the start of `section`.
fn unit_len(section: &[u8]) -> Option<usize> {
    const IS_64_BIT: u32 = u32::MAX;
    let len = match u32::from_ne_bytes(*section.first_chunk()?) {
        IS_64_BIT => u64::from_ne_bytes(*section.get(4..)?.first_chunk()?),
        len => len.into(),
    };
    Some(section.len().min(usize::try_from(len).unwrap_or(usize::MAX)))
}

/// Appends a path. An absolute path replaces everything before it.
fn join(path: &mut Vec<u8>, part: &[u8]) {
    if part.starts_with(b"/") {
        path.clear();
    } else if !path.is_empty() && !part.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(part);
}

/// The unwind tables of an object, split by function. The tables are parsed once, because parsing them again for each function
/// would take too long.
#[derive(Debug, Default)]
pub struct UnwindTables<'a> {
    /// For each FDE: the start and the end of its code, and the ranges of the FDE and of its CIE in the section.
    entries: Vec<(u64, u64, Place, Place)>,
    section: Cow<'a, [u8]>,
    addr: u64,
    /// How many bytes may still be copied. The total is limited, because one FDE may cover many functions and is copied for
    /// each of them.
    room: Cell<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    end: usize,
}

/// The size of the length field before an entry.
const LENGTH_SIZE: usize = 4;

impl<'a> UnwindTables<'a> {
    pub fn of(image: &Image<'a>) -> UnwindTables<'a> {
        let Some((section, addr)) = image.section(b".eh_frame") else { return UnwindTables::default() };
        let room = Cell::new(section.len().saturating_mul(GROWTH).max(GROWTH_LEAST));
        let mut tables = UnwindTables { section, addr, entries: Vec::new(), room };
        // If an error occurs or memory runs out, `tables` keeps the entries that were read before.
        let _ = tables.read(image.text_addr().unwrap_or_default());
        sort_by_key(&mut tables.entries, |(addr, _, own, _)| (*addr, own.start));
        tables
    }

    fn read(&mut self, text_addr: u64) -> Option<()> {
        let readable = b_key::readable(&self.section, NATIVE?).ok()?;
        let mut eh_frame = EhFrame::new(&readable, NativeEndian);
        eh_frame.set_address_size(NATIVE?.abi().word);
        let bases = BaseAddresses::default().set_eh_frame(self.addr).set_text(text_addr);
        let mut all = eh_frame.entries(&bases);
        let mut cies: Vec<CommonInformationEntry<Reader<'_>>> = Vec::new();
        while let Some(entry) = all.next().ok()? {
            let partial = match entry {
                CieOrFde::Cie(cie) => {
                    cies.try_reserve(1).ok()?;
                    cies.push(cie);
                    continue;
                }
                CieOrFde::Fde(partial) => partial,
            };
            // Only CIEs that the loop has already read are accepted, as in `format/cfi/eh_frame`.
            let cie = cies.binary_search_by_key(&partial.cie_offset().0, |cie| cie.offset());
            let Some(cie) = cie.ok().map(|cie| &cies[cie]).filter(|cie| cie.entry_len() <= CIE_MAX) else { continue };
            let Ok(fde) = partial.parse(|_, _, _| Ok(cie.clone())) else { continue };
            let place = |offset: usize, len: usize| Place { start: offset, end: offset + LENGTH_SIZE + len };
            let end = fde.initial_address().saturating_add(fde.len());
            let (own, cie) = (place(fde.offset(), fde.entry_len()), place(fde.cie().offset(), fde.cie().entry_len()));
            self.entries.try_reserve(1).ok()?;
            self.entries.push((fde.initial_address(), end, own, cie));
        }
        Some(())
    }

    /// Returns a section that contains only the FDE of a function and its CIE, and the address of this section. The FDE usually
    /// keeps its address, because pointers in the FDE may be relative to that address. Only an FDE whose code pointer is
    /// relative to the section of the code gets another address. In this FDE, the pointer is changed to a pc-relative pointer
    /// of 0. The FDE's new address puts this pointer field at the code's address, so a relative pointer of 0 points to the
    /// code.
    pub fn of_function(&self, addr: u64) -> Option<(Vec<u8>, u64)> {
        let after = self.entries.partition_point(|entry| entry.0 <= addr);
        let &(start, end, own, cie) = self.entries.get(after.checked_sub(1)?)?;
        if end <= addr {
            return None;
        }
        let (own_bytes, cie_bytes) = (self.section.get(own.start..own.end)?, self.section.get(cie.start..cie.end)?);
        let len = cie_bytes.len() + own_bytes.len() + LENGTH_SIZE;
        self.room.set(self.room.get().checked_sub(len)?);
        let mut section = Vec::new();
        section.try_reserve_exact(len).ok()?;
        [cie_bytes, own_bytes, &[0; LENGTH_SIZE]].into_iter().for_each(|part| section.extend_from_slice(part));
        // A length field is assumed to have `LENGTH_SIZE` bytes. Only the 64-bit format has longer length fields, and compilers
        // do not use this format.
        let pointer = cie_bytes.len() + LENGTH_SIZE;
        section.get_mut(pointer..pointer + 4)?.copy_from_slice(&(pointer as u32).to_ne_bytes());
        if let Some(encoding) = text_relative(&mut section) {
            // Readers of the copy do not have the address of the code's section, so the pointer is changed. The copy may get
            // any address, because no pointer can be relative to the table: LuaJIT does not record the table's address.
            *encoding = DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0;
            let begin = pointer + LENGTH_SIZE;
            section.get_mut(begin..begin + 4)?.fill(0);
            return Some((section, start.wrapping_sub(begin as u64)));
        }
        Some((section, self.addr.wrapping_add(own.start as u64).wrapping_sub(cie_bytes.len() as u64)))
    }
}

/// The byte of a CIE that describes the encoding of code pointers. Returns `None` unless code pointers have four bytes and are
/// relative to the section of the code, and the augmentation string is `zR`. With this string, the augmentation data has only
/// the encoding of code pointers.
fn text_relative(cie: &mut [u8]) -> Option<&mut u8> {
    // Skips the length, the 0 that marks a CIE, and the version.
    const AUGMENTATION: usize = 9;
    let mut at = AUGMENTATION + 3;
    if cie.get(AUGMENTATION..at)? != b"zR\0" {
        return None;
    }
    // Skips the two alignment factors, the return address register, and the length of the augmentation data. Each number ends
    // with a byte below 0x80.
    for _ in 0..4 {
        at += cie.get(at..)?.iter().position(|&byte| byte < 0x80)? + 1;
    }
    let encodings = [DW_EH_PE_udata4, DW_EH_PE_sdata4].map(|format| DW_EH_PE_textrel.0 | format.0);
    cie.get_mut(at).filter(|encoding| encodings.contains(encoding))
}
