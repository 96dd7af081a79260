//! Collects the mappings of processes: mappings of the files of regions, and mappings that can replace code.

use std::collections::HashMap;
use std::ops::Range;

use jitsym::format::file_names::{parse, FileKind};

use super::family::Own;
use super::survey::is_memory_or_heap;
use crate::perf_data::events::{misc, Event, Mapped, OFFSET};
use crate::perf_data::u64_at;
use crate::record::script::file_name;

/// A mapping of memory with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub pid: u32,
    /// The time of the mapping, or 0 if the process had the mapping when the recording began.
    pub time: u64,
    pub range: Range<u64>,
    /// The address of the file's first byte, modulo 2^64.
    pub origin: u64,
    /// Index of the path, if the mapping is of a region's file.
    pub path: Option<usize>,
    /// The number of the mapped file's path. `None` for memory without a file.
    pub file: Option<usize>,
}

/// All mappings of a recording.
#[derive(Debug, Default)]
pub struct Mappings {
    pub all: Vec<Mapping>,
    /// The paths of files of regions.
    pub paths: Vec<String>,
    by_path: HashMap<String, usize>,
    /// Other files, by path.
    files: HashMap<Vec<u8>, usize>,
}

/// Whether a file with this path can be the file of a region.
pub fn is_region(path: &str) -> bool {
    matches!(parse(file_name(path)), Some((_, FileKind::Region { .. })))
}

/// Whether a file with this path has the code that a forked child inherits. The child removes the file in its first call of
/// the library.
pub fn is_of_fork(path: &str) -> bool {
    matches!(parse(file_name(path)), Some((_, FileKind::Region { parent: 1.., .. })))
}

impl Mappings {
    pub fn add(&mut self, event: &Event<'_>, mapped: &Mapped<'_>, path: &str, time: Option<u64>) {
        if event.misc() & misc::DATA != 0 {
            return;
        }
        let path = is_region(path).then(|| match self.by_path.get(path) {
            Some(&index) => index,
            None => {
                self.paths.push(path.to_owned());
                self.by_path.insert(path.to_owned(), self.paths.len() - 1);
                self.paths.len() - 1
            }
        });
        let file = (!is_memory_or_heap(mapped.name)).then(|| {
            let next = self.files.len();
            match self.files.get(mapped.name) {
                Some(&number) => number,
                None => *self.files.entry(mapped.name.to_vec()).or_insert(next),
            }
        });
        let origin = mapped.range.start.wrapping_sub(u64_at(event.bytes, OFFSET));
        let (pid, time, range) = (mapped.pid, time.unwrap_or(0), mapped.range.clone());
        self.all.push(Mapping { pid, time, range, origin, path, file });
    }

    /// Sorts the mappings by time. If the recording has no regions and no jitdumps, drops all mappings.
    pub fn finish(&mut self, has_dumps: bool) {
        if self.paths.is_empty() && !has_dumps {
            self.all = Vec::new();
        }
        self.all.sort_by_key(|mapping| mapping.time);
    }

    /// The mappings of each process, as pairs of time and index in ascending order.
    pub fn own(&self) -> Own {
        let mut own = Own::new();
        for (index, mapping) in self.all.iter().enumerate() {
            own.entry(mapping.pid).or_default().push((mapping.time, index));
        }
        own
    }
}
