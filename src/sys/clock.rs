//! The two clocks that a jitdump can be stamped with.

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
pub enum Timekeeper {
    /// The clock itself.
    Plain(Clock),
    /// `Clock::Monotonic` by way of the time stamp counter.
    #[cfg(target_arch = "x86_64")]
    Calibrated(Calibrated),
}

impl Timekeeper {
    /// Finds out what this machine has.
    pub fn new(clock: Clock) -> Timekeeper {
        #[cfg(target_arch = "x86_64")]
        if clock == Clock::Monotonic {
            if let Some(calibrated) = Calibrated::new() {
                return Timekeeper::Calibrated(calibrated);
            }
        }
        Timekeeper::Plain(clock)
    }

    /// The clock that is kept.
    pub fn clock(&self) -> Clock {
        match self {
            Timekeeper::Plain(clock) => *clock,
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Calibrated(_) => Clock::Monotonic,
        }
    }

    /// The time now. Never 0, and never less than what a thread got that this one has heard from since.
    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Timekeeper::Plain(clock) => clock.now(),
            #[cfg(target_arch = "x86_64")]
            Timekeeper::Calibrated(calibrated) => calibrated.now(),
        }
    }

    /// Keeps it accurate: for the writer, at the beginning of each pass.
    pub fn rebase(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Timekeeper::Calibrated(calibrated) = self {
            calibrated.rebase();
        }
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
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

#[cfg(not(target_arch = "x86_64"))]
fn arch_ticks() -> u64 {
    monotonic_ns()
}
