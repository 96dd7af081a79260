//! The writer's sleep, and the memory order that keeps a sleeping writer from missing a record.

use super::Shared;
use crate::sys::sync::atomic::{compiler_fence, fence, Ordering};
use crate::sys::{barrier, thread};

impl Shared {
    /// Announces that the writer sleeps until it is woken, or that it no longer sleeps.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Whether the writer has announced its sleep, and nobody has woken the writer after that.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
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

    /// Called after each record: wakes the writer if it sleeps.
    #[inline(always)]
    pub fn wake_if_asleep(&self) {
        self.order();
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    pub fn wake(&self) {
        self.set_asleep(false);
        self.parker.unpark();
    }
}
