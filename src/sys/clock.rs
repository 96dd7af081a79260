//! The two clocks from which the time stamps of a jitdump can come: `CLOCK_MONOTONIC` and the time stamp counter.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::param::clock_ticks_per_second;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// The source of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_MONOTONIC` of the initial time namespace in nanoseconds, for `perf record -k 1`.
    Monotonic,
    /// The raw time stamp counter, for recordings that contain the conversion to nanoseconds (`perf record -e intel_pt//`).
    Arch,
}

impl Clock {
    /// Whether this machine has a time stamp counter that perf can convert to nanoseconds.
    pub const ARCH_AVAILABLE: bool = cfg!(target_arch = "x86_64");

    /// The current time, which is never 0.
    #[inline]
    pub fn now(self) -> u64 {
        match self {
            Clock::Monotonic => monotonic_ns(),
            Clock::Arch => arch_ticks(),
        }
    }
}

/// `CLOCK_MONOTONIC` of the initial time namespace in nanoseconds, as in perf's samples. The time does not depend on the time
/// namespace of the process.
#[inline]
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC).wrapping_sub(AHEAD.load(Ordering::Relaxed))
}

/// By how many nanoseconds the process's `CLOCK_MONOTONIC` is ahead of the same clock in the initial time namespace. A negative
/// number is stored as its two's complement.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// The same for `CLOCK_BOOTTIME`, or `i64::MIN` if `find_host` has not determined it yet.
static BOOTTIME_AHEAD: AtomicI64 = AtomicI64::new(i64::MIN);

/// Determines how far the process's clocks are ahead of the initial namespace's clocks. This function must be called before the
/// first time stamp is made, in each forked child, and after each pause in which no time stamps were made. A process can change
/// its time namespace while it has only one thread.
pub fn find_host() {
    if let Some(TimeNamespace { monotonic, boottime }) = TimeNamespace::of_this_thread() {
        AHEAD.store(monotonic as u64, Ordering::Relaxed);
        BOOTTIME_AHEAD.store(boottime, Ordering::Relaxed);
    }
}

/// By how many nanoseconds the process's `CLOCK_BOOTTIME` is ahead of the same clock in the initial time namespace.
pub fn boottime_ahead() -> i64 {
    match BOOTTIME_AHEAD.load(Ordering::Relaxed) {
        i64::MIN => TimeNamespace::of_this_thread().unwrap_or_default().boottime,
        known => known,
    }
}

/// By how many nanoseconds the clocks of a time namespace are ahead of the clocks of the initial namespace
/// (time_namespaces(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TimeNamespace {
    monotonic: i64,
    boottime: i64,
}

impl TimeNamespace {
    /// The offsets of the time namespace of the calling thread. `None` if the offsets cannot be determined.
    fn of_this_thread() -> Option<TimeNamespace> {
        /// The inode number of the initial time namespace (linux include/linux/proc_ns.h, `PROC_TIME_INIT_INO`).
        const HOST: u64 = 0xefff_fffa;
        let number = |link: &str| fs::metadata(format!("/proc/thread-self/ns/{link}")).map(|data| data.ino()).ok();
        let own = number("time")?;
        if own == HOST {
            return Some(TimeNamespace::default());
        }
        // `timens_offsets` has the offsets of the time namespace that new children of the thread get. The thread itself may
        // be in another time namespace.
        if number("time_for_children")? != own {
            return None;
        }
        // `/proc/self` shows no namespaces once the process's first thread has ended.
        let link = fs::read_link("/proc/thread-self").ok()?;
        let (_, thread) = link.to_str()?.split_once("/task/")?;
        TimeNamespace::parse(&fs::read_to_string(format!("/proc/{thread}/timens_offsets")).ok()?)
    }

    /// Parses `/proc/PID/timens_offsets`, which has a line with seconds and nanoseconds for each clock.
    fn parse(text: &str) -> Option<TimeNamespace> {
        let of = |clock: &str| {
            let line = text.lines().find(|line| line.split_ascii_whitespace().next() == Some(clock))?;
            let mut numbers = line.split_ascii_whitespace().skip(1).map(str::parse::<i64>);
            numbers.next()?.ok()?.checked_mul(1_000_000_000)?.checked_add(numbers.next()?.ok()?)
        };
        Some(TimeNamespace { monotonic: of("monotonic")?, boottime: of("boottime")? })
    }
}

/// Nanoseconds since the machine booted, including the time in which the machine slept.
pub fn boottime_ns() -> u64 {
    read_ns(libc::CLOCK_BOOTTIME).wrapping_sub(boottime_ahead() as u64)
}

/// The length of the kernel's clock tick, in nanoseconds.
pub fn tick_ns() -> i64 {
    1_000_000_000 / (clock_ticks_per_second() as i64).max(1)
}

pub(super) fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the time stamp counter after all earlier instructions have completed.
///
/// The time stamps must have the same order as the events. `rdtsc` alone was seen to read the counter 1.4 µs before the
/// preceding loads had completed (four cache misses in a row, Zen 5). So with `rdtsc` alone, a thread that has read the record
/// of another thread could give its own record an earlier time stamp. The fence makes `rdtsc` wait for the loads.
///
/// The median times of calls, measured in batches, are: `rdtsc` 10.3 ns, `lfence; rdtsc` 17.3 ns, `rdtscp` (which also waits
/// for earlier instructions) 19.8 ns, `clock_gettime` 24.6 ns.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn arch_ticks() -> u64 {
    // SAFETY: both instructions exist on every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

/// Reads the time stamp counter without waiting for earlier instructions.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_a_time_namespace() {
        let text = "monotonic           0         0\nboottime   -86401 999999999\n";
        assert_eq!(TimeNamespace::parse(text), Some(TimeNamespace { monotonic: 0, boottime: -86_400_000_000_001 }));
        assert_eq!(TimeNamespace::parse("monotonic 1 2\nboottime 3"), None);
        assert_eq!(TimeNamespace::parse("monotonic 9223372036854775807 0\nboottime 0 0\n"), None);
        assert_eq!(TimeNamespace::parse(""), None);
    }
}
