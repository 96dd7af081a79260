//! The state that callers can query: which sinks run, the counters, and the last failure.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::api::options::Sinks;
use crate::queue::file_write_gate::WriteGate;
use crate::queue::quiesce::Quiesce;
use crate::sys::clock::Clock;
use crate::sys::sync::outside::{Arc, Mutex, PoisonError};
use crate::sys::{debug, last_error};

/// Values that the library passes to the sinks, and values that the sinks report.
#[derive(Debug)]
pub struct Status {
    /// The pid of the process whose code is registered.
    pub pid: u32,
    /// The clock of time stamps.
    pub clock: Clock,
    pub counters: Counters,
    pub last_error: Arc<LastError>,
    /// Every change of a file passes this gate.
    pub write_gate: WriteGate,
    /// Makes the writer and the registering threads pause while the process forks.
    pub quiesce: Quiesce,
    paths: Mutex<Vec<(Sinks, PathBuf)>>,
    sinks: SinkBits,
}

/// These words have a separate cache line, because every registration reads them while the writer changes the counters.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SinkBits {
    /// The sinks for which threads write records: the running sinks, with flags for the data that these sinks want. The flag
    /// `Sinks::REMEMBER` is also set if live code is remembered. If no bit is set, every call returns at once.
    wanted: AtomicU32,
    /// The writer's copy of the bits of `wanted`. While all sinks are being stopped, `wanted` is already 0, but `running` is
    /// not 0 yet, because the sinks still get the earlier records.
    running: AtomicU32,
    failed: AtomicU32,
    /// Sinks that run, but cannot write at present.
    stalled: AtomicU32,
    /// Sinks that run in addition to other sinks, although the host and the user have not requested them.
    by_default: AtomicU32,
}

impl Status {
    pub fn new(pid: u32, clock: Clock, last_error: Arc<LastError>) -> Status {
        Status {
            pid,
            clock,
            counters: Counters::default(),
            last_error,
            write_gate: WriteGate::default(),
            quiesce: Quiesce::default(),
            paths: Mutex::default(),
            sinks: SinkBits::default(),
        }
    }

    pub fn path(&self, sink: Sinks) -> Option<PathBuf> {
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.iter().find(|(found, _)| *found == sink).map(|(_, path)| path.clone())
    }

    pub fn set_paths(&self, paths: Vec<(Sinks, PathBuf)>) {
        *self.paths.lock().unwrap_or_else(PoisonError::into_inner) = paths;
    }

    /// The sinks for which registering threads have to write records, with flags in the highest bits (see [`Sinks`]). If a
    /// thread reads an empty set, the thread also sees why the set is empty: the last session was closed, or the sinks were
    /// disabled.
    #[inline]
    pub fn wanted(&self) -> Sinks {
        Sinks(self.sinks.wanted.load(Ordering::Acquire))
    }

    #[inline]
    pub fn sinks(&self) -> Sinks {
        Sinks(self.sinks.running.load(Ordering::Acquire) & Sinks::ANY.0)
    }

    /// The running sinks, with flags in the highest bits (see [`Sinks`]).
    pub fn sinks_with_notes(&self) -> Sinks {
        Sinks(self.sinks.running.load(Ordering::Acquire))
    }

    /// False if a sink runs, or if code is remembered. If the result is true, nothing is written, not even earlier records.
    pub fn has_ended(&self) -> bool {
        self.sinks.running.load(Ordering::Acquire) == 0
    }

    /// The running sinks that were not requested.
    pub fn sinks_by_default(&self) -> Sinks {
        Sinks(self.sinks().0 & self.sinks.by_default.load(Ordering::Relaxed))
    }

    pub fn set_by_default(&self, sinks: Sinks) {
        self.sinks.by_default.store(sinks.0, Ordering::Relaxed);
    }

    /// The running sinks that can write.
    pub fn sinks_ok(&self) -> Sinks {
        Sinks(self.sinks().0 & !self.sinks.stalled.load(Ordering::Relaxed))
    }

    /// The running sinks that cannot write at present.
    pub fn sinks_failed_now(&self) -> Sinks {
        self.sinks().without(self.sinks_ok())
    }

    /// The sinks that could not start, or cannot write at present.
    pub fn sinks_failed(&self) -> Sinks {
        let stalled = self.sinks.stalled.load(Ordering::Relaxed);
        Sinks(self.sinks.failed.load(Ordering::Relaxed) | stalled)
    }

    /// Stores which sinks run (`running`), and which sinks should run but do not (`failed`).
    pub fn set_sinks(&self, running: Sinks, failed: Sinks) {
        self.sinks.stalled.store(0, Ordering::Relaxed);
        self.sinks.failed.store(failed.0, Ordering::Relaxed);
        self.sinks.change(|_| Some(running.0));
    }

    /// Notes that the sinks in `asked` were requested, and that the sinks in `started` have started.
    pub fn add_sinks(&self, asked: Sinks, started: Sinks) {
        self.sinks.failed.fetch_or(asked.without(started).0, Ordering::Relaxed);
        self.sinks.failed.fetch_and(!started.0, Ordering::Relaxed);
        self.sinks.change(|running| Some(running | started.0));
    }

    /// Notes that these sinks no longer run. The function `with_wants` adds flags to the set of the remaining sinks. The flags
    /// describe the data that the remaining sinks want from registering threads.
    pub fn remove_sinks(&self, sinks: Sinks, with_wants: fn(Sinks) -> Sinks) {
        let left = |running| {
            let marks = Sinks::REMEMBER.with(Sinks::MUST_WAIT).with(Sinks::BY_CALLERS);
            let kept = Sinks(running & (Sinks::ANY.0 | marks.0)).without(sinks);
            let kept = if kept.has(Sinks::UNWINDER) { kept } else { kept.without(Sinks::BY_CALLERS) };
            let kept = if kept.has(Sinks::GDB) { kept } else { kept.without(Sinks::MUST_WAIT) };
            Some(with_wants(kept).0)
        };
        self.sinks.change(left);
        self.sinks.failed.fetch_and(!sinks.0, Ordering::Relaxed);
        self.sinks.stalled.fetch_and(!sinks.0, Ordering::Relaxed);
    }

    /// Sets or clears the flag `MUST_WAIT`. If the flag is set, each call waits until the writer has reported the code of the
    /// call to certain sinks. If the gdb sink runs, calls wait while a debugger is attached (`is_watched`). If the valgrind
    /// sink runs, calls always wait. If the unwinder sink runs, calls wait, except when they report their code to the unwinder
    /// themselves.
    pub fn set_watched(&self, is_watched: bool) {
        let change = |running| {
            let without = Sinks(running).without(Sinks::MUST_WAIT);
            let unwinder_waits = without.has(Sinks::UNWINDER) && !without.has(Sinks::BY_CALLERS);
            let is_set = is_watched && without.has(Sinks::GDB) || unwinder_waits || without.has(Sinks::VALGRIND);
            let new = if is_set { without.with(Sinks::MUST_WAIT) } else { without };
            (new.0 != running).then_some(new.0)
        };
        self.sinks.change(change);
    }

    /// Notes that a sink cannot write, and will try again. All other sinks continue.
    pub fn sink_is_behind(&self, sink: Sinks) {
        self.sinks.stalled.fetch_or(sink.0, Ordering::Relaxed);
    }

    /// Notes that a sink has caught up.
    pub fn sink_goes_on(&self, sink: Sinks) {
        self.sinks.stalled.fetch_and(!sink.0, Ordering::Relaxed);
    }

    /// Runs `write`, which is slow work such as a write to a file (`Quiesce::aside`).
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.quiesce.aside(write)
    }

    /// From now on, threads write no records. The sinks continue to run, because they still get the earlier records.
    pub fn end_wants(&self) {
        self.sinks.wanted.store(0, Ordering::Release);
    }

    /// From now on, nothing is written, not even earlier records.
    pub fn stop_sinks(&self) {
        self.end_wants();
        self.sinks.running.store(0, Ordering::Release);
    }
}

impl SinkBits {
    /// Applies `new` to `running` and to `wanted`. A word for which `new` returns `None` stays unchanged.
    fn change(&self, new: impl Fn(u32) -> Option<u32>) {
        for word in [&self.running, &self.wanted] {
            let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, &new);
        }
    }
}

/// Text of the last failure; empty if there was none.
#[derive(Debug, Default)]
pub struct LastError(Mutex<(u64, String)>);

impl LastError {
    /// The number of the failure, and its text. A later failure has a higher number.
    pub fn get(&self) -> (u64, String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Passes the number and the text to `look`, without copying the text. Does nothing while another thread holds the lock.
    /// Waiting for the lock could end in a deadlock. A signal handler may have interrupted the thread that holds the lock, and
    /// the handler may wait for the calling thread.
    pub fn look(&self, look: impl FnOnce(u64, &str)) {
        if let Ok(last) = self.0.try_lock() {
            look(last.0, &last.1);
        }
    }

    pub fn set(&self, text: String) {
        debug::say(format_args!("failed: {text}"));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (last_error::next_number(), text);
    }
}

/// The list of the counters that `jitsym_stats`, [`Stats`] and `Counters` have under the same names.
macro_rules! with_counters {
    ($what:ident) => {
        $what! {
            registered moved unregistered overwritten live dropped unreadable names_changed
            jitdump_bytes jitdump_records map_bytes map_entries map_rewrites map_forgotten write_errors waited recovered
            jitdump_lost jitdump_held jitdump_rewrites map_omitted
            region_code region_bytes region_generations region_late region_refused region_left_out calls_refused
            region_put_off region_limit lines_left_out
        }
    };
}
pub(crate) use with_counters;

macro_rules! counters {
    ($($name:ident)*) => {
        /// One atomic for each counter. The description of `jitsym_stats` explains the counters.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub $name: Counter,)*
            pub inherited: Counter,
            pub regions: Counter,
            pub regions_ended: Counter,
            /// How many times the writer has reported to sinks that code is live or has ended.
            pub told: Counter,
        }

        /// The counters of a process; [`jitsym_stats`](crate::capi::types::jitsym_stats) describes each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            /// The sinks that are running and can write.
            pub sinks_running: Sinks,
            /// The sinks that could not start, or cannot write at present.
            pub sinks_failed: Sinks,
            /// Bytes of memory in use for records on their way to the writer.
            pub memory: u64,
            /// Bytes of memory that are held for records on their way to the writer. A part of these bytes may be unused.
            pub memory_held: u64,
            /// Whether records on their way to the writer outlive the process.
            pub spool: SpoolState,
            /// Number of pieces of code that this process has taken over from its parent, if it is a forked child.
            pub inherited: u64,
            /// Number of regions that have a file now.
            pub regions: u64,
            /// Number of permanent threads of this library.
            pub threads: u64,
            $(
                #[doc = concat!("[`", stringify!($name), "`](crate::capi::types::jitsym_stats::", stringify!($name), ")")]
                pub $name: u64,
            )*
        }

        impl Stats {
            /// The names of the values that `values` returns, in the same order.
            pub(crate) const NAMES: &[&str] = &[
                "sinks_running", "sinks_failed", "memory", "memory_held", "inherited", "regions", $(stringify!($name)),*
            ];
            /// The names of `NAMES` in one text, with a space after each name.
            pub(crate) const NAMES_IN_ONE: &str = concat!(
                "sinks_running sinks_failed memory memory_held inherited regions ", $(stringify!($name), " "),*
            );

            /// All values except the state of the spool.
            pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
                let Stats { sinks_running, sinks_failed, memory, memory_held, inherited, regions, .. } = *self;
                let first = [sinks_running.0.into(), sinks_failed.0.into(), memory, memory_held, inherited, regions];
                first.into_iter().chain([$(self.$name),*])
            }
        }

        impl Status {
            /// All counters except the sizes of the memory for records.
            pub fn stats(&self) -> Stats {
                let counters = &self.counters;
                let regions = counters.regions.get().saturating_sub(counters.regions_ended.get());
                let sinks_running = self.sinks_ok().without(self.sinks_by_default());
                Stats {
                    sinks_running,
                    sinks_failed: self.sinks_failed(),
                    inherited: counters.inherited.get(),
                    regions,
                    $($name: counters.$name.get(),)*
                    ..Stats::default()
                }
            }
        }
    };
}

with_counters!(counters);

/// Whether records on their way to the writer outlive the process; `jitsym_spool_state` in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpoolState {
    /// Some or all records are in private memory, and are lost if the process is killed.
    #[default]
    None = 0,
    /// All records are in a spool, from which [`recover`](crate::recover) completes the files.
    Shared = 1,
}

/// A counter. Counters need not be consistent with each other, so relaxed order is enough.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
