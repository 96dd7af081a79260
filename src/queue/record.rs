//! Records: data that a registering thread writes into a chunk, and that the writer reads.
//!
//! Only this file depends on the layout of a body. The body of a registration resembles the code's group of jitdump records,
//! but differs from the group in two ways: a record of inlined functions may come first, and the code bytes may be replaced by
//! their address or left out.
//!
//! ```text
//! | inlined functions | DEBUG_INFO | UNWINDING_INFO | LOAD, name, NUL | code bytes or their address |
//! '---------------- info records -----------------------'
//!                     '------------------ head ----------------------'
//! ```

use crate::format::code_info::Info;
use crate::format::jitdump::{inlines, LOAD_FIXED_SIZE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// Code was registered. `Load` splits the body into its parts.
    #[default]
    Load,
    /// Code was moved. The body contains the code bytes at the new address, contains the address of these bytes, or is empty.
    Move,
    /// Code was unregistered. The record has no body.
    Unregister,
    /// All code in `[addr, addr + size)` was freed. The record has no body.
    UnregisterRange,
}

/// The fixed part of a record, which fits into one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Event {
    pub timestamp: u64,
    pub id: u64,
    /// The code index in the jitdump.
    pub index: u64,
    pub addr: u64,
    pub size: u64,
    /// Offset of the body in the chunk.
    pub body_at: u32,
    pub body_len: u32,
    pub tid: u32,
    pub kind: EventKind,
    pub flags: u8,
    pub name_len: u16,
    /// Makes the event as long as a cache line.
    pub unused: u64,
}

pub mod flag {
    /// Some code bytes could not be read.
    pub const UNREADABLE: u8 = 1;
    /// The name was cleaned or cut.
    pub const NAME_CHANGED: u8 = 2;
    /// The body ends with the code bytes.
    pub const HAS_CODE: u8 = 4;
    /// The body ends with the address at which the writer finds the code bytes.
    pub const STABLE: u8 = 8;
    /// The body begins with a record of inlined functions (`format::jitdump::inlines`).
    pub const INLINES: u8 = 16;
    /// The code replaces live code of a region. The registering thread has detected the replacement of live code, and has
    /// already reported the replacement to perf.
    pub const REPLACES: u8 = 32;
    /// The bytes after the code contain no other code (`JITSYM_CODE_GAP`). In the record of a move, the flag concerns the new
    /// address of the code.
    pub const GAP: u8 = 64;
}

impl Event {
    /// For `Move`, the old address of the code.
    pub fn old_addr(&self) -> u64 {
        self.size
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeBytes<'a> {
    /// The bytes are in the record.
    Here(&'a [u8]),
    /// The bytes stay unchanged at this address until the writer has read them.
    At(u64),
    /// The bytes are not in the record. The writer reads the bytes at the address of the code.
    InPlace,
}

/// A registration, split into its parts.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    body: &'a [u8],
    inlines_len: usize,
    name_at: usize,
    head_end: usize,
    code: CodeBytes<'a>,
}

impl<'a> Load<'a> {
    /// Splits the body of a registration. Returns `None` if the parts do not fit into the body, which is possible in the
    /// spool of a dead process.
    #[inline]
    pub fn new(event: &Event, body: &'a [u8]) -> Option<Load<'a>> {
        let inlines_len = if event.has(flag::INLINES) { inlines::len(body) } else { 0 };
        let code_len = match (event.has(flag::HAS_CODE), event.has(flag::STABLE)) {
            (true, false) => usize::try_from(event.size).ok()?,
            (false, true) => size_of::<u64>(),
            (false, false) => 0,
            (true, true) => return None,
        };
        let head_end = body.len().checked_sub(code_len)?;
        let name_at = head_end.checked_sub(usize::from(event.name_len) + 1)?;
        if name_at < inlines_len + LOAD_FIXED_SIZE {
            return None;
        }
        let last = &body[head_end..];
        let code = match last.try_into() {
            Ok(addr) if event.has(flag::STABLE) => CodeBytes::At(u64::from_ne_bytes(addr)),
            _ if event.has(flag::HAS_CODE) => CodeBytes::Here(last),
            _ => CodeBytes::InPlace,
        };
        Some(Load { body, inlines_len, name_at, head_end, code })
    }

    /// The group of jitdump records, without the code bytes.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        &self.body[self.inlines_len..self.head_end]
    }

    #[inline]
    pub fn name(&self) -> &'a [u8] {
        &self.body[self.name_at..self.head_end - 1]
    }

    pub fn info(&self) -> Info<'a> {
        Info::new(&self.body[..self.name_at - LOAD_FIXED_SIZE])
    }

    /// Length of the record of inlined functions, which is the offset of the head in the body.
    pub fn inlines_len(&self) -> usize {
        self.inlines_len
    }

    pub fn code(&self) -> CodeBytes<'a> {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(flags: u8, size: u64, name_len: u16) -> Event {
        Event { id: 1, addr: 0x1000, size, flags, name_len, ..Event::default() }
    }

    #[test]
    fn parts_of_a_registration() {
        let mut body = vec![b'd'; 32];
        body.extend([b'l'; LOAD_FIXED_SIZE]);
        body.extend(*b"name\0");
        let head_len = body.len();
        let check = |flags, body: &[u8], code| {
            let load = Load::new(&event(flags, 8, 4), body).unwrap();
            assert_eq!(
                (load.head(), load.name(), load.info().bytes()),
                (&body[..head_len], &b"name"[..], &[b'd'; 32][..])
            );
            assert_eq!((load.code(), load.inlines_len()), (code, 0));
        };
        check(0, &body, CodeBytes::InPlace);
        body.extend(7_u64.to_ne_bytes());
        check(flag::STABLE, &body, CodeBytes::At(7));
        check(flag::HAS_CODE, &body, CodeBytes::Here(&7_u64.to_ne_bytes()));
    }

    #[test]
    fn parts_that_do_not_fit() {
        let body = [0; LOAD_FIXED_SIZE + 5];
        let fits = |flags, size, name_len, len: usize| Load::new(&event(flags, size, name_len), &body[..len]).is_some();
        assert!(fits(0, 8, 4, body.len()));
        assert!(!fits(0, 8, 5, body.len()), "the name is longer than there is room for");
        assert!(!fits(0, 8, 4, body.len() - 1), "the LOAD record has been cut");
        assert!(!fits(flag::STABLE, 8, 4, body.len()), "the address takes the place of the LOAD record");
        assert!(!fits(flag::STABLE, 8, 4, 7), "there is not even the address");
        assert!(!fits(flag::HAS_CODE, u64::MAX, 4, body.len()), "the code is longer than the body");
        assert!(!fits(flag::HAS_CODE | flag::STABLE, 1, 3, body.len()), "the bytes are in two places");
    }
}
