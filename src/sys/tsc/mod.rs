//! `CLOCK_MONOTONIC` from the time stamp counter, in four fifths of the time that `clock_gettime` takes (19 of 24 ns).
//!
//! The writer compares the counter with the clock once a round and publishes a straight line, which registering threads extend to
//! their own reading of the counter. Their stamps differ from the clock by less than a microsecond (by tens of nanoseconds,
//! unless the kernel has just begun to slew the clock) and never go back. A thread that has seen what another one published after
//! taking the time gets the same time or a later one. That rests on six things.
//!
//! * The counter is read after everything that came before it, see `clock::arch_ticks`.
//! * A new line begins where the old one is, or higher. If it is ahead of the clock it runs slower until they meet.
//! * A line begins no lower than the clock, so it may follow stamps that were taken from the clock itself. A clock that follows a
//!   line is held at the height that the line has reached. Each stamp is then a nanosecond later than the one before.
//! * The clock stands still while the machine is suspended. The counter may go on or restart. If it has gone on by more than the
//!   line is long, it has left the line at a jump. Stamps from the line are no later than the clock then, which is not held. If
//!   it has restarted, it could meet the line again hours later: there is none while the writer sleeps.
//! * A stamp counts only if its line is still the published one afterwards, so a thread that was interrupted in between does
//!   not come back with an old line.
//! * Old and new line differ by less than 100 parts in a million, and a new one is published within `LATE_TICKS` of where it
//!   begins, or not at all. What threads stamp meanwhile is ahead of the new line by 2 ns at most; taking a stamp and passing it
//!   on takes several times that. A writer that is interrupted for long between the last look at the counter and the very next
//!   store stretches this. With the lines of a quiet clock, it does so by 1 ns for each millisecond or so.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};

use crate::sys::clock::{arch_ticks, monotonic_ns, unordered_ticks};
use crate::sys::sync::outside::Mutex;

/// How far a line reaches. Beyond, for want of a writer that draws a new one, threads ask the clock.
const REACH_NS: u64 = 100_000_000;
/// What a line is drawn from spans at least this. A short span makes a short line.
const SHORTEST_SPAN_NS: u64 = 20_000_000;
/// By how much the rates of two spans differ at most from which the first line is drawn, in parts in a million: the slewing of NTP,
/// 500, and the error of a reading. Else the counter or the clock has jumped in one of them.
const ALIKE_PPM: u64 = 1_000;
/// The span grows to between one and two of these: long against the error of a reading, short enough to follow the slewing
/// of NTP.
const WINDOW_NS: u64 = 250_000_000;
/// Over a longer span the clock may have been slewed in ways that say nothing about now.
const LONGEST_SPAN_NS: u64 = 1_000_000_000;
/// A line that misses the clock by more is no good, nor is what it was drawn from.
const TOLERANCE_NS: u64 = 2_000;
/// A line that is ahead of the clock meets it after this time, unless it is replaced before.
const CATCH_UP_NS: u64 = 50_000_000;
/// So long after the clock was held its stamps may still be later than the clock: far more than threads can take meanwhile.
const HELD_NS: u64 = 1_000_000;
/// How late a line may be published: about 20 µs.
const LATE_TICKS: u64 = 50_000;
/// Readings of the clock that take longer were interrupted: about 200 ns.
const WIDEST_READING_TICKS: u64 = 500;
/// Of this many readings the best is taken.
const READINGS: usize = 4;

/// The clock and the counter at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    tsc: u64,
    ns: u64,
}

impl Sample {
    /// None if the thread was interrupted again and again.
    fn take() -> Option<Sample> {
        let reading = || {
            // The counter comes first, so that a line through the sample is not below the clock.
            let tsc = arch_ticks();
            let ns = monotonic_ns();
            (arch_ticks().wrapping_sub(tsc), Sample { tsc, ns })
        };
        let (width, sample) = (0..READINGS).map(|_| reading()).min_by_key(|(width, _)| *width)?;
        (width <= WIDEST_READING_TICKS).then_some(sample)
    }
}

/// Time as a function of the counter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    tsc: u64,
    ns: u64,
    /// Nanoseconds for 2^32 ticks. The counter runs at more than 1 GHz.
    slope: u32,
    /// Ticks. 0 if the clock is to be asked, which is then held at `ns`.
    reach: u32,
}

impl Line {
    fn none(floor: u64) -> Line {
        Line { tsc: 0, ns: floor, slope: 0, reach: 0 }
    }

    fn exists(&self) -> bool {
        self.reach != 0
    }

    fn after(&self, ticks: u64) -> u64 {
        self.ns + ((ticks * u64::from(self.slope)) >> 32)
    }

    /// The time, if the line reaches that far. It does not reach back.
    #[inline]
    fn at(&self, tsc: u64) -> Option<u64> {
        let ticks = tsc.wrapping_sub(self.tsc);
        (ticks < self.reach.into()).then(|| self.after(ticks))
    }

    /// What the line has risen to, so that no stamp was taken from it that is later. `ns`: the clock.
    fn height(&self, tsc: u64, ns: u64) -> u64 {
        let (ticks, reach) = (tsc.wrapping_sub(self.tsc), u64::from(self.reach));
        let was_set_back = (ticks as i64) < 0;
        if ticks < reach {
            return self.after(ticks);
        }
        let end = self.after(reach);
        let ahead = ((u128::from(ticks) * u128::from(self.slope)) >> 32) as u64;
        let has_jumped = (self.ns + ahead).saturating_sub(ns) > end - self.ns;
        if was_set_back || has_jumped {
            self.ns
        } else {
            end
        }
    }

    #[inline(always)]
    fn now(&self, counter: impl FnOnce() -> u64, last_held: &AtomicU64) -> u64 {
        if self.exists() {
            let tsc = counter();
            self.at(tsc).unwrap_or_else(|| self.clock(tsc, last_held))
        } else if self.ns == 0 {
            // There was none before either, by which the clock would be held.
            monotonic_ns()
        } else {
            self.clock(0, last_held)
        }
    }

    /// Stamps of a clock that is held differ by a nanosecond, in the order in which they are taken.
    #[cold]
    fn clock(&self, tsc: u64, last_held: &AtomicU64) -> u64 {
        let ns = monotonic_ns();
        let height = self.height(tsc, ns);
        if ns > height.saturating_add(HELD_NS) {
            return ns;
        }
        let earliest = ns.max(height);
        let next = |last: u64| match last.checked_sub(earliest) {
            Some(ahead) if ahead < HELD_NS => last + 1,
            _ => earliest,
        };
        match last_held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))) {
            Ok(last) | Err(last) => next(last),
        }
    }
}

/// Nanoseconds for 2^32 ticks.
fn rate(from: Sample, to: Sample) -> u64 {
    (to.ns.wrapping_sub(from.ns) << 32) / to.tsc.wrapping_sub(from.tsc).max(1)
}

/// What the writer knows: the line, and two older samples of which one is always far enough back to draw the next from.
#[derive(Clone, Copy, Debug)]
struct Calibration {
    line: Line,
    older: Sample,
    newer: Sample,
}

impl Calibration {
    /// Nothing is known but where time has come to.
    fn start(sample: Sample, floor: u64) -> Calibration {
        Calibration { line: Line::none(floor), older: sample, newer: sample }
    }

    /// Only the height of the line, which threads follow until this is published, is still known.
    fn restart(&self, sample: Sample) -> Calibration {
        Calibration::start(sample, self.line.height(sample.tsc.wrapping_add(2 * LATE_TICKS), sample.ns))
    }

    /// The calibration one sample later.
    fn next(self, sample: Sample) -> Calibration {
        let restart = || self.restart(sample);
        let is_good = |time: u64| time.abs_diff(sample.ns) <= TOLERANCE_NS;
        if self.line.exists() && !self.line.at(sample.tsc).is_some_and(is_good) {
            return restart();
        }
        let span = sample.ns.wrapping_sub(self.older.ns);
        if span > LONGEST_SPAN_NS {
            return restart();
        }
        let ns = sample.ns.max(self.line.height(sample.tsc, sample.ns));
        if span < SHORTEST_SPAN_NS || !is_good(ns) {
            return self;
        }
        if self.older == self.newer {
            return Calibration { newer: sample, ..self };
        }
        if !self.line.exists() {
            if sample.ns - self.newer.ns < SHORTEST_SPAN_NS {
                return self;
            }
            let (before, since) = (rate(self.older, self.newer), rate(self.newer, sample));
            if before.abs_diff(since) > before / 1_000_000 * ALIKE_PPM {
                return restart();
            }
        }
        let rate = rate(self.older, sample);
        let slope = rate - rate.min(1 << 32) * (ns - sample.ns) / CATCH_UP_NS;
        let (Ok(slope @ 1..), Ok(reach)) =
            (u32::try_from(slope), u32::try_from((REACH_NS.min(2 * span) << 32) / rate.max(1)))
        else {
            return restart();
        };
        let line = Line { tsc: sample.tsc, ns, slope, reach };
        if sample.ns - self.newer.ns < WINDOW_NS {
            Calibration { line, ..self }
        } else {
            Calibration { line, older: self.newer, newer: sample }
        }
    }
}

/// A line as it is published.
#[derive(Debug, Default)]
struct PublishedLine {
    tsc: AtomicU64,
    ns: AtomicU64,
    /// The slope in the upper half, the reach in the lower.
    slope_and_reach: AtomicU64,
}

impl PublishedLine {
    #[inline]
    fn load(&self) -> Line {
        let slope_and_reach = self.slope_and_reach.load(Ordering::Relaxed);
        Line {
            tsc: self.tsc.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
            slope: (slope_and_reach >> 32) as u32,
            reach: slope_and_reach as u32,
        }
    }

    fn store(&self, line: Line) {
        self.tsc.store(line.tsc, Ordering::Relaxed);
        self.ns.store(line.ns, Ordering::Relaxed);
        self.slope_and_reach.store(u64::from(line.slope) << 32 | u64::from(line.reach), Ordering::Relaxed);
    }
}

/// What threads read: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Published {
    /// How many lines there were. The last one is found at its lowest bit; the next is written to the other place, so nobody
    /// ever waits for a writer that does not run.
    count: AtomicUsize,
    lines: [PublishedLine; 2],
    /// The last stamp of a clock that was held.
    last_held: AtomicU64,
}

impl Published {
    #[inline(always)]
    fn now(&self, counter: impl Fn() -> u64) -> u64 {
        loop {
            let count = self.count.load(Ordering::Acquire);
            let ns = self.lines[count & 1].load().now(&counter, &self.last_held);
            fence(Ordering::Acquire);
            if self.count.load(Ordering::Relaxed) == count {
                return ns;
            }
        }
    }

    /// For one thread at a time.
    fn set(&self, line: Line) {
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        // Whoever still reads the line before the last one and finds it overwritten finds the count changed too.
        fence(Ordering::Release);
        self.lines[count & 1].store(line);
        self.count.store(count, Ordering::Release);
    }
}

/// Whether the counter is fit for this, on this machine.
#[derive(Clone, Copy, Debug, Default)]
enum Counter {
    /// Nobody has asked yet. That takes some 40 µs, which `jitsym_init` would wait for.
    #[default]
    Unknown,
    Fit(Calibration),
    /// It never was, or the kernel has given it up.
    Unfit,
}

/// The calibrated counter. Until the first `rebase` it is the clock.
#[derive(Debug, Default)]
pub struct Calibrated {
    published: Published,
    counter: Mutex<Counter>,
}

impl Calibrated {
    /// `CLOCK_MONOTONIC` in nanoseconds, or nearly. From the clock itself until `rebase` was called for some time, and again
    /// when it was not called for some time.
    #[inline]
    pub fn now(&self) -> u64 {
        self.published.now(arch_ticks)
    }

    /// As `now`, but the counter may be read up to a microsecond or so before what came before has come to its end. For 8 ns
    /// less.
    #[inline(always)]
    pub fn now_or_just_before(&self) -> u64 {
        self.published.now(unordered_ticks)
    }

    /// To be called every 1 to 50 ms, by one thread at a time, as long as threads want to know the time.
    pub fn rebase(&self) {
        self.change(Calibration::next);
    }

    /// To be called before that thread does so no more for long: from then on the clock is asked.
    pub fn rest(&self) {
        self.change(|old, sample| old.restart(sample));
    }

    fn change(&self, change: impl Fn(Calibration, Sample) -> Calibration) {
        let Ok(mut counter) = self.counter.try_lock() else { return };
        let old = match *counter {
            Counter::Fit(calibration) => calibration,
            Counter::Unfit => return,
            Counter::Unknown => {
                let Some(sample) = Sample::take() else { return };
                *counter = if is_fit() { Counter::Fit(Calibration::start(sample, 0)) } else { Counter::Unfit };
                return;
            }
        };
        for _ in 0..READINGS {
            let Some(sample) = Sample::take() else { continue };
            let new = change(old, sample);
            let held = self.published.last_held.load(Ordering::Relaxed);
            if new.line.exists() && (1..HELD_NS).contains(&held.saturating_sub(new.line.ns)) {
                // It would begin before stamps that were taken.
                return;
            }
            if new.line != old.line {
                if arch_ticks().wrapping_sub(sample.tsc) > LATE_TICKS {
                    continue;
                }
                self.published.set(new.line);
            }
            // The kernel gives the counter up if it finds it unstable: one reason for a line to be no good.
            let is_given_up = old.line.exists() && !new.line.exists() && !is_clock_source();
            *counter = if is_given_up { Counter::Unfit } else { Counter::Fit(new) };
            return;
        }
    }
}

fn is_fit() -> bool {
    is_invariant() && is_clock_source()
}

/// Whether the counter always runs at the same rate.
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    const HIGHEST: u32 = 0x8000_0000;
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    // SAFETY: every x86-64 processor has the instruction, and the second leaf is asked for only if there is one.
    #[allow(unused_unsafe, reason = "newer compilers find it safe")]
    unsafe {
        __cpuid(HIGHEST).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & 1 << 8 != 0
    }
}

/// Whether the kernel has found the counter to be the same on all processors, and makes its own clock of it.
fn is_clock_source() -> bool {
    let mut name = [0; 16];
    File::open("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .and_then(|mut file| file.read(&mut name))
        .is_ok_and(|len| name[..len].trim_ascii_end() == b"tsc")
}

#[cfg(test)]
mod tests;
