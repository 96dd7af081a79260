//! A piece of code: its lines, its inlined functions, and its new place after a move.

use std::ffi::{c_char, c_void};

use super::jitsym_unwind;

/// Bit flags of a piece of code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_code_flag {
    /// The call does not copy the bytes: keep them until a flush, move or unregistration.
    ///
    /// The flag is for large code, and for code that is never freed. The bytes must stay unchanged at their address until the
    /// flush, move or unregistration returns. Unregistering or moving this code waits for the writer, 10 seconds at most. If
    /// the process is killed before the writer has read the bytes, the recovered record has none.
    JITSYM_CODE_STABLE = 1,
    /// The host registers more code before this code runs, so the call waits for no sink.
    ///
    /// The next call without the flag, or `jitsym_flush`, waits until all earlier code is in the sinks that must get code
    /// before it runs (`jitsym_register`).
    JITSYM_CODE_MORE = 2,
    /// While this code is live, the next `JITSYM_CODE_GAP_SIZE` bytes have no other code.
    ///
    /// If the code's unwind tables fit into these bytes, `perf inject` maps them there, where perf 6 [needs
    /// them](after-recording.md#packed-code). Other code in the bytes would lose its name. A forked child must keep the bytes
    /// after inherited code free too. For moved code, set the flag in `jitsym_move_target.flags`.
    JITSYM_CODE_GAP = 4,
}

/// Bit flags of a range of code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_range_flag {
    /// The caller unmaps the memory next (`munmap`).
    ///
    /// Until all whole pages in the range are unmapped, no thread may access the memory. Without the flag, the library reads
    /// all mappings of the process to find ended regions. The flag has no effect in memory that only the library unmaps
    /// (`jitsym_alloc`, regions with two views).
    JITSYM_RANGE_UNMAP = 1,
}

/// One row of a line table. The code from `offset` up to the next row belongs to this line.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_line {
    /// Offset in the code in bytes, below the code's size. Rows may be in any order.
    ///
    /// Sorted rows cost least. Of rows with the same offset, only the last counts.
    pub offset: u32,
    /// Line number, from 1. A row with line 0 is left out (`jitsym_stats.lines_left_out`).
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Source file, NUL-terminated; preferably an absolute path, for `perf annotate`.
    pub file: *const c_char,
}

/// A range of code that was inlined from another function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_inline {
    /// Offset in the code, in bytes, of the first byte of the range.
    pub begin: u32,
    /// Offset in the code, in bytes, of the first byte after the range.
    ///
    /// `end` exceeds `begin`, and is at most the parent's `end` or, without a parent, the code's size. Ranges with the same
    /// parent must not overlap.
    pub end: u32,
    /// Name of the inlined function, cleaned like `jitsym_code.name`. The cleaned name must not be empty.
    pub name: *const c_char,
    /// Length of `name` in bytes; 0 if a NUL ends `name`.
    pub name_len: usize,
    /// Source file of the call, NUL-terminated; see `jitsym_line.file`.
    pub call_file: *const c_char,
    /// Line of the call, from 1.
    pub call_line: u32,
    /// Column of the call, from 1; 0 if unknown.
    pub call_column: u32,
    /// Index of the earlier entry that contains this entry. `UINT32_MAX`: none.
    pub parent: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// One piece of code. Every field except `struct_size`, `addr` and `size` may be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_code {
    /// `sizeof(jitsym_code)`.
    pub struct_size: usize,
    /// Address at which the code runs.
    pub addr: u64,
    /// Size in bytes, 1 to `JITSYM_CODE_SIZE_MAX`.
    pub size: u64,
    /// Name in UTF-8: cleaned, never refused. NULL or empty: `jit_ADDRESS`.
    ///
    /// Bytes that are not UTF-8 become U+FFFD, control characters become `_`, and white space at both ends is removed. Names of
    /// one or two bytes, which perf drops or demangles, get `()` appended.
    pub name: *const c_char,
    /// Length of `name` in bytes; 0 if a NUL ends `name`.
    pub name_len: usize,
    /// `size` readable bytes of code, at `addr` or in a writable view. NULL: the bytes at `addr`.
    ///
    /// For NULL, a system call reads the bytes: unreadable bytes become 0, and `jitsym_stats.unreadable` counts the call.
    pub bytes: *const c_void,
    /// How to unwind; NULL if unknown.
    pub unwind: *const jitsym_unwind,
    /// Line table; may be NULL if `line_count` is 0.
    pub lines: *const jitsym_line,
    /// Number of entries of `lines`.
    pub line_count: usize,
    /// `sizeof(jitsym_line)`; 0 stands for the size in version 0.1.
    pub line_size: usize,
    /// `JITSYM_CODE_*` bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Inlined functions (`jitsym_region.h`); may be NULL if `inline_count` is 0.
    ///
    /// Rows of `lines` have the innermost function's file and line
    /// ([docs/special-cases.md](special-cases.md#inlined-functions)). Profilers show inlined functions of code in regions, and
    /// of other code only with `JITSYM_JITDUMP_INLINES=1`.
    pub inlines: *const jitsym_inline,
    /// Number of entries of `inlines`.
    pub inline_count: usize,
    /// `sizeof(jitsym_inline)`; 0 stands for the size in version 0.1.
    pub inline_size: usize,
    /// File where the function begins, NUL-terminated; NULL if unknown.
    ///
    /// All readers except debuggers get the name `NAME FILE:LINE`, cut to `JITSYM_NAME_MAX` bytes. If `line_count` is 0, the
    /// line table gets one row at offset 0 with this file (preferably an absolute path) and line. The file is cleaned like
    /// `name`; an empty result counts as unknown.
    pub file: *const c_char,
    /// Line in `file`, from 1; 0 if unknown.
    ///
    /// With 0, the name becomes `NAME FILE`, without a row in the line table.
    pub line: u32,
    /// Must be 0.
    pub reserved2: u32,
}

/// The new address of code that has moved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_move_target {
    /// `sizeof(jitsym_move_target)`.
    pub struct_size: usize,
    /// Address at which the code runs now. The size stays the same.
    pub addr: u64,
    /// The code's bytes at the new address; see `jitsym_code.bytes`.
    pub bytes: *const c_void,
    /// `JITSYM_CODE_STABLE`, `JITSYM_CODE_GAP`, both or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}
