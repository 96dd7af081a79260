//! What the calling thread pays while the contender can keep up: at a steady pace, and in bursts.
//!
//! Everything is done twice: with 16 calls timed together, for the middle of the distribution, and with each call timed alone,
//! for its tail.

use std::sync::Barrier;
use std::time::Duration;

use super::{add_distribution, process, Figures, BATCH};
use crate::clock::{ticks, Scale};
use crate::contenders::Contender;
use crate::statistics::percentile;
use crate::task::Task;

/// Calls a second, or less where that would be more bytes than memory takes.
fn calls_per_second(size: usize) -> usize {
    match size {
        0..=1024 => 100_000,
        1025..=16_384 => 25_000,
        _ => 12_500,
    }
}

/// How calls are spread over time.
struct Pace<'a> {
    scale: &'a Scale,
    /// From one batch to the next.
    period: u64,
    next: u64,
}

impl<'a> Pace<'a> {
    fn new(scale: &'a Scale, size: usize) -> Pace<'a> {
        let period = Duration::from_secs(BATCH as u64) / calls_per_second(size) as u32;
        Pace { scale, period: scale.ticks(period), next: ticks() }
    }

    /// Waits for the next batch without giving up the processor, as a compiler that works on the next function does not either.
    fn wait(&mut self) {
        self.next = (self.next + self.period).max(ticks());
        while ticks() < self.next {
            std::hint::spin_loop();
        }
    }

    /// The number of batches in so many milliseconds.
    fn batches(&self, ms: u64) -> usize {
        (self.scale.ticks(Duration::from_millis(ms)) / self.period).max(2) as usize
    }
}

/// Times of all batches, or of all calls, in ticks. Made and touched before anything is timed.
struct Samples {
    batches: Vec<u64>,
    singles: Vec<u64>,
}

impl Samples {
    fn new(batches: usize, singles: usize) -> Samples {
        Samples { batches: vec![1; batches], singles: vec![1; singles * BATCH] }
    }

    /// `pause` stands between the batches.
    fn take(&mut self, mut call: impl FnMut(), mut pause: impl FnMut()) {
        for sample in &mut self.batches {
            let start = ticks();
            for _ in 0..BATCH {
                call();
            }
            *sample = ticks() - start;
            pause();
        }
        for batch in self.singles.chunks_mut(BATCH) {
            for sample in batch {
                let start = ticks();
                call();
                *sample = ticks() - start;
            }
            pause();
        }
    }
}

/// One thread at a steady pace.
pub fn latency<C: Contender>(task: &Task, scale: &Scale) -> Figures {
    let contender = C::open(task);
    let mut call = contender.caller(0);
    let mut pace = Pace::new(scale, task.setting.size);
    let warm_up = pace.batches(60);
    for _ in 0..warm_up {
        for _ in 0..BATCH {
            call();
        }
        pace.wait();
    }
    task.bind_background();
    let mut samples = Samples::new(task.amount(pace.batches(120)), task.amount(pace.batches(240)));
    process::mark();
    samples.take(&mut call, || pace.wait());
    process::mark();
    drop(call);
    let marked = samples.batches.len() * BATCH + samples.singles.len();
    let calls = warm_up * BATCH + marked;
    contender.close(calls).check(calls);
    let mut figures = Figures::from([("marked_calls".into(), marked as f64)]);
    add_distribution(&mut figures, "batch", &samples.batches, BATCH, scale);
    add_distribution(&mut figures, "single", &samples.singles, 1, scale);
    figures
}

/// Every thread registers 16 functions, sleeps for a millisecond, and again.
pub fn bursts<C: Contender>(task: &Task, scale: &Scale) -> Figures {
    let contender = C::open(task);
    let barrier = Barrier::new(task.setting.threads);
    // Until this library's memory for records has grown to what the threads need.
    let (warm_up, batches, singles) = (200, task.amount(100), task.amount(240));
    let thread = |number: usize| {
        let mut call = contender.caller(number);
        let mut samples = Samples::new(batches, singles);
        let pause = || std::thread::sleep(Duration::from_millis(1));
        for _ in 0..warm_up {
            for _ in 0..BATCH {
                call();
            }
            pause();
        }
        task.bind_background();
        barrier.wait();
        samples.take(&mut call, pause);
        samples
    };
    let all: Vec<Samples> = std::thread::scope(|scope| {
        let thread = &thread;
        let handles: Vec<_> = (0..task.setting.threads).map(|number| scope.spawn(move || thread(number))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread")).collect()
    });
    let calls = task.setting.threads * (warm_up + batches + singles) * BATCH;
    contender.close(calls).check(calls);
    let mut figures = Figures::new();
    let batches: Vec<u64> = all.iter().flat_map(|samples| &samples.batches).copied().collect();
    let singles: Vec<u64> = all.iter().flat_map(|samples| &samples.singles).copied().collect();
    add_distribution(&mut figures, "batch", &batches, BATCH, scale);
    add_distribution(&mut figures, "single", &singles, 1, scale);
    figures
}

/// The size of this library's unwind tables, and how much memory its records take up between its threads at a steady pace:
/// that is how large a region `memcpy` has to write to, to be compared fairly.
pub fn probe<C: Contender>(task: &Task, scale: &Scale) -> Figures {
    let contender = C::open(task);
    let mut call = contender.caller(0);
    let mut pace = Pace::new(scale, task.setting.size);
    let batches = pace.batches(300);
    let mut memory = Vec::new();
    for _ in 0..batches {
        for _ in 0..BATCH {
            call();
        }
        memory.push(contender.memory() as f64);
        pace.wait();
    }
    drop(call);
    let files = contender.close(batches * BATCH);
    files.check(batches * BATCH);
    // Not the most there ever was: once in a while the writer does not get a processor.
    memory.sort_by(f64::total_cmp);
    Figures::from([("memory".into(), percentile(&memory, 95.0)), ("tables".into(), files.tables() as f64)])
}
