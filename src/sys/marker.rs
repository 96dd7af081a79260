//! The marker mapping, which announces to `perf record` that a process writes a jitdump.
//!
//! Without `-d`, perf records only executable mappings (linux tools/perf/builtin-record.c). perf looks for a mapping whose
//! file is called `jit-PID.dump` (tools/perf/util/jitdump.c, `jit_detect`). A perf that attaches later finds the mapping in
//! /proc/PID/maps. So the mapping must stay until the process ends, or until another file replaces the mapped file. For this
//! reason, dropping a `Marker` does not unmap the marker.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

use memmap2::{Advice, Mmap, MmapOptions};

use super::mapping::page_size;

/// A page of a file, mapped until the process ends or `end` is called.
#[derive(Debug)]
pub struct Marker(ManuallyDrop<Mmap>);

impl Marker {
    /// Maps the first page of a jitdump as executable. Fails on a file system that is mounted `noexec`.
    pub fn new(dump: &File) -> io::Result<Marker> {
        // SAFETY: the mapping exists only for its name and is never read, so changes of the file do not matter.
        Ok(Marker::keep(unsafe { MmapOptions::new().len(page_size()).map_exec(dump)? }))
    }

    /// Maps the first page of a perf map. By this mapping, other copies of this library in the process detect that the file
    /// is in use, even after the file is closed.
    pub fn of_map(map: &File) -> io::Result<Marker> {
        // SAFETY: the mapping is never read, so changes of the file do not matter.
        Ok(Marker::keep(unsafe { MmapOptions::new().len(page_size()).map(map)? }))
    }

    fn keep(mapping: Mmap) -> Marker {
        // A forked child has its own jitdump. perf 7 would interpret an inherited marker as a marker of the child.
        let _ = mapping.advise(Advice::DontFork);
        Marker(ManuallyDrop::new(mapping))
    }

    /// Unmaps the marker. Before the marker of a jitdump is unmapped, another jitdump must have a marker.
    pub fn end(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}
