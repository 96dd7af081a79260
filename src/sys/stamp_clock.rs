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
        /// A time stamp that was taken after the latest end or move of code had been published. `now_after_ends` needs this
        /// stamp, because that function may read the counter before the thread's earlier loads have completed.
        last_end: AtomicU64,
    },
}

impl Timekeeper {
    /// Makes the clock. The first `rebase` determines whether the time stamp counter of this machine is usable as a clock.
    pub fn new(clock: Clock) -> Timekeeper {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            return Timekeeper::Tsc { clock: Calibrated::default(), last_end: AtomicU64::new(0) };
        }
        Timekeeper::Plain(clock)
    }

    /// The time now, which is never 0. If one thread takes a time and then publishes data, a thread that has read the data
    /// gets no earlier time.
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, .. } => clock.now(),
        }
    }

    /// Returns the current time for code that is being registered. If the end or move of other code is already visible to
    /// this thread, the time is no earlier than that end or move.
    ///
    /// The new code may have the address of the other code, so the new code's time has to be later. The counter alone might
    /// be read slightly too early, so `last_end` is the lower limit. A thread to which an end is visible also reads the value
    /// of `last_end` that was stored for that end.
    ///
    /// The end of the new code needs no such limit. The new code becomes visible to another thread only after this thread has
    /// read the counter. So if the other thread ends the new code, it takes a time that is no earlier than the new code's
    /// time.
    #[inline(always)]
    pub fn now_after_ends(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, last_end } => clock.now_or_just_before().max(last_end.load(Ordering::Acquire)),
        }
    }

    /// Stores the current time in `last_end`. Must be called when code has ended or moved, after this event was published,
    /// and before the call of the library returns to the host.
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
