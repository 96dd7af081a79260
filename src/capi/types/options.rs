//! The options of a session.

use std::ffi::c_char;

/// Bit flags of a session.
///
/// `JITSYM_INIT_FORK_ALONE` and `JITSYM_INIT_ADOPT` work only in the session that starts the sinks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_init_flag {
    /// The environment takes precedence over the options.
    ///
    /// Without this flag, nonzero options take precedence.
    JITSYM_INIT_ENV_WINS = 1,
    /// If `sinks` is 0, start only the sinks that JITSYM names.
    ///
    /// Sinks also start under valgrind or with `JITSYM_ADOPT=1`.
    JITSYM_INIT_OFF_BY_DEFAULT = 2,
    /// Write no unwinding records to the jitdump (ddprof stops at them).
    JITSYM_INIT_NO_UNWIND = 4,
    /// When memory for records is full, drop records without waiting.
    JITSYM_INIT_DROP_WHEN_FULL = 32,
    /// Keep records in private memory. After SIGKILL, unwritten records are lost.
    JITSYM_INIT_NO_SPOOL = 64,
    /// Complete the files of killed processes first, as `jitsym recover` does.
    ///
    /// Only this user's processes that left a spool are included.
    JITSYM_INIT_RECOVER = 128,
    /// `fork` writes all code to the child's files.
    ///
    /// The files are written even if the child only executes another program.
    JITSYM_INIT_FORK_NOW = 256,
    /// A forked child inherits nothing. Excludes JITSYM_INIT_FORK_NOW.
    ///
    /// In the child, its parent's sessions return `JITSYM_ERR_FORKED`, and `jitsym_init` begins empty files.
    JITSYM_INIT_FORK_ALONE = 512,
    /// Remove the files at the last close or at exit.
    ///
    /// The flag is for tools that read a running process's files. Later, `perf report` finds no names, and `perf inject` fails
    /// if a jitdump existed during the recording.
    JITSYM_INIT_REMOVE_FILES = 1024,
    /// Remember live code while no sink runs, for `jitsym_enable`.
    ///
    /// [docs/conventions.md](conventions.md#turn-it-on-in-a-running-process) lists the costs.
    JITSYM_INIT_REMEMBER = 2048,
    /// Private executable memory becomes a region when code is registered in it.
    ///
    /// The library adopts the code's whole mapping. While a call registers, moves or unregisters code, no other thread may
    /// write to code memory or change its protection. [docs/regions.md](regions.md#how-a-region-comes-to-be) has alternatives.
    JITSYM_INIT_ADOPT = 4096,
    /// Also register the code that other libraries (LLVM, wasmtime) report to gdb.
    ///
    /// The [bridge](runtimes.md#programs-that-tell-gdb) runs until the process ends. The first session with this flag decides
    /// where its code is written, unless files are already being written.
    JITSYM_INIT_BRIDGE = 8192,
    /// Start no thread in this process and its children: calls write pending records.
    ///
    /// The flag is for hosts that must stay single-threaded, and for sandboxes that forbid threads.
    /// [docs/conventions.md](conventions.md#without-threads) lists the differences.
    JITSYM_INIT_NO_THREADS = 16384,
}

/// The result of `jitsym_wanted`: bit flags for information that sinks can use. Later versions may have more flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_want {
    /// Code. Without this bit no other bit is set, and `jitsym_register` does nothing.
    ///
    /// The bit is set while a sink runs or code is remembered.
    JITSYM_WANT_CODE = 1,
    /// `jitsym_code.lines`.
    JITSYM_WANT_LINES = 2,
    /// `jitsym_code.unwind`.
    JITSYM_WANT_UNWIND = 4,
    /// The library adopts code memory. During a call, only the calling thread may write to code memory.
    ///
    /// `JITSYM_INIT_ADOPT` has the full rule. The variable `JITSYM_ADOPT` requests adoption too.
    JITSYM_WANT_ADOPT = 8,
    /// Memory from `jitsym_region_create` and `jitsym_alloc` has a file.
    ///
    /// Without this bit, these calls have no advantage for a runtime with its own code memory. The library clears the bit
    /// when a region's file cannot be made, so call `jitsym_wanted` again after each of these calls.
    JITSYM_WANT_REGION = 16,
}

/// The intended reader of the perf map: `jitsym_options.map_dialect`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_map_dialect {
    /// For perf and most other readers: lines `START SIZE NAME`, hexadecimal without `0x`, by default in `/tmp`.
    JITSYM_MAP_PERF = 0,
    /// For Android's simpleperf: lines `0xSTART 0xSIZE NAME`, by default in `/data/local/tmp`.
    JITSYM_MAP_SIMPLEPERF = 1,
}

/// The options of a session. NULL, or a struct with only `struct_size` set, selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_options {
    /// `sizeof(jitsym_options)`.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits. 0: the sinks in JITSYM, or map, jitdump, region if JITSYM is unset.
    pub sinks: u32,
    /// `JITSYM_INIT_*` bits.
    pub flags: u32,
    /// Absolute directory of the perf map. NULL: JITSYM_DIR, else /tmp.
    ///
    /// perf looks for perf maps only in `/tmp`.
    pub map_dir: *const c_char,
    /// Absolute directory of jitdump and regions. NULL: JITSYM_DIR, else JITDUMPDIR, else /tmp.
    ///
    /// With JITDUMPDIR, regions are in `$JITDUMPDIR`, and the jitdump is in a new directory in `$JITDUMPDIR/.debug/jit`. A perf
    /// built with libdw (such as perf 7) unwinds through a jitdump's code only if the jitdump is directly in `/tmp`.
    pub jitdump_dir: *const c_char,
    /// One of `JITSYM_MAP_*` (`jitsym_control.h`).
    pub map_dialect: u32,
    /// Permission bits of files before the umask, at most 0777. 0 means 0644.
    ///
    /// With 0600, only the same user (and root) can read names.
    pub file_mode: u32,
    /// Bound in bytes for pending records, 1 MiB to 16 GiB. 0 means 64 MiB.
    ///
    /// A value outside this range is replaced by the nearest limit. The memory [grows](conventions.md#memory) from 16 KiB under
    /// load. Records above the bound minus 4 MiB (or above half of a bound below 8 MiB) are refused with
    /// `JITSYM_ERR_NO_MEMORY`. A bound from 64 MiB takes at least 256 MiB of address space, if available. The first session
    /// sets the bound.
    pub max_memory: u64,
    /// Milliseconds that a call waits if memory for records is full. 0 means 10.
    ///
    /// After this time, the record is dropped.
    pub max_wait_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Absolute directory of the spool. NULL: JITSYM_SPOOL_DIR, else /dev/shm.
    ///
    /// A file system in memory is best. The first session that starts a sink or remembers code sets the directory until all
    /// sinks are disabled.
    pub spool_dir: *const c_char,
    /// Largest perf map in bytes, from 4096. 0 means JITSYM_MAP_MAX, or no limit if that is unset.
    ///
    /// A full map omits the oldest dead code, then the newest live code (`jitsym_stats.map_omitted`).
    pub map_max: u64,
    /// Largest jitdump in bytes, from 65536. 0 means JITSYM_JITDUMP_MAX, or no limit if that is unset.
    ///
    /// The library rewrites a full jitdump with only live code. During the rewrite there are two files. If live code takes more
    /// than three quarters of this size, new code is omitted (`jitsym_stats.jitdump_lost`) until enough code is unregistered,
    /// and then written if still live.
    pub jitdump_max: u64,
}
