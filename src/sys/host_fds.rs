//! The second thread of ours. It shares the descriptors of the host's threads, which the background thread does not, and acts
//! there on its behalf. It opens nothing there, and sleeps nearly all the time.
//!
//! There are atomic words and a futex here, and no lock: a forked child finds them as they are, and without such a thread.

use std::ffi::c_void;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use super::descriptors::DescriptorTable;
use super::thread::Thread;
use super::{futex, panic_guard, thread, valgrind};

/// Nobody is woken too late by more than this, whatever goes wrong.
const LONGEST_WAIT: Option<Duration> = Some(Duration::from_secs(60));

/// Changes whenever there is something to see to.
static BELL: AtomicU32 = AtomicU32::new(0);
/// Number of the thread that is wanted, the last one; 0 if none is.
static WANTED: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);
/// The process that wants it.
static PID: AtomicU32 = AtomicU32::new(0);
/// Its id; 0 while none runs.
static TID: AtomicU32 = AtomicU32::new(0);
/// The thread is to have the process end.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The task to be done, on the stack of the thread that waits for it.
static TASK: AtomicPtr<Task<'static>> = AtomicPtr::new(std::ptr::null_mut());

struct Task<'t> {
    body: &'t (dyn Fn() + Sync),
    done: AtomicBool,
}

/// Says that the thread is about to be started: who needs it waits for it from now on. There is one at a time.
pub fn want() {
    // Those of a parent are not here.
    TASK.store(std::ptr::null_mut(), Ordering::Relaxed);
    ENDS.store(false, Ordering::Relaxed);
    TID.store(0, Ordering::SeqCst);
    PID.store(std::process::id(), Ordering::SeqCst);
    WANTED.store(LAST.fetch_add(1, Ordering::Relaxed) + 1, Ordering::SeqCst);
}

/// Starts the thread that is wanted, from a thread of the host. Nobody waits until it runs.
pub fn start() -> io::Result<Thread> {
    let number = LAST.load(Ordering::Relaxed);
    let started = thread::spawn_bare(thread::STACK, serve, number as usize as *mut c_void);
    started.inspect_err(|_| stop())
}

/// Ends it.
pub fn stop() {
    WANTED.store(0, Ordering::SeqCst);
    TID.store(0, Ordering::SeqCst);
    ring();
}

/// The id of the thread, if one runs in this process or is about to.
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

/// Has the process end (`thread::end_process`) where exit handlers find the descriptors that the host has left open. Nobody waits for
/// that: an exit handler asks the writer to write, and the thread may be the one that exits. Then it does no more tasks.
pub fn end_process() {
    match tid() {
        Some(_) => {
            ENDS.store(true, Ordering::SeqCst);
            ring();
        }
        None => thread::end_process(|| ()),
    }
}

/// Runs `body` in the host's descriptor table and waits for it: on this thread, if that has no other one, or nobody else is there.
pub fn run(body: &(dyn Fn() + Sync)) {
    if !try_to_run(body) {
        body();
    }
}

/// The same, but false if nobody is there to do it.
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
        // There is room for one at a time.
        if !is_given && TASK.compare_exchange(none, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            is_given = true;
            ring();
            continue;
        }
        futex::wait(&BELL, bell, LONGEST_WAIT);
    }
}

/// The body of the thread. It allocates nothing by itself.
extern "C" fn serve(number: *mut c_void) -> *mut c_void {
    thread::become_quiet(thread::DELEGATE);
    valgrind::without_races(|| serve_until_unwanted(number as usize));
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
        // SAFETY: whoever has put it there waits until it is done, and nobody else takes it.
        match unsafe { TASK.swap(std::ptr::null_mut(), Ordering::SeqCst).as_ref() } {
            Some(task) => perform(task),
            None => futex::wait(&BELL, bell, LONGEST_WAIT),
        }
    }
    // It may have been stopped before it said that it ran.
    if TID.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        ring();
    }
}

/// Does one task. A function by itself, because it uses thread-local storage. In a library that was loaded by `dlopen` that is the
/// thread's first allocation, and a thread without a task needs none.
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
    use crate::sys::descriptors;

    #[test]
    fn it_acts_where_the_host_does() {
        let number = std::os::fd::AsRawFd::as_raw_fd(&std::io::stdout());
        // SAFETY: whether the descriptor is open is for the kernel to find out.
        let is_open = move || unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
        assert!(std::thread::spawn(|| descriptors::separate() && !try_to_run(&|| ())).join().unwrap());
        for _ in 0..100 {
            want();
            let thread = start().unwrap();
            // Several at once, as when a session that recovers joins others.
            let askers = [(); 3].map(|()| {
                std::thread::spawn(move || {
                    assert!(descriptors::separate());
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
