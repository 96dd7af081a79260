//! The options of a session, and the resulting configuration of the process.

use std::path::PathBuf;
use std::time::Duration;

use crate::sys::clock::Clock;

/// The reader for which the perf map is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// The format for perf and all other readers except simpleperf.
    #[default]
    Perf,
    /// The format for Android's simpleperf.
    Simpleperf,
}

/// A set of sinks, with the bits of `jitsym_sink` in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sinks(pub(crate) u32);

impl Sinks {
    /// No sink.
    pub const NONE: Sinks = Sinks(0);
    /// The perf map.
    pub const MAP: Sinks = Sinks(1);
    /// The jitdump.
    pub const JITDUMP: Sinks = Sinks(2);
    /// The ELF files whose mappings are code memory.
    pub const REGION: Sinks = Sinks(4);
    /// The objects in memory that gdb and lldb read.
    pub const GDB: Sinks = Sinks(8);
    /// The unwinder of the process.
    pub const UNWINDER: Sinks = Sinks(16);
    /// valgrind.
    pub const VALGRIND: Sinks = Sinks(32);
    /// Names, lines and unwind tables in memory, for calls such as `jitsym_lookup` in C.
    pub const LOOKUP: Sinks = Sinks(64);
    /// Every sink.
    pub const ALL: Sinks = Sinks(127);
    /// The bits that are reserved for sinks.
    pub(crate) const ANY: Sinks = Sinks((1 << 27) - 1);
    /// A flag, not a sink. If the set of running sinks contains this flag, a sink wants the bytes of the code.
    pub(crate) const BYTES: Sinks = Sinks(1 << 27);
    /// A flag like `BYTES`: live code is remembered for sinks that are enabled later.
    pub(crate) const REMEMBER: Sinks = Sinks(1 << 28);
    /// A flag like `BYTES`: a sink wants lines and unwind tables.
    pub(crate) const GROUPS: Sinks = Sinks(1 << 29);
    /// A flag like `BYTES`: each thread that registers code also reports the code to the unwinder.
    pub(crate) const BY_CALLERS: Sinks = Sinks(1 << 30);
    /// A flag like `BYTES`: each call waits until the writer has reported the code of the call to certain sinks. These sinks
    /// must get the code before it runs.
    pub(crate) const MUST_WAIT: Sinks = Sinks(1 << 31);

    /// The union of `self` and `other`.
    pub const fn with(self, other: Sinks) -> Sinks {
        Sinks(self.0 | other.0)
    }

    /// `self` without the sinks of `other`.
    pub const fn without(self, other: Sinks) -> Sinks {
        Sinks(self.0 & !other.0)
    }

    /// True if a sink wants records with lines and unwind tables, or if code is remembered.
    #[inline]
    pub(crate) const fn want_groups(self) -> bool {
        self.0 & (Sinks::GROUPS.0 | Sinks::REMEMBER.0) != 0
    }

    /// True if `want_groups` is true, and neither `BY_CALLERS` nor `MUST_WAIT` is set.
    #[inline]
    pub(crate) const fn want_groups_only(self) -> bool {
        // A single range check is enough, because of the order of the bits. `REMEMBER` and `GROUPS` are above all sinks and
        // `BYTES`, and below `BY_CALLERS` and `MUST_WAIT`.
        self.0 >= Sinks::REMEMBER.0 && self.0 < Sinks::BY_CALLERS.0
    }

    /// Whether all of `other` is in this set.
    pub const fn has(self, other: Sinks) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the sets have a sink in common.
    pub(crate) const fn overlaps(self, other: Sinks) -> bool {
        self.0 & other.0 != 0
    }
}

/// The kinds of information about code that the library can use now; the bits of `jitsym_want` in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wanted {
    /// Code. True if a sink runs, or if live code is remembered for later sinks. Otherwise a registration returns id 0 without
    /// reading its arguments.
    pub code: bool,
    /// Line tables.
    pub lines: bool,
    /// Unwind descriptions.
    pub unwind: bool,
    /// True if the library adopts memory of the runtime when code is registered there: see [`Options::adopt`].
    pub adopt: bool,
    /// True if memory that [`Session::create_region`](crate::Session::create_region) and
    /// [`Session::alloc`](crate::Session::alloc) return has a file. False if the sink for regions does not run, or if the
    /// library could not make a file for the last created region.
    pub region: bool,
}

/// The options of a session; see `jitsym_options` in the C header. `Default` has the effect of a NULL pointer in C.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The sinks to start; `None` leaves the choice to the environment.
    pub sinks: Option<Sinks>,
    /// Whether the environment takes precedence over these options.
    pub env_wins: bool,
    /// Start only the sinks that the environment names.
    pub off_by_default: bool,
    /// Leave unwinding records out of the jitdump.
    pub no_unwind: bool,
    /// Drop records at once when the memory for records is full.
    pub drop_when_full: bool,
    /// Keep pending records in private memory instead of a spool.
    pub no_spool: bool,
    /// Start no thread. The calls of the host then do the work of the library's threads.
    pub no_threads: bool,
    /// Complete the files of this user's killed processes before the session opens.
    pub recover: bool,
    /// What a forked child inherits.
    pub fork: Option<Fork>,
    /// Remove the files at the last close or at exit.
    pub remove_files: bool,
    /// Remember live code for sinks that are enabled later.
    pub remember: bool,
    /// Adopt the memory in which code is registered, if the memory is private and executable, as
    /// [`Session::adopt_region`](crate::Session::adopt_region) does. During each call that registers, moves or unregisters
    /// code, only the calling thread may write to the mapping or change its protection. This rule covers every writer of code
    /// in the process, because the kernel merges neighbouring memory with the same protection into one mapping.
    pub adopt: bool,
    /// Also register the code that other libraries in the process report to gdb by `__jit_debug_descriptor`, until the process
    /// ends. The options of the first session that sets `bridge` decide where this code is written.
    pub bridge: bool,
    /// The maximum size of the perf map, in bytes.
    pub map_max: Option<u64>,
    /// The maximum size of the jitdump, in bytes.
    pub jitdump_max: Option<u64>,
    /// Directory of the perf map.
    pub map_dir: Option<PathBuf>,
    /// Directory of the jitdump and of the regions' files.
    pub jitdump_dir: Option<PathBuf>,
    /// The intended reader of the perf map.
    pub map_dialect: Dialect,
    /// Permission bits of the files.
    pub file_mode: Option<u32>,
    /// The maximum memory for pending records, in bytes.
    pub max_memory: Option<u64>,
    /// How long a registration may wait when the memory for records is full.
    pub max_wait: Option<Duration>,
    /// Directory of the spool.
    pub spool_dir: Option<PathBuf>,
}

/// What a forked child inherits, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fork {
    /// The child inherits sessions and live code, in its first call that uses a session. The child's map and jitdump begin with
    /// the child's own code, and get the inherited code after two seconds.
    #[default]
    Late,
    /// Like `Late`, but the child writes the inherited code to its files in its first call.
    FirstCall,
    /// The child inherits sessions and live code, and writes this code to its files, before `fork` returns in the child.
    AtOnce,
    /// The child inherits nothing.
    Alone,
}

/// Where the jitdump is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpDir {
    /// The jitdump is in this directory.
    Exactly(PathBuf),
    /// The jitdump is in a new directory in the subdirectory `.debug/jit` of this directory. perf's own agents do the same with
    /// `JITDUMPDIR`.
    CacheBelow(PathBuf),
}

/// What a process writes, and how. The first session of the process determines the configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub sinks: Sinks,
    pub unwind: bool,
    /// Whether the jitdump gets records of inlined functions.
    pub inlines: bool,
    pub drop_when_full: bool,
    pub map_dir: PathBuf,
    pub dump_dir: DumpDir,
    pub dialect: Dialect,
    pub file_mode: u32,
    pub max_memory: usize,
    pub max_wait: Duration,
    pub clock: Clock,
    /// Whether pending records lie in a spool.
    pub spool: bool,
    pub spool_dir: PathBuf,
    /// Whether the library may start threads.
    pub threads: bool,
    pub recover: bool,
    pub fork: Fork,
    pub remove_files: bool,
    /// Whether live code is remembered for sinks that are enabled later.
    pub remember: bool,
    /// Whether sinks may be enabled later.
    pub late: bool,
    /// Whether the library adopts memory of the runtime when code is registered there.
    pub adopt: bool,
    /// Whether code that other libraries report to gdb is registered too.
    pub bridge: bool,
    /// Whether the writer may start the sink for debuggers although no session has requested it.
    pub debugger: bool,
    pub map_max: u64,
    pub jitdump_max: u64,
}

impl Config {
    /// Whether a session with the configuration `self` can use the files of the running sinks. `started` is the set of the
    /// running sinks. `running` is the configuration with which the running sinks were started.
    pub fn can_join(&self, running: &Config, started: Sinks) -> bool {
        let shares_map = self.sinks.has(Sinks::MAP) && started.has(Sinks::MAP);
        let shares_dump = self.sinks.has(Sinks::JITDUMP) && started.overlaps(Sinks::JITDUMP.with(Sinks::REGION));
        let map = self.map_dir == running.map_dir && self.dialect == running.dialect;
        (map || !shares_map) && (self.dump_dir == running.dump_dir || !shares_dump)
    }

    /// All sinks of the configuration except the sink for valgrind. Under valgrind, the library starts the sink for valgrind
    /// even if no session requests it.
    pub fn asked_for(&self) -> Sinks {
        self.sinks.without(Sinks::VALGRIND)
    }

    /// Whether a writer is needed, because a sink runs or code is remembered.
    pub fn starts_writer(&self) -> bool {
        self.sinks != Sinks::NONE || self.remember
    }

    /// This configuration with `sinks` added, and with the settings of `other` for these sinks. Settings that matter only to
    /// threads that register code are not changed.
    pub fn with_sinks_of(&self, other: &Config, sinks: Sinks) -> Config {
        let mut config = Config { sinks: self.sinks.with(sinks), ..self.clone() };
        if self.sinks == Sinks::NONE {
            (config.file_mode, config.remove_files) = (other.file_mode, other.remove_files);
        } else {
            config.file_mode &= other.file_mode;
        }
        if sinks.has(Sinks::MAP) {
            (config.map_dir, config.dialect, config.map_max) = (other.map_dir.clone(), other.dialect, other.map_max);
        }
        if sinks.has(Sinks::JITDUMP) {
            (config.dump_dir, config.jitdump_max) = (other.dump_dir.clone(), other.jitdump_max);
        }
        if sinks.has(Sinks::REGION) && !self.sinks.has(Sinks::REGION) {
            config.adopt = other.adopt;
            if !config.sinks.has(Sinks::JITDUMP) {
                config.dump_dir = other.dump_dir.clone();
            }
        }
        config
    }
}
