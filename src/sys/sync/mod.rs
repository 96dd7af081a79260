//! Atomics, locks and channels, by way of one place, so that the tools which look for races get what they understand.
//!
//! | built with | what it is |
//! |---|---|
//! | nothing | the standard library's and crossbeam's, as they are |
//! | `--cfg jitsym_locks` | POSIX locks: ThreadSanitizer, helgrind and drd know those. The standard library's are futexes, and partly in code that no tool has instrumented |
//! | `--cfg jitsym_loom` (`tests/models`) | loom's: every order of events is run, and with every value that a load may return |
//!
//! In the last two the order that one access gives can be taken away (`weaken`), to see that the tools notice.

#[cfg(any(jitsym_locks, jitsym_loom))]
pub mod atomic;
#[cfg(jitsym_loom)]
pub mod model;
#[cfg(jitsym_locks)]
mod posix;

#[cfg(not(any(jitsym_locks, jitsym_loom)))]
pub use std::sync::{atomic, Condvar, Mutex, MutexGuard};
pub use std::sync::{Arc, PoisonError};
#[cfg(not(jitsym_loom))]
pub use {crossbeam_channel as channel, std::thread::yield_now, std::time::Instant};

#[cfg(jitsym_loom)]
pub use model::{channel, yield_now, Condvar, Instant, Mutex, MutexGuard, Witness};
#[cfg(jitsym_locks)]
pub use posix::{Condvar, Mutex, MutexGuard};

/// What loom has nothing to do with: there is one of it, and not one in each run of a model.
#[cfg(not(jitsym_loom))]
pub use self as outside;
#[cfg(jitsym_loom)]
pub use std::sync as outside;

/// Takes a lock, also if a thread has panicked that had it.
pub fn lock<T>(mutex: &outside::Mutex<T>) -> outside::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pieces of memory that are not atomics. loom is told when they are read and written; else this is nothing.
#[cfg(not(jitsym_loom))]
#[derive(Debug)]
pub struct Witness;

#[cfg(not(jitsym_loom))]
impl Witness {
    #[inline(always)]
    pub fn written(&self, _: u32) {}
    #[inline(always)]
    pub fn read(&self, _: u32) {}
}
