//! The options of a session.

use std::ffi::c_char;

/// Flags of a session. Bits, to be combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_init_flag {
    /// The environment decides what the options say too. Without this flag the options win where they are not 0 or NULL.
    JITSYM_INIT_ENV_WINS = 1,
    /// With `sinks` 0: no sink unless the variable `JITSYM` names one. Without this flag, map, jitdump and region.
    JITSYM_INIT_OFF_BY_DEFAULT = 2,
    /// Write no unwinding records to the jitdump. One reader (ddprof) stops at the first one.
    JITSYM_INIT_NO_UNWIND = 4,
    /// When the writer cannot keep up and all memory allowed is full, drop records at once instead of waiting first.
    JITSYM_INIT_DROP_WHEN_FULL = 32,
    /// Keep records on their way to the writer in private memory, not in a spool: what is not written yet when the process is
    /// killed is lost.
    JITSYM_INIT_NO_SPOOL = 64,
    /// Before anything else, complete the files of this user's processes that were killed, from the spools that they left, as the
    /// command `jitsym recover` does.
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
    /// its bytes, which are read at its address then. Without a sink registering then costs as much as with one, and live code
    /// takes memory (docs/design.md gives figures), as long as any session is open. The variable `JITSYM_LATE` can forbid it, or
    /// ask for it.
    JITSYM_INIT_REMEMBER = 2048,
    /// Code that is registered in private executable memory which is not known becomes the beginning of a region: the mapping
    /// that it lies in is adopted, as by `jitsym_region_adopt`. Memory that is not executable yet is adopted by a later call that
    /// registers, moves or unregisters code. The calling thread must be the only one that writes to such memory, or changes its
    /// protection, during these calls; others may execute it. The kernel makes one mapping of neighbouring
    /// memory with the same protection, so this applies to every writer of code in the process. If there are others, adopt your
    /// own range by `jitsym_region_adopt`, or create regions. Memory that cannot be adopted is left as it is, and looked at again
    /// later. The options of the session that has started the sinks decide. The variable `JITSYM_ADOPT` can ask for it, which turns
    /// a session on that is off by default, or forbid it.
    JITSYM_INIT_ADOPT = 4096,
    /// Code that other libraries in the process tell gdb of (`__jit_debug_descriptor`: LLVM, wasmtime) is registered too,
    /// with names, lines and unwind tables, from this session on until the process ends. A thread looks at their lists every few
    /// milliseconds. The options of the first session with this flag decide where it is written, unless other files are being
    /// written already. While the sinks are off nothing is written. Sinks that start later get the code that is in the lists then,
    /// as `jitsym_enable` says. The variable `JITSYM` can ask for it by the word `bridge`, and then the library looks from the time
    /// on when it is loaded. The sink for debuggers does not start by itself then.
    JITSYM_INIT_BRIDGE = 8192,
}

/// What the library wants to be told, as `jitsym_wanted` returns it. Bits; a later version may have more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_want {
    /// Code: a sink runs, or live code is remembered for one. Without this bit there is no other one, and `jitsym_register` looks at
    /// nothing.
    JITSYM_WANT_CODE = 1,
    /// `jitsym_code.lines`.
    JITSYM_WANT_LINES = 2,
    /// `jitsym_code.unwind`.
    JITSYM_WANT_UNWIND = 4,
    /// Private executable memory that code is registered in becomes a region (`JITSYM_INIT_ADOPT`, `JITSYM_ADOPT`): the registering
    /// thread must be the only one that writes to it meanwhile.
    JITSYM_WANT_ADOPT = 8,
    /// Memory from `jitsym_create_region` and `jitsym_alloc` has a file. Without this bit a runtime that has memory of its own gains
    /// nothing by them. The bit goes when the file of a region cannot be made, so ask after the call too.
    JITSYM_WANT_REGION = 16,
}

/// The intended reader of the perf map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_map_dialect {
    /// perf and all others: `START SIZE NAME` in hexadecimal digits without prefix, in `/tmp`.
    JITSYM_MAP_PERF = 0,
    /// Android's simpleperf: numbers with the prefix `0x`, in `/data/local/tmp`.
    JITSYM_MAP_SIMPLEPERF = 1,
}

/// The options of a session. A struct of zero bytes with `struct_size` set asks for the defaults, as NULL does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_options {
    /// `sizeof(jitsym_options)`.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits. 0: what the variable `JITSYM` says, else map, jitdump and region.
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
    /// Bound in bytes of the memory that holds records on their way to the writer, from 1 MiB to 16 GiB (other values are moved
    /// into that range). 0: 64 MiB. It starts with 16 KiB, takes 4 MiB (or half of the bound, if that is less) when many are
    /// registered, and grows beyond that when the writer cannot keep up. Code whose record does not fit into the bound less these
    /// 4 MiB is refused with `JITSYM_ERR_NO_MEMORY`. It takes 256 MiB of address space at least, if there is as much. The first session
    /// of a process decides.
    pub max_memory: u64,
    /// How long a registration may wait when that memory is full, in milliseconds, before its record is dropped. 0: 10.
    pub max_wait_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Directory of the spool, absolute, on a file system in memory. NULL: `JITSYM_SPOOL_DIR`, else `/dev/shm`. The session that
    /// first starts a sink, or remembers, decides, until all are disabled.
    pub spool_dir: *const c_char,
    /// The most bytes that the perf map may take; at least 4096. 0: `JITSYM_MAP_MAX`, else no bound. When it would become longer,
    /// dead code is left out first, the oldest first; then live code, the newest first (`jitsym_stats.map_omitted`), until there
    /// is room again.
    pub map_max: u64,
    /// The most bytes that the jitdump may take; at least 65536. 0: `JITSYM_JITDUMP_MAX`, else no bound. When it would become
    /// longer, it is rewritten with live code alone. If that takes more than three quarters of the bound, code that is registered
    /// from then on is left out (`jitsym_stats.jitdump_lost`), until enough other code has been unregistered. Code that lives
    /// then is in the file again. During a rewrite there are two files.
    pub jitdump_max: u64,
}
