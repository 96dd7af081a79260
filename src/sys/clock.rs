//! The two clocks that a jitdump can be stamped with.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_arch = "x86_64")]
use super::tsc::Calibrated;

/// Where time stamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_MONOTONIC` in nanoseconds, for `perf record -k 1`.
    Monotonic,
    /// The raw time stamp counter, for recordings that carry its conversion (`perf record -e intel_pt//`).
    Arch,
}

impl Clock {
    /// Whether this machine has a time stamp counter that perf can convert.
    pub const ARCH_AVAILABLE: bool = cfg!(target_arch = "x86_64");

    /// The time now. Never 0.
    #[inline]
    pub fn now(self) -> u64 {
        match self {
            Clock::Monotonic => monotonic_ns(),
            Clock::Arch => arch_ticks(),
        }
    }
}

/// The clock that registering threads and the writer share: read in the cheapest way that this machine has.
#[derive(Debug)]
pub struct Timekeeper {
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// The clock itself.
    Plain(Clock),
    /// `Clock::Monotonic` by way of the time stamp counter.
    #[cfg(target_arch = "x86_64")]
    Calibrated {
        clock: Calibrated,
        /// A time after which the last end of code or the last move was published: the counter is read without order.
        last_end: AtomicU64,
    },
}

impl Timekeeper {
    /// Finds out what this machine has.
    pub fn new(clock: Clock) -> Timekeeper {
        Timekeeper { way: Way::new(clock) }
    }

    /// The time now. Never 0, and never less than what a thread got that this one has heard from since.
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.way {
            Way::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Way::Calibrated { clock, .. } => clock.now(),
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
        match &self.way {
            Way::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Way::Calibrated { clock, last_end } => clock.now_or_just_before().max(last_end.load(Ordering::Acquire)),
        }
    }

    /// To be called when the end or the move of code was published, before the caller hears of it.
    #[inline]
    pub fn note_end(&self) {
        match &self.way {
            Way::Plain(_) => {}
            #[cfg(target_arch = "x86_64")]
            Way::Calibrated { clock, last_end } => {
                last_end.fetch_max(clock.now(), Ordering::Release);
            }
        }
    }

    /// Keeps it accurate: for the writer, at the beginning of each pass.
    pub fn rebase(&self) {
        match &self.way {
            Way::Plain(_) => {}
            #[cfg(target_arch = "x86_64")]
            Way::Calibrated { clock, .. } => clock.rebase(),
        }
    }
}

impl Way {
    fn new(clock: Clock) -> Way {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            if let Some(clock) = Calibrated::new() {
                return Way::Calibrated { clock, last_end: AtomicU64::new(0) };
            }
        }
        Way::Plain(clock)
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Time since boot, with that in which the machine slept.
pub fn boottime_ns() -> u64 {
    read_ns(libc::CLOCK_BOOTTIME)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time stamp counter, read after everything that comes before it in the program.
///
/// The order of stamps has to be the order of events. Alone, `rdtsc` was seen to read the counter 1.4 µs before the loads that
/// stand before it had brought anything (four misses in a row, Zen 5): a thread that learns of a record of another one could
/// stamp its own as the earlier. With the fence it waits for them. Measured, minimum and median of batches: `rdtsc` 10.2 and
/// 10.3 ns, `lfence; rdtsc` 17.1 and 17.3, `rdtscp`, which waits too, 19.6 and 19.8, `clock_gettime` 24.3 and 24.6.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn arch_ticks() -> u64 {
    // SAFETY: both instructions exist on every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

/// As `arch_ticks`, but in no order to what comes before.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn unordered_ticks() -> u64 {
    // SAFETY: the instruction exists on every x86-64 processor.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn arch_ticks() -> u64 {
    monotonic_ns()
}
