//! Converts the source lines and inlined functions of single functions in the file of a region to records of a jitdump.

use std::cell::Cell;
use std::collections::BTreeMap;

use gimli::{
    constants, AttributeValue, DebugAranges, DebugInfoOffset, DebuggingInformationEntry, Dwarf, EndianSlice,
    NativeEndian,
};
use jitsym::format::jitdump::{inlines, put_debug};
use jitsym::{Inline, Line, Lines};

use crate::region::path_of;

type Bytes<'a> = EndianSlice<'a, NativeEndian>;
type Unit<'a> = gimli::Unit<Bytes<'a>>;

/// The limits for the bytes of names in the records of a function: `NAMES_MORE`, plus `NAMES_TIMES` times the size of the
/// sections. Without a limit, entries that repeat a long name could need much more memory than the file.
const NAMES_MORE: usize = 1 << 20;
const NAMES_TIMES: usize = 4;
/// The maximum number of bytes of sections that are decoded for all functions of a file. Each function could be in one large
/// unit.
const DECODED_MOST: u64 = 4 << 30;

/// The sections of a file that describe lines and inlined functions.
pub struct Debug {
    info: Vec<u8>,
    abbrev: Vec<u8>,
    line: Vec<u8>,
    ranges: Vec<u8>,
    /// The address of the code of each unit, and the offset of the unit, in ascending order.
    units: Vec<(u64, usize)>,
    /// How many bytes may still be decoded.
    left: Cell<u64>,
}

impl Debug {
    /// The sections `.debug_info`, `.debug_abbrev`, `.debug_line`, `.debug_ranges` and `.debug_aranges`.
    pub fn new([info, abbrev, line, ranges, aranges]: [Vec<u8>; 5]) -> Debug {
        let mut units = Vec::new();
        let mut headers = DebugAranges::new(&aranges, NativeEndian).headers();
        while let Ok(Some(header)) = headers.next() {
            let mut entries = header.entries();
            while let Ok(Some(entry)) = entries.next() {
                units.push((entry.address(), header.debug_info_offset().0));
            }
        }
        units.sort_unstable();
        Debug { info, abbrev, line, ranges, units, left: Cell::new(DECODED_MOST) }
    }

    /// The size of the memory that this value uses, in bytes.
    pub fn size(&self) -> usize {
        self.info.len() + self.line.len() + self.ranges.len() + 16 * self.units.len()
    }

    /// The records of a function. The result is empty if the file does not describe the function.
    pub fn records(&self, addr: u64, size: u64) -> Vec<u8> {
        let first = self.units.partition_point(|&(start, _)| start < addr);
        let unit = self.units.get(first).filter(|(start, _)| start.wrapping_sub(addr) < size);
        // Data that cannot be decoded are left out.
        unit.and_then(|&(_, place)| self.decode(place, addr, size).ok()).unwrap_or_default()
    }

    fn decode(&self, place: usize, addr: u64, size: u64) -> gimli::Result<Vec<u8>> {
        let dwarf = Dwarf::load(|id| {
            let bytes = match id {
                gimli::SectionId::DebugInfo => &self.info,
                gimli::SectionId::DebugAbbrev => &self.abbrev,
                gimli::SectionId::DebugLine => &self.line,
                gimli::SectionId::DebugRanges => &self.ranges,
                _ => &[][..],
            };
            Ok::<_, gimli::Error>(EndianSlice::new(bytes, NativeEndian))
        })?;
        let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(place))?;
        self.count(self.abbrev.len().saturating_add(header.length_including_self()))?;
        let unit = dwarf.unit(header)?;
        self.count(unit.line_program.as_ref().map_or(0, |program| program.header().unit_length()))?;
        let mut files = Files { dwarf: &dwarf, unit: &unit, paths: BTreeMap::new(), left: self.names_max() };
        let mut records = lines(&mut files, addr, size).unwrap_or_default();
        records.extend(inlined(&mut files, addr, size).unwrap_or_default());
        Ok(records)
    }

    fn count(&self, bytes: usize) -> gimli::Result<()> {
        let left = self.left.get().checked_sub(bytes as u64).ok_or(gimli::Error::Io)?;
        self.left.set(left);
        Ok(())
    }

    fn names_max(&self) -> usize {
        NAMES_MORE + NAMES_TIMES * (self.info.len() + self.line.len())
    }
}

/// The files of a unit.
struct Files<'d, 'a> {
    dwarf: &'d Dwarf<Bytes<'a>>,
    unit: &'d Unit<'a>,
    paths: BTreeMap<u64, Vec<u8>>,
    /// How many bytes of names may still be used.
    left: usize,
}

impl Files<'_, '_> {
    /// Finds the path of a file. `None` if the file has no path, or if names are too long.
    fn find(&mut self, number: u64) -> Option<()> {
        if !self.paths.contains_key(&number) {
            let header = self.unit.line_program.as_ref()?.header();
            let path = path_of(self.dwarf, self.unit, header, header.file(number)?)?;
            self.paths.insert(number, path.into_bytes());
        }
        self.take(self.paths.get(&number)?.len())
    }

    fn take(&mut self, len: usize) -> Option<()> {
        self.left = self.left.checked_sub(len)?;
        Some(())
    }

    fn path(&self, number: u64) -> &[u8] {
        self.paths.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// The record of the lines of a function.
fn lines(files: &mut Files<'_, '_>, addr: u64, size: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let mut rows = files.unit.line_program.clone()?.rows();
    while let Ok(Some((_, row))) = rows.next_row() {
        let offset = row.address().checked_sub(addr).filter(|&offset| offset < size && !row.end_sequence());
        let Some(offset) = offset.and_then(|offset| u32::try_from(offset).ok()) else { continue };
        let line = row.line().map_or(0, std::num::NonZero::get);
        let column = match row.column() {
            gimli::ColumnType::Column(column) => column.get(),
            gimli::ColumnType::LeftEdge => 0,
        };
        files.find(row.file_index())?;
        found.push((offset, line.min(u32::MAX.into()) as u32, column.min(u32::MAX.into()) as u32, row.file_index()));
    }
    found.sort_by_key(|row| row.0);
    let rows = found.iter().map(|&(offset, line, column, file)| Line { offset, line, column, file: files.path(file) });
    let rows: Vec<Line<'_>> = rows.collect();
    let put = |out: &mut [u8]| put_debug(Lines::Rows(&rows), 0, size, 0, out).ok()?;
    let mut record = vec![0; put(&mut [])?];
    put(&mut record)?;
    Some(record)
}

/// The record of the functions that were inlined into a function.
fn inlined(files: &mut Files<'_, '_>, addr: u64, size: u64) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    // The indices of the functions that contain the current one, each with its depth.
    let mut open: Vec<(isize, usize)> = Vec::new();
    let (unit, dwarf) = (files.unit, files.dwarf);
    let mut entries = unit.entries();
    while let Ok(Some(entry)) = entries.next_dfs() {
        while open.last().is_some_and(|&(depth, _)| depth >= entry.depth()) {
            open.pop();
        }
        if entry.tag() != constants::DW_TAG_inlined_subroutine {
            continue;
        }
        let range = dwarf.die_ranges(unit, entry).ok()?.next().ok()??;
        let offset =
            |at: u64| at.checked_sub(addr).filter(|&offset| offset <= size).and_then(|at| u32::try_from(at).ok());
        let (begin, end) = (offset(range.begin)?, offset(range.end)?);
        let number = |name| entry.attr(name).and_then(|attribute| attribute.raw_value().udata_value());
        let call_file = number(constants::DW_AT_call_file)?;
        files.find(call_file)?;
        let name = name_of(dwarf, unit, entry)?;
        files.take(name.len())?;
        let [line, column] =
            [constants::DW_AT_call_line, constants::DW_AT_call_column].map(|name| number(name).unwrap_or(0));
        let (line, column) = (u32::try_from(line).ok()?, u32::try_from(column).ok()?);
        let parent = open.last().and_then(|&(_, index)| u32::try_from(index).ok());
        open.push((entry.depth(), all.len()));
        all.push((begin, end, name, call_file, line, column, parent));
    }
    let inline = |&(begin, end, name, file, call_line, call_column, parent): &(u32, u32, _, u64, u32, u32, _)| Inline {
        begin,
        end,
        name,
        call_file: files.path(file),
        call_line,
        call_column,
        parent,
    };
    let all: Vec<Inline<'_>> = all.iter().map(inline).collect();
    inlines::record(&all, size).ok().filter(|_| !all.is_empty())
}

/// The name of an inlined function.
fn name_of<'a>(
    dwarf: &Dwarf<Bytes<'a>>,
    unit: &Unit<'a>,
    entry: &DebuggingInformationEntry<Bytes<'a>>,
) -> Option<&'a [u8]> {
    let AttributeValue::UnitRef(origin) = entry.attr_value(constants::DW_AT_abstract_origin)? else { return None };
    let origin = unit.entry(origin).ok()?;
    Some(dwarf.attr_string(unit, origin.attr_value(constants::DW_AT_name)?).ok()?.slice())
}
