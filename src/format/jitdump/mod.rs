//! The jitdump format: a file header, then records (linux tools/perf/Documentation/jitdump-specification.txt; where text and
//! program differ, what tools/perf/util/jitdump.c reads is what counts, and is said here).
//!
//! One piece of code is a *group* of up to three records with one time stamp, adjacent in this order:
//! `JIT_CODE_DEBUG_INFO`, `JIT_CODE_UNWINDING_INFO`, `JIT_CODE_LOAD`. perf holds the first two back and hands them to the next
//! LOAD, whatever its address. No record is padded: perf takes the code from the end of its record.

mod read;

pub use read::{Loaded, Record, Records};

use super::put::Put;
use crate::code::{Line, Lines};
use crate::error::{Error, Result};

/// Size of the file header. Readers take no other.
pub const HEADER_SIZE: usize = 40;
/// Size of what all records begin with: id, total size, time stamp.
pub const PREFIX_SIZE: usize = 16;
/// Size of a LOAD record before its name.
pub const LOAD_FIXED_SIZE: usize = 56;
/// Size of an UNWINDING_INFO record before its tables.
const UNWINDING_FIXED_SIZE: usize = 40;
/// Size of a DEBUG_INFO record before its entries.
const DEBUG_FIXED_SIZE: usize = 32;
/// Size of a DEBUG_INFO entry before its file name.
const DEBUG_ENTRY_FIXED_SIZE: usize = 16;
/// Size of a MOVE record.
pub const MOVE_SIZE: usize = 64;

/// "JiTD" when read with the writer's byte order.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
/// Header flag: time stamps come from the processor's counter and not from CLOCK_MONOTONIC.
const FLAG_ARCH_TIMESTAMP: u64 = 1;

/// Record ids.
pub mod id {
    /// Code has been compiled.
    pub const LOAD: u32 = 0;
    /// Code has been moved.
    pub const MOVE: u32 = 1;
    /// Line table of the next LOAD.
    pub const DEBUG_INFO: u32 = 2;
    /// No more records.
    pub const CLOSE: u32 = 3;
    /// Unwind tables of the next LOAD.
    pub const UNWINDING_INFO: u32 = 4;
}

/// What the file header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `e_machine` of the code.
    pub machine: u32,
    /// The process.
    pub pid: u32,
    /// When the file was made.
    pub timestamp: u64,
    /// Whether time stamps are raw counter values.
    pub arch_timestamp: bool,
}

impl Header {
    /// The bytes at the start of the file.
    pub fn to_bytes(self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        let mut put = Put::new(&mut out);
        put.u32(MAGIC);
        put.u32(VERSION);
        put.u32(HEADER_SIZE as u32);
        put.u32(self.machine);
        put.u32(0);
        put.u32(self.pid);
        put.u64(self.timestamp);
        put.u64(if self.arch_timestamp { FLAG_ARCH_TIMESTAMP } else { 0 });
        debug_assert!(put.is_full());
        out
    }
}

/// One group, everything but where its code bytes come from.
pub struct Group<'a> {
    /// When the code was registered.
    pub timestamp: u64,
    /// The process.
    pub pid: u32,
    /// The registering thread.
    pub tid: u32,
    /// Unique in the file's directory, because perf makes `jitted-PID-INDEX.so` of it.
    pub index: u64,
    /// Where the code runs.
    pub addr: u64,
    /// Its size, at most `i32::MAX`, which is what perf holds it in.
    pub size: u64,
    /// Cleaned name without NUL.
    pub name: &'a [u8],
    /// Line table.
    pub lines: Lines<'a>,
    /// `.eh_frame` and `.eh_frame_hdr`.
    pub unwind: Option<Unwinding<'a>>,
}

/// Unwind tables as perf reads them: `.eh_frame` first, its header behind it (tools/perf/util/genelf.c,
/// `jit_add_eh_frame_info`; the specification says the reverse, and no perf unwinds with that).
#[derive(Clone, Copy)]
pub struct Unwinding<'a> {
    /// Both tables.
    pub tables: &'a [u8],
    /// How many bytes at their end are the `.eh_frame_hdr`. Never 0: perf would give the tables to all code that follows.
    pub hdr_size: usize,
    /// The tables' size if that many bytes behind the code (rounded up to 8) are free, else 0. perf extends the code's
    /// mapping by it; perf builds with libunwind read the tables there.
    pub mapped_size: u64,
}

/// Where the parts of a written group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the UNWINDING_INFO record, or of LOAD if there is none.
    pub unwinding: usize,
    /// Offset of the LOAD record.
    pub load: usize,
    /// Offset of the code bytes: the size of the group without them.
    pub code: usize,
}

impl Group<'_> {
    /// Checks the line table and says how large the group's parts are.
    pub fn layout(&self) -> Result<Layout> {
        let unwinding = if self.lines.is_empty() { 0 } else { self.debug_size()? };
        let load = unwinding + self.unwind.map_or(0, |unwind| UNWINDING_FIXED_SIZE + unwind.tables.len());
        let code = load + LOAD_FIXED_SIZE + self.name.len() + 1;
        // Record sizes are 32 bits wide.
        let limit = u32::MAX as usize;
        if unwinding > limit || code - load + self.size as usize > limit {
            return Err(Error::TooLarge);
        }
        Ok(Layout { unwinding, load, code })
    }

    fn debug_size(&self) -> Result<usize> {
        let mut size = DEBUG_FIXED_SIZE;
        let mut last_offset = 0;
        let mut last_entry = 0;
        for index in 0..self.lines.len() {
            let row = self.lines.row(index).ok_or(Error::LineFile)?;
            if u64::from(row.offset) >= self.size {
                return Err(Error::LineOffset);
            }
            if row.offset < last_offset {
                return Err(Error::LineOrder);
            }
            if row.line == 0 || row.file.is_empty() {
                return Err(Error::LineFile);
            }
            if index > 0 && row.offset == last_offset {
                size -= last_entry;
            }
            last_offset = row.offset;
            last_entry = DEBUG_ENTRY_FIXED_SIZE + row.file.len() + 1;
            size += last_entry;
        }
        // The closing entry repeats the last file.
        Ok(size + last_entry)
    }

    /// Writes the group without its code bytes to `out`, which is `layout.code` bytes long.
    pub fn write(&self, layout: &Layout, out: &mut [u8]) {
        let mut put = Put::new(out);
        if !self.lines.is_empty() {
            self.put_debug(&mut put, layout.unwinding);
        }
        if let Some(unwind) = &self.unwind {
            self.put_prefix(&mut put, id::UNWINDING_INFO, layout.load - layout.unwinding);
            put.u64(unwind.tables.len() as u64);
            put.u64(unwind.hdr_size as u64);
            put.u64(unwind.mapped_size);
            put.bytes(unwind.tables);
        }
        self.put_prefix(&mut put, id::LOAD, layout.code - layout.load + self.size as usize);
        put.u32(self.pid);
        put.u32(self.tid);
        // `vma` and `code_addr`: always the same, some readers take one and some the other.
        put.u64(self.addr);
        put.u64(self.addr);
        put.u64(self.size);
        put.u64(self.index);
        put.bytes(self.name);
        put.u8(0);
        debug_assert!(put.is_full());
    }

    fn put_prefix(&self, put: &mut Put<'_>, id: u32, total_size: usize) {
        put.u32(id);
        put.u32(total_size as u32);
        put.u64(self.timestamp);
    }

    fn put_debug(&self, put: &mut Put<'_>, total_size: usize) {
        self.put_prefix(put, id::DEBUG_INFO, total_size);
        put.u64(self.addr);
        let rows = || (0..self.lines.len()).filter_map(|index| self.lines.row(index));
        // Of rows with one offset the last counts; `debug_size` counted the same way.
        let kept = || {
            rows().zip(rows().skip(1).map(Some).chain([None])).filter_map(|(row, next)| match next {
                Some(next) if next.offset == row.offset => None,
                _ => Some(row),
            })
        };
        put.u64(kept().count() as u64 + 1);
        let mut last = None;
        for row in kept() {
            put_entry(put, self.addr + u64::from(row.offset), &row);
            last = Some(row);
        }
        // perf ends the line sequence at the last entry's address, so that the last row would cover nothing
        // (tools/perf/util/genelf_debug.c, `emit_lineno_info`): close it at the end of the code.
        if let Some(row) = last {
            put_entry(put, self.addr + self.size, &row);
        }
    }
}

/// An entry has the full file name each time: the short form "same as before" (a byte 0xff) is read by some perf only. The
/// field behind the line is called discriminator; perf ignores it, samply takes it for the column.
fn put_entry(put: &mut Put<'_>, addr: u64, row: &Line<'_>) {
    put.u64(addr);
    put.u32(row.line);
    put.u32(row.column);
    put.bytes(row.file);
    put.u8(0);
}

/// `JIT_CODE_MOVE`: the code with this index now runs elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// When it was moved.
    pub timestamp: u64,
    /// The process.
    pub pid: u32,
    /// The thread that said so.
    pub tid: u32,
    /// Where it ran.
    pub old_addr: u64,
    /// Where it runs now.
    pub new_addr: u64,
    /// Its size.
    pub size: u64,
    /// The index of its LOAD.
    pub index: u64,
}

impl Move {
    /// The record.
    pub fn to_bytes(self) -> [u8; MOVE_SIZE] {
        let mut out = [0; MOVE_SIZE];
        let mut put = Put::new(&mut out);
        put.u32(id::MOVE);
        put.u32(MOVE_SIZE as u32);
        put.u64(self.timestamp);
        put.u32(self.pid);
        put.u32(self.tid);
        put.u64(self.new_addr);
        put.u64(self.old_addr);
        put.u64(self.new_addr);
        put.u64(self.size);
        put.u64(self.index);
        debug_assert!(put.is_full());
        out
    }
}

/// `JIT_CODE_CLOSE`. perf stops reading at a record of this size, which is why it may only be the last one.
pub fn close_record(timestamp: u64) -> [u8; PREFIX_SIZE] {
    let mut out = [0; PREFIX_SIZE];
    let mut put = Put::new(&mut out);
    put.u32(id::CLOSE);
    put.u32(PREFIX_SIZE as u32);
    put.u64(timestamp);
    out
}

/// What changes in a group when its code is registered again at another place.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// When it was moved.
    pub timestamp: u64,
    /// The thread that said so.
    pub tid: u32,
    /// Where it runs now.
    pub addr: u64,
    /// The new index.
    pub index: u64,
    /// As `Unwinding::mapped_size`.
    pub mapped_size: u64,
}

/// Gives all records of a written group another time stamp.
pub fn set_time(group: &mut [u8], timestamp: u64) {
    for_each_record(group, |_, record| put_at(record, 8, &timestamp.to_ne_bytes()));
}

fn for_each_record(group: &mut [u8], mut change: impl FnMut(u32, &mut [u8])) {
    let mut at = 0;
    while let Some(record) = read::raw(group, at) {
        // The last one may be without its code bytes.
        let end = (at + record.total_size).min(group.len());
        change(record.id, &mut group[at..end]);
        if record.id == id::LOAD {
            return;
        }
        at = end;
    }
}

/// Turns a written group without code bytes into that of the same code at another place. The unwind tables stay as they are:
/// they count from the place where perf puts them.
pub fn relocate(group: &mut [u8], change: &Relocation) {
    for_each_record(group, |id, record| {
        put_at(record, 8, &change.timestamp.to_ne_bytes());
        match id {
            id::DEBUG_INFO => relocate_debug(record, change.addr),
            id::UNWINDING_INFO => put_at(record, 32, &change.mapped_size.to_ne_bytes()),
            id::LOAD => {
                put_at(record, 20, &change.tid.to_ne_bytes());
                put_at(record, 24, &change.addr.to_ne_bytes());
                put_at(record, 32, &change.addr.to_ne_bytes());
                put_at(record, 48, &change.index.to_ne_bytes());
            }
            _ => {}
        }
    });
}

fn relocate_debug(record: &mut [u8], addr: u64) {
    let Some(old) = read::u64_at(record, PREFIX_SIZE) else { return };
    put_at(record, PREFIX_SIZE, &addr.to_ne_bytes());
    let mut at = DEBUG_FIXED_SIZE;
    while let Some(entry) = read::u64_at(record, at) {
        put_at(record, at, &entry.wrapping_sub(old).wrapping_add(addr).to_ne_bytes());
        let name = record.get(at + DEBUG_ENTRY_FIXED_SIZE..).unwrap_or_default();
        let Some(name_len) = name.iter().position(|&byte| byte == 0) else { return };
        at += DEBUG_ENTRY_FIXED_SIZE + name_len + 1;
    }
}

/// Takes back a claim that the bytes behind the code are free.
pub fn clear_mapped_size(group: &mut [u8], layout_unwinding: usize) {
    if let Some(record) = group.get_mut(layout_unwinding..) {
        put_at(record, 32, &0u64.to_ne_bytes());
    }
}

fn put_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests;
