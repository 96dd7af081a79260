//! Runs the writer inside the host's calls of the library. This module is used if the library must not have threads
//! (`thread::forbid`).
//!
//! One thread at a time runs the writer, and no thread waits for the lock. If a thread that waits for the writer finds the
//! lock taken, it tries again and again.

use std::cell::UnsafeCell;
use std::fmt;
use std::time::Duration;

use crate::sys::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys::thread;

/// A thread that waits for the writer tries again and again to run the writer itself, with this pause between two attempts.
pub const TRY_AGAIN: Duration = Duration::from_millis(5);

/// A writer that runs on the calling thread.
pub trait Turns: Send {
    /// Writes pending records, and answers requests. Returns false if the writer has ended.
    fn turn(&mut self) -> bool;
    /// Quiesces the writer for a fork, as far as possible.
    fn be_quiescent(&mut self);
}

/// The writer, and the lock on the writer.
#[derive(Default)]
pub struct InPlace {
    /// The thread that has the lock, or 0.
    owner: AtomicU32,
    is_used: AtomicBool,
    writer: UnsafeCell<Option<Box<dyn Turns>>>,
}

// SAFETY: only the owner of the lock uses the writer.
unsafe impl Sync for InPlace {}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace").finish_non_exhaustive()
    }
}

impl InPlace {
    /// Whether the process has a writer that runs in place.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Whether the calling thread is running the writer. For instance, the result is true if the writer calls a function of the
    /// host, such as a replaced `malloc`, and this function calls the library.
    pub fn is_mine(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner == thread::id()
    }

    /// Sets the writer that runs from now on. The process has no other writer.
    pub fn begin(&self, writer: Box<dyn Turns>) {
        // The thread that ran an earlier writer may not have released the lock yet.
        let mut writer = Some(writer);
        while self.lock(|place| *place = writer.take()).is_none() {
            thread::sleep_micros(50);
        }
        self.is_used.store(true, Ordering::Release);
    }

    /// Calls `body` with the writer as the argument. `body` returns false if the writer has ended. Returns false if there is no
    /// writer, or if a thread is already running the writer. The calling thread itself may be running the writer.
    pub fn run(&self, body: impl FnOnce(&mut dyn Turns) -> bool) -> bool {
        let ran = self.lock(|place| {
            let Some(writer) = place else { return false };
            // Removes a writer that has ended, so that no later call runs this writer.
            if !body(&mut **writer) {
                self.is_used.store(false, Ordering::Release);
                *place = None;
            }
            true
        });
        ran == Some(true)
    }

    fn lock<T>(&self, body: impl FnOnce(&mut Option<Box<dyn Turns>>) -> T) -> Option<T> {
        /// Releases the lock, even after a panic.
        struct Release<'a>(&'a AtomicU32);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::SeqCst);
            }
        }
        self.owner.compare_exchange(0, thread::id(), Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let _release = Release(&self.owner);
        // SAFETY: this thread has the lock.
        Some(body(unsafe { &mut *self.writer.get() }))
    }
}
