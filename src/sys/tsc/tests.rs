use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

const MS: u64 = 1_000_000;

/// A simulated counter and a simulated clock. With each tick of the counter the clock advances by `rate`.
#[derive(Clone)]
struct Fake {
    tsc: u64,
    /// The clock's time, in units of 2^-32 ns.
    time: u128,
    rate: u64,
}

impl Fake {
    /// A counter of 2.6 GHz. The clock's rate is off by `ppm` parts in a million.
    fn new(tsc: u64, ppm: i64) -> Fake {
        let mut fake = Fake { tsc, time: 1_000_000_000_000_000 << 32, rate: 0 };
        fake.slew(ppm);
        fake
    }

    fn slew(&mut self, ppm: i64) {
        let rate = (1 << 32) * 10 / 26;
        self.rate = (rate + rate * ppm / 1_000_000) as u64;
    }

    fn ns(&self) -> u64 {
        (self.time >> 32) as u64
    }

    fn pass(&mut self, ns: u64) {
        let ticks = (u128::from(ns) << 32) / u128::from(self.rate);
        self.tsc = self.tsc.wrapping_add(ticks as u64);
        self.time += ticks * u128::from(self.rate);
    }

    /// Suspends the machine: the counter continues, and the clock does not.
    fn suspend(&mut self, ns: u64) {
        self.tsc = self.tsc.wrapping_add(((u128::from(ns) << 32) / u128::from(self.rate)) as u64);
    }

    /// A reading of the clock takes 10 to 40 ns, as on a real machine.
    fn sample(&mut self) -> Sample {
        let tsc = self.tsc;
        self.pass(10 + tsc % 31);
        Sample { tsc, ns: self.ns() }
    }

    fn start(&mut self) -> Calibration {
        Calibration::start(self.sample(), 0)
    }

    /// The stamp that a thread would take now if `line` were published.
    fn stamp(&self, line: &Line) -> u64 {
        line.at(self.tsc).unwrap_or_else(|| self.ns().max(line.height(self.tsc, self.ns())))
    }

    /// Takes a sample after each of `passes` intervals, and checks that the stamps in between do not go back. Returns the
    /// largest difference between a stamp and the clock.
    fn run(&mut self, calibration: &mut Calibration, interval: u64, passes: u64) -> u64 {
        let mut worst = 0;
        let mut last = 0;
        let mut look = |fake: &Fake, line: &Line| {
            let stamp = fake.stamp(line);
            assert!(stamp >= last, "{last} to {stamp}, with {line:?}");
            last = stamp;
            worst = worst.max(stamp.abs_diff(fake.ns()));
        };
        for _ in 0..passes {
            for _ in 0..10 {
                look(self, &calibration.line);
                self.pass(interval / 10);
            }
            let sample = self.sample();
            let new = calibration.next(sample);
            // Threads take stamps from the old line until the new line is published. The test publishes the new line late.
            self.pass(15_000);
            look(self, &calibration.line);
            *calibration = new;
            self.pass(10);
            look(self, &calibration.line);
        }
        worst
    }
}

#[test]
fn a_line_holds_from_its_beginning_to_its_end() {
    for tsc in [0, 1, 1 << 63, u64::MAX - 999, u64::MAX] {
        let line = Line { tsc, ns: 5_000, slope: 1 << 31, reach: 1_000 };
        assert_eq!(line.at(tsc), Some(5_000));
        assert_eq!(line.at(tsc.wrapping_add(999)), Some(5_499));
        assert_eq!(line.at(tsc.wrapping_add(1_000)), None);
        assert_eq!(line.at(tsc.wrapping_sub(1)), None);
        assert_eq!(line.height(tsc.wrapping_add(1 << 62), u64::MAX), 5_500);
        assert_eq!(line.height(tsc.wrapping_sub(1 << 62), u64::MAX), 5_000);
        assert_eq!(line.height(tsc.wrapping_add(999), 0), 5_499);
        // In the first assertion, the clock stood still for at most the duration of the line. In the next two assertions, the
        // clock stood still for longer than the duration of the line.
        assert_eq!(line.height(tsc.wrapping_add(2_000), 5_500), 5_500);
        assert_eq!(line.height(tsc.wrapping_add(2_002), 5_500), 5_000);
        assert_eq!(line.height(tsc.wrapping_add(1 << 62), 5_500), 5_000);
    }
    let steepest = Line { tsc: 7, ns: u64::MAX >> 1, slope: u32::MAX, reach: u32::MAX };
    let furthest = (1 << 32) - 2;
    assert_eq!(steepest.at(7 + furthest), Some((u64::MAX >> 1) + furthest - 1));
    let none = Line::none(9);
    assert!(!none.exists() && none.at(0).is_none() && none.height(77, 0) == 9);
}

#[test]
fn a_line_follows_the_clock_whatever_the_rate_and_the_interval() {
    for tsc in [0, 1 << 62, 0_u64.wrapping_sub(3_000_000_000)] {
        for ppm in [0, 500, -500] {
            for interval in [MS, 10 * MS, 50 * MS] {
                let mut fake = Fake::new(tsc, ppm);
                let mut calibration = fake.start();
                let worst = fake.run(&mut calibration, interval, 4_000 * MS / interval);
                assert!(calibration.line.exists());
                assert!(worst < 200, "{worst} ns at {ppm} ppm, every {interval} ns");
            }
        }
    }
}

#[test]
fn slewing_is_followed() {
    for interval in [MS, 10 * MS, 50 * MS] {
        for step in [8, -8] {
            let mut fake = Fake::new(1 << 40, 0);
            let mut calibration = fake.start();
            for change in 0..10 {
                fake.slew(step * change);
                let worst = fake.run(&mut calibration, interval, 500 * MS / interval);
                assert!(calibration.line.exists());
                assert!(worst < 900, "{worst} ns, every {interval} ns");
            }
        }
    }
}

#[test]
fn a_line_that_is_ahead_runs_slower_and_does_not_step_back() {
    let mut fake = Fake::new(1 << 40, 0);
    let mut calibration = fake.start();
    fake.run(&mut calibration, 10 * MS, 100);
    // The test moves the line ahead by 1.5 µs, as a wrong reading of the clock would do.
    calibration.line.ns += 1_500;
    let before = calibration.line;
    let sample = fake.sample();
    calibration = calibration.next(sample);
    assert_eq!(calibration.line.at(sample.tsc), before.at(sample.tsc));
    fake.run(&mut calibration, 10 * MS, 5);
    assert!(fake.stamp(&calibration.line).abs_diff(fake.ns()) < 600);
    fake.run(&mut calibration, 10 * MS, 5);
    assert!(fake.stamp(&calibration.line).abs_diff(fake.ns()) < 200);
    // The second argument of `Calibration::start` is the earliest time at which a line may begin. `Calibration::next` makes no
    // line until the clock has nearly reached the earliest time.
    let sample = fake.sample();
    let waiting = Calibration::start(sample, sample.ns + 30 * MS);
    fake.pass(25 * MS);
    assert!(!waiting.next(fake.sample()).line.exists());
    fake.pass(5 * MS);
    let waiting = waiting.next(fake.sample());
    fake.pass(20 * MS);
    assert!(waiting.next(fake.sample()).line.exists());
    // If a line lags behind the clock, the next line begins at the clock's time. So stamps jump forward when the next line
    // begins.
    fake.run(&mut calibration, 10 * MS, 1);
    calibration.line.ns -= 1_500;
    let sample = fake.sample();
    assert_eq!(calibration.next(sample).line.at(sample.tsc), Some(sample.ns));
}

#[test]
fn a_counter_that_misses_the_clock_is_not_used_until_it_is_sane() {
    for ppm in [300, -300, 20_000, -20_000] {
        let mut fake = Fake::new(1 << 40, 0);
        let mut calibration = fake.start();
        fake.run(&mut calibration, 50 * MS, 20);
        assert!(calibration.line.exists());
        fake.slew(ppm);
        fake.run(&mut calibration, 50 * MS, 1);
        assert!(!calibration.line.exists(), "after the first pass that sees it, at {ppm} ppm");
        // At first, no stamp from the clock is before the latest time of the line. 2 ms later the clock is past that time, and
        // stamps are the clock's time.
        fake.pass(2 * MS);
        assert_eq!(fake.stamp(&calibration.line), fake.ns());
        let worst = fake.run(&mut calibration, 50 * MS, 20);
        assert!(calibration.line.exists() && worst < 200, "{worst}");
    }
}

#[test]
fn after_a_gap_the_clock_is_asked_and_the_rate_found_anew() {
    for gap in [150 * MS, 2_000 * MS, 3_600_000 * MS, 10_000_000_000 * MS] {
        let mut fake = Fake::new(1 << 40, 0);
        let mut calibration = fake.start();
        fake.run(&mut calibration, 10 * MS, 100);
        fake.pass(gap);
        assert_eq!(fake.stamp(&calibration.line), fake.ns());
        // After the pause of `gap` nanoseconds, the clock runs at a new rate.
        fake.slew(100);
        let worst = fake.run(&mut calibration, 5 * MS, 3);
        assert!(!calibration.line.exists());
        assert_eq!(worst, 0);
        let worst = fake.run(&mut calibration, 5 * MS, 10);
        assert!(calibration.line.exists() && worst < 200, "{worst}");
    }
    // If the first two samples are too far apart in time, no line is made from the two samples.
    let mut fake = Fake::new(1 << 40, 0);
    let calibration = fake.start();
    fake.pass(2_000 * MS);
    assert!(!calibration.next(fake.sample()).line.exists());
}

#[test]
fn a_counter_that_was_set_back_is_found_out() {
    let mut fake = Fake::new(1 << 40, 0);
    let mut calibration = fake.start();
    fake.run(&mut calibration, 10 * MS, 100);
    fake.tsc = 1_000;
    assert!(fake.stamp(&calibration.line).abs_diff(fake.ns()) < 100);
    fake.run(&mut calibration, 10 * MS, 1);
    assert!(!calibration.line.exists());
    let worst = fake.run(&mut calibration, 10 * MS, 100);
    assert!(calibration.line.exists() && worst < 200, "{worst}");
    // Now the counter is set back between two samples, before the first line is made. A line through these two samples would be
    // wrong, so no line may be made.
    let mut calibration = fake.start();
    fake.pass(30 * MS);
    fake.tsc = 1_000;
    assert!(!calibration.next(fake.sample()).line.exists());
    fake.run(&mut calibration, 10 * MS, 10);
    assert!(calibration.line.exists());
}

#[test]
fn a_suspend_is_no_time() {
    const HOUR: u64 = 3_600_000 * MS;
    for suspended in [110 * MS, 500 * MS, 2_000 * MS, HOUR, 10_000 * HOUR] {
        // The machine is suspended between 0 and 99 ms after a round, before the line ends.
        for since in [0, MS, 49 * MS, 99 * MS] {
            let mut fake = Fake::new(1 << 40, 0);
            let mut calibration = fake.start();
            fake.run(&mut calibration, 10 * MS, 100);
            fake.pass(since);
            let before = fake.stamp(&calibration.line);
            fake.suspend(suspended);
            // No thread runs shortly before the clock stops, or shortly after the clock continues.
            fake.pass(5_000);
            assert_eq!(fake.stamp(&calibration.line), fake.ns(), "{suspended} ns, {since} ns after a round");
            assert!(fake.ns() >= before);
            let worst = fake.run(&mut calibration, 10 * MS, 20);
            assert!(calibration.line.exists() && worst < 200, "{worst} ns after {suspended} ns");
        }
    }
    // Each suspend is shorter than the duration of a line. After the suspend, the line may give stamps that are ahead of the
    // clock. So threads adjust the stamps that they then take from the clock.
    for suspended in [10_000, MS, 40 * MS, 80 * MS] {
        let mut fake = Fake::new(1 << 40, 0);
        let mut calibration = fake.start();
        fake.run(&mut calibration, 10 * MS, 100);
        fake.suspend(suspended);
        let worst = fake.run(&mut calibration, 10 * MS, 20);
        // The limit allows 40 µs for the time until the new calibration is published.
        assert!(worst <= suspended + 40_000, "{worst} ns after {suspended} ns");
        assert!(fake.run(&mut calibration, 10 * MS, 10) < 200 && calibration.line.exists());
    }
}

#[test]
fn no_line_is_drawn_across_a_suspend() {
    for suspended in [MS, 40 * MS, 1_000 * MS, 3_600_000 * MS] {
        for passes in 0..8 {
            let mut fake = Fake::new(1 << 40, 0);
            let mut calibration = fake.start();
            fake.run(&mut calibration, 5 * MS, passes);
            assert!(!calibration.line.exists());
            fake.suspend(suspended);
            let worst = fake.run(&mut calibration, 5 * MS, 30);
            assert!(calibration.line.exists() && worst < 200, "{worst} ns after {passes} passes and {suspended} ns");
        }
    }
}

#[test]
fn a_counter_that_begins_anew_does_not_meet_an_old_line() {
    let mut fake = Fake::new(1 << 40, 0);
    let mut calibration = fake.start();
    fake.run(&mut calibration, 10 * MS, 100);
    let line = calibration.line;
    fake.pass(3_000 * MS);
    calibration = calibration.restart(fake.sample());
    // Hours later, the counter has a value that the old line covers.
    fake.pass(3_600_000 * MS);
    fake.tsc = line.tsc + 1_000;
    assert!(line.at(fake.tsc).is_some());
    assert_eq!(fake.stamp(&calibration.line), fake.ns());
}

#[test]
fn there_is_no_line_while_the_writer_sleeps() {
    if !is_fit() {
        return;
    }
    let calibrated = Calibrated::default();
    let line = || calibrated.published.lines[calibrated.published.count.load(Ordering::Relaxed) & 1].load();
    while !line().exists() {
        std::thread::sleep(Duration::from_millis(1));
        calibrated.rebase();
        let counter = *calibrated.counter.lock().unwrap();
        assert!(!matches!(counter, Counter::Unfit), "the kernel has given up the counter");
    }
    let before = calibrated.now();
    // A call of `rest` has no effect if all readings of the clock in this call are interrupted. So the test repeats the call.
    let is_gone = || {
        calibrated.rest();
        !line().exists()
    };
    assert!((0..10_000).any(|_| is_gone()) && calibrated.now() >= before);
}

/// Runs `reader` on three threads while this thread calls `rebase` after each of the pauses. Ends early if the counter is
/// unfit, or if the kernel stops using the counter.
fn while_rebasing(pauses: impl Iterator<Item = Duration>, reader: impl Fn(&Calibrated) + Sync) {
    let calibrated = Calibrated::default();
    let done = AtomicBool::new(false);
    let mut lines = 0;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    reader(&calibrated);
                }
            });
        }
        // If no line is published during `pauses`, as can happen on a busy machine, more pauses follow.
        let longer = std::iter::repeat_n((Duration::from_millis(1), true), 30_000);
        for (pause, is_longer) in pauses.map(|pause| (pause, false)).chain(longer) {
            if is_longer && lines > 0 {
                break;
            }
            std::thread::sleep(pause);
            calibrated.rebase();
            if matches!(*calibrated.counter.lock().unwrap(), Counter::Unfit) {
                lines = 1;
                break;
            }
            let published = &calibrated.published;
            let line = published.lines[published.count.load(Ordering::Relaxed) & 1].load();
            lines += usize::from(line.exists());
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(lines > 0, "there never was a line");
}

#[test]
fn the_error_is_small_at_first() {
    assert_small_error(150);
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn the_error_is_less_than_a_microsecond() {
    assert_small_error(1_500);
}

/// Compares stamps with the clock, for each of three intervals between calls of `rebase`. The comparison takes `millis`
/// milliseconds for each interval.
fn assert_small_error(millis: u64) {
    for interval in [1, 10, 50] {
        let pauses = std::iter::repeat_n(Duration::from_millis(interval), (millis / interval) as usize);
        while_rebasing(pauses, |calibrated| {
            let before = monotonic_ns();
            let now = calibrated.now();
            let after = monotonic_ns();
            assert!(now + 1_000 > before && now < after + 1_000, "{before} {now} {after}, every {interval} ms");
        });
    }
}

#[test]
fn time_does_not_go_back_at_first() {
    assert_order_of_time(1);
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn time_does_not_go_back_from_thread_to_thread() {
    assert_order_of_time(10);
}

fn assert_order_of_time(turns: usize) {
    let latest = AtomicU64::new(0);
    // Some pauses are longer than the duration of a line (`REACH_NS`). During such a pause, threads change from the line to the
    // clock, and later to a new line.
    let pauses = [1, 1, 1, 8, 1, 1, 30, 1, 1, 1, 1, 1, 120, 20, 1, 10, 1];
    let pauses = std::iter::repeat_n(pauses, turns).flatten().map(Duration::from_millis);
    while_rebasing(pauses, |calibrated| {
        for _ in 0..100 {
            let seen = latest.load(Ordering::Acquire);
            let now = calibrated.now();
            assert!(now >= seen, "{seen} to {now}");
            latest.fetch_max(now, Ordering::AcqRel);
        }
    });
}

#[test]
fn the_clock_is_held_at_the_height_of_the_line() {
    let published = Published::default();
    published.set(Line::none(1 << 59));
    assert_eq!(published.now(arch_ticks), 1 << 59);
    assert_eq!(published.now(arch_ticks), (1 << 59) + 1, "no two stamps are the same");
    published.set(Line::none(1 << 60));
    assert_eq!(published.now(arch_ticks), 1 << 60);
    published.set(Line::none(1 << 61));
    assert_eq!(published.now(arch_ticks), 1 << 61);
    // A writer is interrupted while it writes the next line. The threads do not wait for the writer, and do not use the
    // unfinished line.
    published.lines[0].store(Line::none(1 << 62));
    assert_eq!(published.now(arch_ticks), (1 << 61) + 1);
}

#[test]
fn a_line_is_never_read_in_parts() {
    if !is_fit() {
        return;
    }
    let start = arch_ticks();
    // All results of this closure are parts of one straight line. `from` determines at which point of the straight line the
    // result begins.
    let line = |from: u64| {
        let (tsc, ns) = (start - (from << 20), (1 << 60) - (from << 19));
        Line { tsc, ns, slope: 1 << 31, reach: u32::MAX }
    };
    let published = Published::default();
    published.set(line(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for from in (0..1_000).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                published.set(line(from));
                (0..from % 64).for_each(|_| std::hint::spin_loop());
            }
        });
        loop {
            let before = arch_ticks() - start;
            let time = published.now(arch_ticks) - (1 << 60);
            let after = arch_ticks() - start;
            // The loop stops long before the line ends.
            if after > 1 << 30 {
                stop.store(true, Ordering::Relaxed);
                break;
            }
            let is_on_the_line = (before / 2..=after / 2).contains(&time);
            stop.fetch_or(!is_on_the_line, Ordering::Relaxed);
            assert!(is_on_the_line, "{before} {time} {after}");
        }
    });
}
