//! Everything that is asked of the operating system, and nearly all `unsafe` code that is not about pointers from C.

pub mod barrier;
pub mod clock;
pub mod code_memory;
pub mod delegate;
pub mod descriptors;
pub mod dir;
pub mod file;
pub mod futex;
pub mod guard;
pub mod last_thread;
pub mod listing;
pub mod loader;
pub mod mapping;
pub mod maps;
pub mod marker;
pub mod other_writers;
pub mod park;
pub mod process;
pub mod process_memory;
pub mod range_lock;
pub mod reserve;
pub mod spool;
pub mod sync;
pub mod thread;
#[cfg(target_arch = "x86_64")]
pub mod tsc;
