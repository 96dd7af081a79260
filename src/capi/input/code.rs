//! `jitsym_code` with its lines and inlined functions, and `jitsym_move_target`.

use std::cell::Cell;
use std::ffi::{c_char, c_void, CStr};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use super::unwind::RawUnwind;
use super::{check_flags, field, name, read, Array, Plain};
use crate::api::code::{Bytes, Code, Inline, Line, LineTable, Lines, MoveTarget};
use crate::api::error::{Error, Result};
use crate::capi::types::*;

// SAFETY: integers and raw pointers only, here and below.
unsafe impl Plain for jitsym_code {
    const FIRST_SIZE: usize = std::mem::offset_of!(jitsym_code, inlines);
}
// SAFETY: as above.
unsafe impl Plain for jitsym_move_target {}

// SAFETY: as above.
unsafe impl Plain for jitsym_line {}
// SAFETY: as above.
unsafe impl Plain for jitsym_inline {}

const STABLE: u32 = jitsym_code_flag::JITSYM_CODE_STABLE as u32;
const PACKED: u32 = jitsym_code_flag::JITSYM_CODE_PACKED as u32;

#[inline(always)]
fn check_code_flags(flags: u32, known: u32, reserved: u32) -> Result<()> {
    check_flags(flags & !known | reserved, 0)
}

/// A `jitsym_code` of this version's size: the caller's own, or a copy in `place`. Nearly every caller's is of that size, and is
/// not copied: its fields go to their places directly.
///
/// # Safety
/// As `read`.
#[inline(always)]
pub unsafe fn locate(from: *const jitsym_code, place: &mut MaybeUninit<jitsym_code>) -> Result<*const jitsym_code> {
    // SAFETY: the caller's promise; the size is the first field.
    if !from.is_null() && unsafe { from.cast::<usize>().read_unaligned() } == size_of::<jitsym_code>() {
        return Ok(from);
    }
    // SAFETY: the caller's promise.
    Ok(place.write(unsafe { read(from)? }))
}

/// Checks that the data of a `jitsym_code` can be read, and returns its line table.
///
/// # Safety
/// `from` is what `locate` returned, and every pointer in the struct is valid for what the header says.
#[inline(always)]
pub unsafe fn check_code<'a>(from: *const jitsym_code) -> Result<LineInput<'a>> {
    // SAFETY: the caller's promise, for all fields.
    let (flags, reserved, size) = unsafe { (field!(from, flags), field!(from, reserved), field!(from, size)) };
    check_code_flags(flags, STABLE | PACKED, reserved)?;
    if size == 0 {
        return Err(Error::SizeZero);
    }
    if size > jitsym_limit::JITSYM_CODE_SIZE_MAX as u64 {
        return Err(Error::TooLarge);
    }
    // SAFETY: the caller's promise.
    let rows = unsafe { Array::new(field!(from, lines), field!(from, line_count), field!(from, line_size))? };
    Ok(LineInput { rows, last_file: Cell::new((ptr::null(), 0)) })
}

/// The inlined functions of a `jitsym_code`.
///
/// # Safety
/// As `check_code`.
#[inline(always)]
pub unsafe fn inlines<'a>(from: *const jitsym_code) -> Result<Vec<Inline<'a>>> {
    // SAFETY: the caller's promise.
    if unsafe { field!(from, inline_count) } == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    unsafe { some_inlines(from) }
}

/// # Safety
/// As `check_code`.
#[cold]
#[inline(never)]
unsafe fn some_inlines<'a>(from: *const jitsym_code) -> Result<Vec<Inline<'a>>> {
    // SAFETY: the caller's promise.
    let array = unsafe { Array::new(field!(from, inlines), field!(from, inline_count), field!(from, inline_size))? };
    let mut all = Vec::new();
    all.try_reserve_exact(array.count).map_err(|_| Error::NoMemory)?;
    for index in 0..array.count {
        let raw: jitsym_inline = array.get(index).ok_or(Error::StructSize)?;
        check_flags(raw.reserved, 0)?;
        all.push(Inline {
            begin: raw.begin,
            end: raw.end,
            // SAFETY: the caller's promise, here and below.
            name: unsafe { name(raw.name, raw.name_len) },
            // SAFETY: as above.
            call_file: unsafe { name(raw.call_file, 0) },
            call_line: raw.call_line,
            call_column: raw.call_column,
            parent: (raw.parent != u32::MAX).then_some(raw.parent),
        });
    }
    Ok(all)
}

/// The same as the Rust API has it.
///
/// # Safety
/// As `check_code`, which has found nothing wrong.
#[inline(always)]
pub unsafe fn code<'a>(
    from: *const jitsym_code,
    lines: &'a LineInput<'a>,
    inlines: &'a [Inline<'a>],
) -> Code<'a, RawUnwind<'a>> {
    // SAFETY: the caller's promise, for all fields and for what the pointers among them point to.
    unsafe {
        let size = field!(from, size);
        Code {
            addr: field!(from, addr),
            size,
            name: name(field!(from, name), field!(from, name_len)),
            bytes: bytes(field!(from, bytes), size),
            unwind: RawUnwind { from: field!(from, unwind), what: PhantomData },
            lines: if lines.rows.count == 0 { Lines::Rows(&[]) } else { Lines::Table(lines) },
            inlines,
            free_after: field!(from, free_after),
            stable: field!(from, flags) & STABLE != 0,
            packed: field!(from, flags) & PACKED != 0,
        }
    }
}

/// A line table of C.
pub struct LineInput<'a> {
    rows: Array<'a, jitsym_line>,
    /// The last file name and its length: most rows have the same one as the row before.
    last_file: Cell<(*const c_char, usize)>,
}

impl LineTable for LineInput<'_> {
    fn len(&self) -> usize {
        self.rows.count
    }

    fn row(&self, index: usize) -> Result<Line<'_>> {
        let raw = self.rows.get(index).ok_or(Error::LineFile)?;
        check_flags(raw.reserved, 0)?;
        if raw.file.is_null() {
            return Err(Error::LineFile);
        }
        let (last, mut len) = self.last_file.get();
        if raw.file != last {
            // SAFETY: that it ends with a NUL and lives as long as the call is the caller's promise.
            len = unsafe { CStr::from_ptr(raw.file) }.to_bytes().len();
            self.last_file.set((raw.file, len));
        }
        // SAFETY: as above.
        let file = unsafe { slice::from_raw_parts(raw.file.cast::<u8>(), len) };
        Ok(Line { offset: raw.offset, line: raw.line, column: raw.column, file })
    }
}

/// # Safety
/// `start` is NULL or points to `size` readable bytes.
unsafe fn bytes<'a>(start: *const c_void, size: u64) -> Bytes<'a> {
    if start.is_null() {
        Bytes::AtAddress
    } else {
        // SAFETY: the caller's promise.
        Bytes::Here(unsafe { slice::from_raw_parts(start.cast(), size as usize) })
    }
}

/// `jitsym_move_target` for code of `size` bytes.
///
/// # Safety
/// As `read`, and `bytes` in it is NULL or points to `size` readable bytes.
pub unsafe fn move_target<'a>(from: *const jitsym_move_target, size: u64) -> Result<MoveTarget<'a>> {
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    check_code_flags(raw.flags, STABLE, raw.reserved)?;
    let stable = raw.flags & STABLE != 0;
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(raw.bytes, size) };
    Ok(MoveTarget { addr: raw.addr, bytes, free_after: raw.free_after, stable })
}
