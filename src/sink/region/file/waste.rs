//! Removes replaced code from a region's file, and computes whether the file should be rewritten.

use std::ops::Range;

use super::RegionFile;
use crate::format::elf::debug::NOWHERE;
use crate::format::elf::SYMBOL_SIZE;
use crate::registry::ordered::Place;

impl RegionFile {
    /// Removes code that overlaps a part of the text. Returns the place in `known` at which new code in this part must be
    /// inserted.
    pub(super) fn forget(&mut self, range: Range<u64>) -> Place {
        let nowhere = NOWHERE.to_ne_bytes();
        loop {
            let place = self.known.place(range.end);
            let Some((offset, number)) = self.known.before(place) else { return place };
            let known = self.symbols[number as usize - 1];
            let old = offset..offset + u64::from(known.size);
            if old.end <= range.start {
                return place;
            }
            self.known.remove(offset);
            self.parts_of_code.retain(|part| part.offset != offset);
            let index = number as usize - 1 + self.symbols_before_code();
            self.parts.symtab.patch((index * SYMBOL_SIZE) as u64, &[0; SYMBOL_SIZE]);
            if self.layout.text + offset == 0 {
                self.parts.symtab.patch(SYMBOL_SIZE as u64, &[0; SYMBOL_SIZE]);
            }
            let eh_frame = &mut self.parts.eh_frame;
            self.table.remove(old, |fde| eh_frame.empty_fde(fde));
            if let Some(lines) = known.lines {
                lines.info.iter().for_each(|&at| self.parts.debug_info.patch(at.into(), &nowhere));
                self.parts.debug_line.patch(lines.line.into(), &nowhere);
                self.parts.debug_aranges.patch(lines.aranges.into(), &nowhere);
            }
        }
    }

    /// Returns how many symbols of the symbol table precede the symbols of `self.symbols`: the null symbol, and if the text
    /// begins at address 0, a second symbol for the code at address 0.
    pub(super) fn symbols_before_code(&self) -> usize {
        1 + usize::from(self.layout.text == 0)
    }

    /// The size of the code of the symbol with this number.
    pub(super) fn size_of(&self, number: u32) -> u64 {
        self.symbols[number as usize - 1].size.into()
    }

    /// Whether the number of symbols, including those of dead code, is at least `percent` percent of the number of live
    /// functions, plus `more`.
    pub fn is_wasteful(&self, percent: u64, more: u64) -> bool {
        self.symbols.len() as u64 >= self.known.len() as u64 * percent / 100 + more
    }

    /// Whether the unwind tables have nearly filled their room.
    pub fn has_little_room(&self) -> bool {
        let eh_frame = &self.parts.eh_frame;
        eh_frame.end() > eh_frame.room() / 4 * 3 || self.table.is_nearly_full()
    }

    /// Whether the unwind tables have nearly filled their room, and many of the tables belong to replaced code.
    pub fn is_nearly_full(&self) -> bool {
        self.has_little_room() && self.symbols.len() > self.known.len() * 5 / 4
    }
}
