//! Appends bytes to a section of a region's file.
//!
//! Each section has a separate range of the file. If later code is similar to the code so far, the range is long enough until
//! the text is full. A section that fills its range moves to a new range at the end of the file. The new range is eight times
//! as long, or twice as long if the old range is already large. So a section moves only rarely, and few bytes are copied.

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::writes::Disk;
use crate::format::elf::frames::{FDE_BEGIN, FDE_RANGE};
use crate::sys::code_memory;
use crate::sys::sort::sort;

/// The length of the smallest range.
const ROOM_MIN: u64 = 16 << 10;
/// A full range that is shorter than `LARGE` is replaced by a range that is at least this many times as long. Unwritten parts
/// take no room on the disk.
const GROWTH: u64 = 8;
const LARGE: u64 = 64 << 20;
/// The expected length of a section is at most this multiple of its present length, because the length of the file may be
/// limited (RLIMIT_FSIZE).
const FORESIGHT: u64 = 64;
/// Patches are written together if the first and the last patch lie at most this number of bytes apart.
const BLOCK: u64 = 16 << 10;
/// An empty buffer is freed if its capacity is larger than this number of bytes.
const KEPT: usize = 1 << 20;

/// The end of the file, the unused ranges of the file, and the amount of code.
#[derive(Debug)]
pub struct Space {
    pub end: u64,
    left: Vec<Stretch>,
    /// How many bytes of code the sections describe, and the length of the text.
    pub code: (u64, u64),
}

#[derive(Debug)]
struct Stretch {
    /// The time when a header without the range was first written. `None` while the newest header mentions the range.
    unused: Option<Instant>,
    range: Range<u64>,
}

impl Space {
    pub fn new(end: u64) -> Space {
        Space { end, left: Vec::new(), code: (0, 0) }
    }

    /// Returns the length that a section of `len` bytes will probably have when the text is full of similar code.
    fn expected(&self, len: u64) -> u64 {
        let (known, all) = self.code;
        let when_full = len.checked_mul(all).map_or(LARGE, |product| product / known.max(1));
        // Later functions often need more bytes for names and lines, so the estimate is increased by an eighth. The result is
        // limited, because an estimate from only a few functions is unreliable.
        when_full.saturating_add(when_full / 8).min(len.saturating_mul(FORESIGHT)).min(LARGE)
    }

    /// Whether no range waits to be given back to the file system.
    #[cfg(test)]
    pub fn is_all_used(&self) -> bool {
        self.left.is_empty()
    }

    /// Records that a new header has been written, which no longer mentions the ranges in `left`.
    pub fn published(&mut self) {
        let now = Instant::now();
        for stretch in &mut self.left {
            stretch.unused.get_or_insert(now);
        }
    }

    /// Gives ranges back to the file system if no header has mentioned the ranges for at least the time `after`. Before this
    /// time has passed, a reader may still use an earlier header.
    pub fn give_back(&mut self, disk: &Disk, after: std::time::Duration) {
        self.left.retain(|stretch| {
            let is_over = stretch.unused.is_some_and(|since| since.elapsed() >= after);
            if is_over {
                let _ = code_memory::punch(disk.file(), stretch.range.start, stretch.range.end - stretch.range.start);
            }
            !is_over
        });
    }
}

#[derive(Debug)]
pub struct Part {
    at: u64,
    room: u64,
    /// The offset and the length of the range that the section had before the last `clear`.
    other: (u64, u64),
    /// Whether the section always stays in its present range.
    fixed: bool,
    /// How many bytes of the section are in the file.
    len: u64,
    /// The next bytes of the section, which are not written yet.
    pub pending: Vec<u8>,
    /// Changes of bytes that are already in the file. Each change has an offset in the section, a number, and the new bytes.
    patches: Vec<(u64, u64, Patch)>,
    /// The number of the next change.
    next_patch: u64,
}

/// A buffer with the bytes of a patch, and the length of the patch. No patch is longer than a symbol.
type Patch = ([u8; 24], usize);

impl Part {
    /// Returns a section that cannot move and cannot become longer than `range`.
    pub fn fixed(range: Range<u64>) -> Part {
        Part { at: range.start, room: range.end - range.start, fixed: true, ..Part::growing() }
    }

    pub fn growing() -> Part {
        let (pending, patches) = (Vec::new(), Vec::new());
        Part { at: 0, room: 0, other: (0, 0), fixed: false, len: 0, pending, patches, next_patch: 0 }
    }

    /// The length of the section, including unwritten bytes.
    pub fn end(&self) -> u64 {
        self.len + self.pending.len() as u64
    }

    /// Where the written bytes of the section lie in the file.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + self.len
    }

    pub fn room(&self) -> u64 {
        if self.fixed {
            self.room
        } else {
            u32::MAX.into()
        }
    }

    pub fn has_news(&self) -> bool {
        !self.pending.is_empty() || !self.patches.is_empty()
    }

    /// Changes up to 24 bytes at an offset in the section.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) {
        let Some(pending_at) = at.checked_sub(self.len).and_then(|at| usize::try_from(at).ok()) else {
            let mut patch = [0; 24];
            if let (Some(place), Ok(())) = (patch.get_mut(..bytes.len()), self.patches.try_reserve(1)) {
                place.copy_from_slice(bytes);
                self.patches.push((at, self.next_patch, (patch, bytes.len())));
                self.next_patch += 1;
            }
            return;
        };
        if let Some(place) = self.pending.get_mut(pending_at..pending_at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Changes the addresses that an FDE covers. Only for `.eh_frame`.
    pub fn place_fde(&mut self, fde: u32, addresses: Range<u64>) {
        let at = u64::from(fde) + FDE_BEGIN;
        let size = (addresses.end - addresses.start) as u32;
        let Ok(begin) = i32::try_from(addresses.start as i64 - (self.at + at) as i64) else {
            self.patch(u64::from(fde) + FDE_RANGE, &size.to_ne_bytes());
            return;
        };
        let mut fields = [0; 8];
        fields[..4].copy_from_slice(&begin.to_ne_bytes());
        fields[4..].copy_from_slice(&size.to_ne_bytes());
        self.patch(at, &fields);
    }

    /// Makes an FDE cover no code. Some continuous profilers do not look at the length of an FDE, so the FDE also moves to
    /// address 0, where no code lies.
    pub fn empty_fde(&mut self, fde: u32) {
        self.place_fde(fde, 0..0);
    }

    /// Writes the waiting bytes and patches. Except for patches, the bytes that an earlier header describes stay unchanged.
    pub fn write(&mut self, disk: &mut Disk, space: &mut Space) -> io::Result<()> {
        self.write_patches(disk)?;
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.end() > self.room {
            self.grow(disk, space)?;
        }
        disk.write(self.at + self.len, &self.pending)?;
        self.len = self.end();
        self.pending.clear();
        if self.pending.capacity() > KEPT {
            self.pending = Vec::new();
        }
        Ok(())
    }

    /// Writes the patches. The bytes around nearby patches are read, changed and written together, because patches lie near
    /// each other when thousands of functions die together. If two patches change the same bytes, the later patch counts.
    fn write_patches(&mut self, disk: &mut Disk) -> io::Result<()> {
        sort(&mut self.patches);
        while let Some(&(last, ..)) = self.patches.last() {
            let first = self.patches.partition_point(|&(at, ..)| at + BLOCK < last);
            let group = || self.patches[first..].iter().map(|(at, _, (bytes, len))| (self.at + at, &bytes[..*len]));
            let end = group().map(|(at, bytes)| at + bytes.len() as u64).max().unwrap_or(0);
            disk.write_pieces(self.at + self.patches[first].0..end, group())?;
            self.patches.truncate(first);
        }
        Ok(())
    }

    fn grow(&mut self, disk: &mut Disk, space: &mut Space) -> io::Result<()> {
        if self.fixed {
            return Err(io::ErrorKind::StorageFull.into());
        }
        space.left.try_reserve(1)?;
        let wanted = if self.room < LARGE { GROWTH * self.room } else { self.room + 1 };
        let room = self.end().max(wanted).max(space.expected(self.end())).max(ROOM_MIN).next_power_of_two();
        let at = space.end;
        disk.copy(None, self.at, at, self.len)?;
        if self.room > 0 {
            space.left.push(Stretch { unused: None, range: self.at..self.at + self.room });
        }
        (self.at, self.room) = (at, room);
        space.end += room;
        Ok(())
    }

    /// Releases the range that the section had before the last `clear`. No header may mention this range.
    pub fn leave_other(&mut self, space: &mut Space) {
        let (at, room) = std::mem::take(&mut self.other);
        if room > 0 && space.left.try_reserve(1).is_ok() {
            space.left.push(Stretch { unused: Some(Instant::now()), range: at..at + room });
        }
    }

    /// Removes the contents. If `elsewhere` is true, the next contents are written to another range, so that the file keeps the
    /// old contents for now. `elsewhere` is ignored for a fixed section, which has only one range.
    pub fn clear(&mut self, elsewhere: bool) {
        if elsewhere && !self.fixed {
            (self.at, self.room, self.other) = (self.other.0, self.other.1, (self.at, self.room));
        }
        self.len = 0;
        self.pending.clear();
        self.patches.clear();
    }
}

/// All sections of a file to which bytes are appended.
#[derive(Debug)]
pub struct Parts {
    pub eh_frame: Part,
    pub symtab: Part,
    pub strtab: Part,
    pub debug_info: Part,
    pub debug_line: Part,
    pub debug_aranges: Part,
    pub debug_ranges: Part,
}

impl Parts {
    pub fn new(eh_frame: Range<u64>) -> Parts {
        Parts {
            eh_frame: Part::fixed(eh_frame),
            symtab: Part::growing(),
            strtab: Part::growing(),
            debug_info: Part::growing(),
            debug_line: Part::growing(),
            debug_aranges: Part::growing(),
            debug_ranges: Part::growing(),
        }
    }

    /// The total number of bytes of all sections that are not written yet.
    pub fn waiting(&self) -> usize {
        self.all().iter().map(|part| part.pending.len()).sum()
    }

    pub fn all(&self) -> [&Part; 7] {
        let Parts { eh_frame, symtab, strtab, debug_info, debug_line, debug_aranges, debug_ranges } = self;
        [eh_frame, symtab, strtab, debug_info, debug_line, debug_aranges, debug_ranges]
    }

    pub fn all_mut(&mut self) -> [&mut Part; 7] {
        let Parts { eh_frame, symtab, strtab, debug_info, debug_line, debug_aranges, debug_ranges } = self;
        [eh_frame, symtab, strtab, debug_info, debug_line, debug_aranges, debug_ranges]
    }
}
