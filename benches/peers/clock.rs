//! The timer, what it costs, and how long its ticks are.

use std::time::{Duration, Instant};

use crate::statistics;

/// The time stamp counter, fenced so that nothing else is measured along with what lies between two calls.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ticks() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: both instructions exist on every x86-64 processor and touch no memory.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Nanoseconds, where there is no such counter.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn ticks() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// From ticks to nanoseconds.
#[derive(Clone, Copy)]
pub struct Scale {
    ticks_per_ns: f64,
    /// Two calls with nothing between them, in ticks.
    overhead: f64,
}

impl Scale {
    pub fn calibrate() -> Scale {
        let (start, start_ticks) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (elapsed, elapsed_ticks) = (start.elapsed(), ticks() - start_ticks);
        let ticks_per_ns = elapsed_ticks as f64 / elapsed.as_nanos() as f64;
        let mut pairs: Vec<f64> = (0..10_001)
            .map(|_| {
                let start = ticks();
                (ticks() - start) as f64
            })
            .collect();
        // The mean of the middle half: the counter may move in steps larger than the cost.
        pairs.sort_by(f64::total_cmp);
        let overhead = statistics::mean(&pairs[2500..7500]);
        Scale { ticks_per_ns, overhead }
    }

    pub fn ticks(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 * self.ticks_per_ns) as u64
    }

    pub fn overhead_ns(&self) -> f64 {
        self.overhead / self.ticks_per_ns
    }

    /// What one of `calls` took that were timed together, without the timer's cost.
    pub fn net_ns(&self, ticks: u64, calls: usize) -> f64 {
        (ticks as f64 - self.overhead).max(0.0) / self.ticks_per_ns / calls as f64
    }
}
