//! Address space for a region: where it is found and set aside.

use crate::api::error::{Error, Result};
use crate::sys::code_memory;
use crate::sys::mapping::{page_size, Reserved};
use crate::sys::maps;

/// How far a 32-bit displacement reaches, from anywhere in an instruction.
pub const REACH: u64 = (1 << 31) - (1 << 16);

/// Nothing is mapped below.
const LOWEST: u64 = 1 << 16;
const HIGHEST: u64 = 1 << 47;

/// Address space that was set aside.
pub(super) struct Room {
    pub base: u64,
    pub tables_len: u64,
    pub len: u64,
    pub max_len: u64,
    /// For a second view. It lies above all that is executable: perf with libunwind counts from the lowest mapping of a file.
    pub write: u64,
}

/// Sets address space aside: first the tables, then the text, and somewhere after it as much again for a second view.
/// Returns the addresses of the tables and of the second view.
pub(super) fn place(tables_len: u64, max_len: u64, alignment: u64, near: u64) -> Result<(u64, u64)> {
    let code = tables_len + max_len;
    if near == 0 {
        let total = code + max_len;
        let found = code_memory::reserve(total + alignment).map_err(|_| Error::NoMemory)?;
        let base = found.next_multiple_of(alignment);
        // SAFETY: it was just set aside, and nobody has it.
        unsafe {
            if base > found {
                code_memory::unmap(found, base - found);
            }
            if found + alignment > base {
                code_memory::unmap(base + total, found + alignment - base);
            }
        }
        return Ok((base, base + code));
    }
    for _ in 0..8 {
        let maps = maps::all().map_err(|_| Error::NoMemory)?;
        let low = near.saturating_sub(REACH).max(LOWEST + tables_len) - tables_len;
        let high = near.saturating_add(REACH).min(HIGHEST);
        let Some(base) = maps::gap(&maps, low, high, code, alignment, near) else { break };
        let end = base + code;
        let Some(write) = maps::gap(&maps, end, HIGHEST, max_len, page_size() as u64, end) else { break };
        // Another thread may map something there meanwhile.
        if Reserved::at(base, code).is_none() {
            continue;
        }
        if Reserved::at(write, max_len).is_some() {
            return Ok((base, write));
        }
        // SAFETY: it was just set aside, and nobody has it.
        unsafe { code_memory::unmap(base, code) };
    }
    Err(Error::NoMemory)
}

/// # Safety
/// Nobody uses the memory.
pub(super) unsafe fn unmap_all(room: &Room) {
    // SAFETY: the caller's promise.
    unsafe {
        code_memory::unmap(room.base, room.tables_len + room.max_len);
        code_memory::unmap(room.write, room.max_len);
    }
}
