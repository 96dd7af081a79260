//! The writer's sleep, and the memory order that keeps a sleeping writer from missing a record.

use super::Shared;
use crate::queue::requests::Requests;
use crate::sys::futex::keeping_errno;
use crate::sys::sync::atomic::{compiler_fence, fence, Ordering};
use crate::sys::{barrier, thread};

/// The bits of `Shared::attention`, which each thread reads after each of its records. `ASLEEP`: the writer sleeps until it
/// is woken.
const ASLEEP: u8 = 1;
/// `FORKING`: a fork waits for the writer.
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

    /// Whether the writer has announced its sleep, and no thread has woken the writer since.
    pub fn is_asleep(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & ASLEEP != 0
    }

    /// Makes each registering thread pause after its next record, so that a waiting fork gets the writer's answer sooner
    /// (`Quiesce::wait_after_record`).
    pub(super) fn slow_threads_down(&self) {
        self.attention.fetch_or(FORKING, Ordering::Relaxed);
    }

    /// Sets whether the end of the process's first thread will wake the writer. Calls from other threads have no effect. After
    /// the ending thread has woken the writer, the thread may still run code of the host.
    pub fn set_first_tells(&self, tells: bool) {
        if thread::id() == std::process::id() {
            self.first_tells.store(tells, Ordering::Relaxed);
        }
    }

    pub fn first_tells(&self) -> bool {
        self.first_tells.load(Ordering::Relaxed)
    }

    /// Keeps the order of two steps of a registering thread: the thread stores its announcement to the writer, and then reads
    /// the writer's announcement. The writer also stores its announcement before it reads the thread's announcement, and
    /// calls `barrier::all_threads` between these steps. If `all_threads` makes the kernel run a barrier on every thread, a
    /// compiler fence is enough here.
    #[inline]
    pub fn order(&self) {
        if barrier::is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Called after each record. Wakes the writer if the writer sleeps. Pauses the calling thread if a fork needs the writer.
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

    pub fn wake_if_asleep(&self) {
        self.order();
        if self.is_asleep() {
            self.wake();
        }
    }

    /// Wakes the writer. Without a writer's thread, the calling thread runs the writer, if no other thread is running it. The
    /// calling thread must not be in the middle of a record, and must not hold the lock of the requests.
    #[cold]
    pub fn wake(&self) {
        if self.in_place.is_used() {
            self.set_asleep(false);
            self.write_in_place();
        } else {
            self.wake_thread();
        }
    }

    /// Wakes the writer's thread. May be called in a signal handler.
    pub fn wake_thread(&self) {
        self.set_asleep(false);
        self.parker.unpark();
    }

    fn write_in_place(&self) {
        /// A thread runs the writer again for threads that have made requests in the meantime, but at most this number of
        /// times.
        const TURNS: u32 = 16;
        for _ in 0..TURNS {
            // At the shut gate, a thread of the host would wait until the process ends.
            if self.status.write_gate.is_shut() {
                return;
            }
            let ran = self.in_place.run(|writer| {
                let quiesce = &self.status.quiesce;
                // No signal handler runs on this thread while the thread runs the writer. So no handler interrupts the thread
                // while the thread holds a lock of the writer.
                keeping_errno(|| {
                    thread::quietly(|| {
                        if quiesce.is_asked() {
                            writer.be_quiescent();
                        } else if !quiesce.is_under_way() {
                            return writer.turn();
                        } else {
                            self.missed.store(true, Ordering::SeqCst);
                        }
                        true
                    })
                })
            });
            if !ran {
                self.missed.store(true, Ordering::SeqCst);
                return;
            }
            // Each thread makes its request before it tries to take the lock. So if a thread failed to take the lock, this
            // check finds the request of that thread. The writer does not run during a fork.
            let has_missed = !self.status.quiesce.is_under_way() && self.missed.swap(false, Ordering::SeqCst);
            if !has_missed && !self.is_asked() {
                return;
            }
        }
    }

    /// Called after a fork. Returns whether a call could not run the writer in place, because of the fork or because another
    /// thread was running the writer.
    pub fn has_missed(&self) -> bool {
        self.missed.load(Ordering::SeqCst)
    }

    /// Whether the writer can now answer a request that has no answer yet.
    fn is_asked(&self) -> bool {
        let quiesce = &self.status.quiesce;
        let is_unanswered = |requests: &Requests| {
            requests.open
                && (requests.asked > requests.answered || requests.stop.is_some() || requests.change.is_some())
        };
        quiesce.is_asked()
            || !quiesce.is_under_way() && self.try_requests().is_some_and(|requests| is_unanswered(&requests))
    }
}
