//! Makes unwind tables for parts of the text that have no code yet.
//!
//! Some continuous profilers read the tables of a file only once, and do not profile a process that has an executable file
//! without tables. So `.eh_frame` also has entries for the parts of the text that have no code. Each of these entries describes
//! its part as code with a frame pointer. The search table does not contain these entries, so perf does not find them. When
//! code is added to a part, the entry of this part is removed.

use super::{RegionFile, UNWINDING_MAX};
use crate::api::code::{FramePointer, Unwind};
use crate::format::arch::NATIVE;
use crate::format::cfi;
use crate::format::elf::frames::{Target, FDE_RANGE};

/// The length of each part. The last part may be shorter.
const PART: u64 = 64 << 10;

impl RegionFile {
    /// Adds an entry for each part of the room for the text. If memory or the room for tables is short, some or all entries are
    /// missing.
    pub(super) fn add_stand_ins(&mut self) {
        self.stand_ins.clear();
        let unwind = Unwind::FramePointer(FramePointer::default());
        let room = self.layout.text_room.min(UNWINDING_MAX.saturating_sub(self.layout.text));
        for start in (0..room).step_by(PART as usize) {
            let size = PART.min(room - start);
            let tables = NATIVE.and_then(|arch| cfi::encode(arch, &unwind, 0, size).ok().flatten());
            let Some(tables) = tables.filter(|_| self.stand_ins.try_reserve(1).is_ok()) else { return };
            let part = &mut self.parts.eh_frame;
            let code = (self.layout.text + start).wrapping_sub(part.range().start) as i64;
            let to = Target { code_size: size, code, at: part.end(), room: part.room() };
            self.rows.clear();
            let section = &tables.bytes[..tables.eh_frame_size()];
            let Some(()) = self.frames.append(section, &to, &mut part.pending, &mut self.rows) else { return };
            self.stand_ins.push(self.rows.first().map(|row| row.fde));
        }
    }

    /// Removes the entries of the parts in which code is added.
    pub(super) fn remove_stand_ins(&mut self, offset: u64, end: u64) {
        let parts = (offset / PART) as usize..end.div_ceil(PART) as usize;
        for stand_in in self.stand_ins.iter_mut().take(parts.end).skip(parts.start) {
            if let Some(fde) = stand_in.take() {
                self.parts.eh_frame.patch(u64::from(fde) + FDE_RANGE, &[0; 4]);
            }
        }
    }
}
