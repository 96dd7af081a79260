//! The C structs and enumerators, with the documentation for the headers.

#![allow(non_camel_case_types)]

mod code;
mod options;
mod region;
mod stack;
mod stats;
mod unwind;

pub use code::*;
pub use options::*;
pub use region::*;
pub use stack::*;
pub use stats::*;
pub use unwind::*;

/// A session. The handle is a number, not an address, so calls refuse a closed or wrong handle.
pub struct jitsym {
    _private: [u8; 0],
}

/// Identifies one registration. A valid id is not 0, and is unique in a process.
pub type jitsym_id = u64;

/// Limits, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_limit {
    /// The longest name of code. A longer name is cut.
    ///
    /// A cut name ends in `~` and eight hexadecimal digits of the whole name's hash, so different names stay different.
    JITSYM_NAME_MAX = 1000,
    /// The longest directory, without the terminating NUL.
    JITSYM_DIR_MAX = 1023,
    /// The largest code: 2 GiB - 1, minus the size of its unwind tables.
    JITSYM_CODE_SIZE_MAX = 0x7fff_ffff,
    /// The free bytes after code with `JITSYM_CODE_GAP`.
    JITSYM_CODE_GAP_SIZE = 256,
}

/// The forms in which symbols are written, as bit flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_sink {
    /// `perf-PID.map`: names for `perf report`, bpftrace, samply, blazesym.
    JITSYM_SINK_MAP = 1,
    /// `jit-PID.dump`, for `jitsym inject` and perf: names with times, code, lines, call stacks.
    ///
    /// If this name [is taken](conventions.md#files), its pid gets leading zeros.
    JITSYM_SINK_JITDUMP = 2,
    /// ELF files of regions (`jitsym_region.h`): names, lines, call stacks in every profiler.
    ///
    /// The files are `jit-PID-N.so` and `jitted-PID-rN.so` ([docs/regions.md](regions.md)). Map and jitdump omit code in
    /// regions.
    JITSYM_SINK_REGION = 4,
    /// Objects in memory for gdb and lldb. The sink starts by itself if a debugger listens.
    ///
    /// `jitsym_stats.sinks_running` has a sink that started by itself only while a debugger listens
    /// ([docs/debugging.md](debugging.md)).
    JITSYM_SINK_GDB = 8,
    /// The process's unwinder. C++ exceptions, `backtrace` and `pthread_exit` can unwind through registered code.
    ///
    /// The code needs an unwind description, and a [supported unwinder](exceptions.md). Calls that register, move or unregister
    /// code wait for this sink.
    JITSYM_SINK_UNWINDER = 16,
    /// valgrind's tools: names, lines, call stacks. The sink starts by itself, only under valgrind.
    ///
    /// Calls wait for this sink as for `JITSYM_SINK_UNWINDER`. While this sink runs, `JITSYM_SINK_REGION` does not
    /// ([docs/valgrind.md](valgrind.md)).
    JITSYM_SINK_VALGRIND = 32,
    /// Memory for `jitsym_lookup`, `jitsym_step` and `jitsym_print_stack` (`jitsym_control.h`).
    JITSYM_SINK_LOOKUP = 64,
}

// C and Rust programs have the same limits.
const _: () = {
    use crate::api::limits;
    assert!(jitsym_limit::JITSYM_NAME_MAX as usize == limits::NAME_MAX);
    assert!(jitsym_limit::JITSYM_DIR_MAX as usize == limits::DIR_MAX);
    assert!(jitsym_limit::JITSYM_CODE_SIZE_MAX as u64 == limits::CODE_SIZE_MAX);
    assert!(jitsym_limit::JITSYM_CODE_GAP_SIZE as u64 == limits::CODE_GAP_SIZE);
};
