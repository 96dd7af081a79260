//! The writer's sleep, and the memory order that keeps a sleeping writer from missing a record.

use super::Shared;
use crate::sys::sync::atomic::{compiler_fence, fence, Ordering};
use crate::sys::{barrier, thread};

/// The bits of `Shared::attention`, which each thread reads after each of its records. The writer sleeps until it is woken.
const ASLEEP: u8 = 1;
/// A fork waits for the writer.
const FORKING: u8 = 2;

impl Shared {
    /// Announces that the writer sleeps until it is woken, or that it no longer sleeps.
    pub fn set_asleep(&self, asleep: bool) {
        if asleep {
            self.attention.fetch_or(ASLEEP, Ordering::SeqCst);
        } else {
            self.attention.fetch_and(!ASLEEP, Ordering::SeqCst);
        }
    }

    /// Whether the writer has announced its sleep, and nobody has woken the writer after that.
    pub fn is_asleep(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & ASLEEP != 0
    }

    /// Makes registering threads wait after their next record, so that a waiting fork gets the writer's answer sooner
    /// (`Quiesce::wait_after_record`).
    pub(super) fn slow_threads_down(&self) {
        self.attention.fetch_or(FORKING, Ordering::Relaxed);
    }

    /// Does nothing unless the calling thread is the process's first thread. Notes whether this thread will wake the writer at
    /// its end. The host may still run code on the ending thread after the thread has woken the writer.
    pub fn set_first_tells(&self, tells: bool) {
        if thread::id() == std::process::id() {
            self.first_tells.store(tells, Ordering::Relaxed);
        }
    }

    /// Whether the process's first thread will wake the writer at its end.
    pub fn first_tells(&self) -> bool {
        self.first_tells.load(Ordering::Relaxed)
    }

    /// Keeps the order of two steps of a registering thread: the thread stores its announcement to the writer, and then reads
    /// the writer's announcement. The writer also stores its announcement before it reads the thread's announcement, and calls
    /// `barrier::all_threads` between these two steps. If `all_threads` makes the kernel run a barrier on every thread, a
    /// compiler fence is enough here.
    #[inline]
    pub fn order(&self) {
        if barrier::is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Called after each record: wakes the writer if it sleeps, and waits if a fork waits for the writer.
    #[inline(always)]
    pub fn end_record(&self) {
        self.order();
        if self.attention.load(Ordering::Relaxed) != 0 {
            self.attend();
        }
    }

    #[cold]
    fn attend(&self) {
        if self.is_asleep() {
            self.wake();
        }
        if self.attention.load(Ordering::Relaxed) & FORKING != 0 {
            self.status.quiesce.wait_after_record();
            self.attention.fetch_and(!FORKING, Ordering::Relaxed);
        }
    }

    /// Wakes the writer if it sleeps.
    pub fn wake_if_asleep(&self) {
        self.order();
        if self.is_asleep() {
            self.wake();
        }
    }

    #[cold]
    pub fn wake(&self) {
        self.set_asleep(false);
        self.parker.unpark();
    }
}
