//! The file formats: pure functions that convert values to bytes and bytes to values. Only this module contains byte layouts.

pub mod arch;
pub mod cfi;
pub mod code_info;
pub mod elf;
pub mod file_names;
mod get;
pub mod jitdump;
pub mod name;
pub mod name_and_file;
pub mod perf_map;
mod put;
pub mod trampoline;
pub mod unwind;
