//! Reads `jitsym_code`, with its lines and inlined functions, and `jitsym_move_target` from C.

use std::cell::Cell;
use std::ffi::{c_char, c_void, CStr};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{mem, ptr, slice};

use super::unwind::{template, unwind};
use super::{check_flags, field, name, read, size_of_element, size_of_struct, Array, Plain};
use crate::api::code::{Bytes, Code, Inline, Line, LineTable, Lines, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::limits::NAME_MAX;
use crate::capi::types::*;
use crate::format::jitdump::{put_debug, UnwindingTemplate};
use crate::format::name_and_file::Composed;
use crate::format::unwind::Cache;
use crate::session::{check_range, Given};

// SAFETY: here and below, every field is an integer or a raw pointer.
unsafe impl Plain for jitsym_code {
    const FIRST_SIZE: usize = std::mem::offset_of!(jitsym_code, inlines);
    const TOO_SMALL: &'static str = size_of_struct!("jitsym_code", "JITSYM_CODE()");
}
// SAFETY: as above.
unsafe impl Plain for jitsym_move_target {
    const TOO_SMALL: &'static str = size_of_struct!("jitsym_move_target", "JITSYM_MOVE_TARGET()");
}

// SAFETY: as above.
unsafe impl Plain for jitsym_line {
    const TOO_SMALL: &'static str = size_of_element!("jitsym_line", "jitsym_code.line_size");
}
// SAFETY: as above.
unsafe impl Plain for jitsym_inline {
    const TOO_SMALL: &'static str = size_of_element!("jitsym_inline", "jitsym_code.inline_size");
}

const STABLE: u32 = jitsym_code_flag::JITSYM_CODE_STABLE as u32;
const MORE: u32 = jitsym_code_flag::JITSYM_CODE_MORE as u32;
const GAP: u32 = jitsym_code_flag::JITSYM_CODE_GAP as u32;

#[inline(always)]
fn check_code_flags(flags: u32, known: u32, reserved: u32) -> Result<()> {
    check_flags(flags & !known | reserved, 0)
}

/// A pointer to a `jitsym_code` of this version's size. The code that makes a `CodeInput` promises that the struct and
/// the data that its pointers refer to are valid, as the header demands.
///
/// The library does not copy the struct, but reads each field where it is needed.
#[derive(Clone, Copy)]
pub struct CodeInput<'a>(*const jitsym_code, PhantomData<&'a jitsym_code>);

/// Returns the caller's own `jitsym_code`, or a copy in `place` if the size of the caller's struct is not this
/// version's size.
///
/// # Safety
/// `from` fulfils the conditions of `read`. Every pointer in the struct is valid, as the header demands.
#[inline(always)]
pub unsafe fn code<'a>(from: *const jitsym_code, place: &'a mut MaybeUninit<jitsym_code>) -> Result<CodeInput<'a>> {
    // SAFETY: by the caller's promise the struct is readable. The first field of the struct is the struct's size.
    let from = if !from.is_null() && unsafe { from.cast::<usize>().read_unaligned() } == size_of::<jitsym_code>() {
        from
    } else {
        // SAFETY: the caller's promise.
        place.write(unsafe { read(from)? })
    };
    Ok(CodeInput(from, PhantomData))
}

impl<'a> CodeInput<'a> {
    /// Runs `body` with this code as a `Code` of the Rust API. Fails without calling `body` if the input is invalid.
    pub fn with_code<T>(self, body: impl FnOnce(&Code<'_>) -> Result<T>) -> Result<T> {
        // SAFETY: all fields and the data that they point to are valid (see `CodeInput`).
        let code = unsafe { self.0.read_unaligned() };
        check_code_flags(code.flags, STABLE | MORE | GAP, code.reserved | code.reserved2)?;
        check_range(code.addr, code.size)?;
        let lines = self.lines()?;
        // SAFETY: as above.
        unsafe {
            let inlines = inlines(&code)?;
            let unwind = unwind(code.unwind)?;
            body(&Code {
                addr: code.addr,
                size: code.size,
                name: name(code.name, code.name_len),
                file: name(code.file, 0),
                line: code.line,
                bytes: bytes(code.bytes, code.size),
                unwind: unwind.as_unwind(),
                lines: if lines.rows.count == 0 { Lines::Rows(&[]) } else { Lines::Table(&lines) },
                inlines: &inlines,
                stable: code.flags & STABLE != 0,
                more: code.flags & MORE != 0,
                gap: code.flags & GAP != 0,
            })
        }
    }

    /// Whether the caller registers more code before any of the code runs (`JITSYM_CODE_MORE`).
    pub fn more(&self) -> bool {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, flags) & MORE != 0 }
    }

    /// Whether the code has a file. The registered name of code with a file is composed of the code's name, file and line.
    #[inline(always)]
    pub fn has_file(&self) -> bool {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { !field!(self.0, file).is_null() }
    }

    /// Runs `body` with an equivalent `jitsym_code` that has the composed name and no file. If the code has no line table, and
    /// `jitsym_code.line` is not 0, the line table gets this line as its only row. Returns `None` if the code needs the slow
    /// path (`is_usual` is false), if the file is empty, or if the name or the file has to be cleaned or cut. After `None`, the
    /// caller has to use `with_code`, which also cleans and counts names and files.
    #[inline(never)]
    pub fn with_name<T>(self, body: impl FnOnce(CodeInput<'_>) -> T) -> Option<T> {
        // SAFETY: here and below, the struct and all data that it points to are valid (see `CodeInput`).
        let mut raw = unsafe { self.0.read_unaligned() };
        let file = mem::replace(&mut raw.file, ptr::null());
        if !self.is_usual() {
            return None;
        }
        let mut composed = Composed::default();
        // SAFETY: as above.
        composed.compose(self.name(), raw.addr, unsafe { name(file, 0) }, raw.line);
        let name = composed.get();
        if composed.file().is_empty() || composed.is_changed() || name.len() > NAME_MAX {
            return None;
        }
        let row = jitsym_line { offset: 0, line: raw.line, column: 0, reserved: 0, file };
        if raw.line_count == 0 && raw.line != 0 {
            (raw.lines, raw.line_count, raw.line_size) = (&row, 1, size_of::<jitsym_line>());
        }
        (raw.name, raw.name_len) = (name.as_ptr().cast(), name.len());
        Some(body(CodeInput(&raw, PhantomData)))
    }

    /// The line table.
    fn lines(&self) -> Result<LineInput<'a>> {
        let from = self.0;
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        let rows = unsafe { Array::new(field!(from, lines), field!(from, line_count), field!(from, line_size))? };
        Ok(LineInput { rows, last_file: Cell::new((ptr::null(), 0)) })
    }
}

impl Given for CodeInput<'_> {
    #[inline(always)]
    fn is_usual(&self) -> bool {
        let from = self.0;
        // SAFETY: here and below, the struct and all data that it points to are valid (see `CodeInput`).
        let (flags, reserved) = unsafe { (field!(from, flags), field!(from, reserved) | field!(from, reserved2)) };
        // SAFETY: as above.
        let (bytes, inline_count) = unsafe { (field!(from, bytes), field!(from, inline_count)) };
        flags & !(MORE | GAP) | reserved == 0 && !bytes.is_null() && inline_count == 0
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, addr) }
    }

    #[inline(always)]
    fn size(&self) -> u64 {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, size) }
    }

    #[inline(always)]
    fn name(&self) -> &[u8] {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { name(field!(self.0, name), field!(self.0, name_len)) }
    }

    #[inline(always)]
    fn bytes(&self) -> *const u8 {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, bytes) }.cast()
    }

    #[inline(always)]
    fn template<'c>(&self, cache: &'c mut Cache, addr: u64, size: u64) -> Result<Option<&'c UnwindingTemplate>> {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { template(field!(self.0, unwind), cache, addr, size) }
    }

    #[inline(always)]
    fn has_gap(&self) -> bool {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, flags) & GAP != 0 }
    }

    #[inline(always)]
    fn line_count(&self) -> usize {
        // SAFETY: the struct and all data that it points to are valid (see `CodeInput`).
        unsafe { field!(self.0, line_count) }
    }

    #[inline(never)]
    fn put_lines(&self, size: u64, out: &mut [u8]) -> Option<usize> {
        put_debug(Lines::Table(&self.lines().ok()?), self.addr(), size, 0, out).ok().flatten()
    }
}

/// Runs `body` with a `Code` that has the name, the file, the lines and the flag `JITSYM_CODE_MORE` of a caller's
/// `jitsym_code`. Refuses a `jitsym_code` with other data.
///
/// # Safety
/// `from` fulfils the conditions of `read`. Every pointer in the struct is valid, as the header demands.
pub unsafe fn named<T>(from: *const jitsym_code, body: impl FnOnce(&Code<'_>) -> Result<T>) -> Result<T> {
    // SAFETY: the caller's promise.
    let code = unsafe { read(from)? };
    check_code_flags(code.flags, MORE, code.reserved | code.reserved2)?;
    let counts = [code.inline_count, code.bytes as usize, code.unwind as usize];
    let others = [code.addr, code.size, code.inlines as u64];
    if counts.iter().any(|&count| count != 0) || others.iter().any(|&other| other != 0) {
        return Err(Error::Flags.because("jitsym_code of a trampoline has more than a name, file, lines and flags", []));
    }
    let lines = CodeInput(&code, PhantomData).lines()?;
    // SAFETY: the caller's promise.
    let (name, file) = unsafe { (name(code.name, code.name_len), name(code.file, 0)) };
    let (line, more) = (code.line, code.flags & MORE != 0);
    body(&Code { name, file, line, lines: Lines::Table(&lines), more, ..Code::new(0, 0, "") })
}

/// Whether the caller unmaps the range next (`JITSYM_RANGE_UNMAP`). Refuses unknown flags.
pub fn range_flags(flags: u32) -> Result<bool> {
    let unmap = jitsym_range_flag::JITSYM_RANGE_UNMAP as u32;
    check_flags(flags, unmap)?;
    Ok(flags & unmap != 0)
}

/// Reads the inlined functions of a `jitsym_code`.
///
/// # Safety
/// Every pointer in the struct is valid, as the header demands.
unsafe fn inlines<'a>(code: &jitsym_code) -> Result<Vec<Inline<'a>>> {
    // SAFETY: the caller's promise.
    let array = unsafe { Array::new(code.inlines, code.inline_count, code.inline_size)? };
    let mut all = Vec::new();
    all.try_reserve_exact(array.count).map_err(|_| Error::NoMemory)?;
    for index in 0..array.count {
        let raw: jitsym_inline = array.get(index).ok_or(Error::StructSize)?;
        check_flags(raw.reserved, 0)?;
        all.push(Inline {
            begin: raw.begin,
            end: raw.end,
            // SAFETY: here and below, the pointers are valid, as the caller promises.
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

/// A line table that C has passed.
pub struct LineInput<'a> {
    rows: Array<'a, jitsym_line>,
    /// The file name of the last row, and its length. Most rows have the same file as the row before, so the length is rarely
    /// computed.
    last_file: Cell<(*const c_char, usize)>,
}

impl LineTable for LineInput<'_> {
    fn len(&self) -> usize {
        self.rows.count
    }

    fn row(&self, index: usize) -> Result<Line<'_>> {
        let raw = self.rows.get(index).ok_or(Error::LineFile)?;
        check_flags(raw.reserved, 0)?;
        if raw.file.is_null() | (raw.line == 0) {
            // A row whose line is 0 is left out later. A row that has a line but no file is refused later.
            return Ok(Line { offset: raw.offset, line: raw.line, column: raw.column, file: &[] });
        }
        let (last, mut len) = self.last_file.get();
        if raw.file != last {
            // SAFETY: the caller promises that the text ends with a NUL and lives as long as the call.
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

/// Reads a `jitsym_move_target` for code of `size` bytes.
///
/// # Safety
/// `from` fulfils the conditions of `read`. The field `bytes` is NULL or points to `size` readable bytes.
pub unsafe fn move_target<'a>(from: *const jitsym_move_target, size: u64) -> Result<MoveTarget<'a>> {
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    check_code_flags(raw.flags, STABLE | GAP, raw.reserved)?;
    let (stable, gap) = (raw.flags & STABLE != 0, raw.flags & GAP != 0);
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(raw.bytes, size) };
    Ok(MoveTarget { addr: raw.addr, bytes, stable, gap })
}
