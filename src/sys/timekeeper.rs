//! The clock that registering threads and the writer share.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Clock;
#[cfg(target_arch = "x86_64")]
use super::tsc::Calibrated;

/// The clock of a session, read in the cheapest way that this machine has.
#[derive(Debug)]
pub enum Timekeeper {
    /// The session's clock itself.
    Plain(Clock),
    /// `Clock::Monotonic`, computed from the time stamp counter (`tsc`).
    #[cfg(target_arch = "x86_64")]
    Tsc {
        clock: Calibrated,
        /// A time stamp that was taken after the last end or move of code was published. `now_after_ends` needs this stamp,
        /// because it reads the counter without order.
        last_end: AtomicU64,
    },
}

impl Timekeeper {
    /// Makes the clock. The first `rebase` determines whether this machine's counter is fit.
    pub fn new(clock: Clock) -> Timekeeper {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            return Timekeeper::Tsc { clock: Calibrated::default(), last_end: AtomicU64::new(0) };
        }
        Timekeeper::Plain(clock)
    }

    /// The time now. Never 0. If this thread has seen data that another thread has published, the time is no earlier than the
    /// times that the other thread got before the publication.
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, .. } => clock.now(),
        }
    }

    /// The time now, for code that is registered. It is no less than the time of any end or move of other code that this
    /// thread has learned of.
    ///
    /// The new code may lie where the other code was, so the new code's time has to be later. The counter alone might be read
    /// slightly too early. But memory is read in order, so `last_end` is as new as all that this thread has learned. The other
    /// direction needs no care: data that is published after the counter was read is published after that time.
    #[inline(always)]
    pub fn now_after_ends(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, last_end } => clock.now_or_just_before().max(last_end.load(Ordering::Acquire)),
        }
    }

    /// Must be called after the end or the move of code was published, and before the caller learns of the publication.
    #[inline]
    pub fn note_end(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, last_end } = self {
            last_end.fetch_max(clock.now(), Ordering::Release);
        }
    }

    /// Keeps the clock accurate. The writer calls this at the beginning of each round.
    pub fn rebase(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rebase();
        }
    }

    /// Must be called before the writer sleeps for an unknown time.
    pub fn rest(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rest();
        }
    }
}
