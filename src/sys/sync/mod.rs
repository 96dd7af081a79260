//! Atomics, locks and channels for the whole library. Builds for tools that find races use other types than normal builds.
//!
//! * Normal builds use the types of the standard library and of crossbeam.
//! * With `--cfg jitsym_locks` the locks are POSIX locks, because ThreadSanitizer, helgrind and drd do not support the standard
//!   library's locks, which are futexes. Also, a part of the standard library's code for locks is compiled without the
//!   instructions that ThreadSanitizer adds.
//! * With `--cfg jitsym_loom` (`tests/models`) the types are those of loom. loom runs a test with every order of events, and
//!   with every value that each load may return.
//!
//! In builds with one of these flags, a test can make one access relaxed (`weaken`), to check that the tools detect the
//! missing order.

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

/// The types for locks that loom does not control. A lock of these types is created once in the process, and not again for each
/// run of a model.
#[cfg(not(jitsym_loom))]
pub use self as outside;
#[cfg(jitsym_loom)]
pub use std::sync as outside;

/// Takes a lock, even if a thread has panicked while it held the lock.
pub fn lock<T>(mutex: &outside::Mutex<T>) -> outside::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells loom about reads and writes of memory that is not atomic. In builds without loom, the functions do nothing.
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
