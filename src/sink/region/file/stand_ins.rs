//! Makes unwind tables for parts of the text that have no code yet.
//!
//! Some continuous profilers read the tables of a file only once, and do not profile a process that has an executable file
//! without tables. So `.eh_frame` also has entries for the parts of the text that have no code. Each of these entries describes
//! its range as code with a frame pointer. The search table does not contain these entries, so perf does not find them. When
//! code is added to the range of an entry, the entry keeps the longer rest of the range.

use std::ops::Range;

use super::section::Part;
use crate::api::code::{FramePointer, Unwind};
use crate::format::arch::NATIVE;
use crate::format::cfi;
use crate::format::elf::frames::{Frames, Target};

/// The length of each part. The last part may be shorter.
const PART: u64 = 64 << 10;

/// The entries for the parts of the text. Entry `n` lies in the part `n`.
#[derive(Debug, Default)]
pub struct StandIns {
    pub(super) entries: Vec<StandIn>,
    /// A range of numbers, outside of which no entry has changed.
    changed: Range<usize>,
}

#[derive(Debug)]
pub(super) struct StandIn {
    /// The offset of the entry in `.eh_frame`.
    fde: u32,
    /// The range of the text that the entry describes.
    pub(super) range: Range<u64>,
    is_changed: bool,
}

impl StandIns {
    /// Appends an entry for each part of the room for the text to `.eh_frame`, which must contain no code's entries. The text
    /// begins at the offset `text`. If memory or the room for tables is short, some or all entries are missing.
    pub fn new(text: u64, room: u64, frames: &mut Frames, eh_frame: &mut Part) -> StandIns {
        let mut all = StandIns::default();
        let unwind = Unwind::FramePointer(FramePointer::default());
        let mut rows = Vec::new();
        for start in (0..room).step_by(PART as usize) {
            let size = PART.min(room - start);
            let tables = NATIVE.and_then(|arch| cfi::encode(arch, &unwind, 0, size).ok().flatten());
            let Some(tables) = tables.filter(|_| all.entries.try_reserve(1).is_ok()) else { break };
            let code = (text + start).wrapping_sub(eh_frame.range().start) as i64;
            let to = Target { code_size: size, code, at: eh_frame.end(), room: eh_frame.room() };
            rows.clear();
            let section = &tables.bytes[..tables.eh_frame_size()];
            let Some(()) = frames.append(section, &to, &mut eh_frame.pending, &mut rows) else { break };
            let Some(fde) = rows.first().map(|row| row.fde) else { break };
            all.entries.push(StandIn { fde, range: start..start + size, is_changed: false });
        }
        all
    }

    /// Removes a range in which code is added from the ranges of the entries. `write` writes the change.
    pub fn shrink(&mut self, offset: u64, end: u64) {
        let StandIns { entries, changed } = self;
        let parts = (offset / PART) as usize..(end.div_ceil(PART) as usize).min(entries.len());
        for (number, entry) in entries.iter_mut().enumerate().take(parts.end).skip(parts.start) {
            let Range { start, end: last } = entry.range;
            if end <= start || last <= offset {
                continue;
            }
            let (below, above) = (start..offset.max(start), end.min(last)..last);
            entry.range = if below.end - below.start > above.end - above.start { below } else { above };
            entry.is_changed = true;
            let all = if Range::is_empty(changed) { number..number } else { changed.clone() };
            *changed = all.start.min(number)..all.end.max(number + 1);
        }
    }

    /// Writes the changed ranges of the entries.
    pub fn write(&mut self, text: u64, eh_frame: &mut Part) {
        let changed = std::mem::take(&mut self.changed);
        for entry in self.entries.get_mut(changed).unwrap_or_default().iter_mut().filter(|entry| entry.is_changed) {
            match &entry.range {
                range if range.is_empty() => eh_frame.empty_fde(entry.fde),
                range => eh_frame.place_fde(entry.fde, text + range.start..text + range.end),
            }
            entry.is_changed = false;
        }
    }
}
