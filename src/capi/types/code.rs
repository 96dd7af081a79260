//! A piece of code: its lines, its inlined functions, and its new place after a move.

use std::ffi::{c_char, c_void};

use super::jitsym_unwind;

/// Bit flags of a piece of code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_code_flag {
    /// The call does not copy the bytes: keep them until a flush, move or unregistration.
    ///
    /// The flag is for large code, and for code that is never freed. The bytes must stay unchanged at their address until
    /// `jitsym_flush` has returned, or until `jitsym_unregister`, `jitsym_unregister_range` or `jitsym_move` has returned for
    /// this code. Calls that unregister or move code with this flag wait for the writer, 10 seconds at most. If the process is
    /// killed before the writer has read the bytes, the recovered record has no bytes.
    JITSYM_CODE_STABLE = 1,
    /// The host registers more code before this code runs, so the call waits for no sink.
    ///
    /// Without the flag, a call waits for sinks that must get the code before it runs (`jitsym_register`). The next call
    /// without the flag, or `jitsym_flush`, waits until these sinks have all code that was registered before.
    JITSYM_CODE_MORE = 2,
    /// While this code is live, the next `JITSYM_CODE_GAP_SIZE` bytes have no other code.
    ///
    /// `perf inject` maps the unwind tables of this code into the free bytes if the tables fit, because perf 6 [needs the
    /// tables there](after-recording.md#packed-code). Other code in these bytes would lose its name. A forked child that has
    /// inherited the code must keep the bytes free too. If the code moves, `jitsym_move_target.flags` says whether the bytes
    /// after the new address range stay free.
    JITSYM_CODE_GAP = 4,
}

/// Bit flags of a range of code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_range_flag {
    /// The caller unmaps the memory next (`munmap`).
    ///
    /// Until all whole pages in the range are unmapped, no thread may read, write or run the memory. Without the flag,
    /// the library reads all mappings of the process to notice that regions in the range no longer exist. The flag has
    /// no effect in memory that only the library unmaps: memory from `jitsym_alloc`, and regions with two views.
    JITSYM_RANGE_UNMAP = 1,
}

/// One row of a line table. The code from `offset` up to the next row belongs to this line.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_line {
    /// Offset in the code in bytes, less than the size of the code. Rows may be in any order.
    ///
    /// Sorted rows cost least. If two rows have the same offset, the row with the higher index is used.
    pub offset: u32,
    /// Line number, from 1. A row whose line is 0 is left out (`jitsym_stats.lines_left_out`).
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Source file, NUL-terminated; preferably an absolute path, for `perf annotate`.
    pub file: *const c_char,
}

/// A range of code that comes from another function, which the compiler has inlined.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_inline {
    /// Bytes from the start of the code to the first byte of the range.
    pub begin: u32,
    /// Bytes from the start of the code to the end of the range.
    ///
    /// `end` must be greater than `begin`, and at most the `end` of the parent or, without a parent, the size of the
    /// code. Two ranges with the same parent must have no byte in common.
    pub end: u32,
    /// Name of the inlined function, cleaned like `jitsym_code.name`. The cleaned name must not be empty.
    pub name: *const c_char,
    /// Length of `name` in bytes; 0 if a NUL ends `name`.
    pub name_len: usize,
    /// Source file of the inlined call, NUL-terminated; see `jitsym_line.file`.
    pub call_file: *const c_char,
    /// Line of the inlined call, from 1.
    pub call_line: u32,
    /// Column of the inlined call, from 1; 0 if unknown.
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
    /// Bytes that are not UTF-8 become U+FFFD, control characters become `_`, and white space at both ends is removed. The
    /// library appends `()` to a name of one or two bytes, because perf drops or demangles such names.
    pub name: *const c_char,
    /// Length of `name` in bytes; 0 if a NUL ends `name`.
    pub name_len: usize,
    /// The code's bytes: at `addr`, or in a writable view. NULL: the bytes at `addr`.
    ///
    /// Must point to `size` readable bytes. With NULL, a system call reads the bytes at `addr`. Unreadable bytes are zero in
    /// the record, and `jitsym_stats.unreadable` counts the call.
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
    /// In `lines`, each row has the file and line of the innermost function. Profilers show inlined functions for code
    /// in regions, and elsewhere only on request (`JITSYM_JITDUMP_INLINES`).
    /// [docs/special-cases.md](special-cases.md#inlined-functions) has an example.
    pub inlines: *const jitsym_inline,
    /// Number of entries of `inlines`.
    pub inline_count: usize,
    /// `sizeof(jitsym_inline)`; 0 stands for the size in version 0.1.
    pub inline_size: usize,
    /// File where the function begins, NUL-terminated; NULL if unknown.
    ///
    /// All readers except debuggers get the name `NAME FILE:LINE`, which `JITSYM_NAME_MAX` limits. If `line_count` is 0, the
    /// line table gets one row at offset 0 with this file and line. An absolute path is best for this row. The library cleans
    /// the file as it cleans `name`. A file that is empty after cleaning counts as unknown.
    pub file: *const c_char,
    /// Line in `file`, from 1; 0 if unknown.
    ///
    /// With 0 the name becomes `NAME FILE`, and the line table gets no row.
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
