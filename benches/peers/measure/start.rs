//! The cost of starting and ending the library for a program that registers ten functions, a millisecond apart. Each step happens
//! once in a process.

use std::time::Duration;

use super::{process, Figures};
use crate::clock::{ticks, Scale};
use crate::contenders::{Contender, Jitsym};
use crate::task::Task;

const FUNCTIONS: usize = 10;

/// If the task says `idle`, the same program without a call into the library.
pub fn start(task: &Task, scale: &Scale) -> Figures {
    let timed = |work: &mut dyn FnMut()| {
        let start = ticks();
        if !task.idle {
            work();
        }
        let us = scale.net_ns(ticks() - start, 1) / 1000.0;
        std::thread::sleep(Duration::from_millis(1));
        us
    };
    let mut jitsym = Jitsym::load(task);
    let init = timed(&mut || jitsym.init(&task.dir, 0, 0));
    let mut call = jitsym.caller(0);
    let first = timed(&mut call);
    let more: f64 = (2..FUNCTIONS).map(|_| timed(&mut call)).sum();
    let further = std::thread::scope(|scope| scope.spawn(|| timed(&mut jitsym.caller(1))).join().expect("a thread"));
    let close = timed(&mut || jitsym.end());
    let figures = [
        ("init", init),
        ("first", first),
        ("further", further),
        ("calls", first + more + further),
        ("close", close),
        ("faults", process::faults() as f64),
        ("memory", process::peak_mib()),
    ];
    if !task.idle {
        jitsym.files.check(FUNCTIONS);
    }
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}
