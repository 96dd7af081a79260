//! Waiting for a word to change, with what a signal handler may use: no lock, no memory, no thread-local storage but errno.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

/// Waits while the word has this value, for so long at most if there is a time. It may return without a reason.
pub fn wait(word: &AtomicU32, value: u32, time: Option<Duration>) {
    let time = time.and_then(|time| time.try_into().ok());
    let _ = futex::wait(word, Flags::PRIVATE, value, time.as_ref());
}

/// Wakes one of those who wait.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}

/// Wakes all who wait.
pub fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}

/// Runs `body` and leaves errno as it was.
pub fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the C library says where the thread's errno is, which stays there.
    unsafe {
        let errno = libc::__errno_location();
        let before = errno.read();
        let result = body();
        errno.write(before);
        result
    }
}
