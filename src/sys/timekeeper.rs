//! The clock that registering threads and the writer share.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Clock;
#[cfg(target_arch = "x86_64")]
use super::tsc::Calibrated;

/// See the module's description: read in the cheapest way that this machine has.
#[derive(Debug)]
pub enum Timekeeper {
    /// The clock itself.
    Plain(Clock),
    /// `Clock::Monotonic` by way of the time stamp counter.
    #[cfg(target_arch = "x86_64")]
    Tsc {
        clock: Calibrated,
        /// A time after which the last end of code or the last move was published: the counter is read without order.
        last_end: AtomicU64,
    },
}

impl Timekeeper {
    /// What this machine has is found out by the first `rebase`.
    pub fn new(clock: Clock) -> Timekeeper {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            return Timekeeper::Tsc { clock: Calibrated::default(), last_end: AtomicU64::new(0) };
        }
        Timekeeper::Plain(clock)
    }

    /// The time now. Never 0, and never less than what a thread got that this one has heard from since.
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, .. } => clock.now(),
        }
    }

    /// The time now, for code that is registered: never less than that of the end or the move of other code that this thread
    /// has heard of.
    ///
    /// That is what matters for it: its place was another code's before. The counter by itself might be read a little too
    /// early, but memory is read in order, so `last_end` is as new as what this thread has heard. The other direction needs
    /// no care: what is published after the counter was read is published after that time.
    #[inline(always)]
    pub fn now_after_ends(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Tsc { clock, last_end } => clock.now_or_just_before().max(last_end.load(Ordering::Acquire)),
        }
    }

    /// To be called when the end or the move of code was published, before the caller hears of it.
    #[inline]
    pub fn note_end(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, last_end } = self {
            last_end.fetch_max(clock.now(), Ordering::Release);
        }
    }

    /// Keeps it accurate: for the writer, at the beginning of each round.
    pub fn rebase(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rebase();
        }
    }

    /// Before the writer sleeps, for how long nobody knows.
    pub fn rest(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Tsc { clock, .. } = self {
            clock.rest();
        }
    }
}
