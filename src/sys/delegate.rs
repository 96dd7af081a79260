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
use super::{futex, guard, thread};

/// Nobody is woken too late by more than this, whatever goes wrong.
const LONGEST_WAIT: Option<Duration> = Some(Duration::from_secs(60));

/// Changes whenever there is something to see to.
static BELL: AtomicU32 = AtomicU32::new(0);
/// Number of the thread that is wanted, the last one; 0 if none is.
static WANTED: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);
/// Its id and its process; 0 while none runs.
static TID: AtomicU32 = AtomicU32::new(0);
static PID: AtomicU32 = AtomicU32::new(0);
/// The task to be done, on the stack of the thread that waits for it.
static TASK: AtomicPtr<Task<'static>> = AtomicPtr::new(std::ptr::null_mut());

struct Task<'t> {
    body: &'t (dyn Fn() + Sync),
    done: AtomicBool,
}

/// Starts the thread, from a thread of the host. There is one at a time.
pub fn start() -> io::Result<Thread> {
    // Those of a parent are not here.
    TASK.store(std::ptr::null_mut(), Ordering::Relaxed);
    TID.store(0, Ordering::SeqCst);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    WANTED.store(number, Ordering::SeqCst);
    let started = thread::spawn_bare(thread::SMALL_STACK, serve, number as usize as *mut c_void);
    let thread = started.inspect_err(|_| stop())?;
    // A writer that fails meanwhile stops it.
    while TID.load(Ordering::Acquire) == 0 && WANTED.load(Ordering::SeqCst) == number {
        futex::wait(&TID, 0, LONGEST_WAIT);
    }
    Ok(thread)
}

/// Ends it.
pub fn stop() {
    WANTED.store(0, Ordering::SeqCst);
    TID.store(0, Ordering::SeqCst);
    ring();
}

/// The id of the thread, if one runs in this process.
pub fn tid() -> Option<u32> {
    let tid = TID.load(Ordering::Acquire);
    (tid != 0 && PID.load(Ordering::Relaxed) == std::process::id()).then_some(tid)
}

fn ring() {
    BELL.fetch_add(1, Ordering::SeqCst);
    futex::wake(&BELL, futex::ALL);
}

/// Runs `body` in the host's descriptor table and waits for it: on this thread, if that has no other one.
pub fn run(body: &(dyn Fn() + Sync)) {
    if DescriptorTable::current().is_host() {
        return body();
    }
    let task = Task { body, done: AtomicBool::new(false) };
    let (mine, none) = ((&raw const task).cast_mut().cast(), std::ptr::null_mut());
    let mut is_given = false;
    loop {
        let bell = BELL.load(Ordering::SeqCst);
        if task.done.load(Ordering::SeqCst) {
            return;
        }
        if tid().is_none()
            && (!is_given || TASK.compare_exchange(mine, none, Ordering::SeqCst, Ordering::SeqCst).is_ok())
        {
            // Nobody is there to do it.
            return body();
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
    guard::enter_for_good();
    PID.store(std::process::id(), Ordering::Relaxed);
    TID.store(thread::id(), Ordering::Release);
    futex::wake(&TID, futex::ALL);
    while WANTED.load(Ordering::SeqCst) as usize == number as usize {
        let bell = BELL.load(Ordering::SeqCst);
        // SAFETY: whoever has put it there waits until it is done, and nobody else takes it.
        match unsafe { TASK.swap(std::ptr::null_mut(), Ordering::SeqCst).as_ref() } {
            Some(task) => {
                let _ = catch_unwind(AssertUnwindSafe(task.body));
                task.done.store(true, Ordering::SeqCst);
                ring();
            }
            None => futex::wait(&BELL, bell, LONGEST_WAIT),
        }
    }
    std::ptr::null_mut()
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
        for _ in 0..100 {
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
