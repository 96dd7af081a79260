//! Everything that is asked of the operating system, and nearly all `unsafe` code that is not about pointers from C.

pub mod arch;
pub mod barrier;
pub mod clock;
pub mod code_memory;
pub mod company;
pub mod delegate;
pub mod descriptors;
pub mod dir;
pub mod file;
pub mod futex;
pub mod last_thread;
pub mod listing;
pub mod maps;
pub mod marker;
pub mod mem;
pub mod memory;
pub mod park;
pub mod pin;
pub mod process;
pub mod spool;
pub mod sync;
pub mod table;
pub mod thread;
#[cfg(target_arch = "x86_64")]
pub mod tsc;
pub mod view;
