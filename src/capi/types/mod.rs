//! The C structs and enumerators, with the documentation that the header carries.

#![allow(non_camel_case_types)]

mod code;
mod options;
mod region;
mod stats;
mod unwind;

pub use code::*;
pub use options::*;
pub use region::*;
pub use stats::*;
pub use unwind::*;

/// A session: what `jitsym_init` opens and `jitsym_close` closes.
///
/// The handle is a name, not an address: the library recognises a handle that is closed or was never opened, and answers with a
/// status. A forked child continues its parent's (see `jitsym_init_flag`).
pub struct jitsym {
    _private: [u8; 0],
}

/// The name of one registration, for `jitsym_move` and `jitsym_unregister`. Never 0, and not used again within a process.
pub type jitsym_id = u64;

/// Limits, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_limit {
    /// The longest function name kept. A longer one is cut, and ends in `~` and eight hexadecimal digits that are computed from
    /// the whole name, so that names that differ only after the cut stay different.
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
    /// The ELF files (`jit-PID-N.so`, `jitted-PID-rN.so`) that regions of code memory are mappings of (`jitsym_region_create`,
    /// `jitsym_region_adopt`, `JITSYM_INIT_ADOPT`), in the directory of the jitdump: names, lines and call stacks in every
    /// profiler, with no further step. Code that is registered in a region goes to its file, and not to map and jitdump. Without
    /// regions this sink does nothing.
    JITSYM_SINK_REGION = 4,
    /// Objects in memory that gdb and lldb read through `__jit_debug_descriptor`, also those of a core file: names, lines, inlined
    /// functions and call stacks of code that lives, in regions or not. Not among the sinks that run where nobody says which: it
    /// runs by itself (unless the variable `JITSYM_GDB` is `0`) where a debugger listens and any other sink runs, and, for at most
    /// 8192 live functions, where a jitdump or a region is written. While nobody listens and nobody has asked for it, it is not
    /// among `jitsym_stats.sinks_running`.
    JITSYM_SINK_GDB = 8,
    /// The unwinder of the process (libgcc, or LLVM libunwind): C++ exceptions and `backtrace` pass through code that has an unwind
    /// description, in regions or not, and so does what runs when a thread is cancelled or calls `pthread_exit`. Not among the
    /// sinks that run where nobody says which. While it runs, a call that registers, moves or ends code returns when the unwinder knows
    /// that. The call tells libgcc 13 and later and LLVM libunwind itself, if the sink was not enabled late. Otherwise it waits until
    /// the library's thread has told the unwinder.
    JITSYM_SINK_UNWINDER = 16,
    /// valgrind: callgrind, memcheck and the others show names, lines and call stacks of code that lives. It runs by itself in a process
    /// that valgrind runs, whenever a session is open, unless the variable `JITSYM_VALGRIND` is `0` or `JITSYM` turns everything off; in
    /// any other process it cannot run. While it runs, a call that registers, moves or ends code waits until valgrind knows, and
    /// there are no regions with files: `JITSYM_SINK_REGION` does not run.
    JITSYM_SINK_VALGRIND = 32,
}

// C and Rust programs have the same limits.
const _: () = {
    use crate::api::limits;
    assert!(jitsym_limit::JITSYM_NAME_MAX as usize == limits::NAME_MAX);
    assert!(jitsym_limit::JITSYM_DIR_MAX as usize == limits::DIR_MAX);
    assert!(jitsym_limit::JITSYM_CODE_SIZE_MAX as u64 == limits::CODE_SIZE_MAX);
};
