//! Puts a thread to sleep until another thread wakes it. `std::thread::park` is not used, because it allocates a handle for
//! the thread, and ends the process if there is no memory for the handle.

use std::time::Duration;

#[cfg(not(jitsym_loom))]
use super::futex::{wait, wake};
#[cfg(jitsym_loom)]
use super::sync::model::{wait, wake};
use crate::sys::sync::atomic::{AtomicU32, Ordering};

/// The state of a thread that is awake. No call of `unpark` is pending.
const EMPTY: u32 = 0;
/// The state after `unpark`: if the thread is not asleep, its next `park` returns at once.
const WOKEN: u32 = 1;
/// The state of a sleeping thread: `EMPTY - 1`.
const ASLEEP: u32 = u32::MAX;

#[derive(Debug, Default)]
pub struct Parker(AtomicU32);

impl Parker {
    /// Sleeps until another thread wakes this thread, or until `time` has passed if `time` is given. Returns at once if
    /// `unpark` was called since the last call of `park`. The thread may also wake up spuriously.
    pub fn park(&self, time: Option<Duration>) {
        if self.0.fetch_sub(1, Ordering::Acquire) == WOKEN {
            return;
        }
        wait(&self.0, ASLEEP, time);
        self.0.swap(EMPTY, Ordering::Acquire);
    }

    pub fn unpark(&self) {
        if self.0.swap(WOKEN, Ordering::Release) == ASLEEP {
            wake(&self.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn who_was_woken_does_not_sleep() {
        let parker = Parker::default();
        parker.unpark();
        parker.unpark();
        parker.park(None);
        let begin = Instant::now();
        parker.park(Some(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(15));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let parker = Arc::new(Parker::default());
        let sleeper = parker.clone();
        let thread = std::thread::spawn(move || sleeper.park(None));
        std::thread::sleep(Duration::from_millis(20));
        parker.unpark();
        thread.join().unwrap();
    }
}
