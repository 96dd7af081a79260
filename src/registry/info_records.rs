//! Info records: the DEBUG_INFO and UNWINDING_INFO records (lines and unwind tables) before the LOAD of a group. They are kept here
//! for live code that no jitdump has. They lie one after the other in one piece of memory, as names do.

use super::entry::IN_MEMORY;
use crate::sys::table::Table;

/// Less garbage than this is not worth the while.
const GARBAGE_MIN: usize = 64 * 1024;

/// All info records. Each has one owner, which drops it.
#[derive(Debug, Default)]
pub struct InfoRecords {
    bytes: Table<u8>,
    /// How many of them belong to info records that were dropped.
    garbage: usize,
}

impl InfoRecords {
    /// Adds the info records of one group and returns their place; `None` if there is no memory.
    pub fn add(&mut self, info_records: &[u8]) -> Option<u64> {
        let at = self.bytes.len();
        self.bytes.try_reserve(info_records.len()).ok()?;
        self.bytes.extend_from_slice(info_records);
        Some(at as u64)
    }

    pub fn get(&self, at: u64, len: u32) -> &[u8] {
        &self.bytes[at as usize..at as usize + len as usize]
    }

    pub fn drop(&mut self, len: u32) {
        self.garbage += len as usize;
    }

    /// Whether more than half is garbage, so that compacting costs no more than adding has cost since the last time.
    pub fn are_wasteful(&self) -> bool {
        self.garbage > GARBAGE_MIN && self.garbage > self.bytes.len() / 2
    }

    /// Drops the garbage. The argument lists the places of all info records that have an owner; they are changed to the new places.
    pub fn compact<'a>(&mut self, owned: impl Iterator<Item = (u64, u32, &'a mut u64)>) {
        let mut bytes = Table::default();
        if bytes.try_reserve(self.bytes.len() - self.garbage).is_err() {
            return;
        }
        let old = std::mem::replace(self, InfoRecords { bytes, garbage: 0 });
        for (at, len, known) in owned {
            *known = self.bytes.len() as u64 | IN_MEMORY;
            self.bytes.extend_from_slice(old.get(at, len));
        }
    }

    /// Bytes in use, and those that are dropped.
    #[cfg(test)]
    pub fn usage(&self) -> (usize, usize) {
        (self.bytes.len(), self.garbage)
    }
}
