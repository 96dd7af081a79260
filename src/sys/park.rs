//! How a thread sleeps until another one wakes it: as `std::thread::park`, but without the handle that the standard library makes
//! for a thread. Making that ends the process if there is no memory for it.

use std::time::Duration;

use crate::sys::sync::atomic::{AtomicU32, Ordering};

/// Nobody has woken it.
const EMPTY: u32 = 0;
/// It was woken, and does not sleep the next time.
const WOKEN: u32 = 1;
/// It sleeps: `EMPTY - 1`.
const ASLEEP: u32 = u32::MAX;

/// What one thread sleeps at.
#[derive(Debug, Default)]
pub struct Parker(AtomicU32);

impl Parker {
    /// Sleeps until it is woken, or has been since the last time. It may wake without a reason.
    pub fn park(&self) {
        self.sleep(std::ptr::null());
    }

    /// The same for so long at most.
    pub fn park_timeout(&self, time: Duration) {
        let time = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX as _),
            tv_nsec: time.subsec_nanos() as _,
        };
        self.sleep(&time);
    }

    /// In a model no time passes.
    #[cfg(jitsym_loom)]
    fn sleep(&self, _: *const libc::timespec) {
        if self.0.fetch_sub(1, Ordering::Acquire) == WOKEN {
            return;
        }
        super::sync::model::wait_at(&self.0, ASLEEP);
        self.0.swap(EMPTY, Ordering::Acquire);
    }

    #[cfg(not(jitsym_loom))]
    fn sleep(&self, time: *const libc::timespec) {
        if self.0.fetch_sub(1, Ordering::Acquire) == WOKEN {
            return;
        }
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word is valid as long as this value is; the time is NULL or valid.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), wait, ASLEEP, time) };
        self.0.swap(EMPTY, Ordering::Acquire);
    }

    /// Wakes the thread.
    pub fn unpark(&self) {
        if self.0.swap(WOKEN, Ordering::Release) == ASLEEP {
            #[cfg(not(jitsym_loom))]
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: as above.
            #[cfg(not(jitsym_loom))]
            unsafe {
                libc::syscall(libc::SYS_futex, self.0.as_ptr(), wake, 1)
            };
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
        parker.park();
        let begin = Instant::now();
        parker.park_timeout(Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(15));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let parker = Arc::new(Parker::default());
        let sleeper = parker.clone();
        let thread = std::thread::spawn(move || sleeper.park());
        std::thread::sleep(Duration::from_millis(20));
        parker.unpark();
        thread.join().unwrap();
    }
}
