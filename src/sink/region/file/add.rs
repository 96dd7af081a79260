//! Adds code to a region's file: the symbol, unwind tables, lines and inlined functions.

use super::parts_of_code::{PartOfCode, Whole};
use super::section::{Part, Parts};
use super::{Code, Known, RegionFile, AT_ONCE, UNWINDING_MAX, WAITING_MAX};
use crate::api::code::Unwind;
use crate::format::arch;
use crate::format::cfi;
use crate::format::code_info::{self, Info};
use crate::format::elf::debug::{self, Addresses};
use crate::format::elf::frames;
use crate::format::elf::{eh_frame_hdr, symbol, symbol_after_0, SYMBOL_SIZE};
use crate::format::jitdump::id;
use crate::format::jitdump::raw::RawRecord;
use crate::sink::retry::Retry;
use crate::sys::reserve;

impl RegionFile {
    /// Adds code, which replaces all code that it overlaps.
    pub fn add(&mut self, code: &Code<'_>) {
        self.add_part(code, Whole { before: 0, size: code.size });
    }

    /// Like `add`, for code of which only a part lies in the region. `code` has the offset and the size of the part, but the
    /// info of the whole code.
    pub fn add_part(&mut self, code: &Code<'_>, of: Whole) {
        let added = self.try_to_add(code, of);
        let is_kept = of.size == code.size || added.is_some() && self.keep_part(code, of).is_some();
        self.left_out += u64::from(added.is_none() || !is_kept);
    }

    fn keep_part(&mut self, code: &Code<'_>, of: Whole) -> Option<()> {
        let (name, info) = (reserve::copy_of(code.name).ok()?, reserve::copy_of(code.info.bytes()).ok()?);
        self.parts_of_code.try_reserve(1).ok()?;
        self.parts_of_code.push(PartOfCode { offset: code.offset, size: code.size, of, name, info });
        Some(())
    }

    /// Removes all code, and then calls `add`, which adds the new code. Finally adds `parts_of_code` again, because these parts
    /// are newer than all other code at their addresses.
    pub fn reset_to(&mut self, add: impl FnOnce(&mut RegionFile)) {
        let parts = std::mem::take(&mut self.parts_of_code);
        self.reset();
        add(self);
        for PartOfCode { offset, size, of, name, info } in parts {
            self.add_part(&Code { offset, size, name: &name, info: Info::new(&info) }, of);
        }
    }

    fn try_to_add(&mut self, code: &Code<'_>, of: Whole) -> Option<()> {
        let end = code.offset.checked_add(code.size).filter(|&end| end <= self.layout.text_len)?;
        let size = u32::try_from(code.size).ok()?;
        if size == 0 || !self.known.make_room(1) || self.symbols.try_reserve(1).is_err() {
            return None;
        }
        let place = self.forget(code.offset..end);
        self.stand_ins.shrink(code.offset, end);
        let waiting = self.parts.waiting();
        if waiting > AT_ONCE && self.again.is_none() && self.write_parts().is_err() {
            self.again = Some(Retry::after(None));
        }
        if waiting > WAITING_MAX && self.again.is_some() {
            return None;
        }
        let before = self.symbols_before_code();
        let Parts { symtab, strtab, .. } = &mut self.parts;
        if symtab.end() == 0 {
            symtab.pending.try_reserve(before * SYMBOL_SIZE).ok()?;
            strtab.pending.try_reserve(1).ok()?;
            symtab.pending.resize(before * SYMBOL_SIZE, 0);
            strtab.pending.push(0);
        }
        let name = u32::try_from(strtab.end()).ok()?;
        let number = u32::try_from(self.symbols.len() + 1).ok()?;
        symtab.pending.try_reserve(SYMBOL_SIZE).ok()?;
        strtab.pending.try_reserve(code.name.len() + 1).ok()?;
        symtab.pending.extend_from_slice(&symbol(name, self.layout.text + code.offset, code.size));
        strtab.pending.extend_from_slice(code.name);
        strtab.pending.push(0);
        if self.layout.text + code.offset == 0 && code.size > 1 {
            symtab.patch(SYMBOL_SIZE as u64, &symbol_after_0(name, code.size));
        }

        // `info.parts()` is not used here, because it would make each registration in a region slower.
        let mut parts = code_info::Parts::default();
        for record in code.info.records() {
            match record.id {
                id::INLINES => parts.inlines = Some(record),
                id::DEBUG_INFO => parts.lines = Some(record),
                id::UNWINDING_INFO if self.add_tables(&record, code, of).is_none() => self.left_out += 1,
                _ => {}
            }
        }
        let mut lines = None;
        if parts.inlines.is_some() || parts.lines.is_some() {
            lines = self.add_lines(&parts, code, of.before);
            self.left_out += u64::from(lines.is_none());
        }
        self.known.insert(place, code.offset, number);
        self.symbols.push(Known { size, lines });
        self.space.code.0 += code.size;
        Some(())
    }

    fn add_lines(&mut self, of: &code_info::Parts<'_>, code: &Code<'_>, before: u64) -> Option<Addresses> {
        let function = debug::Function { name: code.name, addr: self.layout.text + code.offset, size: code.size };
        let Parts { debug_info: info, debug_line: line, debug_aranges: aranges, debug_ranges: ranges, .. } =
            &mut self.parts;
        let pending_at = |part: &Part| part.end() - part.pending.len() as u64;
        let to = debug::Sections {
            info: (pending_at(info), &mut info.pending),
            line: (pending_at(line), &mut line.pending),
            aranges: (pending_at(aranges), &mut aranges.pending),
            ranges: (pending_at(ranges), &mut ranges.pending),
            head: &mut self.head,
        };
        debug::append(of, &function, before, to)
    }

    fn add_tables(&mut self, record: &RawRecord<'_>, code: &Code<'_>, of: Whole) -> Option<()> {
        let (mut section, _) = record.unwinding_info()?.tables()?;
        let cut;
        if of.size != code.size {
            // The section was made for an address right after the whole code. This address lies `of.size`, rounded up to a
            // multiple of 8, above the start of the code.
            let unwind = Unwind::EhFrame { bytes: section, addr: of.size.next_multiple_of(8) };
            cut = cfi::encode(arch::NATIVE?, &unwind, of.before, code.size).ok()??;
            section = &cut.bytes[..cut.eh_frame_size()];
        }
        let addr = self.layout.text + code.offset;
        if addr.checked_add(code.size)? > UNWINDING_MAX {
            return None;
        }
        let part = &mut self.parts.eh_frame;
        let to = frames::Target {
            code_size: code.size,
            code: addr.wrapping_sub(part.range().start) as i64,
            at: part.end(),
            room: part.room(),
        };
        self.rows.clear();
        self.frames.append(section, &to, &mut part.pending, &mut self.rows)?;
        if !self.table.has_room(self.rows.len()) {
            // The appended bytes stay in the section, because they may contain CIEs that `frames` has remembered for later
            // code. The appended FDEs are emptied, so that readers do not find these FDEs.
            for row in &self.rows {
                part.empty_fde(row.fde);
            }
            return None;
        }
        for row in &self.rows {
            self.table.add(eh_frame_hdr::Row { start: code.offset as u32 + row.start, fde: row.fde });
        }
        Some(())
    }
}
