//! Makes final copies of a region's file, for older epochs, and when the region or the process ends.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::section::Part;
use super::writes::Disk;
use super::{RegionFile, PAGE};
use crate::format::elf::header::{Image, HEADER_SIZE};
use crate::sys::code_memory;
use crate::sys::file::Held;

/// If the distance between two pieces of code is at most this number of bytes, the pieces are copied together.
const GAP: u64 = 4096;

impl RegionFile {
    /// Brings this file up to date, and copies its contents to the empty file `to`. The copy is complete, as after
    /// [`RegionFile::finish`]. The text and `.eh_frame` lie at the same offsets in the copy as in this file.
    ///
    /// `has_bytes` takes the offset of a piece of code in the text, and returns whether the copy should contain the bytes of
    /// the code.
    pub fn snapshot(
        &mut self,
        to: File,
        has_bytes: impl Fn(u64) -> bool + Copy,
        build_id: Option<[u8; 20]>,
    ) -> io::Result<()> {
        self.disk.check()?;
        self.write(true)?;
        let mut to = Disk::new(Arc::new(Held::new(to)?))?;
        let text = self.text();
        to.file().set_len(text.end)?;
        if let Some(bytes) = self.bytes {
            self.code_ranges(has_bytes, |range| {
                to.copy(Some(&self.disk), bytes + range.start - text.start, range.start, range.end - range.start)
            })?;
        }
        let tables_end = self.layout.tables + self.layout.tables_len;
        let mut end = text.end.max(tables_end).next_multiple_of(PAGE);
        let first = self.copy_first(&mut to, end, has_bytes)?;
        end += first.end - first.start;
        let mut copy = |part: &Part, to: &mut Disk| {
            let (from, at) = (part.range(), end);
            to.copy(Some(&self.disk), from.start, at, from.end - from.start)?;
            end = (at + from.end - from.start).next_multiple_of(8);
            io::Result::Ok(at..at + from.end - from.start)
        };
        let image = Image {
            symtab: copy(&self.parts.symtab, &mut to)?,
            strtab: copy(&self.parts.strtab, &mut to)?,
            debug_info: copy(&self.parts.debug_info, &mut to)?,
            debug_line: copy(&self.parts.debug_line, &mut to)?,
            debug_aranges: copy(&self.parts.debug_aranges, &mut to)?,
            debug_ranges: copy(&self.parts.debug_ranges, &mut to)?,
            eh_frame_hdr: self.table.copy_to(&mut to)?,
            first,
            build_id,
            ..self.image()
        };
        let Range { start, end } = image.eh_frame;
        to.copy(Some(&self.disk), start, start, end - start)?;
        to.write(0, &image.header_page())
    }

    /// Copies the bytes of code whose place in the file the header has taken (`below_header`) to the offset `place`. Returns
    /// the range of the copied bytes.
    fn copy_first(&self, to: &mut Disk, place: u64, has_bytes: impl Fn(u64) -> bool) -> io::Result<Range<u64>> {
        let len = self.below_header().end;
        let Some(bytes) = self.bytes.filter(|_| len > 0) else { return Ok(0..len) };
        for (offset, number) in self.known.from(0).take_while(|&(offset, _)| offset < len) {
            let size = self.size_of(number);
            if has_bytes(offset) {
                to.copy(Some(&self.disk), bytes + offset, place + offset, size.min(len - offset))?;
            }
        }
        Ok(place..place + len)
    }

    /// Frees the disk space of the whole file, after the file has lost its names. Mappings of the file then show zeros.
    pub fn give_all_back(&self) {
        let len = self.disk.check().and_then(|()| self.disk.file().metadata()).map_or(0, |data| data.len());
        if len > 0 {
            let _ = code_memory::punch(self.disk.file(), 0, len);
        }
    }

    /// Frees the disk space between pieces of code, after the text was unmapped.
    pub fn give_text_back(&self) {
        let mut begin = self.text().start.max(HEADER_SIZE as u64);
        let punch = |begin: u64, end: u64| {
            if begin < end && self.disk.check().is_ok() {
                let _ = code_memory::punch(self.disk.file(), begin, end - begin);
            }
        };
        let code = self.code_ranges(
            |_| true,
            |range| {
                punch(begin, range.start);
                begin = begin.max(range.end);
                Ok(())
            },
        );
        if code.is_ok() {
            punch(begin, self.text().end);
        }
    }

    /// Calls `each` with the ranges of the text in the file that contain code. Leaves out code for which `has_bytes` returns
    /// false.
    fn code_ranges(
        &self,
        has_bytes: impl Fn(u64) -> bool,
        mut each: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut range = 0..0;
        for (offset, number) in self.known.from(0) {
            let end = self.layout.text + offset + self.size_of(number);
            // The header may have taken the place of the first code in the file.
            let at = (self.layout.text + offset).max(HEADER_SIZE as u64).min(end);
            if !has_bytes(offset) {
                each(std::mem::replace(&mut range, 0..0))?;
                continue;
            }
            if range.end > 0 && at - range.end > GAP {
                each(std::mem::replace(&mut range, at..at))?;
            }
            range = if range.end == 0 { at } else { range.start }..end;
        }
        each(range)
    }
}
