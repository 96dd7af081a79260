//! Writes the ELF file of a region. The file grows while the region's code runs, and readers may open the file at any time.
//!
//! ```text
//! 0        header page            says where everything is; written last, by one write
//! text     .text                  the code, which the host writes through a shared mapping; empty if the memory is private
//! tables   .eh_frame              appended to
//!          .eh_frame_hdr, twice   rows of the highest code are appended to the table in use; see `table`
//!          room in which private memory can grow, and the bytes of the code in private memory; see `write_code`
//!          .symtab, .strtab, .debug_*   appended to; see `section`
//! ```
//! A private mapping shows the contents of the file wherever the process has not written. So the text of a file for private
//! memory does not contain the code, but breakpoint instructions at the addresses of code, and zeros elsewhere (see `code`).
//! The file has the bytes of the code in another range, where readers do not look for code. Copies by [`RegionFile::snapshot`]
//! have the bytes of the code in the text.
//!
//! In memory, the header page lies below all other parts, is also the first page of the text, or is not mapped. No loaded
//! segment contains the tables. So the object begins at the header page or at the text, and ends with the text.
//!
//! The library writes to the file by system calls and not through a mapping, so that a full disk causes an error and not a
//! signal. The caller must have blocked SIGXFSZ.

mod add;
mod code;
mod final_copy;
mod layout;
mod parts_of_code;
mod section;
mod stand_ins;
mod table;
#[cfg(test)]
mod tests;
mod waste;
mod writes;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::format::code_info::Info;
use crate::format::elf::debug::Addresses;
use crate::format::elf::eh_frame_hdr;
use crate::format::elf::frames::Frames;
use crate::format::elf::header::{Image, HEADER_SIZE};
use crate::format::elf::line_program::Head;
use crate::registry::ordered::Ordered;
use crate::sink::retry::Retry;
use crate::sys::file::Held;
use crate::sys::mapping::page_size;

use code::{PendingCode, Place};
pub use layout::Layout;
use layout::{split, HDR_SHARE};
use parts_of_code::PartOfCode;
pub use parts_of_code::Whole;
use section::{Parts, Space};
use stand_ins::StandIns;
use table::SearchTable;
use writes::Disk;

/// The largest page size of the supported systems.
const PAGE: u64 = 64 << 10;
/// The minimum room for `.eh_frame`.
const EH_FRAME_MIN: u64 = 64 << 10;
/// The maximum room for `.eh_frame`, which is enough for some million functions. With this limit, a region of `SIZE_MAX` bytes
/// and its tables lie within `UNWINDING_MAX`.
const EH_FRAME_MAX: u64 = 256 << 20;
/// If more than this number of bytes wait to be written, the bytes are written before the next code is added.
const AT_ONCE: usize = 8 << 20;
/// The new bytes of a file that cannot be written wait in memory. If more than this number of bytes wait, new code is left out.
const WAITING_MAX: usize = 64 << 20;
/// The time after which the library assumes that no reader uses a replaced header any more.
const READING: Duration = Duration::from_secs(5);
/// The maximum distance that unwind tables can express. Unwinders use signed 32-bit distances.
const UNWINDING_MAX: u64 = i32::MAX as u64;
/// In the file of private memory, this number of bytes after the text and the tables stays zero, because the host may enlarge
/// the memory.
const GROWTH: u64 = 64 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The offset of the code from the start of the text.
    pub offset: u64,
    pub size: u64,
    /// The cleaned name (see `format::name`), without a NUL.
    pub name: &'a [u8],
    /// The jitdump records that precede the LOAD record of the code, if any: inlined functions, DEBUG_INFO and UNWINDING_INFO.
    pub info: Info<'a>,
}

/// What the file contains about a piece of code, besides the code's name and unwind tables.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    size: u32,
    lines: Option<Addresses>,
}

#[derive(Debug)]
pub struct RegionFile {
    disk: Disk,
    layout: Layout,
    /// The offset in the file of the range for the bytes of the code. `None` if the file does not have the bytes.
    bytes: Option<u64>,
    pending_code: PendingCode,
    space: Space,
    frames: Frames,
    table: SearchTable,
    /// The search table rows of the code that is being added.
    rows: Vec<eh_frame_hdr::Row>,
    /// The head of the line program of the code that was added last.
    head: Head,
    parts: Parts,
    stand_ins: StandIns,
    /// Maps the offset of each piece of code in the text to the number of the code's symbol. No two pieces overlap.
    known: Ordered,
    /// Data about the symbols of all code, including replaced code.
    symbols: Vec<Known>,
    /// Code that lies only partly in the region, unless other code has replaced it.
    parts_of_code: Vec<PartOfCode>,
    /// The present contents of the header page.
    published: Image,
    /// Whether the header page still describes the contents from before the last `reset`.
    is_reset: bool,
    begin: u64,
    /// How many pieces of information the file lacks. Code is left out if it lies outside of the region, or if memory is short.
    /// Unwind tables are left out if their room is full or too far away. Source lines and inlined functions may be left out
    /// too.
    left_out: u64,
    /// When to write again after a failed write.
    pub again: Option<Retry>,
}

impl RegionFile {
    /// Returns how many bytes the tables need if the text has this length. The result is a multiple of every page size.
    pub fn tables_room(text_len: u64) -> u64 {
        let eh_frame = text_len.clamp(EH_FRAME_MIN, EH_FRAME_MAX);
        let hdr = eh_frame / HDR_SHARE;
        eh_frame.saturating_add(2 * hdr).saturating_add(PAGE - 1) / PAGE * PAGE
    }

    /// Turns an empty file into the file of a region without code. Afterwards, only the returned `RegionFile` may write to
    /// parts of the file outside of the text.
    pub fn create(file: Arc<Held>, layout: Layout) -> io::Result<RegionFile> {
        let (eh_frame, slots) = split(layout.tables, layout.tables_len);
        let tables_end = layout.tables + layout.tables_len;
        let mut end = (layout.text + layout.text_room).next_multiple_of(PAGE).max(tables_end);
        let disk = Disk::new(file)?;
        if disk.file().metadata()?.len() < layout.text + layout.text_len {
            disk.file().set_len(layout.text + layout.text_len)?;
        }
        let mut bytes = Some(layout.text);
        if layout.is_private {
            let (at, len) = (end + GROWTH, layout.text_room.next_multiple_of(PAGE));
            // The limit for the size of files (RLIMIT_FSIZE) may forbid this length.
            let is_long = disk.file().set_len(at + len + GROWTH).is_ok();
            bytes = is_long.then_some(at);
            end = if is_long { at + len } else { end };
        }
        let mut file = RegionFile {
            disk,
            layout,
            bytes,
            pending_code: PendingCode::default(),
            space: Space::new(end),
            frames: Frames::default(),
            table: SearchTable::new(slots, eh_frame.start, layout.text),
            rows: Vec::new(),
            head: Head::default(),
            parts: Parts::new(eh_frame),
            stand_ins: StandIns::default(),
            known: Ordered::default(),
            symbols: Vec::new(),
            parts_of_code: Vec::new(),
            published: Image::default(),
            is_reset: false,
            begin: 0,
            left_out: 0,
            again: None,
        };
        file.add_stand_ins();
        file.write(true)?;
        Ok(file)
    }

    fn add_stand_ins(&mut self) {
        let Layout { text, text_room, .. } = self.layout;
        let room = text_room.min(UNWINDING_MAX.saturating_sub(text));
        self.stand_ins = StandIns::new(text, room, &mut self.frames, &mut self.parts.eh_frame);
    }

    /// Brings the file up to date. If `now` is false, code that lies below existing code is added to the search table only when
    /// a new table is due. After an error, readers find the old contents of the file, and the next call tries again.
    pub fn write(&mut self, now: bool) -> io::Result<()> {
        let due = self.table.has_work() && (now || self.table.is_due());
        if !due && !self.has_news() {
            return Ok(());
        }
        self.write_parts()?;
        self.table.write(&mut self.disk, now)?;
        self.publish()?;
        (self.is_reset, self.again) = (false, None);
        self.table.count(&mut self.disk)?;
        self.space.give_back(&self.disk, READING);
        Ok(())
    }

    /// Writes the waiting bytes to ranges of the file that no header mentions yet.
    fn write_parts(&mut self) -> io::Result<()> {
        self.disk.check()?;
        if self.is_reset {
            // New names and lines are written to other ranges of the file, so the old names and lines stay until the new data
            // is complete. The unwind tables have only one range, so a header page without unwind tables is written before the
            // old tables are overwritten.
            let without_tables = Image { eh_frame: 0..0, eh_frame_hdr: 0..0, ..self.published.clone() };
            self.publish_as(without_tables)?;
        }
        self.write_pending_code()?;
        self.stand_ins.write(self.layout.text, &mut self.parts.eh_frame);
        self.space.code.1 = self.layout.text_len;
        self.parts.all_mut().into_iter().try_for_each(|part| part.write(&mut self.disk, &mut self.space))
    }

    /// Whether the file is open in the descriptor table of the calling thread.
    pub fn is_open(&self) -> bool {
        self.disk.check().is_ok()
    }

    /// Replaces the descriptor by `file`, which the calling thread has opened for the same file.
    pub fn reopen(&mut self, file: Arc<Held>) -> io::Result<()> {
        let disk = Disk::new(file)?;
        (self.disk.file, self.again) = (disk.file, None);
        Ok(())
    }

    /// Whether data waits that can be written immediately.
    fn has_news(&self) -> bool {
        self.is_reset
            || !self.pending_code.is_empty()
            || self.parts.all().iter().any(|part| part.has_news())
            || self.table.has_news()
            || self.published != self.image()
    }

    /// Whether data waits that can be written now, or when a new search table is due.
    pub fn has_work(&self) -> bool {
        self.has_news() || self.table.has_work()
    }

    fn text(&self) -> Range<u64> {
        self.layout.text..self.layout.text + self.layout.text_len
    }

    /// How much of the room for the text belongs to the loaded segment.
    ///
    /// libdw finds nothing in objects that overlap, and may
    /// assume that an object directly above the text begins in the last page of the text. So the segment leaves out the last page
    /// until the page has code.
    fn loaded_room(&self) -> u64 {
        let room = self.layout.text_room;
        let end = self.known.last_below(u64::MAX).map_or(0, |(offset, number)| offset + self.size_of(number));
        let without = room.checked_sub(page_size() as u64).filter(|&least| least > 0 && end <= least);
        without.filter(|_| self.layout.has_object_above).unwrap_or(room)
    }

    /// The part of the text whose place in the file the header has taken.
    fn below_header(&self) -> Range<u64> {
        if self.layout.text == 0 {
            0..self.layout.text_len.min(HEADER_SIZE as u64)
        } else {
            0..0
        }
    }

    /// The contents that the header page should have.
    fn image(&self) -> Image {
        Image {
            begin: self.begin,
            text: self.text(),
            text_room: self.loaded_room(),
            first: self.below_header(),
            eh_frame: self.parts.eh_frame.range(),
            eh_frame_hdr: self.table.range(),
            symtab: self.parts.symtab.range(),
            strtab: self.parts.strtab.range(),
            debug_info: self.parts.debug_info.range(),
            debug_line: self.parts.debug_line.range(),
            debug_aranges: self.parts.debug_aranges.range(),
            debug_ranges: self.parts.debug_ranges.range(),
            build_id: None,
        }
    }

    fn publish(&mut self) -> io::Result<()> {
        self.publish_as(self.image())?;
        self.space.published();
        Ok(())
    }

    fn publish_as(&mut self, image: Image) -> io::Result<()> {
        if self.published != image {
            self.disk.write(0, &image.header_page())?;
            self.published = image;
        }
        Ok(())
    }

    /// Changes the length of the text, to at most `Layout::text_room`. The file must already be long enough. The header changes
    /// with the next `write`.
    pub fn set_text_len(&mut self, len: u64) {
        self.layout.text_len = len;
    }

    fn write_pending_code(&mut self) -> io::Result<()> {
        self.pending_code.write(&mut self.disk, Place { text: self.layout.text, bytes: self.bytes })
    }

    /// Takes the bytes of code in private memory, for the final copy of the file. The next [`RegionFile::write`] writes the
    /// bytes.
    pub fn write_code(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= self.layout.text_len);
        let end = end.filter(|_| self.layout.is_private).ok_or(io::ErrorKind::InvalidInput)?;
        if self.pending_code.push(offset, bytes) {
            return Ok(());
        }
        self.disk.check()?;
        self.write_pending_code()?;
        let place = Place { text: self.layout.text, bytes: self.bytes };
        place.write(&mut self.disk, &[(offset, bytes.len())], offset..end, bytes)
    }

    /// Sets the offset at which the loaded segment begins. The file changes with the next `write`.
    pub fn set_begin(&mut self, begin: u64) {
        self.begin = begin;
    }

    /// Removes all code. The file changes with the next `write`.
    pub fn reset(&mut self) {
        self.frames = Frames::default();
        for part in self.parts.all_mut() {
            part.clear(!self.is_reset);
        }
        self.table.clear();
        self.known = Ordered::default();
        self.symbols.clear();
        self.parts_of_code.clear();
        self.space.code.0 = 0;
        self.left_out = 0;
        self.is_reset = true;
        self.add_stand_ins();
    }

    /// Writes all waiting data, and then the build-id. A file with a build-id must not change, so the next write removes the
    /// build-id. The header page is written twice, because the count of the search table must be written after the first and
    /// before the second write (see `SearchTable::count`).
    pub fn finish(&mut self, build_id: Option<[u8; 20]>) -> io::Result<()> {
        self.write(true)?;
        self.publish_as(Image { build_id, ..self.image() })?;
        self.parts.all_mut().into_iter().for_each(|part| part.leave_other(&mut self.space));
        self.space.give_back(&self.disk, Duration::ZERO);
        Ok(())
    }

    /// Returns the number of bytes that were written since the last call of this function.
    pub fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.disk.written)
    }

    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
