//! Regions: code memory that is a mapping of an ELF file, so that every profiler finds the names of the code in the file.
//!
//! `regions` holds the regions of a process. `sink` is the part that runs in the writer.
//!
//! perf records the path that a mapping's file has at the time of `mmap` or `mprotect`. So the library renames a region's file
//! when new code replaces dead code: see `epoch`.

mod address_space;
mod addresses;
mod adopt;
mod automatic;
mod candidates;
mod children;
mod code_marks;
mod copy_to_old_files;
mod create;
mod epoch;
mod exchange;
mod file;
mod file_names;
mod fork;
mod grow_and_release;
mod inherited;
mod live_counts;
mod lookup;
mod lost_pages;
mod mapping_group;
mod naming;
mod new_file;
mod old_files;
mod read_ahead;
mod regions;
mod sharing;
mod sink;
mod state;
mod track;
mod unmapped;

pub use address_space::REACH;
pub use create::{CodeRegion, RegionOptions, SIZE_MAX};
pub use read_ahead::ReadAhead;
pub use regions::Regions;
pub use sink::{RegionSink, KIND};
pub use state::Region;
