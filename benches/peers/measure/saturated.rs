//! Threads that register as fast as they can: what gets through to the files, and the processor time for it, the background
//! thread's included.

use std::sync::Barrier;
use std::time::Instant;

use super::{process, Figures};
use crate::contenders::Contender;
use crate::task::Task;

/// Bytes of code in all, about.
const BYTES: usize = 96 << 20;
const MOST_CALLS: usize = 300_000;

pub fn saturated<C: Contender>(task: &Task) -> Figures {
    let threads = task.setting.threads;
    let each = task.amount((BYTES / task.setting.size).min(MOST_CALLS)) / threads;
    let warm_up = each / 20;
    let contender = C::open(task);
    let barrier = Barrier::new(threads + 1);
    let (start, cpu) = std::thread::scope(|scope| {
        for number in 0..threads {
            let (contender, barrier) = (&contender, &barrier);
            scope.spawn(move || {
                let mut call = contender.caller(number);
                (0..warm_up).for_each(|_| call());
                task.bind_background();
                barrier.wait();
                barrier.wait();
                (0..each).for_each(|_| call());
            });
        }
        barrier.wait();
        contender.drain();
        let start = (Instant::now(), process::cpu_ns());
        barrier.wait();
        start
    });
    let calls = threads * (warm_up + each);
    let files = contender.close(calls);
    let (elapsed, cpu) = (start.elapsed(), process::cpu_ns() - cpu);
    let peak = process::peak_mib();
    files.check(calls);
    let timed = (threads * each) as f64;
    Figures::from([
        ("per_second".into(), timed / elapsed.as_secs_f64()),
        ("cpu".into(), cpu as f64 / timed),
        ("peak".into(), peak),
    ])
}
