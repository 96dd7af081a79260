//! The counters.

/// Whether records on their way to the writer outlive the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_spool_state {
    /// They are in private memory: SIGKILL loses those of the last 50 milliseconds at most, while the writer keeps up. Where the file
    /// system of the spool is full, that holds for the records that had no room there.
    JITSYM_SPOOL_NONE = 0,
    /// They are in a spool, from which `jitsym recover` completes the files.
    JITSYM_SPOOL_SHARED = 1,
}

/// Counters of this process (a forked child begins with 0), over all sessions. All but the sinks, `live`, `map_entries`,
/// `memory`, `memory_held`, `spool`, `jitdump_held`, `map_omitted`, `regions` and `region_left_out` only grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct jitsym_stats {
    /// `sizeof(jitsym_stats)`, set by the caller; that many bytes are written at most. Fields of a newer header after those that
    /// this library knows are left as they were.
    pub struct_size: usize,
    /// `JITSYM_SINK_*` bits of the sinks that are running and can write.
    pub sinks_running: u32,
    /// `JITSYM_SINK_*` bits of the sinks that could not start, or cannot write at present. Those that cannot write try again, at each
    /// flush and by themselves at least every ten seconds. Those that could not start wait for `jitsym_enable`, except in a forked
    /// child, which tries to start them again at each flush.
    pub sinks_failed: u32,
    /// Registrations that reached the writer.
    pub registered: u64,
    /// Moves that reached the writer.
    pub moved: u64,
    /// Codes retired by `jitsym_unregister` and its range form.
    pub unregistered: u64,
    /// Codes retired because newer code was registered over them.
    pub overwritten: u64,
    /// Codes that are live now.
    pub live: u64,
    /// Records dropped because the writer could not keep up.
    pub dropped: u64,
    /// Registrations and moves whose code bytes could not all be read.
    pub unreadable: u64,
    /// Names that were cleaned or cut.
    pub names_changed: u64,
    /// Declarations of `free_after` that were not true and have been ignored.
    pub not_free: u64,
    /// Bytes written to the jitdump after its header.
    pub jitdump_bytes: u64,
    /// Code records written to the jitdump.
    pub jitdump_records: u64,
    /// Bytes written to the perf map, rewrites included.
    pub map_bytes: u64,
    /// Entries in the perf map.
    pub map_entries: u64,
    /// Times that the perf map was rewritten because an entry had to change.
    pub map_rewrites: u64,
    /// Entries of dead code that were dropped from the perf map to keep it bounded.
    pub map_forgotten: u64,
    /// Write errors, over all sinks.
    pub write_errors: u64,
    /// Bytes of memory in use for records on their way to the writer.
    pub memory: u64,
    /// Bytes of memory that are held for that purpose, in use or not; at most `jitsym_options.max_memory`.
    pub memory_held: u64,
    /// Records that had to wait because `jitsym_options.max_memory` was reached.
    pub waited: u64,
    /// Records of killed processes that `JITSYM_INIT_RECOVER` has put into their files.
    pub recovered: u64,
    /// One of `JITSYM_SPOOL_*`.
    pub spool: u32,
    /// Number of codes that this process, being a forked child, has taken over from its parent. They are not in `registered`.
    pub inherited: u32,
    /// Records that could not be written to the jitdump (no room on the disk or within `jitsym_options.jitdump_max`, and none in
    /// the memory in which they wait). Also records that waited and were left out when it was rewritten. Code among them that
    /// lives when writing is possible again is written then, without lines and unwind tables. In a forked child also code whose
    /// record the parent was just writing, if the fork did not wait for that.
    pub jitdump_lost: u64,
    /// Bytes of records that wait in memory because the jitdump cannot be written at present; at most a quarter of
    /// `jitsym_options.max_memory`.
    pub jitdump_held: u64,
    /// Times that the jitdump was rewritten, because somebody else removed or cut it, or it had reached its bound.
    pub jitdump_rewrites: u64,
    /// Entries of live code that the perf map has no room for at present.
    pub map_omitted: u64,
    /// Regions with a file, adopted ones included, that there are now.
    pub regions: u64,
    /// Registrations and moves that went to the file of a region, and not to the map and the jitdump.
    pub region_code: u64,
    /// Bytes written to the files of regions, older generations included.
    pub region_bytes: u64,
    /// Times that the file of a region got another name, so that code in the place of dead code has its own name.
    pub region_generations: u64,
    /// Times that this came too late, or could not be done: samples in the old code may have the name of the new, or the reverse.
    pub region_late: u64,
    /// Regions that are plain memory because they could not have a file, and memory with code that could not be adopted, though it
    /// is of the kind.
    pub region_refused: u64,
    /// Names, unwind tables and line tables of code that have no room in the files of regions as they are now.
    pub region_left_out: u64,
    /// Calls that were refused because of what the caller gave: `jitsym_last_error` says what was wrong with the last one of a thread.
    pub calls_refused: u64,
    /// Times that the adoption of memory with code was put off, because it was not executable yet, or its mapping did not hold all of
    /// the code. Later calls try again. `region_refused` counts what has waited for more than a second.
    pub region_put_off: u64,
    /// Times that memory was not adopted, or a region not made, because there were as many as there may be: 768.
    pub region_limit: u64,
}

// C and Rust programs have the same numbers.
const _: () = {
    use crate::queue::status::SpoolState;
    assert!(jitsym_spool_state::JITSYM_SPOOL_NONE as u32 == SpoolState::None as u32);
    assert!(jitsym_spool_state::JITSYM_SPOOL_SHARED as u32 == SpoolState::Shared as u32);
};
