//! What an object says of its functions, as registrations of a session.

use std::collections::HashMap;

use gimli::constants::{DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_textrel, DW_EH_PE_udata4};
use gimli::read::{
    AttributeValue, BaseAddresses, CieOrFde, DebugLine, DebugLineStr, DebugStr, EhFrame, EndianSlice, UnwindSection,
};
use gimli::{DebugLineOffset, LittleEndian};

use crate::api::code::Line;
use crate::format::elf::read::Image;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// A row of a line table, with the number of its file.
#[derive(Clone, Copy, Debug)]
struct Row {
    addr: u64,
    file: usize,
    line: u32,
    column: u32,
}

/// The line tables of an object, by address.
#[derive(Debug, Default)]
pub struct LineTables {
    files: Vec<Vec<u8>>,
    rows: Vec<Row>,
}

impl LineTables {
    pub fn of(image: &Image<'_>) -> LineTables {
        let mut tables = LineTables::default();
        // Rows before something that makes no sense stay.
        let _ = tables.read(image);
        // At the address where a sequence ends, the next one may begin, which counts.
        tables.rows.sort_by_key(|row| (row.addr, row.line != 0));
        tables
    }

    /// Programs follow one another, and have all that is needed. Only the directory of DWARF 4's relative names is elsewhere.
    fn read(&mut self, image: &Image<'_>) -> gimli::Result<()> {
        let section = |name: &[u8]| image.section(name).map(|(data, _)| data).unwrap_or_default();
        let (lines, line_strings, strings) =
            (section(b".debug_line"), section(b".debug_line_str"), section(b".debug_str"));
        let debug_line = DebugLine::new(&lines, LittleEndian);
        let line_strings = DebugLineStr::new(&line_strings, LittleEndian);
        let strings = DebugStr::new(&strings, LittleEndian);
        let mut next = 0;
        while next < lines.len() {
            let program = debug_line.program(DebugLineOffset(next), 8, None, None)?;
            let (len, format) = (program.header().unit_length(), program.header().format());
            next = next.saturating_add(len).saturating_add(usize::from(format.initial_length_size()));
            let mut numbers = HashMap::new();
            let mut rows = program.rows();
            while let Some((header, row)) = rows.next_row()? {
                let file = *numbers.entry(row.file_index()).or_insert_with(|| {
                    let text = |value: AttributeValue<Reader<'_>>| {
                        let text = match value {
                            AttributeValue::String(text) => Some(text),
                            AttributeValue::DebugLineStrRef(at) => line_strings.get_str(at).ok(),
                            AttributeValue::DebugStrRef(at) => strings.get_str(at).ok(),
                            _ => None,
                        };
                        text.map_or(Vec::new(), |text| text.slice().to_vec())
                    };
                    let mut path = header.directory(0).map_or(Vec::new(), text);
                    if let Some(file) = header.file(row.file_index()) {
                        join(&mut path, &file.directory(header).map_or(Vec::new(), text));
                        join(&mut path, &text(file.path_name()));
                    }
                    self.files.push(path);
                    self.files.len() - 1
                });
                let number = |value: u64| u32::try_from(value).unwrap_or_default();
                let line = if row.end_sequence() { 0 } else { row.line().map_or(0, |line| number(line.get())) };
                let column = match row.column() {
                    gimli::ColumnType::LeftEdge => 0,
                    gimli::ColumnType::Column(column) => number(column.get()),
                };
                if self.rows.try_reserve(1).is_err() {
                    return Ok(());
                }
                self.rows.push(Row { addr: row.address(), file, line, column });
            }
        }
        Ok(())
    }

    /// The rows of a function.
    pub fn of_function(&self, addr: u64, size: u64) -> Vec<Line<'_>> {
        let first = self.rows.partition_point(|row| row.addr < addr);
        // The row before may reach into it.
        let first =
            if self.rows.get(first).is_some_and(|row| row.addr == addr) { first } else { first.saturating_sub(1) };
        let rows = self.rows[first..].iter().take_while(|row| row.addr < addr + size);
        let known = rows.filter(|row| row.line != 0 && !self.files[row.file].is_empty());
        known
            .map(|row| Line {
                offset: row.addr.saturating_sub(addr) as u32,
                line: row.line,
                column: row.column,
                file: &self.files[row.file],
            })
            .collect()
    }
}

/// Appends a path, which takes the place of all before it if it is absolute.
fn join(path: &mut Vec<u8>, part: &[u8]) {
    if part.starts_with(b"/") {
        path.clear();
    } else if !path.is_empty() && !part.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(part);
}

/// The unwind tables of an object, each by itself: reading all of them for each function would take time.
#[derive(Debug, Default)]
pub struct UnwindTables {
    /// Where code begins, where it ends, and where its entry and that of its CIE lie in the section.
    entries: Vec<(u64, u64, Place, Place)>,
    section: Vec<u8>,
    addr: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    end: usize,
}

/// The length before an entry.
const LENGTH_SIZE: usize = 4;

impl UnwindTables {
    pub fn of(image: &Image<'_>) -> UnwindTables {
        let Some((section, addr)) = image.section(b".eh_frame") else { return UnwindTables::default() };
        let mut tables = UnwindTables { section: section.into_owned(), addr, entries: Vec::new() };
        let mut eh_frame = EhFrame::new(&tables.section, LittleEndian);
        eh_frame.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(addr).set_text(image.text_addr().unwrap_or_default());
        let mut all = eh_frame.entries(&bases);
        while let Ok(Some(entry)) = all.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
            let place = |offset: usize, len: usize| Place { start: offset, end: offset + LENGTH_SIZE + len };
            let end = fde.initial_address().saturating_add(fde.len());
            let (own, cie) = (place(fde.offset(), fde.entry_len()), place(fde.cie().offset(), fde.cie().entry_len()));
            tables.entries.push((fde.initial_address(), end, own, cie));
        }
        tables.entries.sort_by_key(|entry| entry.0);
        tables
    }

    /// A section with the entry of a function alone, and the address that it is for. The entry keeps its address, which pointers in it
    /// may count from. Only one whose pointer counts from the section of the code gets another, where that pointer is 0 from itself.
    pub fn of_function(&self, addr: u64) -> Option<(Vec<u8>, u64)> {
        let after = self.entries.partition_point(|entry| entry.0 <= addr);
        let &(start, end, own, cie) = self.entries.get(after.checked_sub(1)?)?;
        if end <= addr {
            return None;
        }
        let (own_bytes, cie_bytes) = (self.section.get(own.start..own.end)?, self.section.get(cie.start..cie.end)?);
        let mut section = [cie_bytes, own_bytes, &[0; LENGTH_SIZE]].concat();
        // Entries of other lengths have 64-bit formats, which compilers do not make.
        let pointer = cie_bytes.len() + LENGTH_SIZE;
        section.get_mut(pointer..pointer + 4)?.copy_from_slice(&(pointer as u32).to_le_bytes());
        if let Some(encoding) = text_relative(&mut section) {
            // Readers of the copy know of no section of code. LuaJIT does not say where the table lies, so nothing counts from there.
            *encoding = DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0;
            let begin = pointer + LENGTH_SIZE;
            section.get_mut(begin..begin + 4)?.fill(0);
            return Some((section, start.wrapping_sub(begin as u64)));
        }
        Some((section, self.addr.wrapping_add(own.start as u64).wrapping_sub(cie_bytes.len() as u64)))
    }
}

/// The encoding of pointers to code in a CIE that has no other pointers, if they have four bytes and count from the section of the code.
fn text_relative(cie: &mut [u8]) -> Option<&mut u8> {
    // After the length, the 0 of a CIE and the version.
    const AUGMENTATION: usize = 9;
    let mut at = AUGMENTATION + 3;
    if cie.get(AUGMENTATION..at)? != b"zR\0" {
        return None;
    }
    // Both alignment factors, the return address and the length of what follows: numbers that end with a byte below 0x80.
    for _ in 0..4 {
        at += cie.get(at..)?.iter().position(|&byte| byte < 0x80)? + 1;
    }
    let encodings = [DW_EH_PE_udata4, DW_EH_PE_sdata4].map(|format| DW_EH_PE_textrel.0 | format.0);
    cie.get_mut(at).filter(|encoding| encodings.contains(encoding))
}
