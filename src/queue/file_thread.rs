//! Runs the file work of a host's call on a thread that has its own descriptor table.
//!
//! The host's threads do not share the descriptor table of this thread. So the host cannot close or use a descriptor of the
//! library by mistake.

use std::time::Duration;

use crate::queue::oneshot::{oneshot, Take};
use crate::sys::descriptor_table::{self, DescriptorTable};
use crate::sys::thread::{self, Thread};
use crate::sys::{debug, panic_guard};

/// Runs `body` on a thread with a separate descriptor table, and waits for the result. If the calling thread already has a
/// separate descriptor table, runs `body` on the calling thread.
pub fn run<T: Default + Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    if !DescriptorTable::current().is_host() {
        return body();
    }
    run_for(Duration::MAX, body).unwrap_or_default()
}

/// Like `run`, but waits for at most `time`, because a disk may hang. If `body` takes longer than `time`, returns `None`, and
/// the new thread continues to run `body`. Starts a thread even if the caller is a thread of the library.
pub fn run_for<T: Send + 'static>(time: Duration, body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match begin(body) {
        Ok((thread, result)) => {
            let result = result.take(time).ok()?;
            thread.join();
            debug::write_waiting();
            Some(result)
        }
        // No thread could be started, perhaps for lack of memory.
        Err(body) => Some(thread::quietly(body)),
    }
}

/// Starts a thread that runs `body`. If no thread can be started, returns `body` as the error.
fn begin<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(body: F) -> Result<(Thread, Take<T>), F> {
    let (hand, take) = oneshot();
    let (give, result) = oneshot();
    let spawned = thread::spawn_quiet(thread::APART, thread::STACK, move || {
        panic_guard::enter_for_good();
        let Some(body): Option<Box<F>> = take.wait() else { return };
        descriptor_table::separate();
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
