//! The marker mapping: how `perf record` learns that a process writes a jitdump.
//!
//! perf notes only executable mappings (linux tools/perf/builtin-record.c without `-d`), and looks for one whose file is called
//! `jit-PID.dump` (tools/perf/util/jitdump.c, `jit_detect`). An attach later on finds it in /proc/PID/maps, so it has to stay
//! until the process ends, unless another file replaces its file; that is why dropping it does nothing.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

use memmap2::{Advice, Mmap, MmapOptions};

use super::mapping::page_size;

/// A page of a file, mapped until the process ends.
#[derive(Debug)]
pub struct Marker(ManuallyDrop<Mmap>);

impl Marker {
    /// Maps a dump's first page, executable. Fails on a file system that is mounted `noexec`.
    pub fn new(dump: &File) -> io::Result<Marker> {
        // SAFETY: the mapping is never read: it exists for its name only, so what happens to the file does not matter.
        Ok(Marker::keep(unsafe { MmapOptions::new().len(page_size()).map_exec(dump)? }))
    }

    /// Maps a map's first page, so that other copies of this library in the process see whose it is when it is closed.
    pub fn of_map(map: &File) -> io::Result<Marker> {
        // SAFETY: as above.
        Ok(Marker::keep(unsafe { MmapOptions::new().len(page_size()).map(map)? }))
    }

    fn keep(mapping: Mmap) -> Marker {
        // A forked child has its own dump. perf 7 takes every marker for one of the process that it finds it in.
        let _ = mapping.advise(Advice::DontFork);
        Marker(ManuallyDrop::new(mapping))
    }

    /// Ends the mapping, when there is one of another file.
    pub fn end(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}
