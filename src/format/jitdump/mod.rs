//! The jitdump format: a file header, followed by records.
//!
//! The format is specified in linux tools/perf/Documentation/jitdump-specification.txt. Where perf's reader
//! (tools/perf/util/jitdump.c) differs from the specification, this code follows the reader, and a comment describes the
//! difference.
//!
//! Each piece of code has a *group* of up to three records with the same time stamp. The records are adjacent and in this
//! order: `JIT_CODE_DEBUG_INFO`, `JIT_CODE_UNWINDING_INFO`, `JIT_CODE_LOAD`. perf applies the first two records to the next
//! LOAD, whatever the address of the LOAD is. If the code has inlined functions and the user requests their description, the
//! record `JIT_CODE_DEBUG_INFO2` (`debug_info2`) precedes the other records of the group. perf takes the last bytes of the LOAD
//! record as the code, so records have no padding.

pub mod debug_info2;
pub mod inlines;
mod lines;
pub mod raw;
mod read;
mod record;
mod template;

use lines::{debug_size, put_debug_of_any};
pub use lines::{left_out as lines_left_out, left_out_of_any as lines_left_out_of_any, put_debug};
pub use read::{is_group_head, is_group_named, is_group_of, places, GroupPlace};
pub use record::{id, DEBUG_FIXED_SIZE, HEADER_SIZE, LOAD_FIXED_SIZE, MOVE_SIZE, PREFIX_SIZE, UNWINDING_FIXED_SIZE};
use record::{put_at, raw, unwinding_head, DEBUG_ENTRY_FIXED_SIZE, FLAG_ARCH_TIMESTAMP, MAGIC, VERSION};
pub use template::UnwindingTemplate;

use super::get::u64_at;
use super::put::Put;
use crate::api::code::Lines;
use crate::api::error::Result;
use crate::api::limits::CODE_GAP_SIZE;
use crate::format::cfi::Tables;

/// The fields of the file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `e_machine` of the code.
    pub machine: u32,
    pub pid: u32,
    /// When the file was made.
    pub timestamp: u64,
    /// Whether time stamps are raw values of the processor's counter.
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

/// One group, except for its time stamp and its code bytes.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    pub pid: u32,
    /// The thread that registered the code.
    pub tid: u32,
    /// The code index. The index must be unique in the directory of the jitdump, because perf makes `jitted-PID-INDEX.so`
    /// there.
    pub index: u64,
    pub addr: u64,
    /// Size of the code in bytes, at most `i32::MAX`, because perf stores the size in an `int`.
    pub size: u64,
    /// Cleaned name without NUL.
    pub name: &'a [u8],
    pub lines: Lines<'a>,
    /// Unwind tables in the order that perf reads: first `.eh_frame`, then `.eh_frame_hdr` (tools/perf/util/genelf.c,
    /// `jit_add_eh_frame_info`). The specification puts `.eh_frame_hdr` before `.eh_frame`, but no version of perf can unwind
    /// with tables in that order. `.eh_frame_hdr` is never empty. With an empty `.eh_frame_hdr`, perf would use the tables of
    /// this group for all later code.
    pub unwind: Option<&'a Tables>,
}

impl Group<'_> {
    /// The size of the UNWINDING_INFO and LOAD records, without the code bytes.
    pub fn fixed_size(&self) -> usize {
        self.unwinding_size() + LOAD_FIXED_SIZE + self.name.len() + 1
    }

    fn unwinding_size(&self) -> usize {
        self.unwind.map_or(0, |tables| UNWINDING_FIXED_SIZE + tables.bytes.len())
    }

    /// Checks the line table, and returns the size of the group without the code bytes.
    pub fn size(&self) -> Result<usize> {
        let debug = if self.lines.is_empty() { 0 } else { debug_size(self.lines, self.addr, self.size)? };
        Ok(debug + self.fixed_size())
    }

    /// Writes the group without its code bytes to the start of `out`. Returns the size of the written bytes. `behind` is the
    /// number of bytes that must be free in `out` after the group. Returns `None` if `out` is too small. After `None` or an
    /// error, the bytes in `out` are undefined.
    pub fn write(&self, timestamp: u64, out: &mut [u8], behind: usize) -> Result<Option<usize>> {
        let fixed_size = self.fixed_size();
        let Some(room) = out.len().checked_sub(fixed_size + behind) else { return Ok(None) };
        let unwinding = if self.lines.is_empty() {
            0
        } else {
            put_debug_of_any(self.lines, self.addr, self.size, timestamp, &mut out[..room])?
        };
        if unwinding > room {
            return Ok(None);
        }
        let (load, code) = (unwinding + self.unwinding_size(), unwinding + fixed_size);
        if let Some(tables) = self.unwind {
            let record = &mut out[unwinding..load];
            let head = unwinding_head(timestamp, tables.bytes.len(), tables.hdr_size);
            record[..UNWINDING_FIXED_SIZE].copy_from_slice(&head);
            tables.copy_to(&mut record[UNWINDING_FIXED_SIZE..], self.size);
        }
        let (pid, tid, index) = (self.pid, self.tid, self.index);
        let fixed = Load { pid, tid, addr: self.addr, size: self.size, index, name_len: self.name.len() };
        let record = &mut out[load..code];
        // SAFETY: the slice has the length of the record without its code.
        unsafe { put_load_fixed(record.as_mut_ptr(), timestamp, &fixed) };
        record[LOAD_FIXED_SIZE..code - load - 1].copy_from_slice(self.name);
        Ok(Some(code))
    }
}

/// The fields of a LOAD record before its name.
pub struct Load {
    pub pid: u32,
    pub tid: u32,
    pub addr: u64,
    pub size: u64,
    pub index: u64,
    pub name_len: usize,
}

/// Writes a LOAD record without the name and the code, but with the NUL after the name.
///
/// # Safety
/// `out` has room for the record without the code, and nobody else accesses this memory.
#[inline(always)]
pub unsafe fn put_load_fixed(out: *mut u8, timestamp: u64, load: &Load) {
    let record = LoadFixed {
        id: id::LOAD,
        total_size: (LOAD_FIXED_SIZE + load.name_len + 1 + load.size as usize) as u32,
        timestamp,
        pid: load.pid,
        tid: load.tid,
        vma: load.addr,
        code_addr: load.addr,
        code_size: load.size,
        index: load.index,
    };
    // SAFETY: the caller's promise.
    unsafe {
        out.cast::<LoadFixed>().write_unaligned(record);
        out.add(LOAD_FIXED_SIZE + load.name_len).write(0);
    }
}

/// Changes the time stamp of a written record.
///
/// # Safety
/// `record` points to a record with the common prefix, and nobody else accesses the record.
#[inline(always)]
pub unsafe fn put_time(record: *mut u8, timestamp: u64) {
    // SAFETY: the caller's promise.
    unsafe { record.add(std::mem::offset_of!(LoadFixed, timestamp)).cast::<u64>().write_unaligned(timestamp) };
}

/// The part of a LOAD record before its name.
#[repr(C)]
struct LoadFixed {
    id: u32,
    total_size: u32,
    timestamp: u64,
    pid: u32,
    tid: u32,
    /// Always equal to `code_addr`, because some readers use this field and others use `code_addr`.
    vma: u64,
    code_addr: u64,
    code_size: u64,
    index: u64,
}

const _: () = assert!(size_of::<LoadFixed>() == LOAD_FIXED_SIZE);

/// The fields of a group that change when its code is registered again at another address.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// When the code was moved.
    pub timestamp: u64,
    /// The thread that reported the move.
    pub tid: u32,
    /// The new address of the code.
    pub addr: u64,
    pub index: u64,
}

/// Sets the time stamp of each record in a group.
pub fn set_time(group: &mut [u8], timestamp: u64) {
    for_each_record(group, |_, record| put_at(record, 8, &timestamp.to_ne_bytes()));
}

/// Calls `change` for each record of a group.
fn for_each_record(group: &mut [u8], mut change: impl FnMut(u32, &mut [u8])) {
    let mut at = 0;
    while let Some(record) = raw(group, at) {
        // The last record may lack its code bytes.
        let end = (at + record.total_size).min(group.len());
        change(record.id, &mut group[at..end]);
        if record.id == id::LOAD {
            return;
        }
        at = end;
    }
}

/// Adapts a group to another address of the same code. The group does not contain the code bytes. The unwind tables do not
/// change, because they are relative to the address at which perf puts them.
pub fn relocate(group: &mut [u8], change: &Relocation) {
    for_each_record(group, |id, record| {
        put_at(record, 8, &change.timestamp.to_ne_bytes());
        match id {
            id::DEBUG_INFO2 => put_at(record, PREFIX_SIZE, &change.addr.to_ne_bytes()),
            id::DEBUG_INFO => relocate_debug(record, change.addr),
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

/// Sets the process of a group to `pid`, and sets the registering thread to the main thread of this process.
pub fn set_process(group: &mut [u8], pid: u32) {
    for_each_record(group, |id, record| {
        if id == id::LOAD {
            put_at(record, 16, &pid.to_ne_bytes());
            put_at(record, 20, &pid.to_ne_bytes());
        }
    });
}

fn relocate_debug(record: &mut [u8], addr: u64) {
    let Some(old) = u64_at(record, PREFIX_SIZE) else { return };
    put_at(record, PREFIX_SIZE, &addr.to_ne_bytes());
    let mut at = DEBUG_FIXED_SIZE;
    while let Some(entry) = u64_at(record, at) {
        put_at(record, at, &entry.wrapping_sub(old).wrapping_add(addr).to_ne_bytes());
        let name = record.get(at + DEBUG_ENTRY_FIXED_SIZE..).unwrap_or_default();
        let Some(name_len) = name.iter().position(|&byte| byte == 0) else { return };
        at += DEBUG_ENTRY_FIXED_SIZE + name_len + 1;
    }
}

/// Sets the mapped size in the UNWINDING_INFO record of a group, so that perf maps the unwind tables into the gap after the
/// code. The mapped size is 0 if there is no gap, or if the tables do not fit into the gap. A perf with libunwind reads the
/// tables in this mapping. The tables begin at the next multiple of 8, counted from the start of the code (linux
/// tools/perf/util/jitdump.c, `jit_repipe_code_load`). `size` is the size of the code.
pub fn map_tables(group: &mut [u8], size: u64, has_gap: bool) {
    let room = if has_gap { CODE_GAP_SIZE - (size.wrapping_neg() & 7) } else { 0 };
    for_each_record(group, |id, record| {
        if id == id::UNWINDING_INFO {
            let mapped = u64_at(record, 16).filter(|&tables| tables <= room).unwrap_or(0);
            put_at(record, 32, &mapped.to_ne_bytes());
        }
    });
}

#[cfg(test)]
mod tests;
