//! The counters that `jitsym_get_stats` reads.

/// Whether pending records survive SIGKILL (`jitsym_stats.spool`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_spool_state {
    /// Records are in private memory: after SIGKILL they are lost.
    ///
    /// While the writer keeps up, at most the records of the last 50 milliseconds are lost. Private memory also takes records
    /// for which the spool's file system has no room.
    JITSYM_SPOOL_NONE = 0,
    /// Records are in a spool. After SIGKILL, `jitsym recover` writes these records to the files.
    JITSYM_SPOOL_SHARED = 1,
}

/// Counters of this process over all sessions. A forked child begins with 0.
///
/// All values only grow, except for `sinks_running`, `sinks_failed`, `live`, `map_entries`, `memory`, `memory_held`,
/// `spool`, `jitdump_held`, `map_omitted`, `regions` and `region_left_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct jitsym_stats {
    /// `sizeof(jitsym_stats)`, set by the caller: at most this many bytes are written.
    ///
    /// The library does not change fields that only a newer header has.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits of the sinks that run and can write.
    ///
    /// `JITSYM_SINK_REGION` is missing if the file of the last created region could not be made, and no region has a file.
    pub sinks_running: u32,
    /// Bits of sinks that could not start, or cannot write now.
    ///
    /// A sink that cannot write tries again at each flush, and at least every ten seconds. After a failed start, a sink waits
    /// for `jitsym_enable`, or in a forked child for the next flush.
    pub sinks_failed: u32,
    /// Registrations that reached the writer.
    pub registered: u64,
    /// Moves that reached the writer.
    pub moved: u64,
    /// Pieces of code that were unregistered, by id or by range.
    pub unregistered: u64,
    /// Pieces of code over which newer code was registered.
    pub overwritten: u64,
    /// Pieces of code that are live now.
    pub live: u64,
    /// Records dropped because the writer could not keep up.
    pub dropped: u64,
    /// Registrations and moves whose bytes could not all be read.
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
    /// The map is rewritten if entries have to change or are missing, or if the map has reached `jitsym_options.map_max`.
    pub map_rewrites: u64,
    /// Entries of dead code that the perf map left out because of `jitsym_options.map_max`.
    pub map_forgotten: u64,
    /// Write errors, over all sinks.
    pub write_errors: u64,
    /// Bytes in use for records on their way to the writer.
    pub memory: u64,
    /// Bytes held for pending records, in use or not; at most `jitsym_options.max_memory`.
    pub memory_held: u64,
    /// Records that had to wait because `jitsym_options.max_memory` was reached.
    pub waited: u64,
    /// Number of records that `JITSYM_INIT_RECOVER` has written to files of killed processes.
    pub recovered: u64,
    /// One of `JITSYM_SPOOL_*` (`jitsym_control.h`).
    pub spool: u32,
    /// Code that this forked child has taken over; not counted in `registered`.
    pub inherited: u32,
    /// Records that could not be written to the jitdump.
    ///
    /// The disk was full or the jitdump had reached `jitsym_options.jitdump_max`, and the memory for waiting records was full.
    /// The number includes waiting records that a rewrite of the jitdump left out. When writing is possible again, the library
    /// writes new records for the code of lost records, if the code is still live. The new records have no lines and no unwind
    /// tables. A forked child also counts a record that its parent was still writing at the fork.
    pub jitdump_lost: u64,
    /// Bytes of records that wait because the jitdump cannot be written.
    ///
    /// The value is at most a quarter of `jitsym_options.max_memory`.
    pub jitdump_held: u64,
    /// Rewrites of the jitdump.
    ///
    /// The jitdump is rewritten if another program or library has removed or truncated it, or if the jitdump has reached
    /// `jitsym_options.jitdump_max`.
    pub jitdump_rewrites: u64,
    /// Entries of live code for which the perf map has no room now.
    pub map_omitted: u64,
    /// Created and adopted regions that have a file now.
    pub regions: u64,
    /// Registrations and moves that were written to the file of a region.
    pub region_code: u64,
    /// Bytes written to the files of regions, earlier generations included.
    pub region_bytes: u64,
    /// How often a region's file got a new name, to separate new code from dead code.
    ///
    /// Each new name begins a generation, which [docs/regions.md](regions.md#epochs) calls an epoch.
    pub region_generations: u64,
    /// Generations that began late or not at all. Samples may then have wrong names or stacks.
    pub region_late: u64,
    /// Regions that got no file, and memory that could not be adopted.
    ///
    /// Regions without a file are plain memory. Memory of a kind that is never adopted, such as shared memory, is not
    /// counted.
    pub region_refused: u64,
    /// Names, unwind tables and line tables that have no room in a region's file now.
    pub region_left_out: u64,
    /// Calls refused because of their arguments: see `jitsym_last_error`.
    pub calls_refused: u64,
    /// How often the adoption of memory was postponed.
    ///
    /// The memory was not executable yet, or its mapping did not contain all of the code. If the adoption of memory is
    /// postponed for more than a second, `region_refused` counts the memory too.
    pub region_put_off: u64,
    /// How often making or adopting a region failed because 768 regions existed.
    pub region_limit: u64,
    /// Permanent threads of this library. 0 under `JITSYM_INIT_NO_THREADS`.
    ///
    /// The permanent threads are the writer, the thread that uses the host's descriptors, and the bridge's thread. Threads that
    /// exist only during a call are not counted.
    pub threads: u64,
    /// Rows of line tables that were left out.
    ///
    /// The row's line was 0, or a later row of the same table had the same offset.
    pub lines_left_out: u64,
}

// The enumerations of C and Rust have the same numbers.
const _: () = {
    use crate::queue::status::SpoolState;
    assert!(jitsym_spool_state::JITSYM_SPOOL_NONE as u32 == SpoolState::None as u32);
    assert!(jitsym_spool_state::JITSYM_SPOOL_SHARED as u32 == SpoolState::Shared as u32);
};
