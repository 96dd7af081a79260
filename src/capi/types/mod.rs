//! The C structs and enumerators, with the documentation for the headers.

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

/// A session. The handle is a number, not an address: a wrong handle is refused with a status.
///
/// The library recognises handles that are closed or were never opened. A forked child continues its parent's session
/// (see `jitsym_init_flag`).
pub struct jitsym {
    _private: [u8; 0],
}

/// Identifies one registration. Never 0, and not used again within a process.
///
/// For `jitsym_move` and `jitsym_unregister`.
pub type jitsym_id = u64;

/// Limits, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_limit {
    /// The longest function name kept; a longer one is cut.
    ///
    /// A name that was cut ends in `~` and eight hexadecimal digits, which are computed from the whole name. So names
    /// that differ only after the cut stay different.
    JITSYM_NAME_MAX = 1000,
    /// The longest directory, without the terminating NUL.
    JITSYM_DIR_MAX = 1023,
    /// The largest code, 2 GiB - 1; with an unwind description, less the size of its tables.
    JITSYM_CODE_SIZE_MAX = 0x7fff_ffff,
}

/// Where symbols are written. Bits that can be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_sink {
    /// `perf-PID.map`: names for `perf report`, bpftrace, samply, blazesym.
    ///
    /// No further step is needed before `perf report`.
    JITSYM_SINK_MAP = 1,
    /// `jit-PID.dump`, for `perf inject --jit`: names over time, code, lines, call stacks.
    ///
    /// If another library in the process has a file of that name, the number in the name gets leading zeros, which perf
    /// accepts.
    JITSYM_SINK_JITDUMP = 2,
    /// ELF files of regions (`jitsym_region.h`): names, lines, call stacks in every profiler.
    ///
    /// The files `jit-PID-N.so` and `jitted-PID-rN.so` are in the directory of the jitdump. Regions are mappings of
    /// these files (`jitsym_region_create`, `jitsym_region_adopt`, `JITSYM_INIT_ADOPT`). Profilers need no further
    /// step. Code that is registered in a region is in the region's file, and not in map and jitdump. Without regions
    /// this sink does nothing.
    JITSYM_SINK_REGION = 4,
    /// Objects in memory for gdb and lldb. Starts by itself if a debugger listens.
    ///
    /// Debuggers read names, lines, inlined functions and call stacks of live code through `__jit_debug_descriptor`,
    /// also in core files, and for code in regions or not. The sink is not among those that run by default. Unless the
    /// variable `JITSYM_GDB` is `0`, it starts by itself when a debugger listens and any other sink runs. It also
    /// starts by itself, for at most 8192 live functions, when a jitdump or a region is written. A sink that started by
    /// itself is in `jitsym_stats.sinks_running` only while a debugger listens.
    JITSYM_SINK_GDB = 8,
    /// The process's unwinder: C++ exceptions, `backtrace` and `pthread_exit` pass through code.
    ///
    /// The unwinder is that of libgcc or LLVM libunwind. The code needs an unwind description, and may be in regions or
    /// not. The unwinding of a cancelled thread passes through the code too. The sink is not among those that run by
    /// default. While it runs, a call that registers, moves or ends code returns only when the unwinder knows of the
    /// change. The call itself tells libgcc 13 and later and LLVM libunwind, unless the sink was enabled late.
    /// Otherwise the call waits until the library's thread has told the unwinder.
    JITSYM_SINK_UNWINDER = 16,
    /// valgrind's tools: names, lines, call stacks. Starts by itself under valgrind only.
    ///
    /// callgrind, memcheck and the other tools show live code. The sink runs by itself in a process under valgrind,
    /// whenever a session is open, unless the variable `JITSYM_VALGRIND` is `0` or `JITSYM` turns everything off. In
    /// any other process it cannot run. While it runs, a call that registers, moves or ends code waits until valgrind
    /// knows of the change, and no region has a file: `JITSYM_SINK_REGION` does not run.
    JITSYM_SINK_VALGRIND = 32,
}

// C and Rust programs have the same limits.
const _: () = {
    use crate::api::limits;
    assert!(jitsym_limit::JITSYM_NAME_MAX as usize == limits::NAME_MAX);
    assert!(jitsym_limit::JITSYM_DIR_MAX as usize == limits::DIR_MAX);
    assert!(jitsym_limit::JITSYM_CODE_SIZE_MAX as u64 == limits::CODE_SIZE_MAX);
};
