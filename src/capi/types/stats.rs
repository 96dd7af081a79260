//! The counters that `jitsym_get_stats` reads.

/// Whether pending records survive SIGKILL (`jitsym_stats.spool`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_spool_state {
    /// Records are in private memory: after SIGKILL they are lost.
    ///
    /// While the writer keeps up, SIGKILL loses at most the last 50 milliseconds. Private memory also takes records when the
    /// spool's file system is full.
    JITSYM_SPOOL_NONE = 0,
    /// Records are in a spool. After SIGKILL, `jitsym recover` writes them to the files.
    JITSYM_SPOOL_SHARED = 1,
}

/// Counters of this process over all sessions. A forked child begins with 0.
///
/// All values only grow, except `sinks_running`, `sinks_failed`, `live`, `map_entries`, `memory`, `memory_held`, `spool`,
/// `jitdump_held`, `map_omitted`, `regions` and `region_left_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct jitsym_stats {
    /// `sizeof(jitsym_stats)`, set by the caller: at most this many bytes are written.
    ///
    /// Fields that only a newer header has stay unchanged.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits of the sinks that run and can write.
    ///
    /// `JITSYM_SINK_REGION` is missing if no region has a file, and the last created region's file could not be made.
    pub sinks_running: u32,
    /// Bits of sinks that could not start, or cannot write now.
    ///
    /// A sink that cannot write retries at each flush, and at least every ten seconds. A sink that could not start waits for
    /// `jitsym_enable`, or in a forked child for the next flush.
    pub sinks_failed: u32,
    /// Registrations that reached the writer.
    pub registered: u64,
    /// Moves that reached the writer.
    pub moved: u64,
    /// Pieces of code unregistered by id or by range.
    pub unregistered: u64,
    /// Pieces of code that newer code overwrote.
    pub overwritten: u64,
    /// Live pieces of code.
    pub live: u64,
    /// Records dropped because the writer could not keep up.
    pub dropped: u64,
    /// Registrations and moves with unreadable bytes.
    pub unreadable: u64,
    /// Names that were cleaned or cut.
    pub names_changed: u64,
    /// Bytes written to the jitdump after its header.
    pub jitdump_bytes: u64,
    /// Code records written to the jitdump.
    pub jitdump_records: u64,
    /// Bytes written to the perf map, rewrites included.
    pub map_bytes: u64,
    /// Entries in the perf map.
    pub map_entries: u64,
    /// Rewrites of the perf map.
    ///
    /// Changed or missing entries and `jitsym_options.map_max` cause rewrites.
    pub map_rewrites: u64,
    /// Entries of dead code that the perf map omitted because of `jitsym_options.map_max`.
    pub map_forgotten: u64,
    /// Write errors of all sinks.
    pub write_errors: u64,
    /// Bytes of records on their way to the writer.
    pub memory: u64,
    /// Bytes held for pending records, in use or not; at most `jitsym_options.max_memory`.
    pub memory_held: u64,
    /// Records that waited because `jitsym_options.max_memory` was reached.
    pub waited: u64,
    /// Records that `JITSYM_INIT_RECOVER` wrote to files of killed processes.
    pub recovered: u64,
    /// One of `JITSYM_SPOOL_*` (`jitsym_control.h`).
    pub spool: u32,
    /// Pieces of code that this forked child inherited; not counted in `registered`.
    pub inherited: u32,
    /// Records that could not be written to the jitdump.
    ///
    /// The disk or the jitdump (`jitsym_options.jitdump_max`) and the memory for waiting records were full, or a rewrite left
    /// out waiting records. When writing is possible again, lost code that is still live gets new records, without lines and
    /// unwind tables. A forked child also counts a record that its parent was still writing at the fork.
    pub jitdump_lost: u64,
    /// Bytes of records that wait because the jitdump cannot be written.
    ///
    /// The limit is a quarter of `jitsym_options.max_memory`.
    pub jitdump_held: u64,
    /// Rewrites of the jitdump.
    ///
    /// Removal or truncation by others and `jitsym_options.jitdump_max` cause rewrites.
    pub jitdump_rewrites: u64,
    /// Entries of live code that the perf map omits now.
    pub map_omitted: u64,
    /// Regions that have a file now.
    pub regions: u64,
    /// Registrations and moves written to regions' files.
    pub region_code: u64,
    /// Bytes written to regions' files, earlier generations included.
    pub region_bytes: u64,
    /// How often a region's file got a new name, to separate new code from dead code.
    ///
    /// Each new name begins a generation, or [epoch](regions.md#epochs).
    pub region_generations: u64,
    /// Generations that began late or not at all. Samples may then have wrong names or stacks.
    pub region_late: u64,
    /// Regions that got no file, and memory that could not be adopted.
    ///
    /// Memory that is never adopted, such as shared memory, is not counted.
    pub region_refused: u64,
    /// Names, unwind tables and line tables without room in a region's file now.
    pub region_left_out: u64,
    /// Calls refused for bad arguments (`jitsym_last_error`).
    pub calls_refused: u64,
    /// How often the adoption of memory was postponed.
    ///
    /// The memory was not executable yet, or its mapping lacked a part of the code. After a second, `region_refused` counts the
    /// memory too.
    pub region_put_off: u64,
    /// How often making or adopting a region failed because 768 regions existed.
    pub region_limit: u64,
    /// Permanent threads of this library. Under `JITSYM_INIT_NO_THREADS`, only the bridge's.
    ///
    /// The writer, the thread that uses the host's descriptors, and the bridge's thread are permanent. Threads that exist only
    /// during a call are not counted. [Without threads](conventions.md#without-threads), the value is 0, or 1 if the bridge's
    /// thread already ran.
    pub threads: u64,
    /// Rows of line tables that were left out (`jitsym_line`).
    pub lines_left_out: u64,
}

// The enumerations of C and Rust have the same numbers.
const _: () = {
    use crate::queue::status::SpoolState;
    assert!(jitsym_spool_state::JITSYM_SPOOL_NONE as u32 == SpoolState::None as u32);
    assert!(jitsym_spool_state::JITSYM_SPOOL_SHARED as u32 == SpoolState::Shared as u32);
};
