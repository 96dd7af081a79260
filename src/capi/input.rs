//! What C hands over, checked and turned into the types of the Rust API.
//!
//! No reference to a foreign struct is ever made: it is copied byte by byte, as far as its `struct_size` says, over a struct of
//! zeros, so a caller compiled against an older or a newer header is understood.

use std::cell::Cell;
use std::ffi::{c_char, c_void, CStr, OsStr};
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use std::{ptr, slice};

use super::types::*;
use crate::api::code::{
    Bytes, Code, FramePointer, Inline, Line, LineTable, Lines, MoveTarget, SavedRegister, Unwind, UnwindRow,
};
use crate::api::error::{Error, Result};
use crate::api::options::Dialect;
use crate::api::options::{Fork, Options, Sinks};
use crate::format::unwind::{self, Cache};
use crate::queue::status::{with_counters, Stats};
use crate::sink::region::RegionOptions;
use crate::sink::{self, KINDS};

/// Structs of integers and raw pointers that come from C; zero bytes are a valid value of each.
///
/// # Safety
/// Every field is an integer or a raw pointer.
unsafe trait Plain: Copy {
    /// Size of the struct in the first version of the header.
    const FIRST_SIZE: usize = size_of::<Self>();
}

// SAFETY: integers and raw pointers only, here and below.
unsafe impl Plain for jitsym_options {
    const FIRST_SIZE: usize = std::mem::offset_of!(jitsym_options, map_max);
}
// SAFETY: as above.
unsafe impl Plain for jitsym_code {
    const FIRST_SIZE: usize = std::mem::offset_of!(jitsym_code, inlines);
}
// SAFETY: as above.
unsafe impl Plain for jitsym_move_target {}
// SAFETY: as above.
unsafe impl Plain for jitsym_unwind {}
// SAFETY: as above.
unsafe impl Plain for jitsym_unwind_row {}
// SAFETY: as above.
unsafe impl Plain for jitsym_line {}
// SAFETY: as above.
unsafe impl Plain for jitsym_inline {}

/// Copies a struct of `size` bytes; what this version does not know of must be zero.
///
/// # Safety
/// `from` points to `size` readable bytes.
#[inline(always)]
unsafe fn copy<T: Plain>(from: *const u8, size: usize) -> Result<T> {
    if size == size_of::<T>() {
        // What nearly every caller has.
        // SAFETY: the caller's promise; any bytes are valid for integers and raw pointers.
        return Ok(unsafe { from.cast::<T>().read_unaligned() });
    }
    // SAFETY: the caller's promise.
    unsafe { copy_other(from, size) }
}

/// # Safety
/// As `copy`.
#[cold]
#[inline(never)]
unsafe fn copy_other<T: Plain>(from: *const u8, size: usize) -> Result<T> {
    if size < T::FIRST_SIZE {
        return Err(Error::StructSize);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise.
    let tail = unsafe { slice::from_raw_parts(from.add(known), size - known) };
    if tail.iter().any(|&byte| byte != 0) {
        return Err(Error::StructTail);
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are readable there and fit here; the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(from, value.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: all bytes are initialised, and any are valid for integers and raw pointers.
    Ok(unsafe { value.assume_init() })
}

/// Copies a struct that begins with its size.
///
/// # Safety
/// `from` is NULL or points to a `size_t` and as many readable bytes as it says.
#[inline(always)]
unsafe fn read<T: Plain>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Err(Error::Null);
    }
    // A size above this is a mistake, and its tail is not looked at.
    const LARGEST: usize = 4096;
    // SAFETY: the caller's promise; the size is the first field of every struct that is read this way.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size > LARGEST {
        return Err(Error::StructTail);
    }
    // SAFETY: the caller's promise.
    unsafe { copy(from.cast(), size) }
}

fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(Error::Flags)
    }
}

/// `jitsym_options`, or the defaults for NULL.
///
/// # Safety
/// As `read`; strings in it are NULL or end with a NUL.
pub unsafe fn options(from: *const jitsym_options) -> Result<Options> {
    if from.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    // 8 and 16 are no flags any more.
    check_flags(raw.flags, (2 * jitsym_init_flag::JITSYM_INIT_ADOPT as u32 - 1) & !(8 | 16))?;
    check_flags(raw.sinks, sink::every().0)?;
    check_flags(raw.file_mode, 0o777)?;
    check_flags(raw.reserved, 0)?;
    let map_dialect = match raw.map_dialect {
        0 => Dialect::Perf,
        1 => Dialect::Simpleperf,
        _ => return Err(Error::Enum),
    };
    let has = |flag: jitsym_init_flag| raw.flags & flag as u32 != 0;
    Ok(Options {
        sinks: (raw.sinks != 0).then_some(Sinks(raw.sinks)),
        env_wins: has(jitsym_init_flag::JITSYM_INIT_ENV_WINS),
        off_by_default: has(jitsym_init_flag::JITSYM_INIT_OFF_BY_DEFAULT),
        no_unwind: has(jitsym_init_flag::JITSYM_INIT_NO_UNWIND),
        drop_when_full: has(jitsym_init_flag::JITSYM_INIT_DROP_WHEN_FULL),
        no_spool: has(jitsym_init_flag::JITSYM_INIT_NO_SPOOL),
        recover: has(jitsym_init_flag::JITSYM_INIT_RECOVER),
        fork: match (has(jitsym_init_flag::JITSYM_INIT_FORK_NOW), has(jitsym_init_flag::JITSYM_INIT_FORK_ALONE)) {
            (true, true) => return Err(Error::Flags),
            (true, false) => Some(Fork::AtOnce),
            (false, true) => Some(Fork::Alone),
            (false, false) => None,
        },
        remove_files: has(jitsym_init_flag::JITSYM_INIT_REMOVE_FILES),
        remember: has(jitsym_init_flag::JITSYM_INIT_REMEMBER),
        adopt: has(jitsym_init_flag::JITSYM_INIT_ADOPT),
        map_max: (raw.map_max != 0).then_some(raw.map_max),
        jitdump_max: (raw.jitdump_max != 0).then_some(raw.jitdump_max),
        // SAFETY: the caller's promise.
        map_dir: unsafe { path(raw.map_dir) },
        // SAFETY: the caller's promise.
        jitdump_dir: unsafe { path(raw.jitdump_dir) },
        map_dialect,
        file_mode: (raw.file_mode != 0).then_some(raw.file_mode),
        max_memory: (raw.max_memory != 0).then_some(raw.max_memory),
        max_wait: (raw.max_wait_ms != 0).then(|| Duration::from_millis(raw.max_wait_ms.into())),
        // SAFETY: the caller's promise.
        spool_dir: unsafe { path(raw.spool_dir) },
    })
}

/// # Safety
/// `text` is NULL or ends with a NUL.
unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes())))
}

/// A single sink.
pub fn sink(bit: u32) -> Result<Sinks> {
    KINDS.iter().map(|kind| kind.bit).find(|known| known.0 == bit).ok_or(Error::Enum)
}

/// A set of sinks; `None` if it is empty.
pub fn sinks(bits: u32) -> Result<Option<Sinks>> {
    check_flags(bits, sink::every().0)?;
    Ok((bits != 0).then_some(Sinks(bits)))
}

/// An array of structs that may be larger or smaller than ours.
#[derive(Clone, Copy)]
struct Array<'a, T> {
    start: *const u8,
    count: usize,
    stride: usize,
    element: PhantomData<&'a T>,
}

impl<T: Plain> Array<'_, T> {
    /// # Safety
    /// `start` is NULL or points to `count` elements of `stride` bytes, or of the first version's size if that is 0.
    #[inline(always)]
    unsafe fn new(start: *const T, count: usize, stride: usize) -> Result<Self> {
        let stride = if stride == 0 { T::FIRST_SIZE } else { stride };
        if count > 0 && start.is_null() {
            return Err(Error::Null);
        }
        let array = Array { start: start.cast(), count, stride, element: PhantomData };
        if count > 0 && stride != size_of::<T>() {
            // Sizes and tails once and for all, so that `get` cannot fail.
            for index in 0..count {
                // SAFETY: the caller's promise.
                unsafe { copy::<T>(array.element(index), stride)? };
            }
        }
        Ok(array)
    }

    fn element(&self, index: usize) -> *const u8 {
        // SAFETY: `index` is below `count` at each use, and so the element inside the array.
        unsafe { self.start.add(index * self.stride) }
    }

    fn get(&self, index: usize) -> Option<T> {
        // SAFETY: `new` was promised that the array is there; it has checked sizes and tails.
        (index < self.count).then(|| unsafe { copy(self.element(index), self.stride).ok() }).flatten()
    }
}

/// Reads one field of a struct behind a pointer, which may be unaligned.
macro_rules! field {
    ($from:expr, $field:ident) => {
        (&raw const (*$from).$field).read_unaligned()
    };
}

/// A `jitsym_code` of this version's size: where the caller has it, or a copy in `place`. What nearly every caller has is not
/// copied, because its fields go to their places directly.
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

/// Checks a `jitsym_code` as far as what it points to can be read, and returns its line table.
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

/// A `jitsym_unwind` that is decoded if it is not the one that was used last. May be NULL.
#[derive(Clone, Copy)]
pub struct RawUnwind<'a> {
    from: *const jitsym_unwind,
    what: PhantomData<&'a jitsym_unwind>,
}

impl unwind::Source for RawUnwind<'_> {
    #[inline(always)]
    fn tables<'c>(&self, cache: &'c mut Cache, code_addr: u64, code_size: u64) -> Result<Option<(&'c [u8], usize)>> {
        if self.from.is_null() {
            return Ok(None);
        }
        // SAFETY: whoever made this value promised that the struct is there; the size is its first field.
        let known_size = unsafe { self.from.cast::<usize>().read_unaligned() } == size_of::<jitsym_unwind>();
        // SAFETY: as above; the struct is as large, and bytes need no alignment.
        if known_size && cache.is_recent(unsafe { &*self.from.cast::<unwind::Raw>() }) {
            // SAFETY: as above. The last one was good, and this is the same but perhaps for what it points to.
            let saved = unsafe { saved_registers(field!(self.from, saved), field!(self.from, saved_count))? };
            if cache.recent_is_for(saved, code_size) {
                return cache.recent_tables(code_size);
            }
        }
        decode_and_encode(self.from, cache, code_addr, code_size)
    }
}

#[cold]
#[inline(never)]
fn decode_and_encode(
    from: *const jitsym_unwind,
    cache: &mut Cache,
    code_addr: u64,
    code_size: u64,
) -> Result<Option<(&[u8], usize)>> {
    // SAFETY: whoever made the `RawUnwind` promised that the struct is there, and all that it points to.
    let (raw, input) = unsafe { (read(from)?, unwind(from)?) };
    // Rows and sections lie elsewhere and are compared in the cache, by their contents. Code that ends where the epilogue does
    // has other tables than code that goes on, and so has code that ends where the epilogue would begin.
    let any_larger = raw.epilogue_end == 0 && u64::from(raw.epilogue_begin) != code_size;
    if matches!(raw.kind, 1 | 2) && any_larger {
        cache.tables(&input.as_unwind(), code_addr, code_size)?;
        // SAFETY: the type is as large, and the struct is of integers and pointers without padding.
        let words: unwind::Raw = unsafe { mem::transmute::<jitsym_unwind, unwind::Raw>(raw) };
        // SAFETY: as above.
        cache.remember(&words, unsafe { saved_registers(raw.saved, raw.saved_count)? }, code_size);
    }
    cache.tables(&input.as_unwind(), code_addr, code_size)
}

const STABLE: u32 = jitsym_code_flag::JITSYM_CODE_STABLE as u32;
const PACKED: u32 = jitsym_code_flag::JITSYM_CODE_PACKED as u32;

#[inline(always)]
fn check_code_flags(flags: u32, known: u32, reserved: u32) -> Result<()> {
    check_flags(flags & !known | reserved, 0)
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
/// `start` is NULL, or points to `len` bytes, or to a NUL-terminated string if `len` is 0.
unsafe fn name<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    if len == 0 {
        // SAFETY: the caller's promise.
        return unsafe { CStr::from_ptr(start) }.to_bytes();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start.cast(), len) }
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

/// A checked `jitsym_unwind`: rows have to be kept, because they are laid out differently.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack, for the time of a call")]
pub enum UnwindInput<'a> {
    Ready(Unwind<'a>),
    /// As most are: not worth an allocation.
    FewRows([UnwindRow<'a>; FEW_ROWS], usize),
    Rows(Vec<UnwindRow<'a>>),
}

const FEW_ROWS: usize = 16;

/// # Safety
/// As `read`, and every pointer in the struct is valid for what the header says. NULL is no description.
pub unsafe fn unwind<'a>(from: *const jitsym_unwind) -> Result<UnwindInput<'a>> {
    if from.is_null() {
        return Ok(UnwindInput::Ready(Unwind::None));
    }
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    check_flags(raw.flags, 0)?;
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
        }),
        2 => Unwind::FixedFrame { cfa_offset: raw.cfa_offset, saved: saved()? },
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

/// # Safety
/// The pointers in `raw` are valid for what the header says.
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
        return (0..array.count).map(row).collect::<Result<_>>().map(UnwindInput::Rows);
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
    /// The same as the Rust API has it.
    pub fn as_unwind(&self) -> Unwind<'_> {
        match self {
            UnwindInput::Ready(unwind) => *unwind,
            UnwindInput::FewRows(rows, count) => Unwind::Rows(&rows[..*count]),
            UnwindInput::Rows(rows) => Unwind::Rows(rows),
        }
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

// SAFETY: integers only.
unsafe impl Plain for jitsym_region_options {}

/// `jitsym_region_options`.
///
/// # Safety
/// As `read`.
pub unsafe fn region(from: *const jitsym_region_options) -> Result<RegionOptions> {
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    let (one_view, huge) =
        (jitsym_region_flag::JITSYM_REGION_ONE_VIEW as u32, jitsym_region_flag::JITSYM_REGION_HUGE_PAGES as u32);
    check_flags(raw.flags, one_view | huge)?;
    check_flags(raw.reserved, 0)?;
    Ok(RegionOptions {
        size: raw.size,
        max_size: raw.max_size,
        alignment: raw.alignment,
        near: raw.near_addr,
        one_view: raw.flags & one_view != 0,
        huge: raw.flags & huge != 0,
    })
}

/// How much of a `jitsym_region` the caller has.
///
/// # Safety
/// `out` is NULL or points to a readable `size_t`.
pub unsafe fn region_size(out: *mut jitsym_region) -> Result<usize> {
    if out.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller's promise; the size is the first field.
    let size = unsafe { out.cast::<usize>().read_unaligned() };
    if size < size_of::<jitsym_region>() {
        return Err(Error::StructSize);
    }
    Ok(size)
}

// SAFETY: integers only.
unsafe impl Plain for jitsym_stats {}

/// Fills in `jitsym_stats`, as much of it as the caller has.
///
/// # Safety
/// `out` is NULL or points to as many writable bytes as its `struct_size` says.
pub unsafe fn write_stats(out: *mut jitsym_stats, stats: &Stats) -> Result<()> {
    if out.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller's promise; the size is the first field.
    let size = unsafe { out.cast::<usize>().read_unaligned() };
    if size < std::mem::offset_of!(jitsym_stats, jitdump_lost) {
        return Err(Error::StructSize);
    }
    macro_rules! in_c {
        ($($name:ident)*) => {
            jitsym_stats {
                struct_size: size,
                sinks_running: stats.sinks_running.0,
                sinks_failed: stats.sinks_failed.0,
                memory: stats.memory,
                memory_held: stats.memory_held,
                spool: stats.spool as u32,
                inherited: u32::try_from(stats.inherited).unwrap_or(u32::MAX),
                regions: stats.regions,
                $($name: stats.$name,)*
            }
        };
    }
    let stats = with_counters!(in_c);
    // SAFETY: the struct is at least that large; what a newer header has behind it is left alone.
    unsafe { ptr::copy_nonoverlapping((&raw const stats).cast::<u8>(), out.cast(), size.min(size_of_val(&stats))) };
    Ok(())
}

/// Copies text to a buffer, as much as fits between two characters, with a NUL behind it.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
pub unsafe fn write_text(text: &str, buf: *mut c_char, size: usize) -> Result<()> {
    let mut len = text.len().min(size.saturating_sub(1));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the caller's promise.
    unsafe { write_bytes(&text.as_bytes()[..len], buf, size) }
}

/// Copies bytes to a buffer, with a NUL behind them; fails if they do not fit.
///
/// # Safety
/// As `write_text`.
pub unsafe fn write_bytes(bytes: &[u8], buf: *mut c_char, size: usize) -> Result<()> {
    if buf.is_null() {
        return Err(Error::Null);
    }
    if bytes.len() >= size {
        return Err(Error::Buffer);
    }
    // SAFETY: the bytes and the NUL fit.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
        buf.add(bytes.len()).write(0);
    }
    Ok(())
}
