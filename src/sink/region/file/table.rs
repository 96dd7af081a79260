//! Writes the search table of a region's file (`.eh_frame_hdr`). The file has two ranges for the table, of which one is in use.
//!
//! New rows for the highest code are appended to the table in use. Readers use only as many rows as the table's count states,
//! and the count is written last. Rows for lower code cannot be appended, so they wait until a new table is due. The new,
//! sorted table is written to the unused range, and then the header is changed to point to this range. Readers of the old table
//! can continue to read.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::writes::Disk;
use crate::format::elf::eh_frame_hdr::{Places, Row, COUNT_AT, HEAD_SIZE, ROW_SIZE};
use crate::registry::ordered::Ordered;

/// The minimum time between two new tables, except for new tables that a flush demands.
const INTERVAL: Duration = Duration::from_millis(50);
/// The writer spends at most 1/`SHARE` of its time on new tables, except for new tables that a flush demands.
const SHARE: u32 = 20;
/// The value that replaces the FDE in the row of dead code.
const DEAD: u32 = u32::MAX;

#[derive(Debug)]
pub struct SearchTable {
    slots: [Range<u64>; 2],
    eh_frame: u64,
    text: u64,
    /// The index of the range in use.
    slot: usize,
    /// The rows, in the order in which their code starts in the text.
    rows: Vec<Row>,
    /// How many of `rows` are in the file.
    written: usize,
    /// The count of rows in the file's table.
    counted: usize,
    /// Whether the rows in the file include dead rows, or differ from the first rows of `rows`.
    stale: bool,
    /// The rows that are not in `rows` yet. Each key is the start of a row's code, and each value is the row's FDE.
    fresh: Ordered,
    not_before: Instant,
}

impl SearchTable {
    pub fn new(slots: [Range<u64>; 2], eh_frame: u64, text: u64) -> SearchTable {
        SearchTable {
            slots,
            eh_frame,
            text,
            slot: 0,
            rows: Vec::new(),
            written: 0,
            counted: 0,
            stale: false,
            fresh: Ordered::default(),
            not_before: Instant::now(),
        }
    }

    /// Whether the rows have nearly filled the room of the table.
    pub fn is_nearly_full(&self) -> bool {
        self.size_with(0) > self.room() / 4 * 3
    }

    fn room(&self) -> usize {
        (self.slots[0].end - self.slots[0].start) as usize
    }

    /// The size of the table with `more` further rows.
    fn size_with(&self, more: usize) -> usize {
        HEAD_SIZE + ROW_SIZE * (self.rows.len() + self.fresh.len() + more)
    }

    /// Whether the table has room for `more` further rows. Also allocates memory for these rows.
    pub fn has_room(&mut self, more: usize) -> bool {
        self.size_with(more) <= self.room()
            && self.rows.try_reserve(self.fresh.len() + more).is_ok()
            && self.fresh.make_room(more)
    }

    /// Adds a row. An earlier call of `has_room` must have made room for the row. No live row may begin at the same offset as
    /// the new row.
    pub fn add(&mut self, row: Row) {
        if self.fresh.len() == 0 && self.rows.last().is_none_or(|last| last.start < row.start) {
            self.rows.push(row);
            return;
        }
        let start = row.start.into();
        if self.first_fresh(start..start + 1).is_some() {
            self.fresh.remove(start);
        }
        self.fresh.insert(self.fresh.place(start), start, row.fde);
    }

    /// Removes the rows of code that starts in a part of the text, and calls `found` with the FDE of each row.
    pub fn remove(&mut self, range: Range<u64>, mut found: impl FnMut(u32)) {
        let place = |at: u64| self.rows.partition_point(|row| u64::from(row.start) < at);
        let (begin, end) = (place(range.start), place(range.end));
        for row in self.rows.get_mut(begin..end).unwrap_or_default() {
            if row.fde != DEAD {
                found(std::mem::replace(&mut row.fde, DEAD));
                self.stale = true;
            }
        }
        while let Some(row) = self.first_fresh(range.clone()) {
            self.fresh.remove(row.start.into());
            found(row.fde);
        }
    }

    /// The first waiting row for code that starts in a part of the text.
    fn first_fresh(&self, range: Range<u64>) -> Option<Row> {
        let (start, fde) = self.fresh.from(range.start).next().filter(|&(start, _)| start < range.end)?;
        Some(Row { start: start as u32, fde })
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.fresh = Ordered::default();
        (self.written, self.counted, self.stale) = (0, 0, false);
    }

    /// Whether rows or the count of rows have to be written, now or later.
    pub fn has_work(&self) -> bool {
        self.stale || self.fresh.len() > 0 || self.has_news()
    }

    /// Whether the count in the file is out of date. New rows need no check here: each new row has a new FDE, so `.eh_frame`
    /// has bytes to write, and the file is written in any case.
    pub fn has_news(&self) -> bool {
        self.counted != self.written
    }

    /// Whether enough time has passed for a new table.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.not_before
    }

    /// Returns the lowest offset that is above the starts of all code in `rows`.
    fn behind(&self) -> u64 {
        self.rows.last().map_or(0, |row| u64::from(row.start) + 1)
    }

    /// Appends rows to the table in use. If rows cannot be appended, or if the table in use has dead rows, writes a new table
    /// instead, once a new table is due or if `now` is true.
    pub fn write(&mut self, disk: &mut Disk, now: bool) -> io::Result<()> {
        let merge = (self.stale || self.first_fresh(0..self.behind()).is_some()) && (now || self.is_due());
        if merge || self.written == 0 {
            if self.rows.is_empty() && self.fresh.len() == 0 {
                self.stale = false;
                return Ok(());
            }
            let begin = Instant::now();
            self.merge();
            self.write_other(disk)?;
            self.not_before = Instant::now() + (begin.elapsed() * SHARE).max(INTERVAL);
            return Ok(());
        }
        if self.stale {
            return Ok(());
        }
        while let Some(row) = self.first_fresh(self.behind()..u64::MAX) {
            self.fresh.remove(row.start.into());
            self.rows.push(row);
        }
        if self.written < self.rows.len() {
            let mut bytes = Vec::new();
            self.push_rows(self.slot, self.written, &mut bytes)?;
            let at = self.slots[self.slot].start + (HEAD_SIZE + ROW_SIZE * self.written) as u64;
            disk.write(at, &bytes)?;
            self.written = self.rows.len();
        }
        Ok(())
    }

    /// Merges the waiting rows into `rows`, in order. `has_room` has allocated the memory.
    fn merge(&mut self) {
        self.rows.retain(|row| row.fde != DEAD);
        let mut old = self.rows.len();
        let count = old + self.fresh.len();
        self.rows.resize(count, Row { start: 0, fde: DEAD });
        // The rows are moved in reverse order, so that no row is overwritten before it is moved.
        let mut to = count;
        while let Some((start, fde)) = self.fresh.last_below(u64::MAX) {
            self.fresh.remove(start);
            while old > 0 && u64::from(self.rows[old - 1].start) > start {
                (old, to) = (old - 1, to - 1);
                self.rows[to] = self.rows[old];
            }
            to -= 1;
            self.rows[to] = Row { start: start as u32, fde };
        }
        self.stale = true;
    }

    /// Writes a whole new table to the unused range.
    fn write_other(&mut self, disk: &mut Disk) -> io::Result<()> {
        let slot = 1 - self.slot;
        self.write_to(disk, slot)?;
        self.slot = slot;
        (self.written, self.counted, self.stale) = (self.rows.len(), self.rows.len(), false);
        Ok(())
    }

    fn write_to(&self, disk: &mut Disk, slot: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(HEAD_SIZE)?;
        bytes.extend_from_slice(&self.places(slot).head(self.rows.len() as u32));
        self.push_rows(slot, 0, &mut bytes)?;
        disk.write(self.slots[slot].start, &bytes)
    }

    /// Writes this table, which must be up to date, to the first of the two ranges for tables in a copy of the file. Returns
    /// the range of the table in the copy.
    ///
    /// All copies must have their tables at the same offset. When an epoch begins, perf learns of the new mapping of the tables
    /// a moment before the new mapping of the text. In this moment, perf takes the offset of the table from the header page of
    /// one file, and reads the table from the other file.
    pub fn copy_to(&self, copy: &mut Disk) -> io::Result<Range<u64>> {
        if self.written > 0 {
            self.write_to(copy, 0)?;
        }
        Ok(self.range_in(0))
    }

    /// Writes the count of rows to the table. The caller must already have written the header page, because the header page
    /// states the size of the section.
    pub fn count(&mut self, disk: &mut Disk) -> io::Result<()> {
        if self.counted != self.written {
            disk.write(self.slots[self.slot].start + COUNT_AT, &(self.written as u32).to_ne_bytes())?;
            self.counted = self.written;
        }
        Ok(())
    }

    /// The range of the section in the file, empty if there is no table yet.
    pub fn range(&self) -> Range<u64> {
        self.range_in(self.slot)
    }

    fn range_in(&self, slot: usize) -> Range<u64> {
        let at = self.slots[slot].start;
        at..at + if self.written == 0 { 0 } else { (HEAD_SIZE + ROW_SIZE * self.written) as u64 }
    }

    fn places(&self, slot: usize) -> Places {
        Places { hdr: self.slots[slot].start, eh_frame: self.eh_frame, text: self.text }
    }

    fn push_rows(&self, slot: usize, from: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let (places, rows) = (self.places(slot), self.rows.get(from..).unwrap_or_default());
        bytes.try_reserve_exact(rows.len() * ROW_SIZE)?;
        rows.iter().for_each(|row| bytes.extend_from_slice(&places.row(row)));
        Ok(())
    }
}
