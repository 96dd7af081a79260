//! The sizes, ids and common prefix of jitdump records, and functions that write the common parts of records.

use crate::format::get::u32_at;
use crate::format::put::Put;

/// Size of the file header. Readers accept only this size.
pub const HEADER_SIZE: usize = 40;
/// Size of the prefix that all records begin with: id, total size, time stamp.
pub const PREFIX_SIZE: usize = 16;
/// Size of a LOAD record before its name.
pub const LOAD_FIXED_SIZE: usize = 56;
/// Size of an UNWINDING_INFO record before its tables.
pub const UNWINDING_FIXED_SIZE: usize = 40;
/// Size of a DEBUG_INFO record before its entries.
pub const DEBUG_FIXED_SIZE: usize = 32;
/// Offset of the number of entries in a DEBUG_INFO record.
pub const DEBUG_ENTRY_COUNT: usize = 24;
/// Size of a DEBUG_INFO entry before its file name.
pub(super) const DEBUG_ENTRY_FIXED_SIZE: usize = 16;
pub const MOVE_SIZE: usize = 64;

/// The magic number of a jitdump, "JiTD", when it is read in the byte order of the machine that wrote it.
pub(super) const MAGIC: u32 = 0x4a69_5444;
pub(super) const VERSION: u32 = 1;
/// The header flag for files whose time stamps come from the processor's counter instead of CLOCK_MONOTONIC.
pub(super) const FLAG_ARCH_TIMESTAMP: u64 = 1;

pub mod id {
    /// Code has been compiled.
    pub const LOAD: u32 = 0;
    /// Code has been moved.
    pub const MOVE: u32 = 1;
    /// Line table of the next LOAD.
    pub const DEBUG_INFO: u32 = 2;
    /// No more records follow.
    pub const CLOSE: u32 = 3;
    /// Unwind tables of the next LOAD.
    pub const UNWINDING_INFO: u32 = 4;
    /// Lines and inlined functions of the next LOAD, for samply (`debug_info2`).
    pub const DEBUG_INFO2: u32 = 827_346_260;
    /// Inlined functions of the next LOAD, in this project's own format. No jitdump file contains this record.
    pub const INLINES: u32 = u32::from_be_bytes(*b"Inln");
}

#[inline(always)]
pub(super) fn put_prefix(put: &mut Put<'_>, timestamp: u64, id: u32, total_size: usize) {
    put.u32(id);
    put.u32(total_size as u32);
    put.u64(timestamp);
}

/// The part of an UNWINDING_INFO record before its tables, which have `len` bytes.
///
/// The last field, the number of bytes of the tables that perf maps after the code, is 0 here. `map_tables` sets this field.
#[inline(always)]
pub(super) fn unwinding_head(time: u64, len: usize, hdr_size: usize) -> [u8; UNWINDING_FIXED_SIZE] {
    let mut record = [0; UNWINDING_FIXED_SIZE];
    let mut put = Put::new(&mut record);
    put_prefix(&mut put, time, id::UNWINDING_INFO, UNWINDING_FIXED_SIZE + len);
    put.u64(len as u64);
    put.u64(hdr_size as u64);
    put.u64(0);
    debug_assert!(put.is_full());
    record
}

pub(super) fn put_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// The fields of a record's prefix without the time stamp.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    pub id: u32,
    pub total_size: usize,
}

/// Reads the record prefix at offset `at`. `None` if the bytes end within the prefix, or if the record claims to be smaller
/// than its prefix. The rest of the record may be missing.
pub fn raw(bytes: &[u8], at: usize) -> Option<Raw> {
    let prefix = bytes.get(at..at.checked_add(PREFIX_SIZE)?)?;
    let raw = Raw { id: u32_at(prefix, 0)?, total_size: u32_at(prefix, 4)? as usize };
    (raw.total_size >= PREFIX_SIZE).then_some(raw)
}
