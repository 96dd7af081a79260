//! One function each millisecond, which is what a compiler makes: what the caller pays when nothing is warm, what the thread in
//! the background costs then, and what it does when there is nothing to do.

use std::time::{Duration, Instant};

use super::{add_distribution, process, Figures};
use crate::clock::{ticks, Scale};
use crate::contenders::Contender;
use crate::task::Task;

const PERIOD: Duration = Duration::from_millis(1);
/// This library's thread sleeps for good after less than that.
const SILENCE: Duration = Duration::from_millis(2500);
const WATCH: Duration = Duration::from_secs(5);

pub fn rate<C: Contender>(task: &Task, scale: &Scale) -> Figures {
    let before = process::threads();
    let contender = C::open(task);
    let mut call = contender.caller(0);
    let mut timed = |count: usize| -> Vec<u64> {
        let mut next = Instant::now();
        let time = |_| {
            next += PERIOD;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let start = ticks();
            call();
            ticks() - start
        };
        (0..count).map(time).collect()
    };
    // Until the background thread, which may start with the first call, has settled at this pace.
    let mut calls = timed(100).len();
    task.bind_background();
    let background: Vec<u32> = process::threads().difference(&before).copied().collect();
    let cpu = || background.iter().map(|&thread| process::thread_cpu_ns(thread)).sum::<u64>() as f64;
    let sleeps = || background.iter().map(|&thread| process::thread_sleeps(thread)).sum::<u64>() as f64;

    let (start, cpu_before) = (Instant::now(), cpu());
    let samples = timed(task.amount(700));
    calls += samples.len();
    let share = (cpu() - cpu_before) / start.elapsed().as_nanos() as f64;

    let mut figures = Figures::from([("background".into(), share * 100.0)]);
    add_distribution(&mut figures, "single", &samples, 1, scale);
    if task.idle {
        std::thread::sleep(SILENCE);
        let before = sleeps();
        std::thread::sleep(WATCH);
        figures.insert("wakeups".into(), (sleeps() - before) / WATCH.as_secs_f64());
        process::mark();
        let after = timed(50);
        process::mark();
        figures.insert("marked_calls".into(), after.len() as f64);
        figures.insert("first".into(), scale.net_ns(after[0], 1));
        calls += after.len();
    }
    drop(call);
    contender.close(calls).check(calls);
    figures
}
