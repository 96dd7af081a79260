//! Threads: ids, and how the background thread is started.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// The kernel's id of the calling thread.
pub fn id() -> u32 {
    // By number, because older C libraries have no wrapper.
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Sleeps for about a tenth of a millisecond.
pub fn sleep_briefly() {
    std::thread::sleep(std::time::Duration::from_micros(100));
}

/// Starts a thread that no signal of the host is ever delivered to: a host's SIGPROF or SIGINT handler must not run on it.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours to write. A new thread inherits the mask of its creator, so the mask is set around the
    // creation and put back as it was.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name(name.into()).stack_size(512 * 1024).spawn(body);
    // SAFETY: `before` was filled in by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}
