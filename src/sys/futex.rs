//! Waiting for a word to change, with what a signal handler may use: no lock, no memory, no thread-local storage but errno.

use std::sync::atomic::AtomicU32;

/// Waits while the word has this value, for this number of nanoseconds at most. It may return without a reason.
pub fn wait(word: &AtomicU32, value: u32, ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, value, &raw const time) };
}

/// Wakes all who wait.
pub fn wake_all(word: &AtomicU32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
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
