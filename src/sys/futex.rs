//! Waits for a word in memory to change. These functions may run in signal handlers, because they take no lock, allocate no
//! memory, and use no thread-local storage except errno.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

/// With this value of `count`, `wake` wakes all waiting threads.
pub const ALL: u32 = i32::MAX as u32;

/// Waits until another thread calls `wake`, or until `time` has passed if `time` is given. Returns at once if the word does
/// not have the value `value`. The wait may also end early for no reason.
#[inline(never)]
pub fn wait(word: &AtomicU32, value: u32, time: Option<Duration>) {
    let time = time.and_then(|time| time.try_into().ok());
    let _ = futex::wait(word, Flags::PRIVATE, value, time.as_ref());
}

/// Wakes at most `count` waiting threads.
#[inline(never)]
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::PRIVATE, count);
}

pub fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    let before = errno::errno();
    let result = body();
    errno::set_errno(before);
    result
}
