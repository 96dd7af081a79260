//! The options of a session.

use std::ffi::c_char;

/// Bit flags of a session.
///
/// `JITSYM_INIT_FORK_ALONE` and `JITSYM_INIT_ADOPT` have an effect only in the session that starts the sinks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_init_flag {
    /// The environment takes precedence over the options.
    ///
    /// Without this flag, each option that is not 0 or NULL takes precedence over the environment.
    JITSYM_INIT_ENV_WINS = 1,
    /// If `sinks` is 0, start only the sinks that JITSYM names.
    ///
    /// Sinks also start under valgrind, or if the variable `JITSYM_ADOPT` requests adoption.
    JITSYM_INIT_OFF_BY_DEFAULT = 2,
    /// Write no unwinding records to the jitdump (ddprof stops at them).
    JITSYM_INIT_NO_UNWIND = 4,
    /// When all memory for records is full, drop records at once, without waiting.
    JITSYM_INIT_DROP_WHEN_FULL = 32,
    /// Keep records in private memory. After SIGKILL, unwritten records are lost.
    JITSYM_INIT_NO_SPOOL = 64,
    /// Complete the files of killed processes first, as `jitsym recover` does.
    ///
    /// Only the files of this user's processes that have left a spool are completed.
    JITSYM_INIT_RECOVER = 128,
    /// `fork` writes all code to the child's files.
    ///
    /// `fork` writes the child's files even if the child only executes another program.
    JITSYM_INIT_FORK_NOW = 256,
    /// A forked child inherits nothing. Excludes JITSYM_INIT_FORK_NOW.
    ///
    /// In the child, calls on its parent's sessions return `JITSYM_ERR_FORKED`. `jitsym_init` begins with empty files.
    JITSYM_INIT_FORK_ALONE = 512,
    /// Remove the files at the last close or at exit.
    ///
    /// The flag is for readers that read the files while the process runs. Without the files, `perf report` finds no names, and
    /// `perf inject` fails if a jitdump existed during the recording.
    JITSYM_INIT_REMOVE_FILES = 1024,
    /// Remember live code while no sink runs, for `jitsym_enable`.
    ///
    /// [docs/conventions.md](conventions.md#turn-it-on-in-a-running-process) has the costs in time and memory.
    JITSYM_INIT_REMEMBER = 2048,
    /// Private executable memory becomes a region when code is registered in it.
    ///
    /// The library adopts the whole mapping that contains the code. During each call that registers, moves or unregisters code,
    /// no other thread of the process may write to code memory or change its protection.
    /// [docs/regions.md](regions.md#how-a-region-comes-to-be) has alternatives.
    JITSYM_INIT_ADOPT = 4096,
    /// Also register the code that other libraries (LLVM, wasmtime) report to gdb.
    ///
    /// The [bridge](runtimes.md#programs-that-tell-gdb) runs from this session on until the process ends. The options of the
    /// first session with this flag decide where the code is written, unless files are already being written.
    JITSYM_INIT_BRIDGE = 8192,
    /// Start no thread in this process and its children: calls write pending records.
    ///
    /// The flag is for hosts that must stay single-threaded, and for sandboxes that forbid threads.
    /// [docs/conventions.md](conventions.md#without-threads) lists the differences.
    JITSYM_INIT_NO_THREADS = 16384,
}

/// The result of `jitsym_wanted`: bit flags for the information that sinks can use. Later versions may have more flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_want {
    /// Code. Without this bit no other bit is set, and `jitsym_register` does nothing.
    ///
    /// The bit is set while a sink runs or live code is remembered.
    JITSYM_WANT_CODE = 1,
    /// `jitsym_code.lines`.
    JITSYM_WANT_LINES = 2,
    /// `jitsym_code.unwind`.
    JITSYM_WANT_UNWIND = 4,
    /// The library adopts code memory. During a call, only the calling thread may write to code memory.
    ///
    /// `JITSYM_INIT_ADOPT` describes this rule. The variable `JITSYM_ADOPT` requests adoption too.
    JITSYM_WANT_ADOPT = 8,
    /// Memory from `jitsym_region_create` and `jitsym_alloc` has a file.
    ///
    /// Without this bit, `jitsym_region_create` and `jitsym_alloc` have no advantage for a runtime that has its own code
    /// memory. When the library cannot make the file of a region, it clears `JITSYM_WANT_REGION`. So call `jitsym_wanted` again
    /// after each call of `jitsym_region_create` or `jitsym_alloc`.
    JITSYM_WANT_REGION = 16,
}

/// The intended reader of the perf map: `jitsym_options.map_dialect`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_map_dialect {
    /// The format for perf and most other readers. A line is `START SIZE NAME`, hexadecimal without `0x`. The default directory
    /// is `/tmp`.
    JITSYM_MAP_PERF = 0,
    /// The format for Android's simpleperf. A line is `0xSTART 0xSIZE NAME`. The default directory is `/data/local/tmp`.
    JITSYM_MAP_SIMPLEPERF = 1,
}

/// The options of a session. NULL, or a struct with 0 in all fields except `struct_size`, selects the defaults.
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
    /// Directory of jitdump and regions. NULL: JITSYM_DIR, else JITDUMPDIR, else /tmp.
    ///
    /// The path must be absolute. With the variable JITDUMPDIR, the files of regions are in `$JITDUMPDIR`, and the
    /// jitdump is in a new directory in `$JITDUMPDIR/.debug/jit`. A perf that is built with libdw (for example perf 7)
    /// unwinds through code of a jitdump only if the file is directly in `/tmp`.
    pub jitdump_dir: *const c_char,
    /// One of `JITSYM_MAP_*` (`jitsym_control.h`).
    pub map_dialect: u32,
    /// Permission bits of files before the umask, at most 0777. 0 means 0644.
    ///
    /// With 0600 only the same user (and root) can read names.
    pub file_mode: u32,
    /// Bound in bytes for pending records, 1 MiB to 16 GiB. 0 means 64 MiB.
    ///
    /// A value outside this range is replaced by the nearest value inside it. The memory starts with 16 KiB, and grows [under
    /// load](conventions.md#memory). If the bound is at least 8 MiB, the largest possible record is 4 MiB smaller than the
    /// bound. If the bound is below 8 MiB, the largest possible record is half as large as the bound. A record above the
    /// maximum size is refused (`JITSYM_ERR_NO_MEMORY`). With a bound of 64 MiB or more, the memory takes at least 256 MiB of
    /// address space, if available. The first session of a process sets the bound.
    pub max_memory: u64,
    /// Milliseconds that a call waits if memory for records is full. 0 means 10.
    ///
    /// After this time, the call drops its record.
    pub max_wait_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Absolute directory of the spool. NULL: JITSYM_SPOOL_DIR, else /dev/shm.
    ///
    /// The directory should be on a file system in memory. The first session that starts a sink or remembers code chooses the
    /// directory. The library uses this directory until all sinks are disabled.
    pub spool_dir: *const c_char,
    /// Largest size of the perf map in bytes, from 4096. 0 means JITSYM_MAP_MAX, or no limit if JITSYM_MAP_MAX is unset.
    ///
    /// When the map has reached this size, it leaves out the oldest dead code first. If that is not enough, the map leaves out
    /// the newest live code (`jitsym_stats.map_omitted`).
    pub map_max: u64,
    /// Largest size of the jitdump in bytes, from 65536. 0 means JITSYM_JITDUMP_MAX, or no limit if JITSYM_JITDUMP_MAX is
    /// unset.
    ///
    /// When the jitdump has reached this size, the library rewrites the jitdump, and keeps only live code. During the rewrite
    /// there are two files. If live code takes more than three quarters of this size, newly registered code is left out
    /// (`jitsym_stats.jitdump_lost`) until enough code has been unregistered. Then the library also writes omitted code that is
    /// still live.
    pub jitdump_max: u64,
}
