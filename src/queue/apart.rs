//! Work on files during a call of the host. It runs on a thread with its own descriptor table. So no other thread of the host can
//! close a file that is being written to, or find that file under the number of one of the host's descriptors.

use crate::queue::oneshot::oneshot;
use crate::sys::descriptors::{self, DescriptorTable};
use crate::sys::thread;
use crate::sys::{debug, guard};

/// Runs `body` there and waits for it.
pub fn run<T: Default + Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    if !DescriptorTable::current().is_host() {
        return body();
    }
    let (hand, take) = oneshot();
    let (give, result) = oneshot();
    let spawned = thread::spawn_quiet(thread::APART, thread::STACK, move || {
        guard::enter_for_good();
        let Some(body): Option<Box<dyn FnOnce() -> T + Send>> = take.wait() else { return };
        descriptors::separate();
        give.give(body());
    });
    match spawned {
        Ok(thread) => {
            hand.give(Box::new(body));
            let result = result.wait().unwrap_or_default();
            thread.join();
            debug::write_waiting();
            result
        }
        // No memory for a thread, perhaps.
        Err(_) => thread::quietly(body),
    }
}
