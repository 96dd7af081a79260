//! Atomics, locks and channels, by way of one place, so that the tools which look for races get what they understand.
//!
//! | built with | what it is |
//! |---|---|
//! | nothing | the standard library's and crossbeam's, as they are |
//! | `--cfg jitsym_locks` | POSIX locks: ThreadSanitizer, helgrind and drd know those. The standard library's are futexes, and partly in code that no tool has instrumented |
//! | `--cfg jitsym_loom` (the package `models`) | loom's: every order of events is run, and with every value that a load may return |
//!
//! In the last two the order that one access gives can be taken away (`weaken`), to see that the tools notice.

#[cfg(any(jitsym_locks, jitsym_loom))]
pub mod atomic;
#[cfg(jitsym_loom)]
pub mod model;
#[cfg(jitsym_locks)]
mod posix;

pub use std::sync::{Arc, PoisonError};
#[cfg(not(any(jitsym_locks, jitsym_loom)))]
pub use std::sync::{atomic, Condvar, Mutex, MutexGuard};
#[cfg(not(jitsym_loom))]
pub use {crossbeam_channel as channel, std::thread::yield_now, std::time::Instant};

#[cfg(jitsym_loom)]
pub use model::{channel, yield_now, Condvar, Instant, Mutex, MutexGuard};
#[cfg(jitsym_locks)]
pub use posix::{Condvar, Mutex, MutexGuard};
