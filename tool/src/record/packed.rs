//! Adds frame loads (`format::jitdump::frame_load`) for packed code to a copy of a jitdump.
//!
//! With them, a perf with libunwind finds the unwind tables of code that has no room after it. The frame loads use address
//! space in which no process of the recording had code, so no name is lost.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use jitsym::format::jitdump::raw::{RawHeader, RawRecords, RawUnwinding};
use jitsym::format::jitdump::{frame_load, id};

use crate::open;

/// The unit in which address space is taken.
const AREA: u64 = 16 << 20;
/// The greatest distance of a frame load below its code, so that all distances fit into 32 bits.
const REACH: u64 = 0x7000_0000;

/// Address space for frame loads.
pub struct Space {
    /// Where code is or was: sorted, without overlaps.
    taken: Vec<Range<u64>>,
    /// The start of each area, and the number of bytes used in it.
    areas: Vec<(u64, u64)>,
}

impl Space {
    /// Address space outside of these ranges.
    pub fn outside(mut ranges: Vec<Range<u64>>) -> Space {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut taken: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match taken.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => taken.push(range),
            }
        }
        Space { taken, areas: Vec::new() }
    }

    /// Whether code is or was at an address. The end of code counts too, because a call at the end returns there.
    pub fn is_taken(&self, addr: u64) -> bool {
        let next = self.taken.partition_point(|range| range.end < addr);
        self.taken.get(next).is_some_and(|range| range.start <= addr)
    }

    fn is_free(&self, area: &Range<u64>) -> bool {
        let next = self.taken.partition_point(|range| range.end <= area.start);
        self.taken.get(next).is_none_or(|range| range.start >= area.end)
    }

    /// Finds `len` bytes below the code at `addr`.
    fn place(&mut self, addr: u64, len: u64) -> Option<u64> {
        let fits = |&(start, used): &(u64, u64)| {
            let at = start + used;
            len <= AREA - used && at + len <= addr && addr - at <= REACH
        };
        let index = match self.areas.iter().position(fits) {
            Some(index) => index,
            None if len > AREA => return None,
            None => {
                let top = addr / AREA * AREA;
                let mut starts = (2..REACH / AREA).filter_map(|far| top.checked_sub(far * AREA));
                // Processes cannot use their first pages.
                let is_new = |start: u64| self.areas.iter().all(|&(other, _)| other != start) && start >= AREA;
                let start = starts.find(|&start| is_new(start) && self.is_free(&(start..start + AREA)))?;
                self.areas.push((start, 0));
                self.areas.len() - 1
            }
        };
        let (start, used) = &mut self.areas[index];
        let at = *start + *used;
        *used = (*used + len.next_multiple_of(16)).min(AREA);
        Some(at)
    }
}

/// The addresses of the code in a jitdump.
pub fn code_of(path: &Path) -> Vec<Range<u64>> {
    let Ok(bytes) = open::named(path).and_then(|file| open::read(&file)) else { return Vec::new() };
    let Some(header) = RawHeader::read(&bytes).filter(|header| !header.swapped) else { return Vec::new() };
    let loads = RawRecords::new(&bytes, &header).filter_map(|record| record.load());
    loads.map(|load| load.addr..load.addr.saturating_add(load.size)).collect()
}

/// Rewrites a jitdump that belongs to this user and that nobody else writes to. `ranges`: all mapped addresses. `words`: the
/// addresses in stacks. Only code in stacks gets a frame load, which doubles the time that perf needs for the code. A file
/// without such code is not changed, nor is one for which there is no room or memory.
pub fn give_frame_loads(path: &Path, ranges: &[Range<u64>], words: &BTreeSet<u64>) {
    let new = path.with_extension("new");
    let rewritten =
        open::named(path).and_then(|file| open::read(&file)).and_then(|bytes| rewrite(&bytes, ranges, words, &new));
    if !rewritten.is_ok_and(|any| any && std::fs::rename(&new, path).is_ok()) {
        let _ = std::fs::remove_file(new);
    }
}

/// Writes a jitdump with frame loads. Returns whether there are any.
fn rewrite(bytes: &[u8], ranges: &[Range<u64>], words: &BTreeSet<u64>, to: &Path) -> io::Result<bool> {
    let Some(header) = RawHeader::read(bytes).filter(|header| !header.swapped) else { return Ok(false) };
    let loads = RawRecords::new(bytes, &header).filter_map(|record| record.load());
    let code = loads.map(|load| load.addr..load.addr.saturating_add(load.size));
    let mut space = Space::outside(ranges.iter().cloned().chain(code).collect());
    let mut out = BufWriter::with_capacity(1 << 18, File::create_new(to)?);
    let mut records = RawRecords::new(bytes, &header);
    // Everything from here on is not written yet.
    let mut start = 0;
    let (mut tables, mut made, mut has_frame_load, mut any) = (None, Vec::new(), false, false);
    while let Some(record) = records.next() {
        let end = records.offset();
        let load = match record.id {
            id::UNWINDING_INFO => {
                tables = record.unwinding_info().map(|tables| (tables, end));
                continue;
            }
            id::DEBUG_INFO2 | id::DEBUG_INFO => continue,
            _ => record.load(),
        };
        let before = tables.take().filter(|(_, behind)| *behind == record.offset).map(|(tables, _)| tables);
        if let Some(load) = load {
            let (size, mapped) = before.map_or((0, 0), |tables: RawUnwinding| (tables.size, tables.mapped_size));
            if frame_load::is_one(load.size, load.name().unwrap_or_default(), size, mapped) {
                has_frame_load = true;
                continue;
            }
            let is_in_stacks = words.range(load.addr..=load.addr.saturating_add(load.size)).next().is_some();
            let is_packed =
                is_in_stacks && !has_frame_load && mapped == 0 && before.is_some_and(|tables| is_usual(&tables));
            let at = if is_packed { space.place(load.addr, frame_load::room(load.size, size as usize)) } else { None };
            made.clear();
            // The records of this code: those after the previous code.
            let group = &bytes[start.max(header_len(&header, bytes))..end];
            if at.and_then(|at| frame_load::add(group, at, &mut made)).is_some() {
                any = true;
                out.write_all(&bytes[start..end - group.len()])?;
                out.write_all(&made)?;
                start = end;
            }
        }
        has_frame_load = false;
        out.write_all(&bytes[start..end])?;
        start = end;
    }
    out.write_all(&bytes[start..])?;
    out.into_inner().map_err(|error| error.into_error())?;
    Ok(any)
}

/// The offset of the first record.
fn header_len(header: &RawHeader, bytes: &[u8]) -> usize {
    RawRecords::new(bytes, header).offset()
}

/// Whether a frame load can be made of these tables: they need a search table of 32-bit numbers, and entries that give the
/// address of the code as a 32-bit number relative to itself.
fn is_usual(tables: &RawUnwinding) -> bool {
    let Some((section, hdr)) = tables.tables() else { return false };
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at.checked_add(4)?)?;
        Some(i64::from(i32::from_ne_bytes(word.try_into().ok()?)))
    };
    let len = section.len() as i64;
    let is_row = |row: usize| {
        let (start, fde) = (word(hdr, 12 + 8 * row)? + len, word(hdr, 16 + 8 * row)? + len);
        let first = usize::try_from(fde).ok()?.checked_add(8)?;
        Some(start == word(section, first)? + first as i64)
    };
    let count = word(hdr, 8).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let is_terminated = section.ends_with(&[0; 4]);
    hdr.starts_with(&[0x01, 0x1b, 0x03, 0x3b])
        && is_terminated
        && (1..=hdr.len() / 8).contains(&count)
        && (0..count).all(|row| is_row(row) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_loads_lie_where_nothing_was() {
        let code = 0x7f00_0000_0000;
        let mut space = Space::outside(vec![code..code + 0x1000, code - 2 * AREA..code - AREA - 1, 0..0x2000]);
        let first = space.place(code, 100).unwrap();
        assert_eq!(first, code - 3 * AREA);
        assert_eq!(space.place(code + 50, 200), Some(first + 112));
        assert_eq!(space.place(code, AREA), Some(code - 4 * AREA));
        assert_eq!((space.place(code, AREA + 1), space.place(AREA, 1)), (None, None));
        // All addresses nearby are taken.
        let mut space = Space::outside(vec![code - REACH..code - 1, code - 1..code]);
        assert_eq!(space.place(code, 16), None);
    }
}
