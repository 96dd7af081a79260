//! Writes the line table of a group as a DEBUG_INFO record. The rows may be in any order.

use super::record::{id, put_prefix, DEBUG_ENTRY_COUNT, DEBUG_ENTRY_FIXED_SIZE, DEBUG_FIXED_SIZE};
use crate::api::code::{Line, LineTable, Lines};
use crate::api::error::{Error, Result};
use crate::format::get::u64_at;
use crate::format::put::Put;
use crate::sys::sort;

/// The maximum size of a record, because record sizes are 32 bits wide. As soon as a record exceeds this size, no further
/// rows are read, because each row may name a file of any length.
const RECORD_MAX: usize = u32::MAX as usize;

/// Like `put_debug`, but accepts rows in any order.
pub fn put_debug_of_any(lines: Lines<'_>, addr: u64, size: u64, timestamp: u64, out: &mut [u8]) -> Result<usize> {
    in_any_order(lines, size, |lines| put_debug(lines, addr, size, timestamp, out))
}

/// Writes the DEBUG_INFO record to `out`, and returns the size of the record. The size is 0 if no row has a line. If the size
/// is larger than `out`, the bytes in `out` are undefined. Returns `None` if the rows are not in the order of their offsets.
#[inline(never)]
pub fn put_debug(lines: Lines<'_>, addr: u64, size: u64, timestamp: u64, out: &mut [u8]) -> Result<Option<usize>> {
    let walked = walk_lines(lines, addr, size, |place, addr, row| {
        // If several rows have the same offset, the record contains only the last of these rows, because each row overwrites
        // the previous row.
        if let Some(place) = out.get_mut(place..place + entry_size(row)) {
            put_entry(&mut Put::new(place), addr, row);
        }
    })?;
    let Some(Walked { record_size, entries }) = walked else { return Ok(None) };
    if 0 < record_size && record_size <= out.len() {
        let mut put = Put::new(&mut out[..DEBUG_FIXED_SIZE]);
        put_prefix(&mut put, timestamp, id::DEBUG_INFO, record_size);
        put.u64(addr);
        put.u64(entries);
    }
    Ok(Some(record_size))
}

/// Checks the rows, and returns the size of the DEBUG_INFO record. The size is 0 if no row has a line.
pub fn debug_size(lines: Lines<'_>, addr: u64, size: u64) -> Result<usize> {
    Ok(check(lines, addr, size)?.record_size)
}

/// Checks the rows, which may be in any order.
fn check(lines: Lines<'_>, addr: u64, size: u64) -> Result<Walked> {
    in_any_order(lines, size, |lines| walk_lines(lines, addr, size, |_, _, _| {}))
}

/// The number of rows that the record of a table leaves out, because their line is 0 or a later row has the same offset.
pub fn left_out_of_any(lines: Lines<'_>, size: u64) -> Result<u64> {
    Ok(missing(lines.len(), check(lines, 0, size)?.entries))
}

/// Like `left_out_of_any`, for a table of `rows` rows that `put_debug` has written to the start of `out`. `record_size` is the
/// result of `put_debug`.
pub fn left_out(rows: usize, record_size: usize, out: &[u8]) -> u64 {
    missing(rows, if record_size == 0 { 0 } else { u64_at(out, DEBUG_ENTRY_COUNT).unwrap_or_default() })
}

/// The number of rows that are not in a record. The record has one more entry than rows, because its last row is written twice.
fn missing(rows: usize, entries: u64) -> u64 {
    (rows as u64).saturating_sub(entries.saturating_sub(1))
}

/// Calls `walk` with the rows in the caller's order. If this call returns `None`, calls `walk` again with the rows in the order
/// of their offsets.
fn in_any_order<T>(lines: Lines<'_>, size: u64, mut walk: impl FnMut(Lines<'_>) -> Result<Option<T>>) -> Result<T> {
    if let Some(walked) = walk(lines)? {
        return Ok(walked);
    }
    let changed = || Error::LineOffset.because("lines were changed while the call read them", []);
    walk(Lines::Table(&InOrder::new(lines, size)?))?.ok_or_else(changed)
}

/// The result of `walk_lines`: the size of the record, and the number of its entries. The size and the number are 0 if no row
/// has a line.
#[derive(Default)]
struct Walked {
    record_size: usize,
    entries: u64,
}

/// Checks each row, and passes the row and its position in the record to `entry`. Rows with line 0 are left out. Each row is
/// read once, because reading a row of the C interface may cost a `strlen`. `None` if the rows are not in the order of their
/// offsets. `TooLarge` if the rows do not fit in one record.
fn walk_lines(
    lines: Lines<'_>,
    addr: u64,
    size: u64,
    mut entry: impl FnMut(usize, u64, &Line<'_>),
) -> Result<Option<Walked>> {
    let (mut end, mut entries) = (DEBUG_FIXED_SIZE, 0);
    let mut last: Option<(Line<'_>, usize)> = None;
    for index in 0..lines.len() {
        let row = lines.row(index)?;
        check_offset(index, &row, size)?;
        if row.line == 0 || row.file.is_empty() {
            check_file(index, &row)?;
            continue;
        }
        let same_place = match last {
            Some((before, _)) if row.offset < before.offset => return Ok(None),
            Some((before, place)) if row.offset == before.offset => Some(place),
            _ => None,
        };
        let place = same_place.unwrap_or(end);
        entries += u64::from(same_place.is_none());
        entry(place, addr + u64::from(row.offset), &row);
        end = place + entry_size(&row);
        if end > RECORD_MAX {
            return Err(Error::TooLarge);
        }
        last = Some((row, place));
    }
    // perf ends the line sequence at the address of the last entry, so the last row would cover no code
    // (tools/perf/util/genelf_debug.c, `emit_lineno_info`). So the last row is written a second time, with the end of the code
    // as its address.
    let Some((row, _)) = last else { return Ok(Some(Walked::default())) };
    entry(end, addr + size, &row);
    Ok(Some(Walked { record_size: end + entry_size(&row), entries: entries + 1 }))
}

/// Checks a row, except for its file.
#[inline(always)]
fn check_offset(index: usize, row: &Line<'_>, size: u64) -> Result<()> {
    if u64::from(row.offset) >= size {
        let text = "lines[{}].offset is {}, the code has {} bytes";
        return Err(Error::LineOffset.because(text, [index as u64, row.offset.into(), size]));
    }
    Ok(())
}

/// Returns an error for a row that has a line and no file.
#[cold]
fn check_file(index: usize, row: &Line<'_>) -> Result<()> {
    match row.line != 0 && row.file.is_empty() {
        true => Err(Error::LineFile.because("lines[{}] has no file", [index as u64])),
        false => Ok(()),
    }
}

/// Rows in the order of their offsets. The sort is stable.
struct InOrder<'a> {
    lines: Lines<'a>,
    /// One number for each row. The upper 32 bits are the offset of the row, and the lower 32 bits are the index of the row in
    /// `lines`.
    order: Vec<u64>,
}

impl<'a> InOrder<'a> {
    /// Checks all rows before the sort changes their indices, so that an error contains the index of the row in the caller's
    /// table.
    #[cold]
    fn new(lines: Lines<'a>, size: u64) -> Result<InOrder<'a>> {
        let mut order = Vec::new();
        order.try_reserve_exact(lines.len()).map_err(|_| Error::NoMemory)?;
        for index in 0..lines.len() {
            let row = lines.row(index)?;
            check_offset(index, &row, size)?;
            check_file(index, &row)?;
            order.push(u64::from(row.offset) << 32 | u64::from(u32::try_from(index).map_err(|_| Error::TooLarge)?));
        }
        sort::sort(&mut order);
        Ok(InOrder { lines, order })
    }
}

impl LineTable for InOrder<'_> {
    fn len(&self) -> usize {
        self.order.len()
    }

    fn row(&self, index: usize) -> Result<Line<'_>> {
        self.lines.row(self.order.get(index).map_or(usize::MAX, |place| *place as u32 as usize))
    }
}

fn entry_size(row: &Line<'_>) -> usize {
    DEBUG_ENTRY_FIXED_SIZE + row.file.len() + 1
}

/// Each entry has the full file name, because only some versions of perf read the short form for "same as before" (a byte
/// 0xff). The field after the line is called discriminator. perf ignores this field, and samply reads it as the column.
fn put_entry(put: &mut Put<'_>, addr: u64, row: &Line<'_>) {
    put.u64(addr);
    put.u32(row.line);
    put.u32(row.column);
    put.bytes(row.file);
    put.u8(0);
}
