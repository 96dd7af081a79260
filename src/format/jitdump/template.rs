//! An UNWINDING_INFO record that is made once and copied for each function with the same frame. Many functions of a runtime
//! have the same frame.

use super::record::{unwinding_head, UNWINDING_FIXED_SIZE};
use crate::format::cfi::Tables;

/// Number of bytes that are copied at once. The record of a frame without saved registers is not longer.
const PART: usize = 128;

/// The maximum length of a record in a template, in bytes.
const MAX: usize = 2 * PART;

/// An UNWINDING_INFO record without its time stamp, for code of up to `code_max` bytes.
#[derive(Debug)]
#[repr(C)]
pub struct UnwindingTemplate {
    /// The largest code size in bytes.
    code_max: u64,
    len: usize,
    /// The two distances in the record that lead back to the code, and depend on the size of the code. Each pair contains the
    /// offset in the record at which a distance is stored, and the distance for code of size 0.
    to_code: [(u32, u32); 2],
    size_at: usize,
    bytes: [u8; MAX],
}

impl UnwindingTemplate {
    /// `copy_to` may overwrite this number of bytes after the record.
    pub const SLACK: usize = PART;

    /// The template for code without unwind tables. The record of this template is empty. `copy_to` works with this template,
    /// too.
    pub const fn empty() -> UnwindingTemplate {
        UnwindingTemplate { code_max: 0, len: 0, to_code: [(0, 0); 2], size_at: 0, bytes: [0; MAX] }
    }

    /// `None` if the tables are too long, or if they are not a single description of the whole code.
    pub fn new(tables: &Tables) -> Option<UnwindingTemplate> {
        let (tables_len, code_max) = (tables.bytes.len(), tables.code_max());
        let len = UNWINDING_FIXED_SIZE + tables_len;
        let places = tables.places()?;
        let mut template = UnwindingTemplate { len, code_max, ..UnwindingTemplate::empty() };
        let record = template.bytes.get_mut(..len)?;
        record[..UNWINDING_FIXED_SIZE].copy_from_slice(&unwinding_head(0, tables_len, tables.hdr_size));
        record[UNWINDING_FIXED_SIZE..].copy_from_slice(&tables.bytes);
        let in_record = |at: usize| UNWINDING_FIXED_SIZE + at;
        // A distance is the start of the code minus the position of `from` in the tables, so it is -`from` for code of size 0.
        template.to_code = places.to_code.map(|(at, from)| (in_record(at) as u32, (from as u32).wrapping_neg()));
        template.size_at = in_record(places.size);
        Some(template)
    }

    /// Whether the tables can be used for code of this size.
    #[inline(always)]
    pub fn is_for(&self, code_size: u64) -> bool {
        code_size <= self.code_max
    }

    /// Size of the record in bytes.
    #[inline(always)]
    pub fn record_len(&self) -> usize {
        self.len
    }

    /// Writes the record without the time stamp. `is_for` must accept `code_size`.
    ///
    /// # Safety
    /// `out` has room for the record and for `SLACK` more bytes, and nobody else accesses this memory.
    #[inline(always)]
    pub unsafe fn copy_to(&self, out: *mut u8, code_size: u64) {
        let from = self.bytes.as_ptr();
        // SAFETY: the caller promises that `out` has room for the record and for `SLACK` more bytes. `new` has checked that all
        // offsets lie within the record.
        unsafe {
            copy_part(from, out);
            if self.len > PART {
                copy_part(from.add(PART), out.add(PART));
            }
            let put = |at: usize, value: u32| out.add(at).cast::<u32>().write_unaligned(value);
            let code_at = ((code_size + 7) & !7) as u32;
            let [first, second] = self.to_code;
            put(first.0 as usize, first.1.wrapping_sub(code_at));
            put(second.0 as usize, second.1.wrapping_sub(code_at));
            put(self.size_at, code_size as u32);
        }
    }
}

/// Copies `PART` bytes. The function has no loop, because a loop takes twice as many instructions, and compilers that optimize
/// for size turn a loop into a call of `memcpy`.
///
/// # Safety
/// `PART` bytes are readable at `from`, and writable at `to`.
#[inline(always)]
unsafe fn copy_part(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let copy = |at: usize| to.add(at).cast::<u128>().write_unaligned(from.add(at).cast::<u128>().read_unaligned());
        copy(0);
        copy(16);
        copy(32);
        copy(48);
        copy(64);
        copy(80);
        copy(96);
        copy(112);
    }
}
