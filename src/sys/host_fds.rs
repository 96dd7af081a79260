//! The delegate is a thread of this library that acts in the host's descriptor table on behalf of the background thread.
//!
//! The background thread has its own descriptor table, and the delegate shares the table of the host's threads. The delegate
//! itself opens no file in this table, and sleeps nearly all the time.
//!
//! The state is in atomic words, without a lock. A forked child inherits the state as it was at the fork, but has no
//! delegate.

use std::ffi::c_void;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use super::descriptor_table::DescriptorTable;
use super::thread::Thread;
use super::{futex, panic_guard, thread, valgrind};

/// The maximum time of one wait. This limit bounds the delay if a wake-up is lost.
const LONGEST_WAIT: Option<Duration> = Some(Duration::from_secs(60));

/// The futex word on which the delegate sleeps. Threads that wait for the delegate sleep on the same word. The word changes
/// whenever one of these threads has to wake up.
static BELL: AtomicU32 = AtomicU32::new(0);
/// The number of the delegate that is wanted now, or 0 if no delegate is wanted. Each delegate has its own number. `LAST` is
/// the number of the latest delegate.
static WANTED: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);
/// The process that wants the delegate.
static PID: AtomicU32 = AtomicU32::new(0);
/// The delegate's thread id. The value is 0 before the delegate runs, and after `stop`.
static TID: AtomicU32 = AtomicU32::new(0);
/// Whether the delegate must end the process.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The task that the delegate must do next, or NULL. The task is on the stack of a thread that waits until the task is done.
static TASK: AtomicPtr<Task<'static>> = AtomicPtr::new(std::ptr::null_mut());

struct Task<'t> {
    body: &'t (dyn Fn() + Sync),
    done: AtomicBool,
}

/// Announces that the delegate is about to be started, so that threads that need the delegate wait until it runs. Only one
/// delegate exists at a time.
pub fn want() {
    // A forked child has inherited the values of its parent, but the parent's threads do not exist in the child.
    TASK.store(std::ptr::null_mut(), Ordering::Relaxed);
    ENDS.store(false, Ordering::Relaxed);
    TID.store(0, Ordering::SeqCst);
    PID.store(std::process::id(), Ordering::SeqCst);
    WANTED.store(LAST.fetch_add(1, Ordering::Relaxed) + 1, Ordering::SeqCst);
}

/// Starts the delegate that `want` has announced. Must be called on a thread of the host, because the delegate shares the
/// descriptor table of the calling thread. Does not wait until the delegate runs.
pub fn start() -> io::Result<Thread> {
    let number = LAST.load(Ordering::Relaxed);
    thread::count_permanent(1);
    let started = thread::spawn_bare(thread::STACK, serve, number as usize as *mut c_void);
    started.inspect_err(|_| {
        thread::count_permanent(-1);
        stop();
    })
}

/// Tells the delegate to end, but does not wait for its end.
pub fn stop() {
    WANTED.store(0, Ordering::SeqCst);
    TID.store(0, Ordering::SeqCst);
    ring();
}

/// Returns the delegate's thread id, or `None` if no delegate is wanted in this process. If a delegate is wanted but does not
/// run yet, waits until it runs.
pub fn tid() -> Option<u32> {
    loop {
        let (bell, tid) = (BELL.load(Ordering::SeqCst), TID.load(Ordering::SeqCst));
        if PID.load(Ordering::SeqCst) != std::process::id() || tid == 0 && WANTED.load(Ordering::SeqCst) == 0 {
            return None;
        }
        if tid != 0 {
            return Some(tid);
        }
        futex::wait(&BELL, bell, LONGEST_WAIT);
    }
}

fn ring() {
    BELL.fetch_add(1, Ordering::SeqCst);
    futex::wake(&BELL, futex::ALL);
}

/// Makes the delegate end the process (`thread::end_process`), so that exit handlers can use the descriptors that the host has
/// left open. The caller is the writer. An exit handler waits for the writer, so the writer must not wait for the end of the
/// process. If the delegate has to call `exit` itself, the delegate does no more tasks.
pub fn end_process() {
    match tid() {
        Some(_) => {
            ENDS.store(true, Ordering::SeqCst);
            ring();
        }
        None => thread::end_process(|| ()),
    }
}

/// Runs `body` in the host's descriptor table, and waits until `body` has returned. Runs `body` on the calling thread if this
/// thread shares the host's table, or if there is no delegate.
pub fn run(body: &(dyn Fn() + Sync)) {
    if !try_to_run(body) {
        body();
    }
}

/// Like `run`, but does nothing and returns false if the calling thread has its own table and there is no delegate.
pub fn try_to_run(body: &(dyn Fn() + Sync)) -> bool {
    if DescriptorTable::current().is_host() {
        body();
        return true;
    }
    let task = Task { body, done: AtomicBool::new(false) };
    let (mine, none) = ((&raw const task).cast_mut().cast(), std::ptr::null_mut());
    let mut is_given = false;
    loop {
        let bell = BELL.load(Ordering::SeqCst);
        if task.done.load(Ordering::SeqCst) {
            return true;
        }
        if tid().is_none()
            && (!is_given || TASK.compare_exchange(mine, none, Ordering::SeqCst, Ordering::SeqCst).is_ok())
        {
            return false;
        }
        // `TASK` holds one task at a time.
        if !is_given && TASK.compare_exchange(none, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            is_given = true;
            ring();
            continue;
        }
        futex::wait(&BELL, bell, LONGEST_WAIT);
    }
}

/// The body of the delegate's thread. The body itself allocates no memory.
extern "C" fn serve(number: *mut c_void) -> *mut c_void {
    thread::become_quiet(thread::DELEGATE);
    valgrind::without_races(|| serve_until_unwanted(number as usize));
    thread::count_permanent(-1);
    std::ptr::null_mut()
}

fn serve_until_unwanted(number: usize) {
    let own = thread::id();
    TID.store(own, Ordering::SeqCst);
    ring();
    while WANTED.load(Ordering::SeqCst) as usize == number {
        let bell = BELL.load(Ordering::SeqCst);
        if ENDS.swap(false, Ordering::SeqCst) {
            thread::end_process(stop);
        }
        // SAFETY: the thread that has stored the task waits until the task is done, and nobody else takes the task.
        match unsafe { TASK.swap(std::ptr::null_mut(), Ordering::SeqCst).as_ref() } {
            Some(task) => perform(task),
            None => futex::wait(&BELL, bell, LONGEST_WAIT),
        }
    }
    // `stop` sets `TID` to 0. But if this thread has stored its id in `TID` after the call of `stop`, the id must be removed
    // here.
    if TID.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        ring();
    }
}

/// Does one task. This function uses thread-local storage. In a library that was loaded by `dlopen`, the first use of
/// thread-local storage allocates memory. This function is not inlined, so that only a call of this function can cause the
/// allocation.
#[inline(never)]
fn perform(task: &Task<'_>) {
    panic_guard::enter_for_good();
    let _ = catch_unwind(AssertUnwindSafe(task.body));
    task.done.store(true, Ordering::SeqCst);
    ring();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::descriptor_table;

    #[test]
    fn it_acts_where_the_host_does() {
        let number = std::os::fd::AsRawFd::as_raw_fd(&std::io::stdout());
        // SAFETY: fcntl takes any number.
        let is_open = move || unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
        assert!(std::thread::spawn(|| descriptor_table::separate() && !try_to_run(&|| ())).join().unwrap());
        for _ in 0..100 {
            want();
            let thread = start().unwrap();
            // Several threads give tasks to the delegate at the same time.
            let askers = [(); 3].map(|()| {
                std::thread::spawn(move || {
                    assert!(descriptor_table::separate());
                    for count in 0..10 {
                        let (seen, by) = (AtomicBool::new(false), AtomicU32::new(0));
                        run(&|| {
                            seen.store(is_open(), Ordering::Relaxed);
                            by.store(thread::id(), Ordering::Relaxed);
                        });
                        assert!(seen.into_inner() && tid() == Some(by.into_inner()), "{count}");
                    }
                })
            });
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            stop();
            thread.join();
            assert_eq!(tid(), None);
        }
    }
}
