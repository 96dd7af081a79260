//! The clock by which registering threads and the writer take time stamps.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Clock;
#[cfg(target_arch = "x86_64")]
use super::tsc::Calibrated;

/// The clock of a session, read in the cheapest way that this machine has.
#[derive(Debug)]
pub enum Timekeeper {
    /// The session's clock is read directly.
    Plain(Clock),
    /// `Clock::Monotonic`, computed from the time stamp counter (`tsc`).
    #[cfg(target_arch = "x86_64")]
    Tsc {
        clock: Calibrated,
        /// The time stamp of the latest call of `note_end`. `now_after_ends` may read the counter before the thread's earlier
        /// loads have completed. So `now_after_ends` uses `last_end` as a lower limit.
        last_end: AtomicU64,
    },
}

impl Timekeeper {
    /// Makes the clock. A later `rebase` determines whether the time stamp counter of this machine is usable as a clock.
    pub fn new(clock: Clock) -> Timekeeper {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            return Timekeeper::Tsc { clock: Calibrated::default(), last_end: AtomicU64::new(0) };
        }
        Timekeeper::Plain(clock)
    }

    /// The time now, which is never 0. If a thread takes a time and then publishes data, each thread that has read the data
    /// gets the same time or a later time.
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, .. } => clock.now(),
        }
    }

    /// Returns the current time for code that is being registered. If this thread can already see that other code has ended or
    /// moved, the returned time is not before that event.
    ///
    /// The new code may be at the old address of code that has ended or moved, so the time of the new code has to be after that
    /// event. The counter alone might be read slightly too early, so `last_end` is the lower limit. A thread that can see an
    /// end or a move of code always reads a `last_end` that is not before the end or the move.
    ///
    /// When the new code is unregistered later, the time stamp of the unregistration needs no lower limit. Another thread can
    /// see the new code only after the registering thread has read the counter. So if another thread unregisters the new code,
    /// the time stamp of the unregistration is not before the time stamp of the registration.
    #[inline(always)]
    pub fn now_after_ends(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, last_end } => clock.now_or_just_before().max(last_end.load(Ordering::Acquire)),
        }
    }

    /// Stores the current time in `last_end`. A call that ends or moves code must first publish the end or move, then call this
    /// function, and then return to the host.
    #[inline]
    pub fn note_end(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, last_end } = self {
            last_end.fetch_max(clock.now(), Ordering::Release);
        }
    }

    /// Keeps the clock accurate. The writer calls this function at the beginning of each round.
    pub fn rebase(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rebase();
        }
    }

    /// Makes threads read the system's clock from now on. The writer calls this function before it sleeps for an unknown
    /// time.
    pub fn rest(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rest();
        }
    }
}
