//! Atomics, locks and channels for the whole library, in variants that tools for finding races understand.
//!
//! * By default they are the types of the standard library and of crossbeam.
//! * With `--cfg jitsym_locks` they are POSIX locks, which ThreadSanitizer, helgrind and drd know. The standard library's
//!   locks are futexes, and partly in code that no tool has instrumented.
//! * With `--cfg jitsym_loom` (`tests/models`) they are loom's. loom runs every order of events, and each load with every
//!   value that it may return.
//!
//! In builds with one of these flags, a test can take the memory order from one access (`weaken`), to see that the tools
//! notice.

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

/// Locks that loom does not control. They exist once, and are not created again for each run of a model.
#[cfg(not(jitsym_loom))]
pub use self as outside;
#[cfg(jitsym_loom)]
pub use std::sync as outside;

/// Takes a lock, even if a thread has panicked while it held the lock.
pub fn lock<T>(mutex: &outside::Mutex<T>) -> outside::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands for pieces of memory that are not atomic. In loom builds, loom is told of their reads and writes. In this build,
/// the functions do nothing.
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
