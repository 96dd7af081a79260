//! The writer's sleep, and the order of accesses by which no record is overlooked meanwhile.

use super::Shared;
use crate::sys::sync::atomic::{compiler_fence, fence, Ordering};
use crate::sys::{barrier, thread};

impl Shared {
    /// Says that the writer sleeps until it is woken, or that it does not.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Whether the writer has not been woken since it said so.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Whether the calling thread, if it is the process's first one, wakes the writer when it ends. The host's own work at its end
    /// may come later.
    pub fn set_first_tells(&self, tells: bool) {
        if thread::id() == std::process::id() {
            self.first_tells.store(tells, Ordering::Relaxed);
        }
    }

    /// Whether the writer will be woken before the process's first thread ends.
    pub fn first_tells(&self) -> bool {
        self.first_tells.load(Ordering::Relaxed)
    }

    /// Stands between the write that a registering thread announces and its read afterwards. The other side, in the writer,
    /// calls `barrier::all_threads` between the same two. Where the kernel makes that a barrier for every thread, only the compiler
    /// has to be kept from changing the order here.
    #[inline]
    pub fn order(&self) {
        if barrier::is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Called after each record: a thread that publishes one while the writer sleeps wakes it.
    #[inline(always)]
    pub fn wake_if_asleep(&self) {
        self.order();
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the writer.
    #[cold]
    pub fn wake(&self) {
        self.set_asleep(false);
        self.parker.unpark();
    }
}
