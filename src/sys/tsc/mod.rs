//! Computes `CLOCK_MONOTONIC` from the time stamp counter. The computation takes four fifths of the time of `clock_gettime` (19
//! ns instead of 24 ns).
//!
//! Once a round, the writer compares the counter with the clock, and publishes a straight line: time as a function of the
//! counter. A registering thread reads the counter, and computes the time from the line. The computed time is the thread's
//! stamp. The stamp differs from the clock by less than a microsecond, and usually by only tens of nanoseconds. When the kernel
//! has just begun to slew the clock (to let the clock run faster or slower), the difference may exceed a microsecond.
//!
//! Stamps never go back: if a thread takes a stamp and then publishes data, no thread that has read the data takes an earlier
//! stamp. Six facts guarantee that stamps never go back.
//!
//! * A thread reads the counter after all its earlier instructions have completed (`clock::arch_ticks`).
//! * For the counter value at which a new line begins, the new line gives the same time as the old line, or a later time. If a
//!   new line begins ahead of the clock, its slope is reduced, so that the clock catches up with the line.
//! * A line begins at the clock's time, or at a later time. So a time stamp from the line is never smaller than a time stamp
//!   that was taken from the clock earlier. After the end of a line, threads take stamps from the clock again, but adjust these
//!   stamps: no stamp is before the last time of the line (`Line::height`). Threads adjust stamps until the clock is more than
//!   `HELD_NS` past `Line::height`. Until then, each stamp is at least a nanosecond later than the previous stamp.
//! * The clock stands still while the machine is suspended. During a suspend, the counter may continue or restart. If the
//!   counter continues, it may jump past the line's end. All stamps from the line are then at or before the clock's time, so
//!   threads do not adjust stamps from the clock. A restarted counter could, hours later, have a value that the old line
//!   covers. So the line is withdrawn before the writer sleeps.
//! * After a thread has computed a stamp, it checks that the line is still the published line. If another line was published,
//!   the thread takes a new stamp. So a thread that was interrupted does not return a time from an old line.
//! * The rates of the old and the new line differ by less than 100 parts in a million. A new line is published within
//!   `LATE_TICKS` of its beginning, or not at all. Until the new line is published, threads take stamps from the old line. A
//!   stamp from the old line is at most 2 ns later than the stamp from the new line for the same counter value. This difference
//!   does no harm, because a thread needs much longer than 2 ns to take a stamp and publish data. The writer may be interrupted
//!   between its last reading of the counter and the store that publishes the line. If the clock is not slewed, each
//!   millisecond of such an interruption adds about 1 ns to the maximum of 2 ns.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};

use crate::sys::clock::{arch_ticks, monotonic_ns, unordered_ticks};
use crate::sys::sync::outside::Mutex;

/// The length of a line. After the end of a line, threads read the clock until the writer publishes a new line.
const REACH_NS: u64 = 100_000_000;
/// A line is drawn through two samples. The time between the two samples is the span. A span is at least `SHORTEST_SPAN_NS`
/// long. The line is at most twice as long as the span.
const SHORTEST_SPAN_NS: u64 = 20_000_000;
/// Before the first line is drawn, the rates of two spans are compared. The rates may differ by this many parts in a million,
/// because of the slewing of NTP (500 parts) and the error of a reading. If the rates differ by more than `ALIKE_PPM`, the
/// counter or the clock has jumped.
const ALIKE_PPM: u64 = 1_000;
/// The span grows until its length is between `WINDOW_NS` and twice `WINDOW_NS`. A span of this length is long compared with
/// the error of a reading, and short enough to follow the slewing of NTP.
const WINDOW_NS: u64 = 250_000_000;
/// A span that is longer than this time is not used, because the clock may have been slewed during the span, and may have
/// another rate now.
const LONGEST_SPAN_NS: u64 = 1_000_000_000;
/// A line may differ from the clock by at most this time. If a line differs from the clock by more than `TOLERANCE_NS`, the
/// line and its two samples are dropped.
const TOLERANCE_NS: u64 = 2_000;
/// If a line begins ahead of the clock, the line gets a smaller slope, so that the clock catches up with the line within
/// `CATCH_UP_NS`. A new line may replace this line before the clock has caught up.
const CATCH_UP_NS: u64 = 50_000_000;
/// An adjusted stamp is at most `HELD_NS` later than the maximum of the clock and `Line::height`. Threads adjust stamps until
/// the clock is more than `HELD_NS` past `Line::height`. Each adjusted stamp can be 1 ns further ahead of the clock than the
/// previous stamp, but threads can take far fewer than a million stamps in a millisecond.
const HELD_NS: u64 = 1_000_000;
/// The maximum number of ticks between the beginning of a line and its publication: about 20 µs.
const LATE_TICKS: u64 = 50_000;
/// If a reading of the clock takes more than `WIDEST_READING_TICKS`, the reading is treated as interrupted. The limit is about
/// 200 ns.
const WIDEST_READING_TICKS: u64 = 500;
/// The number of readings for one sample. The reading that took the shortest time becomes the sample.
const READINGS: usize = 4;

/// The clock and the counter at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    tsc: u64,
    ns: u64,
}

impl Sample {
    /// Reads the clock and the counter. Returns `None` if each reading was interrupted.
    fn take() -> Option<Sample> {
        let reading = || {
            // The counter is read before the clock, so the sample's time is slightly too late for its counter value. Therefore
            // a line through the sample does not lag behind the clock.
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
    /// Nanoseconds for 2^32 ticks. The value fits into 32 bits, because each tick takes less than a nanosecond (the counter
    /// runs at more than 1 GHz).
    slope: u32,
    /// Length in ticks, or 0 if there is no line. Without a line, threads read the clock, and take no stamp before `ns`.
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

    /// The time at this value of the counter. `None` before the line's beginning and after its end.
    #[inline]
    fn at(&self, tsc: u64) -> Option<u64> {
        let ticks = tsc.wrapping_sub(self.tsc);
        (ticks < self.reach.into()).then(|| self.after(ticks))
    }

    /// Returns the minimum for stamps that threads will take from the clock or from the next line. The counter's value is now
    /// `tsc`, and the clock's time is `ns`. Each stamp that a thread has taken from the line is at or before the result, or at
    /// or before `ns`.
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
            // Before the first line is published, all stamps come from the clock, so no stamp has to be adjusted.
            monotonic_ns()
        } else {
            self.clock(0, last_held)
        }
    }

    /// The time from the clock, adjusted if necessary, so that it is not before `height`. While threads adjust stamps
    /// (`HELD_NS`), each stamp is at least one nanosecond later than the previous stamp.
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

/// The rate of the clock between two samples, in nanoseconds for 2^32 ticks.
fn rate(from: Sample, to: Sample) -> u64 {
    (to.ns.wrapping_sub(from.ns) << 32) / to.tsc.wrapping_sub(from.tsc).max(1)
}

/// The data that the writer keeps from round to round: the line, and two earlier samples. The rate of the next line is the
/// rate between the older sample and the new sample.
#[derive(Clone, Copy, Debug)]
struct Calibration {
    line: Line,
    older: Sample,
    newer: Sample,
}

impl Calibration {
    /// Begins a calibration with its first sample. No stamp may be earlier than `floor`.
    fn start(sample: Sample, floor: u64) -> Calibration {
        Calibration { line: Line::none(floor), older: sample, newer: sample }
    }

    /// Begins a new calibration. Threads use the old line until the new calibration is published. The minimum for stamps of the
    /// new calibration is the latest stamp that the old line can give before the publication.
    fn restart(&self, sample: Sample) -> Calibration {
        Calibration::start(sample, self.line.height(sample.tsc.wrapping_add(2 * LATE_TICKS), sample.ns))
    }

    /// The calibration after one more sample.
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

/// A line in the form in which threads read it.
#[derive(Debug, Default)]
struct PublishedLine {
    tsc: AtomicU64,
    ns: AtomicU64,
    /// The upper half is `Line::slope`, and the lower half is `Line::reach`.
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

/// The data that threads read, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Published {
    /// How many lines were published. The lowest bit is the index in `lines` of the line that was published last. The writer
    /// stores the next line in the element of `lines` that does not contain the current line. So no thread has to wait if the
    /// writer is interrupted.
    count: AtomicUsize,
    lines: [PublishedLine; 2],
    /// The last stamp that a thread took from the clock while threads adjusted stamps from the clock (`HELD_NS`).
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

    /// Only one thread at a time may call this function.
    fn set(&self, line: Line) {
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        // `store` overwrites the older of the two lines. A thread that still reads the older line may get some of the new
        // values. The fence makes sure that a thread which gets a new value also reads the changed `count`.
        fence(Ordering::Release);
        self.lines[count & 1].store(line);
        self.count.store(count, Ordering::Release);
    }
}

/// Whether this machine's counter is usable as a clock.
#[derive(Clone, Copy, Debug, Default)]
enum Counter {
    /// The usability is not determined yet.
    #[default]
    Unknown,
    /// The usability is determined when a line could be drawn through this sample, because the test takes 20 to 40 µs. So a
    /// process that ends sooner saves the test.
    Sampled(Sample),
    Fit(Calibration),
    /// The counter was never usable, or the kernel no longer uses it.
    Unfit,
}

/// A clock that is computed from the counter. Until the first line is published, this clock returns the time of the system's
/// clock.
#[derive(Debug, Default)]
pub struct Calibrated {
    published: Published,
    counter: Mutex<Counter>,
}

impl Calibrated {
    /// Nearly `CLOCK_MONOTONIC`, in nanoseconds. If no published line covers the counter's current value, the function reads
    /// `CLOCK_MONOTONIC` itself. There is no line until `rebase` has been called for some time. If `rebase` is then not called
    /// for some time, the line ends.
    #[inline]
    pub fn now(&self) -> u64 {
        self.published.now(arch_ticks)
    }

    /// Like `now`, but the counter may be read up to about a microsecond before earlier instructions have completed. The
    /// earlier reading saves 8 ns.
    #[inline(always)]
    pub fn now_or_just_before(&self) -> u64 {
        self.published.now(unordered_ticks)
    }

    /// Takes a sample, and publishes a new line if possible. Must be called every 1 to 50 ms, by one thread at a time, as long
    /// as threads take stamps.
    pub fn rebase(&self) {
        self.change(Calibration::next);
    }

    /// Withdraws the line, so that threads read the clock. Must be called if `rebase` will not be called for a long time.
    pub fn rest(&self) {
        self.change(|old, sample| old.restart(sample));
    }

    fn change(&self, change: impl Fn(Calibration, Sample) -> Calibration) {
        let Ok(mut counter) = self.counter.try_lock() else { return };
        match *counter {
            Counter::Unknown => *counter = Sample::take().map_or(Counter::Unknown, Counter::Sampled),
            Counter::Sampled(sample) if monotonic_ns().wrapping_sub(sample.ns) >= SHORTEST_SPAN_NS => {
                *counter = if is_fit() { Counter::Fit(Calibration::start(sample, 0)) } else { Counter::Unfit };
            }
            _ => {}
        }
        let Counter::Fit(old) = *counter else { return };
        for _ in 0..READINGS {
            let Some(sample) = Sample::take() else { continue };
            let new = change(old, sample);
            let held = self.published.last_held.load(Ordering::Relaxed);
            if new.line.exists() && (1..HELD_NS).contains(&held.saturating_sub(new.line.ns)) {
                // The last adjusted stamp is later than the beginning of the new line, so the new line is not published.
                return;
            }
            if new.line != old.line {
                if arch_ticks().wrapping_sub(sample.tsc) > LATE_TICKS {
                    continue;
                }
                self.published.set(new.line);
            }
            // If the line was dropped, the reason may be that the kernel has found the counter unstable, and no longer uses
            // it.
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
    // SAFETY: every x86-64 processor has the instruction, and the second leaf is read only if it exists.
    #[allow(unused_unsafe, reason = "newer compilers find it safe")]
    unsafe {
        __cpuid(HIGHEST).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & 1 << 8 != 0
    }
}

/// Whether the kernel has found the counter to be the same on all processors, and uses the counter for its own clock.
fn is_clock_source() -> bool {
    let mut name = [0; 16];
    File::open("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .and_then(|mut file| file.read(&mut name))
        .is_ok_and(|len| name[..len].trim_ascii_end() == b"tsc")
}

#[cfg(test)]
mod tests;
