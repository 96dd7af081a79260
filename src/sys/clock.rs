//! The two clocks that a jitdump can be stamped with.

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

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn arch_ticks() -> u64 {
    // SAFETY: both instructions exist on every x86-64 processor. The fence keeps the counter from being read before the
    // loads that came first, so that its order is the order of events.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn arch_ticks() -> u64 {
    monotonic_ns()
}
