//! A section that is appended to, in a separate range of the file, which is as long as it takes for text that is full of such code.
//! If it gets full all the same, the section moves to one of eight times the size at the end of the file (twice, if it is large), so
//! that few bytes are copied.

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::disk::Disk;
use crate::sys::code_memory;
use crate::sys::sort::sort;

/// How long the smallest stretch is.
const ROOM_MIN: u64 = 16 << 10;
/// How many times as long the next stretch is at least, up to this length. What is not written takes no room on the disk.
const GROWTH: u64 = 8;
const LARGE: u64 = 64 << 20;
/// How many times as long as now a section is expected to be at most. The file's length may be limited (RLIMIT_FSIZE).
const FORESIGHT: u64 = 64;
/// Patches that are not further apart are written together.
const BLOCK: u64 = 16 << 10;
/// A buffer that is larger is given back when it is empty.
const KEPT: usize = 1 << 20;

/// The end of the file, and stretches that nobody uses any more.
#[derive(Debug)]
pub struct Space {
    pub end: u64,
    left: Vec<Stretch>,
    /// How many bytes of code the sections are about, and how long the text is.
    pub code: (u64, u64),
}

#[derive(Debug)]
struct Stretch {
    /// Since when the header says so.
    unused: Option<Instant>,
    range: Range<u64>,
}

impl Space {
    pub fn new(end: u64) -> Space {
        Space { end, left: Vec::new(), code: (0, 0) }
    }

    /// How long a section of this length will be when the text is full of such code, as far as that is foreseen.
    fn expected(&self, len: u64) -> u64 {
        let (known, all) = self.code;
        let when_full = len.checked_mul(all).map_or(LARGE, |product| product / known.max(1));
        // Later functions often have longer names and lines. A few functions say little of the rest.
        when_full.saturating_add(when_full / 8).min(len.saturating_mul(FORESIGHT)).min(LARGE)
    }

    /// No stretch waits to be given back.
    #[cfg(test)]
    pub fn is_all_used(&self) -> bool {
        self.left.is_empty()
    }

    /// The header that has just been written says nothing of what was left before.
    pub fn published(&mut self) {
        let now = Instant::now();
        for stretch in &mut self.left {
            stretch.unused.get_or_insert(now);
        }
    }

    /// Gives back what has not been used for some time: somebody may have read the header before.
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

/// A section.
#[derive(Debug)]
pub struct Part {
    at: u64,
    room: u64,
    /// Where it was before it was cleared.
    other: (u64, u64),
    /// Whether it stays where it is.
    fixed: bool,
    /// Bytes in the file.
    len: u64,
    /// The bytes that follow those, not yet written.
    pub pending: Vec<u8>,
    /// Bytes in the file that have to change.
    patches: Vec<(u64, Patch)>,
}

/// Up to as many bytes as a symbol has.
type Patch = ([u8; 24], usize);

impl Part {
    /// One with this room, which is all it gets.
    pub fn fixed(range: Range<u64>) -> Part {
        Part { at: range.start, room: range.end - range.start, fixed: true, ..Part::growing() }
    }

    pub fn growing() -> Part {
        Part { at: 0, room: 0, other: (0, 0), fixed: false, len: 0, pending: Vec::new(), patches: Vec::new() }
    }

    /// How long it is, or will be.
    pub fn end(&self) -> u64 {
        self.len + self.pending.len() as u64
    }

    /// Where it is in the file, as far as it is there.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + self.len
    }

    /// How many bytes it may have.
    pub fn room(&self) -> u64 {
        if self.fixed {
            self.room
        } else {
            u32::MAX.into()
        }
    }

    /// Whether there is something to write.
    pub fn has_news(&self) -> bool {
        !self.pending.is_empty() || !self.patches.is_empty()
    }

    /// Changes up to 24 bytes that lie somewhere in it.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) {
        let Some(pending_at) = at.checked_sub(self.len).and_then(|at| usize::try_from(at).ok()) else {
            let mut patch = [0; 24];
            if let (Some(place), Ok(())) = (patch.get_mut(..bytes.len()), self.patches.try_reserve(1)) {
                place.copy_from_slice(bytes);
                self.patches.push((at, (patch, bytes.len())));
            }
            return;
        };
        if let Some(place) = self.pending.get_mut(pending_at..pending_at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Brings the file up to date. The bytes that an earlier header describes stay unchanged, except for patches.
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

    /// Code that dies together has its bytes near each other, for thousands of functions. So those are read, changed and written
    /// as one. All patches are zeros, so that their order does not matter.
    fn write_patches(&mut self, disk: &mut Disk) -> io::Result<()> {
        sort(&mut self.patches);
        while let Some(&(last, _)) = self.patches.last() {
            let first = self.patches.partition_point(|&(at, _)| at + BLOCK < last);
            let group = || self.patches[first..].iter().map(|(at, (bytes, len))| (self.at + at, &bytes[..*len]));
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

    /// Copies all of it to a place in another file; returns where it is there.
    pub fn copy_to(&self, from: &Disk, to: &mut Disk, at: u64) -> io::Result<Range<u64>> {
        to.copy(Some(from), self.at, at, self.len)?;
        if !self.pending.is_empty() {
            to.write(at + self.len, &self.pending)?;
        }
        for (place, (bytes, len)) in &self.patches {
            to.write(at + place, &bytes[..*len])?;
        }
        Ok(at..at + self.end())
    }

    /// Leaves what it had before it was cleared: no header says anything of that.
    pub fn leave_other(&mut self, space: &mut Space) {
        let (at, room) = std::mem::take(&mut self.other);
        if room > 0 && space.left.try_reserve(1).is_ok() {
            space.left.push(Stretch { unused: Some(Instant::now()), range: at..at + room });
        }
    }

    /// Forgets what is in it. `elsewhere`: what the file has of it stays there for now, unless it cannot.
    pub fn clear(&mut self, elsewhere: bool) {
        if elsewhere && !self.fixed {
            (self.at, self.room, self.other) = (self.other.0, self.other.1, (self.at, self.room));
        }
        self.len = 0;
        self.pending.clear();
        self.patches.clear();
    }
}

/// All sections that are appended to.
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

    /// How many bytes are not written yet.
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
