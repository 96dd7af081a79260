//! Work on files during a call of the host. It runs on a thread with its own descriptor table. So no other thread of the host can
//! close a file that is being written to, or find that file under the number of one of the host's descriptors.

use std::time::Duration;

use crate::queue::oneshot::{oneshot, Take};
use crate::sys::descriptors::{self, DescriptorTable};
use crate::sys::thread::{self, Thread};
use crate::sys::{debug, panic_guard};

/// Runs `body` there and waits for it.
pub fn run<T: Default + Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    if !DescriptorTable::current().is_host() {
        return body();
    }
    match begin(body) {
        Ok((thread, result)) => {
            let result = result.wait().unwrap_or_default();
            end(thread);
            result
        }
        // No memory for a thread, perhaps.
        Err(body) => thread::quietly(body),
    }
}

/// As `run`, for work on a disk that may hang: after this time the work goes on by itself, and `None` is returned. On a thread of
/// ours too.
pub fn run_for<T: Send + 'static>(time: Duration, body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match begin(body) {
        Ok((thread, result)) => {
            let result = result.take(time).ok()?;
            end(thread);
            Some(result)
        }
        Err(body) => Some(thread::quietly(body)),
    }
}

/// Has a thread begin the work, or returns it.
fn begin<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(body: F) -> Result<(Thread, Take<T>), F> {
    let (hand, take) = oneshot();
    let (give, result) = oneshot();
    let spawned = thread::spawn_quiet(thread::APART, thread::STACK, move || {
        panic_guard::enter_for_good();
        let Some(body): Option<Box<F>> = take.wait() else { return };
        descriptors::separate();
        give.give(body());
    });
    match spawned {
        Ok(thread) => {
            hand.give(Box::new(body));
            Ok((thread, result))
        }
        Err(_) => Err(body),
    }
}

fn end(thread: Thread) {
    thread.join();
    debug::write_waiting();
}
