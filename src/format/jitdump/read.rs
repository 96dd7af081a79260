//! Checks and finds groups in jitdumps, for code that moves and for the command-line program.

use std::io;
use std::ops::Range;

use super::raw::{RawHeader, RawRecords};
use super::record::{id, raw, HEADER_SIZE, LOAD_FIXED_SIZE, MOVE_SIZE, PREFIX_SIZE};
use super::Header;
use crate::format::get::u64_at;

/// Whether `head` is a whole group without its code bytes, for code of `size` bytes with a name of `name_len` bytes.
pub fn is_group_head(head: &[u8], size: u64, name_len: usize) -> bool {
    let mut at = 0;
    while let Some(record) = raw(head, at) {
        let end = at + record.total_size;
        match record.id {
            id::LOAD => {
                let name_at = at + LOAD_FIXED_SIZE;
                return u64_at(head, at + 40) == Some(size)
                    && end as u64 == head.len() as u64 + size
                    && name_at + name_len + 1 == head.len()
                    && name_len > 0
                    && head[name_at..].iter().position(|&byte| byte == 0) == Some(name_len);
            }
            id::DEBUG_INFO2 | id::DEBUG_INFO | id::UNWINDING_INFO if is_sound(head, at) => at = end,
            _ => return false,
        }
    }
    false
}

/// Whether the DEBUG_INFO2, DEBUG_INFO or UNWINDING_INFO record at `at` is whole and its fields are consistent.
fn is_sound(bytes: &[u8], at: usize) -> bool {
    let is_whole = RawRecords::from(bytes, at).next().and_then(|record| match record.id {
        id::DEBUG_INFO2 => record.debug_info2()?.is_whole().then_some(()),
        id::DEBUG_INFO => {
            let mut entries = record.debug_info()?.entries();
            entries.by_ref().for_each(drop);
            (entries.rest().0 == 0).then_some(())
        }
        _ => record.unwinding_info()?.tables().map(|_| ()),
    });
    is_whole.is_some()
}

/// Returns true if [`is_group_head`] accepts `head` and the name of the code is `name`.
pub fn is_group_named(head: &[u8], size: u64, name: &[u8]) -> bool {
    let name_at = || head.len().checked_sub(name.len() + 1);
    is_group_head(head, size, name.len()) && name_at().is_some_and(|at| head[at..].starts_with(name))
}

/// Returns true if [`is_group_named`] accepts `head` and the index of the code is `index`.
pub fn is_group_of(head: &[u8], size: u64, index: u64, name: &[u8]) -> bool {
    let load = || head.len().checked_sub(LOAD_FIXED_SIZE + name.len() + 1);
    is_group_named(head, size, name) && load().is_some_and(|at| u64_at(head, at + 48) == Some(index))
}

/// The position of a group in a file, and some fields of the group's LOAD record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// Offset of the group in the file.
    pub offset: u64,
    /// Size of the group without the code bytes.
    pub head_len: usize,
    pub addr: u64,
    pub size: u64,
    pub index: u64,
    pub name: Vec<u8>,
    /// Whether the code has unwind tables.
    pub has_tables: bool,
}

/// Reads the records in a part of a file, except for the code bytes, and calls `found` for each piece of code. `read_at`
/// fills a buffer with the file's bytes at an offset. Reading stops at the first incomplete record.
pub fn places(
    part: Range<u64>,
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    mut found: impl FnMut(GroupPlace) -> io::Result<()>,
) -> io::Result<()> {
    let Range { start, end: len } = part;
    let (mut at, mut group, mut has_tables) = (start, start, false);
    let mut fixed = [0; MOVE_SIZE];
    while at + PREFIX_SIZE as u64 <= len {
        let known = (len - at).min(MOVE_SIZE as u64) as usize;
        read_at(&mut fixed[..known], at)?;
        let Some(record) = raw(&fixed[..known], 0).filter(|record| at + record.total_size as u64 <= len) else { break };
        let word = |offset: usize| u64_at(&fixed[..known], offset).unwrap_or(0);
        if record.id == id::LOAD && record.total_size > LOAD_FIXED_SIZE {
            let (addr, size, index) = (word(32), word(40), word(48));
            let Some(name_len) = (record.total_size - LOAD_FIXED_SIZE - 1).checked_sub(size as usize) else {
                break;
            };
            // The length comes from the file and may be large, so a failed allocation must be an error.
            let mut name = Vec::new();
            name.try_reserve_exact(name_len)?;
            name.resize(name_len, 0);
            read_at(&mut name, at + LOAD_FIXED_SIZE as u64)?;
            let head_len = (at - group) as usize + LOAD_FIXED_SIZE + name_len + 1;
            found(GroupPlace { offset: group, head_len, addr, size, index, name, has_tables })?;
        }
        has_tables |= record.id == id::UNWINDING_INFO;
        at += record.total_size as u64;
        if !matches!(record.id, id::DEBUG_INFO2 | id::DEBUG_INFO | id::UNWINDING_INFO) {
            (group, has_tables) = (at, false);
        }
    }
    Ok(())
}

impl Header {
    /// Reads a file header. `None` if the bytes are no header in this machine's byte order.
    pub fn read(file: &[u8]) -> Option<Header> {
        let raw = RawHeader::read(file).filter(|raw| !raw.swapped && raw.total_size as usize == HEADER_SIZE)?;
        let arch_timestamp = raw.arch_timestamp();
        Some(Header { machine: raw.machine, pid: raw.pid, timestamp: raw.timestamp, arch_timestamp })
    }
}
