//! The C structs and enumerators, with the documentation that the header carries.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

/// A session: what `jitsym_init` opens and `jitsym_close` closes.
///
/// The handle is a name, not an address: the library recognises a handle that is closed or was never opened, and answers with
/// a status. A forked child goes on with its parent's (see `jitsym_init_flag`).
pub struct jitsym {
    _private: [u8; 0],
}

/// The name of one registration, for `jitsym_move` and `jitsym_unregister`. Never 0, and not used again within a process.
pub type jitsym_id = u64;

/// Limits, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_limit {
    /// The longest function name kept. A longer one is cut, and ends in `~` and eight hexadecimal digits that are made from
    /// the whole name, so that names that differ only behind the cut stay different.
    JITSYM_NAME_MAX = 1000,
    /// The longest directory, without the terminating NUL.
    JITSYM_DIR_MAX = 1023,
    /// The largest code size. With an unwind description it is smaller by the size of the tables.
    JITSYM_CODE_SIZE_MAX = 0x7fff_ffff,
}

/// Where symbols can be written. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_sink {
    /// The perf map `perf-PID.map`: names for `perf report` with no further step, bpftrace, samply, blazesym.
    JITSYM_SINK_MAP = 1,
    /// The jitdump `jit-PID.dump`: names over time, code bytes, source lines and call stacks, for `perf inject --jit`. If
    /// another library in the process has a file of that name, the number has zeros before it, which perf reads as well.
    JITSYM_SINK_JITDUMP = 2,
    /// The ELF files `jit-PID-N.so` that regions of code memory are mappings of (`jitsym_region_create`, `jitsym_region_adopt`,
    /// `JITSYM_INIT_ADOPT`), in the directory of the jitdump: names, lines and call stacks in every profiler, with no further
    /// step. What is registered in a region goes to its file, and not to map and jitdump. Without regions this is nothing.
    JITSYM_SINK_REGION = 4,
}

/// Flags of a session. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_init_flag {
    /// The environment decides what the options say too. Without this flag the options win where they are not 0 or NULL.
    JITSYM_INIT_ENV_WINS = 1,
    /// With `sinks` 0: no sink unless the variable `JITSYM` names one. Without this flag, all sinks.
    JITSYM_INIT_OFF_BY_DEFAULT = 2,
    /// Write no unwinding records to the jitdump. One reader (ddprof) stops at the first one.
    JITSYM_INIT_NO_UNWIND = 4,
    /// When the writer cannot keep up and all memory allowed is full, drop records at once instead of waiting first.
    JITSYM_INIT_DROP_WHEN_FULL = 32,
    /// Keep records on their way to the writer in private memory, not in a spool: what is not written yet when the process is
    /// killed is lost.
    JITSYM_INIT_NO_SPOOL = 64,
    /// Before anything else, complete the files of this user's processes that were killed, from the spools that they left
    /// behind, as the command `jitsym recover` does.
    JITSYM_INIT_RECOVER = 128,
    /// A forked child takes over its parent's sessions and live code, and makes its files, before `fork` returns in it, and not
    /// with its first call. Every child pays for that, also one that only executes another program.
    JITSYM_INIT_FORK_NOW = 256,
    /// A forked child takes over nothing: calls on its parent's sessions return `JITSYM_ERR_FORKED`, and `jitsym_init` begins
    /// with empty files. Not together with `JITSYM_INIT_FORK_NOW`. The options of the session that has started the sinks decide.
    JITSYM_INIT_FORK_ALONE = 512,
    /// Remove map, jitdump and the files of regions when the last session closes, or when the process exits with one open. For files
    /// that are read while the process lives: `perf report` finds no names afterwards, and `perf inject` gives up altogether if a jitdump is
    /// missing that was there during the recording. A process that is killed leaves its files (`jitsym clean` removes them).
    JITSYM_INIT_REMOVE_FILES = 1024,
    /// Remember live code, so that `jitsym_enable` can write it when it starts a sink: with its lines and unwind tables, but not
    /// its bytes, which are read at its address then. Without a sink registering then costs as much as with one, and live
    /// code takes memory (docs/design.md says how much), as long as any session is open. The variable `JITSYM_LATE` can
    /// forbid it, or ask for it.
    JITSYM_INIT_REMEMBER = 2048,
    /// Code that is registered in private executable memory which is not known becomes the beginning of a region: the mapping that
    /// it lies in is adopted, as by `jitsym_region_adopt`. The registering thread must be the only one that writes to that mapping,
    /// or changes its protection, during the call; others may execute it. The kernel makes one mapping of neighbouring memory with
    /// the same protection, so this is about all who write code in the process: if there are others, adopt your own range by
    /// `jitsym_region_adopt`, or create regions. Memory that cannot be adopted is left as it is, and looked at again now and then.
    /// The options of the session that has started the sinks decide. The variable `JITSYM_ADOPT` can ask for it, or forbid it.
    JITSYM_INIT_ADOPT = 4096,
}

/// Flags of a region. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_region_flag {
    /// One view of private memory, first readable and writable, whose protection the runtime changes itself (`mprotect`), for
    /// instance to readable and executable before code in it runs. A forked child has its own copy, as of any private memory.
    /// Without this flag there are two views of shared memory, whose protections must stay as they are.
    JITSYM_REGION_ONE_VIEW = 1,
    /// Aligned to 2 MiB, and with huge pages where the kernel has them for such memory.
    JITSYM_REGION_HUGE_PAGES = 2,
}

/// Flags of a piece of code. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_code_flag {
    /// The bytes stay as they are, where they are, until the next `jitsym_flush`, `jitsym_unregister` or `jitsym_move` of
    /// this code has returned. The writer reads them there later, so that the call copies none: for large code, and for
    /// runtimes that never free. `jitsym_unregister`, `jitsym_move` and `jitsym_unregister_range` wait for the writer if it has
    /// not read them yet, 10 seconds at most. If the process is killed before, the record is recovered without them.
    JITSYM_CODE_STABLE = 1,
    /// Other code lies behind this, or will: `free_after` is 0. Builds of perf with libunwind find unwind tables only behind
    /// the code, so with this flag the jitdump has another small record, for a place below the code at which nothing is, and the
    /// tables lie behind that. `perf inject` then makes each object twice, and the process has some address space less, 1 GiB
    /// at most; when that is used up, or there is none within 1.75 GiB below the code, the flag does nothing. Nor does it
    /// without an unwind description. Not for `jitsym_move_target`: packed code stays packed, unless it moves while no jitdump is
    /// written.
    JITSYM_CODE_PACKED = 2,
}

/// Whether records on their way to the writer outlive the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_spool_state {
    /// They are in private memory: SIGKILL loses those of the last 50 milliseconds at most, while the writer keeps up.
    JITSYM_SPOOL_NONE = 0,
    /// They are in a spool, from which `jitsym recover` completes the files.
    JITSYM_SPOOL_SHARED = 1,
    /// The spool could not grow, because its file system is full; some are in private memory.
    JITSYM_SPOOL_PARTLY = 2,
}

/// Who is to read the perf map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_map_dialect {
    /// perf and all others: `START SIZE NAME` in hexadecimal digits without prefix, in `/tmp`.
    JITSYM_MAP_PERF = 0,
    /// Android's simpleperf: numbers with the prefix `0x`, in `/data/local/tmp`.
    JITSYM_MAP_SIMPLEPERF = 1,
}

/// How a session is to behave. A struct of zero bytes with `struct_size` set asks for the defaults, as NULL does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_options {
    /// `sizeof(jitsym_options)`.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits. 0: what the variable `JITSYM` says, else all of them.
    pub sinks: u32,
    /// `JITSYM_INIT_*` bits.
    pub flags: u32,
    /// Directory of the perf map, absolute. NULL: `JITSYM_DIR`, else `/tmp`, which is where perf looks.
    pub map_dir: *const c_char,
    /// Directory of the jitdump, absolute. NULL: `JITSYM_DIR`, else below `JITDUMPDIR`, else `/tmp`. perf builds with the
    /// libdw unwinder (perf 7 for one) unwind through code of a dump only if the dump lies directly in `/tmp`.
    pub jitdump_dir: *const c_char,
    /// One of `JITSYM_MAP_*`.
    pub map_dialect: u32,
    /// Permission bits of the files, before the umask, at most 0777. 0: 0644, so that a profiler of another user can read
    /// names. With 0600 only the same user (and root) can.
    pub file_mode: u32,
    /// Bound in bytes of the memory that holds records on their way to the writer, from 1 MiB to 16 GiB (other values are
    /// moved into that range). 0: 64 MiB. It starts with 4 MiB (or the bound, if that is less) and grows when the writer
    /// cannot keep up. Code whose record does not fit into what is left of the bound behind that start is refused with
    /// `JITSYM_ERR_NO_MEMORY`. The first session of a process decides.
    pub max_memory: u64,
    /// How long a registration may wait when that memory is full, in milliseconds, before its record is dropped. 0: 10.
    pub max_wait_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Directory of the spool, absolute, on a file system in memory. NULL: `JITSYM_SPOOL_DIR`, else `/dev/shm`. The session that
    /// first starts a sink, or remembers, decides, until all are disabled.
    pub spool_dir: *const c_char,
    /// The most bytes that the perf map may take; at least 4096. 0: `JITSYM_MAP_MAX`, else no bound. When it would become longer,
    /// dead code is left out first, the oldest first; then live code, what was registered last first
    /// (`jitsym_stats.map_omitted`), until there is room again.
    pub map_max: u64,
    /// The most bytes that the jitdump may take; at least 65536. 0: `JITSYM_JITDUMP_MAX`, else no bound. When it would become longer
    /// it is written anew with live code alone. If that takes more than three quarters of the bound, code that is registered
    /// from then on is left out (`jitsym_stats.jitdump_lost`), until enough other code has been unregistered; what lives then
    /// is in the file again. While the file is written anew there are two of them.
    pub jitdump_max: u64,
}

/// One row of a line table: from `offset` on, up to the next row, the code belongs to this place in the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_line {
    /// Bytes from the start of the code, less than its size. Rows are in order of it; of two rows with the same offset the
    /// later one counts.
    pub offset: u32,
    /// Line number, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// Must be 0.
    pub reserved: u32,
    /// File name, NUL-terminated. `perf annotate` opens it as it stands, so an absolute path is best.
    pub file: *const c_char,
}

/// A range of code that comes from another function, which the compiler has inlined.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_inline {
    /// Bytes from the start of the code to the first byte of the range.
    pub begin: u32,
    /// Bytes from the start of the code to behind the last one; more than `begin`, at most the size of the code. Within the range
    /// of `parent`. Two ranges with the same parent have no byte in common.
    pub end: u32,
    /// Name of the inlined function, UTF-8, cleaned as `jitsym_code.name` is. Something has to be left of it.
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

/// How to find the caller's frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_kind {
    /// Not known. Readers fall back to what they can guess.
    JITSYM_UNWIND_NONE = 0,
    /// The code keeps a frame pointer as compiled C does with `-fno-omit-frame-pointer`.
    JITSYM_UNWIND_FRAME_POINTER = 1,
    /// The canonical frame address (CFA) lies a fixed number of bytes above the stack pointer in all of the code.
    JITSYM_UNWIND_FIXED_FRAME = 2,
    /// A table of rows.
    JITSYM_UNWIND_ROWS = 3,
    /// An `.eh_frame` section that the compiler made.
    JITSYM_UNWIND_EH_FRAME = 4,
}

/// Where a register of the caller was saved: at the address CFA + `offset`.
///
/// The CFA is the value that the stack pointer had in the caller, just before the call instruction (x86-64: the address
/// above the return address).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct jitsym_saved_register {
    /// DWARF register number (x86-64: rbx 3, rbp 6, rsp 7, r12 to r15 12 to 15; aarch64: x0 to x30 0 to 30, sp 31, d8 to d15
    /// 72 to 79; riscv64: x0 to x31 0 to 31, f0 to f31 32 to 63).
    pub reg: u32,
    /// Bytes from the CFA, a multiple of 8, mostly negative.
    pub offset: i32,
}

/// One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` on, up to the next row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind_row {
    /// Bytes from the start of the code. Rows are in strictly rising order. Before the first row the state is the one at a
    /// call's target: CFA = SP + 8 on x86-64 and SP + 0 elsewhere, nothing saved.
    pub offset: u32,
    /// DWARF number of the register that the CFA is counted from.
    pub cfa_reg: u32,
    /// CFA = register + this many bytes.
    pub cfa_offset: i32,
    /// Number of entries of `saved`.
    pub saved_count: u32,
    /// The registers that are saved here, the return address left out on x86-64, where it always lies at CFA - 8. On other
    /// architectures the return address register is listed where it has been saved.
    pub saved: *const jitsym_saved_register,
}

/// An unwind description. Only the fields of its kind are looked at.
///
/// It is copied before the call returns, as all input is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind {
    /// `sizeof(jitsym_unwind)`.
    pub struct_size: usize,
    /// One of `JITSYM_UNWIND_*`.
    pub kind: u32,
    /// Must be 0.
    pub flags: u32,
    /// FRAME_POINTER: bytes from the start of the code to behind the instruction that stores the caller's frame pointer
    /// (x86-64 `push rbp`; aarch64 `stp x29, x30, [sp, #-n]!`). 0: 1 on x86-64, 4 on aarch64, 12 on riscv64.
    pub fp_pushed: u32,
    /// FRAME_POINTER: bytes to behind the instruction that sets the frame pointer (x86-64 `mov rbp, rsp`). 0: 4 on x86-64, 8
    /// on aarch64, 16 on riscv64; so if something stands before the usual prologue (`endbr64`), give both.
    pub fp_set: u32,
    /// FRAME_POINTER: bytes to behind the instruction that takes the frame down (x86-64 `pop rbp` or `leave`). From there to
    /// `epilogue_end` the frame is as at entry. 0: no such place, for code that leaves by other ways. Code with several
    /// epilogues is described by ROWS.
    pub epilogue_begin: u32,
    /// FRAME_POINTER: bytes to behind the return instruction; the frame is standing again from there to the end of the code.
    /// 0: the end of the code.
    pub epilogue_end: u32,
    /// FIXED_FRAME: CFA = SP + this, taken as it is. FRAME_POINTER: CFA = FP + this once the frame pointer is set; 0: 16 on
    /// x86-64 and aarch64, 0 on riscv64.
    pub cfa_offset: i32,
    /// FIXED_FRAME: saved in all of the code. FRAME_POINTER: saved from `saved_from` on, beyond the frame pointer and the
    /// return address. Number of entries of `saved`.
    pub saved_count: u32,
    /// See `saved_count`.
    pub saved: *const jitsym_saved_register,
    /// FRAME_POINTER: bytes to behind the instruction that stores the last of `saved`, not before `fp_pushed`. 0: `fp_set`.
    pub saved_from: u32,
    /// ROWS: number of entries of `rows`.
    pub row_count: u32,
    /// ROWS: the table.
    pub rows: *const jitsym_unwind_row,
    /// `sizeof(jitsym_unwind_row)`; 0 stands for that of version 0.1.
    pub row_size: usize,
    /// EH_FRAME: the section's bytes; a terminating zero word may be there or not. Entries for other code are left out, as
    /// are personality routines; an entry that extends beyond the code is cut to it.
    pub eh_frame: *const c_void,
    /// EH_FRAME: their number.
    pub eh_frame_size: usize,
    /// EH_FRAME: the address that pc-relative pointers in it are counted from, which is the section's own. 0: where it is now.
    pub eh_frame_addr: u64,
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
    /// space at both ends goes. A name with nothing left, or NULL, becomes `jit_ADDRESS`. A name of one or two
    /// bytes gets `()` behind it: perf drops such names in a perf map, and takes some in a jitdump for mangled types.
    pub name: *const c_char,
    /// Length of `name` in bytes. 0: it ends at its NUL.
    pub name_len: usize,
    /// Where the bytes of the code can be read: `size` bytes that stay readable during the call, as for any pointer argument
    /// in C. Give it if you can: right after emitting, `addr` itself or the writable view of it. NULL: the library asks the
    /// kernel to read at `addr`, which costs a system call and survives memory that cannot be read; what could not be read
    /// is zero in the record, and counted in `jitsym_stats.unreadable`.
    pub bytes: *const c_void,
    /// How to unwind; NULL: not known.
    pub unwind: *const jitsym_unwind,
    /// Line table; may be NULL if `line_count` is 0.
    pub lines: *const jitsym_line,
    /// Number of entries of `lines`.
    pub line_count: usize,
    /// `sizeof(jitsym_line)`; 0 stands for that of version 0.1.
    pub line_size: usize,
    /// How many bytes behind the code hold no other code, and will not while this code lives. If they are at least what
    /// `jitsym_unwind_size` says, perf builds with the libunwind unwinder (up to 6.x in most distributions) unwind through
    /// this code. Never declare bytes that are not free: the name of the code that lies there would be lost.
    pub free_after: u64,
    /// `JITSYM_CODE_*` bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Inlined functions, for call stacks; may be NULL if `inline_count` is 0. A function that is inlined in several ranges has
    /// an entry for each. `lines` says the innermost place, here as ever. Only code in regions has inline frames: jitdump
    /// and map cannot say them.
    pub inlines: *const jitsym_inline,
    /// Number of entries of `inlines`.
    pub inline_count: usize,
    /// `sizeof(jitsym_inline)`; 0 stands for that of version 0.1.
    pub inline_size: usize,
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

/// What a region of code memory is to be like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_region_options {
    /// `sizeof(jitsym_region_options)`.
    pub struct_size: usize,
    /// Bytes, rounded up to whole pages; at most 1 GiB.
    pub size: u64,
    /// Bytes that it can grow to by `jitsym_region_grow`; address space for that is set aside. 0: `size`.
    pub max_size: u64,
    /// A power of two, at most 512 MiB, of which the address of the executable view is a multiple. 0: that of a page.
    pub alignment: u64,
    /// An address from which all of the executable view can be reached by a displacement of 32 bits with sign, as x86-64 calls and
    /// jumps have it. 0: anywhere.
    pub near_addr: u64,
    /// `JITSYM_REGION_*` bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A region of code memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_region {
    /// `sizeof(jitsym_region)`, set by the caller.
    pub struct_size: usize,
    /// Where code runs: readable and executable. This is the address to register code with.
    pub exec: *mut c_void,
    /// Where code is written: the same memory, readable and writable, reads zero at first. With `JITSYM_REGION_ONE_VIEW` the same
    /// address as `exec`.
    pub write: *mut c_void,
    /// Bytes.
    pub size: u64,
}

/// What has happened so far in this process (a forked child begins with 0), over all sessions. All but the sinks, `live`,
/// `map_entries`, `memory`, `memory_held`, `spool`, `jitdump_held`, `map_omitted`, `regions` and
/// `region_left_out` only grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct jitsym_stats {
    /// `sizeof(jitsym_stats)`, set by the caller; that many bytes are written at most. What a newer header has behind the
    /// fields that this library knows is left as it was.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits of the sinks that are running and can write.
    pub sinks_running: u32,
    /// `JITSYM_SINK_*` bits of the sinks that could not start, or cannot write at present. These try again, at each flush and by
    /// themselves at least every ten seconds.
    pub sinks_failed: u32,
    /// Registrations that reached the writer.
    pub registered: u64,
    /// Moves that reached the writer.
    pub moved: u64,
    /// Codes retired by `jitsym_unregister` and its range form.
    pub unregistered: u64,
    /// Codes retired because newer code was registered over them.
    pub overwritten: u64,
    /// Codes that are live now.
    pub live: u64,
    /// Records dropped because the writer could not keep up.
    pub dropped: u64,
    /// Registrations and moves whose code bytes could not all be read.
    pub unreadable: u64,
    /// Names that were cleaned or cut.
    pub names_changed: u64,
    /// Declarations of `free_after` that were not true and have been ignored.
    pub not_free: u64,
    /// Bytes written to the jitdump behind its header.
    pub jitdump_bytes: u64,
    /// Code records written to the jitdump.
    pub jitdump_records: u64,
    /// Bytes written to the perf map, rewrites included.
    pub map_bytes: u64,
    /// Entries in the perf map.
    pub map_entries: u64,
    /// Times that the perf map was written anew because an entry had to change.
    pub map_rewrites: u64,
    /// Entries of dead code that were dropped from the perf map to keep it bounded.
    pub map_forgotten: u64,
    /// Write errors, over all sinks.
    pub write_errors: u64,
    /// Bytes of memory in use for records on their way to the writer.
    pub memory: u64,
    /// Bytes of memory that are held for that purpose, in use or not; at most `jitsym_options.max_memory`.
    pub memory_held: u64,
    /// Records that had to wait because `jitsym_options.max_memory` was reached.
    pub waited: u64,
    /// Records of killed processes that `JITSYM_INIT_RECOVER` has put into their files.
    pub recovered: u64,
    /// One of `JITSYM_SPOOL_*`.
    pub spool: u32,
    /// Number of codes that this process, being a forked child, has taken over from its parent. They are not in `registered`.
    pub inherited: u32,
    /// Records that could not be written to the jitdump (no room on the disk or within `jitsym_options.jitdump_max`, and none in
    /// the memory in which they wait), or that waited and were left out when it was written anew. Code among them that lives
    /// when writing is possible again is written then, without lines and unwind tables.
    pub jitdump_lost: u64,
    /// Bytes of records that wait in memory because the jitdump cannot be written at present; at most a quarter of
    /// `jitsym_options.max_memory`.
    pub jitdump_held: u64,
    /// Times that the jitdump was written anew, because it was removed or cut by somebody else or as long as it may be.
    pub jitdump_rewrites: u64,
    /// Entries of live code that the perf map has no room for at present.
    pub map_omitted: u64,
    /// Regions with a file, adopted ones included, that there are now.
    pub regions: u64,
    /// Registrations and moves that went to the file of a region, and not to the map and the jitdump.
    pub region_code: u64,
    /// Bytes written to the files of regions, older generations included.
    pub region_bytes: u64,
    /// Times that the file of a region got another name, so that code in the place of dead code has a name of its own.
    pub region_generations: u64,
    /// Times that this came too late, or could not be done: samples in the new code may have the name of the old.
    pub region_late: u64,
    /// Regions that are plain memory because they could not have a file, and memory that could not be adopted for that reason.
    pub region_refused: u64,
    /// Names, unwind tables and line tables of code that have no room in the files of regions as they are now.
    pub region_left_out: u64,
}

// What C and Rust programs are told is the same.
const _: () = {
    use crate::api::code::SavedRegister;
    use crate::api::limits;
    use crate::queue::status::SpoolState;

    assert!(jitsym_limit::JITSYM_NAME_MAX as usize == limits::NAME_MAX);
    assert!(jitsym_limit::JITSYM_DIR_MAX as usize == limits::DIR_MAX);
    assert!(jitsym_limit::JITSYM_CODE_SIZE_MAX as u64 == limits::CODE_SIZE_MAX);
    assert!(jitsym_spool_state::JITSYM_SPOOL_NONE as u32 == SpoolState::None as u32);
    assert!(jitsym_spool_state::JITSYM_SPOOL_SHARED as u32 == SpoolState::Shared as u32);
    assert!(jitsym_spool_state::JITSYM_SPOOL_PARTLY as u32 == SpoolState::Partly as u32);
    assert!(size_of::<jitsym_saved_register>() == size_of::<SavedRegister>());
    assert!(align_of::<jitsym_saved_register>() == align_of::<SavedRegister>());
    assert!(std::mem::offset_of!(jitsym_saved_register, reg) == std::mem::offset_of!(SavedRegister, reg));
};
