//! Interfaces to the system: system calls, threads, locks, clocks, the loader, debuggers, unwinders and valgrind.

/// The assembler's directive for an address.
#[cfg(target_pointer_width = "32")]
macro_rules! pointer {
    () => {
        ".long "
    };
}
#[cfg(not(target_pointer_width = "32"))]
macro_rules! pointer {
    () => {
        ".quad "
    };
}

pub mod attributes;
pub mod barrier;
pub mod child_copy;
pub mod clock;
pub mod code_memory;
pub mod debug;
pub mod debugger;
pub mod debugger_lists;
pub mod descriptor_table;
pub mod dynamic_symbols;
pub mod file;
pub mod fork_lock;
mod free_later;
pub mod futex;
pub mod handler_file;
pub mod held_dir;
pub mod host_fds;
pub mod last_error;
pub mod last_thread;
pub mod libunwind;
pub mod listing;
pub mod mapping;
pub mod maps;
pub mod marker;
mod open_at;
pub mod other_writers;
pub mod owner_process;
pub mod page_facts;
pub mod panic_guard;
pub mod park;
pub mod prefetch;
pub mod privileges;
pub mod process;
pub mod process_memory;
pub mod range_lock;
pub mod readers;
pub mod registers;
pub mod reserve;
pub mod sort;
pub mod stamp_clock;
pub mod sync;
pub mod thread;
pub mod timed_lock;
pub mod tracer;
#[cfg(target_arch = "x86_64")]
pub mod tsc;
pub mod unwinder;
pub mod valgrind;
pub mod valgrind_mapping;
