//! A piece of code: its lines, its inlined functions, and its new place after a move.

use std::ffi::{c_char, c_void};

use super::jitsym_unwind;

/// Flags of a piece of code. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_code_flag {
    /// The bytes stay as they are, where they are, until the next `jitsym_flush`, `jitsym_unregister` or `jitsym_move` of
    /// this code has returned. The writer reads them there later, so that the call copies none: for large code, and for
    /// runtimes that never free. `jitsym_unregister`, `jitsym_move` and `jitsym_unregister_range` wait for the writer if it has
    /// not read them yet, 10 seconds at most. If the process is killed before, the record is recovered without them.
    JITSYM_CODE_STABLE = 1,
    /// Other code follows this, or will. Builds of perf with libunwind find unwind tables only after the code. With this flag, where
    /// `free_after` is 0 or less than `jitsym_unwind_size`, the jitdump has another small record, for an unused place below the
    /// code, and the tables follow that place. `perf inject` then makes each object twice, and the process has some address space
    /// less, 1 GiB at most. When that is used up, or there is none within 1.75 GiB below the code, the flag does nothing. Nor does it
    /// without an unwind description. Not for `jitsym_move_target`: packed code stays packed, unless it moves while no jitdump is written.
    JITSYM_CODE_PACKED = 2,
    /// Other code is registered next, before any of it runs. Sinks that have to know of code before it runs (`JITSYM_SINK_VALGRIND`,
    /// `JITSYM_SINK_UNWINDER`, and `JITSYM_SINK_GDB` while a debugger listens) then make the call wait for nothing: the
    /// next call without this flag waits for all of the code, and so does `jitsym_flush`. Without such a sink no call waits, and the
    /// flag does nothing. Not for `jitsym_move_target`.
    JITSYM_CODE_MORE = 4,
}

/// Flags of a range of code. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_range_flag {
    /// The caller unmaps the memory next: for a runtime that maps each function by itself, or gives whole caches back. Call it in the
    /// place of `jitsym_unregister`, before `munmap`. The library keeps nothing of regions that the range covers, and has not to find
    /// out that they are gone, which takes a look at everything that is mapped. From the call until whole pages in the range are
    /// unmapped, nobody reads, writes or runs what is there. In memory of `jitsym_alloc`, and in regions with two views, the flag does
    /// nothing: the library unmaps them.
    JITSYM_RANGE_UNMAP = 1,
}

/// One row of a line table: from `offset` on, up to the next row, the code belongs to this place in the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_line {
    /// Bytes from the start of the code, less than its size. Rows may be in any order, and cost least in order of it. Of two rows
    /// with the same offset the one that comes later in the table counts.
    pub offset: u32,
    /// Line number, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// Must be 0.
    pub reserved: u32,
    /// File name, NUL-terminated. `perf annotate` opens it unchanged, so an absolute path is best.
    pub file: *const c_char,
}

/// A range of code that comes from another function, which the compiler has inlined.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_inline {
    /// Bytes from the start of the code to the first byte of the range.
    pub begin: u32,
    /// Bytes from the start of the code to the end of the range; more than `begin`, at most the size of the code. The range lies
    /// within that of `parent`. Two ranges with the same parent have no byte in common.
    pub end: u32,
    /// Name of the inlined function, UTF-8, cleaned as `jitsym_code.name` is. The cleaned name must not be empty.
    pub name: *const c_char,
    /// Length of `name` in bytes. 0: it ends at its NUL.
    pub name_len: usize,
    /// File of the call in whose place the function stands, NUL-terminated; as `jitsym_line.file`.
    pub call_file: *const c_char,
    /// Line of that call, from 1.
    pub call_line: u32,
    /// Column of that call, from 1; 0 if unknown.
    pub call_column: u32,
    /// Index of the entry that this is inlined into, which comes earlier. `UINT32_MAX`: the function itself.
    pub parent: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// One piece of code. Zero in every field but `struct_size`, `addr` and `size` is a valid choice.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_code {
    /// `sizeof(jitsym_code)`.
    pub struct_size: usize,
    /// Where the code runs.
    pub addr: u64,
    /// Its size in bytes, 1 to `JITSYM_CODE_SIZE_MAX`.
    pub size: u64,
    /// Name, UTF-8. It is cleaned, not refused: bytes that are not UTF-8 become U+FFFD, control characters become `_`, white
    /// space at both ends goes. A name with nothing left, or NULL, becomes `jit_ADDRESS`. A name of one or two bytes gets `()`
    /// appended: perf drops such names in a perf map, and takes some in a jitdump for mangled types.
    pub name: *const c_char,
    /// Length of `name` in bytes. 0: it ends at its NUL.
    pub name_len: usize,
    /// Where the bytes of the code can be read: `size` bytes that stay readable during the call, as for any pointer argument in
    /// C. Give it if you can: right after emitting, `addr` itself or the writable view of it. NULL: the library asks the kernel
    /// to read at `addr`, which costs a system call and survives memory that cannot be read. Unreadable bytes are zero in the
    /// record, and `jitsym_stats.unreadable` counts the call.
    pub bytes: *const c_void,
    /// How to unwind; NULL: not known.
    pub unwind: *const jitsym_unwind,
    /// Line table; may be NULL if `line_count` is 0.
    pub lines: *const jitsym_line,
    /// Number of entries of `lines`.
    pub line_count: usize,
    /// `sizeof(jitsym_line)`; 0 stands for that of version 0.1.
    pub line_size: usize,
    /// How many bytes after the code hold no other code, and will not while this code lives. If they are at least as many as
    /// `jitsym_unwind_size` reports, perf builds with the libunwind unwinder (up to 6.x in most distributions) unwind through
    /// this code. Never declare bytes that are not free: the name of the code that lies there would be lost.
    pub free_after: u64,
    /// `JITSYM_CODE_*` bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Inlined functions, for call stacks; may be NULL if `inline_count` is 0. A function that is inlined in several ranges has
    /// an entry for each. `lines` gives the innermost place, as for all code. Only code in regions has inline frames: jitdump and
    /// map cannot express them.
    pub inlines: *const jitsym_inline,
    /// Number of entries of `inlines`.
    pub inline_count: usize,
    /// `sizeof(jitsym_inline)`; 0 stands for that of version 0.1.
    pub inline_size: usize,
    /// File in which the function begins, NUL-terminated. The name becomes `NAME FILE:LINE` then, for every reader but
    /// debuggers. Without a line
    /// table, file and line are also its only row, at offset 0, so an absolute path is best. The file is cleaned as the name is, and
    /// `JITSYM_NAME_MAX` holds for all of the name. NULL, or a file with nothing left after cleaning: not known.
    pub file: *const c_char,
    /// Line in `file`, from 1. 0: not known; the name becomes `NAME FILE`, and there is no row.
    pub line: u32,
    /// Must be 0.
    pub reserved2: u32,
}

/// Where code has been moved to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_move_target {
    /// `sizeof(jitsym_move_target)`.
    pub struct_size: usize,
    /// Where the code runs now. Its size stays.
    pub addr: u64,
    /// As `jitsym_code.bytes`, for the new place.
    pub bytes: *const c_void,
    /// As `jitsym_code.free_after`, for the new place.
    pub free_after: u64,
    /// `JITSYM_CODE_*` bits, for the new place.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}
