//! Reads `jitsym_unwind` from C.

use std::{mem, slice};

use super::{check_flags, field, read, size_of_element, size_of_struct, Array, Plain};
use crate::api::code::{FixedFrame, FramePointer, SavedRegister, SigningKey, Unwind, UnwindRow};
use crate::api::error::{Error, Result};
use crate::capi::types::*;
use crate::format::jitdump::UnwindingTemplate;
use crate::format::unwind::{self, Cache};

// SAFETY: here and below, every field is an integer or a raw pointer.
unsafe impl Plain for jitsym_unwind {
    const FIRST_SIZE: usize = mem::offset_of!(jitsym_unwind, sp_set);
    const TOO_SMALL: &'static str = size_of_struct!("jitsym_unwind", "JITSYM_UNWIND()");
}
// SAFETY: as above.
unsafe impl Plain for jitsym_unwind_row {
    const TOO_SMALL: &'static str = size_of_element!("jitsym_unwind_row", "jitsym_unwind.row_size");
}

/// Converts a `jitsym_unwind` to the jitdump record of its unwind tables, for code of `code_size` bytes. A
/// `jitsym_unwind` that equals the last remembered `jitsym_unwind` is not decoded again.
///
/// # Safety
/// `from` fulfils the conditions of `unwind`.
#[inline(always)]
pub unsafe fn template(
    from: *const jitsym_unwind,
    cache: &mut Cache,
    code_addr: u64,
    code_size: u64,
) -> Result<Option<&UnwindingTemplate>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise the struct is readable. The first field of the struct is the struct's size.
    let known_size = unsafe { from.cast::<usize>().read_unaligned() } == size_of::<jitsym_unwind>();
    // SAFETY: as above. The comparison has shown that the struct has the size of `jitsym_unwind`.
    if known_size && unsafe { cache.is_ready(from.cast::<usize>().add(1).cast::<unwind::Raw>(), code_size) } {
        // SAFETY: as above. The fields of this struct have the same values as the fields of the last struct, which was valid.
        // Only the data that the struct's pointers refer to may differ.
        let saved = unsafe { saved_registers(field!(from, saved), field!(from, saved_count))? };
        if cache.ready_saves(saved) {
            return Ok(Some(cache.ready_template()));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { decode_and_encode(from, cache, code_addr, code_size) }
}

/// # Safety
/// `from` fulfils the conditions of `unwind`.
#[cold]
#[inline(never)]
unsafe fn decode_and_encode(
    from: *const jitsym_unwind,
    cache: &mut Cache,
    code_addr: u64,
    code_size: u64,
) -> Result<Option<&UnwindingTemplate>> {
    // SAFETY: the caller's promise.
    let (raw, input) = unsafe { (read(from)?, unwind(from)?) };
    // After `remember`, later calls compare only the struct and the saved registers, so the tables must depend on
    // nothing else. Tables of kinds 3 and 4 also depend on rows or a section outside the struct. If `epilogue_end` is
    // set, or if the code ends at `epilogue_begin`, the tables also depend on the code size (`resolve_epilogue`).
    let any_larger = raw.epilogue_end == 0 && u64::from(raw.epilogue_begin) != code_size;
    if matches!(raw.kind, 1 | 2) && any_larger {
        cache.template(&input.as_unwind(), code_addr, code_size)?;
        // SAFETY: both types have the same size, and the struct consists of integers and pointers without padding.
        let [_, words @ ..] = unsafe { mem::transmute::<jitsym_unwind, [usize; 1 + unwind::RAW_WORDS]>(raw) };
        // SAFETY: as above.
        cache.remember(&words, unsafe { saved_registers(raw.saved, raw.saved_count)? }, code_size);
    }
    cache.template(&input.as_unwind(), code_addr, code_size)
}

/// A checked `jitsym_unwind`. Rows are converted and stored here, because an `UnwindRow` has another layout than a
/// `jitsym_unwind_row`.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack, for the time of a call")]
pub enum UnwindInput<'a> {
    Ready(Unwind<'a>),
    /// The rows and their number. Most tables have at most `FEW_ROWS` rows, which need no allocation.
    FewRows([UnwindRow<'a>; FEW_ROWS], usize),
    Rows(Vec<UnwindRow<'a>>),
}

const FEW_ROWS: usize = 16;

/// # Safety
/// `from` fulfils the conditions of `read`. Every pointer in the struct is valid, as the header demands. NULL means no
/// description.
pub unsafe fn unwind<'a>(from: *const jitsym_unwind) -> Result<UnwindInput<'a>> {
    if from.is_null() {
        return Ok(UnwindInput::Ready(Unwind::None));
    }
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    let signed = signed(&raw)?;
    // SAFETY: the caller's promise.
    let saved = || unsafe { saved_registers(raw.saved, raw.saved_count) };
    let ready = match raw.kind {
        0 => Unwind::None,
        1 => Unwind::FramePointer(FramePointer {
            pushed: raw.fp_pushed,
            set: raw.fp_set,
            epilogue_begin: raw.epilogue_begin,
            epilogue_end: raw.epilogue_end,
            cfa_offset: raw.cfa_offset,
            saved: saved()?,
            saved_from: raw.saved_from,
            signed,
        }),
        2 => Unwind::FixedFrame(FixedFrame {
            cfa_offset: raw.cfa_offset,
            saved: saved()?,
            pushed: raw.fp_pushed,
            sp_set: raw.sp_set,
            saved_from: raw.saved_from,
            sp_reset: raw.sp_reset,
            epilogue_begin: raw.epilogue_begin,
            epilogue_end: raw.epilogue_end,
            signed,
        }),
        // SAFETY: the caller's promise.
        3 => return unsafe { rows(&raw) },
        4 => {
            if raw.eh_frame.is_null() {
                return Err(Error::Null);
            }
            // SAFETY: the caller's promise.
            let bytes = unsafe { slice::from_raw_parts(raw.eh_frame.cast::<u8>(), raw.eh_frame_size) };
            let addr = if raw.eh_frame_addr == 0 { bytes.as_ptr() as u64 } else { raw.eh_frame_addr };
            Unwind::EhFrame { bytes, addr }
        }
        _ => return Err(Error::Enum),
    };
    Ok(UnwindInput::Ready(ready))
}

/// The key with which the code signs its return address.
fn signed(raw: &jitsym_unwind) -> Result<Option<SigningKey>> {
    const A: u32 = jitsym_unwind_flag::JITSYM_UNWIND_PACIASP as u32;
    const B: u32 = jitsym_unwind_flag::JITSYM_UNWIND_PACIBSP as u32;
    check_flags(raw.flags, if matches!(raw.kind, 1 | 2) { A | B } else { 0 })?;
    match raw.flags {
        0 => Ok(None),
        A => Ok(Some(SigningKey::A)),
        B => Ok(Some(SigningKey::B)),
        _ => Err(Error::Flags.because("JITSYM_UNWIND_PACIASP and JITSYM_UNWIND_PACIBSP exclude each other", [])),
    }
}

/// # Safety
/// The pointers in `raw` are valid, as the header demands.
unsafe fn rows<'a>(raw: &jitsym_unwind) -> Result<UnwindInput<'a>> {
    // SAFETY: the caller's promise.
    let array = unsafe { Array::new(raw.rows, raw.row_count as usize, raw.row_size)? };
    let row = |index| {
        let row: jitsym_unwind_row = array.get(index).ok_or(Error::StructSize)?;
        // SAFETY: the caller's promise.
        let saved = unsafe { saved_registers(row.saved, row.saved_count)? };
        Ok(UnwindRow { offset: row.offset, cfa_register: row.cfa_reg, cfa_offset: row.cfa_offset, saved })
    };
    if array.count > FEW_ROWS {
        let mut rows = Vec::new();
        rows.try_reserve_exact(array.count).map_err(|_| Error::NoMemory)?;
        for index in 0..array.count {
            rows.push(row(index)?);
        }
        return Ok(UnwindInput::Rows(rows));
    }
    let mut few = [UnwindRow { offset: 0, cfa_register: 0, cfa_offset: 0, saved: &[] }; FEW_ROWS];
    for (index, place) in few[..array.count].iter_mut().enumerate() {
        *place = row(index)?;
    }
    Ok(UnwindInput::FewRows(few, array.count))
}

/// # Safety
/// `start` is NULL or points to `count` entries.
unsafe fn saved_registers<'a>(start: *const jitsym_saved_register, count: u32) -> Result<&'a [SavedRegister]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(start.cast(), count as usize) })
}

impl UnwindInput<'_> {
    /// Returns this description as an `Unwind` of the Rust API.
    pub fn as_unwind(&self) -> Unwind<'_> {
        match self {
            UnwindInput::Ready(unwind) => *unwind,
            UnwindInput::FewRows(rows, count) => Unwind::Rows(&rows[..*count]),
            UnwindInput::Rows(rows) => Unwind::Rows(rows),
        }
    }
}
