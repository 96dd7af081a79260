//! Finds and reserves address space for a region that the library makes.
//!
//! ```text
//! base      header page, and pages without access rights
//! start     code, and room for more
//!           a page without access rights, so that the return address of a call at the end of the code lies in no other object
//! tables    unwind tables
//! write     the second view; elsewhere if the code has to be near an address
//! ```

use std::ops::Range;

use super::addresses::Placement;
use crate::api::error::{Error, Result};
use crate::sys::code_memory;
use crate::sys::mapping::{page_size, reserve_at};
use crate::sys::maps;

/// A signed 32-bit displacement reaches all targets up to this distance from any byte of the instruction.
pub const REACH: u64 = (1 << 31) - (1 << 16);

/// No region is placed below this address.
const LOWEST: u64 = 1 << 16;
/// No region reaches beyond this address. On x86-64, programs cannot map the last page below 2^47.
const HIGHEST: u64 = (1 << 47) - (1 << 16);

/// Returns the address that is `reach` bytes above `addr`, or the end of the address space if this end is nearer.
pub(super) fn reach_above(addr: u64, reach: u64) -> u64 {
    let end = addr.saturating_add(reach);
    // Programs may have more than 47 bits of addresses, so code may lie above `HIGHEST`.
    if addr < HIGHEST {
        end.min(HIGHEST)
    } else {
        end
    }
}

/// The address space that is reserved for a region.
pub(super) struct Room {
    pub place: Placement,
    pub write: u64,
}

impl Room {
    /// # Safety
    /// Nobody may use the memory any longer.
    pub unsafe fn unmap(&self) {
        // SAFETY: the caller promises that nobody uses the memory any longer.
        unsafe {
            let Range { start, end } = self.place.whole();
            code_memory::unmap(start, end - start);
            code_memory::unmap(self.write, self.place.max_len);
        }
    }
}

/// Reserves address space for a region.
pub(super) fn place(tables_len: u64, max_len: u64, alignment: u64, near: u64) -> Result<Room> {
    let page = page_size() as u64;
    // At least one page lies between the header page and the code. Without this page, the kernel would merge the mapping of the
    // header page with the mapping of the code.
    let text = (2 * page).next_multiple_of(alignment);
    let code = text + max_len + page + tables_len;
    let room = |base: u64, write: u64| {
        let tables = base + text + max_len + page..base + code;
        let start = base + text;
        let (header_len, has_object_above, marks_hint) = (text, false, 0);
        Room { place: Placement { start, max_len, base, header_len, tables, has_object_above, marks_hint }, write }
    };
    if near == 0 {
        let total = code + max_len;
        let found = code_memory::reserve(total + alignment).map_err(|_| Error::NoMemory)?;
        let base = found.next_multiple_of(alignment);
        // SAFETY: the address space was just reserved, and nobody else knows of it.
        unsafe {
            if base > found {
                code_memory::unmap(found, base - found);
            }
            if found + alignment > base {
                code_memory::unmap(base + total, found + alignment - base);
            }
        }
        return Ok(room(base, base + code));
    }
    for _ in 0..8 {
        let maps = maps::all().map_err(|_| Error::NoMemory)?;
        let low = near.saturating_sub(REACH).max(LOWEST + text) - text;
        let high = near.saturating_add(REACH).saturating_add(page + tables_len).min(HIGHEST);
        let Some(base) = maps::gap(&maps, low, high, code, alignment, near) else { break };
        // Another thread may have mapped memory in this range since `maps` was read.
        if reserve_at(base, code).is_none() {
            continue;
        }
        if let Ok(write) = code_memory::reserve(max_len) {
            return Ok(room(base, write));
        }
        // SAFETY: the address space was just reserved, and nobody else knows of it.
        unsafe { code_memory::unmap(base, code) };
        break;
    }
    Err(Error::NoMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_beyond_the_address_space() {
        assert_eq!(
            [0, HIGHEST - 100, HIGHEST - 99, HIGHEST].map(|addr| reach_above(addr, 100)),
            [100, HIGHEST, HIGHEST, HIGHEST + 100]
        );
    }

    /// A region is placed near the wanted address even if the region does not fit above this address.
    #[test]
    fn near_the_end_of_the_address_space() {
        const LEN: u64 = 64 << 20;
        let tables_len = 16 << 20;
        // Above the first of these two addresses, there is room for only the tables and half of the code.
        for near in [HIGHEST - tables_len - LEN / 2, HIGHEST] {
            let room = place(tables_len, LEN, page_size() as u64, near).expect("a place");
            let Placement { start, base, tables, .. } = &room.place;
            let end = start + LEN;
            assert!(near.abs_diff(*start) <= REACH && near.abs_diff(end) <= REACH && end <= tables.start);
            assert!(room.write + LEN <= *base || tables.end <= room.write && room.write + LEN <= HIGHEST);
            // SAFETY: nobody uses this address space.
            unsafe { room.unmap() };
        }
    }
}
