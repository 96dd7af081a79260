//! Writes the entries of inlined functions in a DWARF unit. The entries are nested like the inlined calls.

use std::cmp::Reverse;

use gimli::leb128::write::unsigned;

use super::name_numbers::Numbers;
use crate::api::code::Inline;
use crate::format::jitdump::inlines;
use crate::format::jitdump::raw::{RawEntry, RawRecord};
use crate::format::put;
use crate::sys::sort::sort_by_key;

const DW_INL_INLINED: u8 = 1;

/// The inlined functions of a unit, each after the function that contains it.
#[derive(Debug, Default)]
pub struct Inlines<'a> {
    /// Each inlined function with its index in the record. The field `parent` of a function is the index of another inlined
    /// function.
    all: Vec<(usize, Inline<'a>)>,
    size: usize,
}

impl<'a> Inlines<'a> {
    /// Reads a record whose content has not been checked. Keeps only the inlined functions in a part of the code: the `size`
    /// bytes after the first `skipped` bytes. `None` if there is no memory.
    pub fn read(record: &RawRecord<'a>, skipped: u32, size: u32) -> Option<Inlines<'a>> {
        let mut all = Vec::new();
        let within = |at: u32| at.saturating_sub(skipped).min(size);
        for (index, inline) in inlines::entries(record).enumerate() {
            let (begin, end) = (within(inline.begin), within(inline.end));
            if begin == end && inline.begin < inline.end {
                continue;
            }
            all.try_reserve(1).ok()?;
            all.push((index, Inline { begin, end, ..inline }));
        }
        sort_by_key(&mut all, |&(index, inline)| (inline.begin, Reverse(inline.end), index));
        Some(Inlines { all, size: record.size() })
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The files that contain the inlined calls.
    pub fn files(&self) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        self.all.iter().map(|(_, inline)| inline.call_file)
    }

    /// An upper bound for the bytes that are appended to each section.
    pub fn room(&self) -> usize {
        // In the record, an inlined function needs at least 22 bytes in addition to its name. In `.debug_info`, an inlined
        // function needs at most 34 bytes plus twice the length of its name. In `.debug_ranges`, an inlined function needs 32
        // bytes.
        2 * self.size
    }

    /// For each function that was inlined, appends an entry to the unit that starts at `begin`. Returns the offset of each
    /// entry in the unit. `rows` has the lines of the unit, each with its offset in the code.
    pub fn append_origins(
        &self,
        info: &mut Vec<u8>,
        begin: usize,
        files: &mut Numbers<'_>,
        rows: &[(Option<u64>, RawEntry<'a>)],
    ) -> Option<Numbers<'a>> {
        let mut origins = Numbers::new(self.all.iter().map(|(_, inline)| inline.name))?;
        if self.is_empty() {
            return Some(origins);
        }
        let mut rows = rows.iter().peekable();
        let mut file_here = None;
        for (place, (index, inline)) in self.all.iter().enumerate() {
            while let Some((_, row)) = rows.next_if(|(offset, _)| offset.is_none_or(|at| at <= inline.begin.into())) {
                file_here = Some(row.file);
            }
            let origin = origins.of(inline.name)?;
            if *origin != 0 {
                continue;
            }
            // The function's file is the file of the first inlined call in the function. If the function contains no inlined
            // call, its file is the file of its first line.
            let call_in_it = self.all.get(place + 1).filter(|(_, next)| next.is_in(*index));
            let file = call_in_it.map(|(_, next)| next.call_file).or(file_here).unwrap_or(inline.call_file);
            *origin = u32::try_from(info.len() - begin).ok()?;
            info.push(4);
            // The name is written a second time, as the linkage name. For a function without a linkage name, binutils uses
            // the name of a symbol, and only the outermost function has a symbol.
            for _ in 0..2 {
                info.extend_from_slice(inline.name);
                info.push(0);
            }
            // If a function has no file, perf 7 ignores the files of calls (linux tools/perf/util/dwarf-aux.c,
            // `die_get_file_name`).
            let _ = unsigned(info, u64::from(*files.of(file)?));
            info.push(DW_INL_INLINED);
        }
        Some(origins)
    }

    /// Appends the inlined functions to `info`. The last entry of `info` is the function into which the functions were inlined.
    /// The inlined functions become the children of this entry, and an end mark follows the children. The appended ranges begin
    /// at the offset `ranges_at` of their section. `None` if the inlined functions are invalid.
    pub fn append(
        &self,
        code_size: u64,
        origins: &mut Numbers<'_>,
        files: &mut Numbers<'_>,
        info: &mut Vec<u8>,
        (ranges_at, ranges): (u32, &mut Vec<u8>),
    ) -> Option<()> {
        let ranges_begin = ranges.len();
        // Indices of the inlined functions that contain the current function.
        let mut open: Vec<usize> = Vec::new();
        for (place, (index, inline)) in self.all.iter().enumerate() {
            let parent = inline.parent.map(|parent| parent as usize);
            while open.last().copied() != parent {
                open.pop()?;
                info.push(0);
            }
            if inline.begin >= inline.end || u64::from(inline.end) > code_size {
                return None;
            }
            let has_more = self.all.get(place + 1).is_some_and(|(_, next)| next.is_in(*index));
            info.push(if has_more { 5 } else { 6 });
            info.extend_from_slice(&origins.of(inline.name)?.to_ne_bytes());
            let at = ranges_at.checked_add(u32::try_from(ranges.len() - ranges_begin).ok()?)?;
            info.extend_from_slice(&at.to_ne_bytes());
            // Writing to a vector cannot fail.
            let _ = unsigned(info, u64::from(*files.of(inline.call_file)?));
            let _ = unsigned(info, inline.call_line.into());
            let _ = unsigned(info, inline.call_column.into());
            // The two offsets of a range count from the start of the unit's code.
            for word in [inline.begin, inline.end, 0, 0] {
                ranges.extend_from_slice(&put::word(word.into()));
            }
            if has_more {
                open.try_reserve(1).ok()?;
                open.push(*index);
            }
        }
        info.resize(info.len() + open.len() + 1, 0);
        Some(())
    }
}
