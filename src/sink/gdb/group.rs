//! Groups of functions. Each group becomes one ELF object in memory, which debuggers read.

use std::io;
use std::ops::Range;
use std::time::Instant;

use crate::format::code_info::Info;
use crate::format::elf::object::{self, Function, GAP_MAX};
use crate::sys::debugger::{self, Listed};
use crate::sys::mapping::Table;

/// How many objects of about the same size are merged into one.
pub const WAYS: usize = 16;
/// All code of an object begins in one range of this size and alignment.
pub const WINDOW: u64 = 1 << 30;

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub id: u64,
    pub addr: u64,
    pub size: u64,
    /// Where the function's name begins in `texts`. The function's records follow the name.
    pub at: usize,
    pub name_len: u32,
    pub info_len: u32,
    /// If true, no section may span the gap before this function, because the gap contains, has contained or may later contain
    /// other code.
    pub is_apart: bool,
}

impl Entry {
    pub fn end(&self) -> u64 {
        self.addr + self.size
    }
}

/// Functions that one object describes. `listed` is this object in the list that debuggers read.
#[derive(Debug, Default)]
pub struct Group {
    /// The entries are sorted by address, except in the group of fresh code.
    pub entries: Table<Entry>,
    pub texts: Table<u8>,
    pub listed: Option<Listed>,
    pub dead: usize,
    /// In a part of a split group: the time until which this part is not merged with other groups.
    pub whole_from: Option<Instant>,
}

impl Group {
    /// Makes a group from copies of entries. Each entry is paired with its present group, which has the entry's name and info.
    pub fn of<'a>(entries: impl Iterator<Item = (&'a Group, &'a Entry)> + Clone) -> io::Result<Group> {
        let mut group = Group::default();
        group.entries.try_reserve(entries.clone().count())?;
        let sizes = entries.clone().map(|(_, entry)| (entry.name_len + entry.info_len) as usize);
        group.texts.try_reserve(sizes.sum())?;
        for (from, entry) in entries {
            let (name, info) = from.text_of(entry);
            group.push(*entry, name, info).ok_or(io::ErrorKind::OutOfMemory)?;
        }
        Ok(group)
    }

    /// Adds an entry, and copies the name and the info of its function.
    pub fn push(&mut self, entry: Entry, name: &[u8], info: Info<'_>) -> Option<()> {
        let info = info.bytes();
        self.entries.try_reserve(1).ok()?;
        self.texts.try_reserve(name.len() + info.len()).ok()?;
        let (name_len, info_len) = (name.len() as u32, info.len() as u32);
        self.entries.push(Entry { at: self.texts.len(), name_len, info_len, ..entry });
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(info);
        Some(())
    }

    pub fn text_of(&self, entry: &Entry) -> (&[u8], Info<'_>) {
        let (name_end, end) =
            (entry.at + entry.name_len as usize, entry.at + (entry.name_len + entry.info_len) as usize);
        (&self.texts[entry.at..name_end], Info::new(&self.texts[name_end..end]))
    }

    pub fn window(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.addr / WINDOW)
    }

    pub fn level(&self) -> u32 {
        self.entries.len().max(1).ilog(WAYS)
    }

    /// Makes the object for the entries of the group.
    pub fn object(&self) -> Option<Vec<u8>> {
        object::object(self.entries.iter().map(|entry| {
            let (name, info) = self.text_of(entry);
            (Function { addr: entry.addr, size: entry.size, name, info }, entry.is_apart)
        }))
    }

    /// The gap before an entry, if a section spans this gap.
    pub fn gap_before(&self, number: usize) -> Option<Range<u64>> {
        let [before, entry] = self.entries.get(number.checked_sub(1)?..=number)? else { return None };
        let gap = before.end()..entry.addr;
        (!entry.is_apart && !gap.is_empty() && gap.end - gap.start <= GAP_MAX).then_some(gap)
    }

    /// The entries whose code begins in the range, or reaches into the range.
    pub fn within(&self, range: &Range<u64>) -> &[Entry] {
        let from = self.entries.partition_point(|entry| entry.end() <= range.start);
        let to = self.entries.partition_point(|entry| entry.addr < range.end);
        self.entries.get(from..to).unwrap_or_default()
    }

    pub fn range(&self) -> Range<u64> {
        self.entries.first().map_or(0, |entry| entry.addr)..self.entries.last().map_or(0, Entry::end)
    }

    /// Whether `code`, which belongs to another group, overlaps a gap that a section of this group spans. If so, marks the gap
    /// with `is_apart`, so that no section of the group's next object spans it. If the whole code fits into the gap, also marks
    /// all other spanned gaps into which the code would fit.
    pub fn makes_way_for(&mut self, code: &Entry) -> bool {
        let after = self.entries.partition_point(|entry| entry.addr <= code.addr);
        let Some(gap) = self.gap_before(after).filter(|gap| gap.start < code.end()) else { return false };
        self.entries[after].is_apart = true;
        let has_room = |gap: Range<u64>| gap.end - gap.start >= code.size;
        if has_room(gap) {
            for number in 1..self.entries.len() {
                self.entries[number].is_apart |= self.gap_before(number).is_some_and(has_room);
            }
        }
        true
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(listed) = self.listed.take() {
            exchange(vec![listed], [].iter());
        }
    }
}

pub fn exchange<'l>(old: Vec<Listed>, new: impl Iterator<Item = &'l Listed> + Clone) -> bool {
    debugger::exchange(old, new, object::empty)
}
