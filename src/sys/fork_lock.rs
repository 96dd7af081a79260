//! The fork lock keeps other threads from forking while a thread changes state that a forked child takes over.
//!
//! The protected state consists of the regions, the code allocator's memory, and the records of the collector, the bridge and
//! the unwinder. Any number of threads may be inside the lock at a time. While the process forks, no thread may be inside the
//! lock.
//!
//! The wait of a fork has a limit, because a thread inside the lock may be waiting for a disk. The wait of a thread for a fork
//! has a limit, because the thread may hold a lock for which a fork handler of the host waits. The host's fork handlers run
//! between this library's handler and the fork. A thread waits only once for the same fork, because the waits of many calls
//! would otherwise add up while the thread holds a lock of the host.
//!
//! Before a thread changes bytes of a file that code memory maps, the thread takes a `Parting`. The thread holds this guard until
//! code memory no longer maps these bytes. A child that is forked meanwhile would execute the changed bytes of the file. A thread has a `Parting` only for
//! a short time, because the thread does not wait for a disk meanwhile. So a fork may wait longer for a thread with a `Parting`
//! than for a thread inside the lock. If a fork stops waiting while the thread still has the `Parting`, the thread detects
//! this, and does not change the file.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{mapping, thread};

/// How long a thread waits for a fork. A fork waits this much longer for a thread with a `Parting` than for a thread inside the
/// lock. The kernel needs a while to copy the page tables of a very large process.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

/// How many threads of this process are inside the lock, are forking, or have a `Parting`. In a forked child the counts are 0:
/// the kernel or `begin_in_child` clears them.
#[derive(Debug)]
#[repr(C)]
struct Counts {
    inside: AtomicU32,
    forks: AtomicU32,
    partings: AtomicU32,
}

static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(ptr::null_mut());
/// Whether a forked child must clear the counts itself. If the value is false, the kernel clears the counts in a child.
static TO_BE_CLEARED: AtomicBool = AtomicBool::new(false);
/// How many forks continued although a thread may have had a `Parting`.
static HASTY: AtomicU64 = AtomicU64::new(0);
/// The number of forks that have begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of `Inside` values that the thread has now. A thread that is inside the lock enters again without waiting for
    /// a fork, because the fork waits for this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The value that `BEGUN` had when the thread last gave up waiting for a fork.
    static IN_VAIN: Cell<u64> = const { Cell::new(0) };
}

/// Whether the thread has given up waiting for the latest fork.
fn has_waited() -> bool {
    IN_VAIN.get() == BEGUN.load(Ordering::SeqCst)
}

/// The time until which the thread waits for a fork.
fn end_of_wait() -> Instant {
    Instant::now() + if has_waited() { Duration::ZERO } else { FORK_TIMEOUT }
}

/// Notes that the thread has given up waiting for the latest fork.
pub fn give_up() {
    IN_VAIN.set(BEGUN.load(Ordering::SeqCst));
}

/// The number of forks that have begun, or `None` while a fork is under way.
pub fn forks() -> Option<u64> {
    let begun = BEGUN.load(Ordering::SeqCst);
    (!is_any(&counts().forks)).then_some(begun)
}

fn counts() -> &'static Counts {
    // SAFETY: the pointer is NULL, or refers to memory that is never freed.
    unsafe { COUNTS.load(Ordering::Acquire).as_ref() }.unwrap_or_else(new_counts)
}

/// Allocates the counts. The memory comes from the kernel and not from an allocator, because a signal handler that forks may
/// call this function.
#[cold]
fn new_counts() -> &'static Counts {
    static WITHOUT_MEMORY: Counts =
        Counts { inside: AtomicU32::new(0), forks: AtomicU32::new(0), partings: AtomicU32::new(0) };
    let page = mapping::zero_in_child().ok();
    let new = page.as_ref().map_or((&raw const WITHOUT_MEMORY).cast_mut(), |(page, _)| page.start().cast().as_ptr());
    match COUNTS.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let is_cleared = page.is_some_and(|(page, is_cleared)| {
                page.leak();
                is_cleared
            });
            TO_BE_CLEARED.store(!is_cleared, Ordering::Relaxed);
            // SAFETY: the memory is never freed, and any value is a valid atomic.
            unsafe { &*new }
        }
        // SAFETY: the memory is never freed, and any value is a valid atomic.
        Err(faster) => unsafe { &*faster },
    }
}

fn is_any(count: &AtomicU32) -> bool {
    count.load(Ordering::SeqCst) > 0
}

fn subtract(count: &AtomicU32) {
    // A count of 0 must stay 0: a thread that was counted when it forked calls this function in the child, where the count is
    // 0.
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// The thread that made this value is inside the lock until the value is dropped.
#[derive(Debug)]
pub struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        subtract(&counts().inside);
    }
}

/// Enters the lock. If a fork is under way, the function first waits for a limited time. Then the function enters the lock
/// even if the fork is still under way.
pub fn enter() -> Inside {
    if let Some(inside) = try_enter() {
        return inside;
    }
    let end = end_of_wait();
    while Instant::now() < end {
        thread::sleep_micros(50);
        if let Some(inside) = try_enter() {
            return inside;
        }
    }
    give_up();
    inside()
}

/// Enters the lock without waiting. Returns `None` if a fork is under way and the calling thread is not inside the lock yet.
pub fn try_enter() -> Option<Inside> {
    let is_nested = DEPTH.get() > 0;
    // The thread is counted before it looks for forks, so that a fork that begins now finds the thread in the count.
    let inside = inside();
    (is_nested || !is_any(&counts().forks)).then_some(inside)
}

fn inside() -> Inside {
    counts().inside.fetch_add(1, Ordering::SeqCst);
    DEPTH.set(DEPTH.get() + 1);
    Inside(())
}

/// A thread has a `Parting` while it replaces the pages of a file mapping by private copies. After the replacement, changes of
/// the file do not affect this process or its children.
#[derive(Debug)]
pub struct Parting {
    hasty: u64,
}

impl Parting {
    /// Marks that the calling thread begins to make private copies of the pages of a file mapping. If a fork is under way, this
    /// function first waits for a limited time. Returns `None` if the fork has not ended by the end of this wait.
    pub fn begin() -> Option<Parting> {
        let end = end_of_wait();
        loop {
            let hasty = HASTY.load(Ordering::SeqCst);
            counts().partings.fetch_add(1, Ordering::SeqCst);
            let parting = Parting { hasty };
            // A fork that is under way may no longer notice a thread that gets a `Parting` now. So the thread must not get a
            // `Parting` during a fork.
            if !is_any(&counts().forks) {
                return Some(parting);
            }
            drop(parting);
            if Instant::now() >= end {
                give_up();
                return None;
            }
            thread::sleep_micros(50);
        }
    }

    /// Whether all forks since `begin` have waited for the threads with a `Parting`. If a fork has not waited, the child's
    /// memory may still be a mapping of the file.
    pub fn is_undisturbed(&self) -> bool {
        HASTY.load(Ordering::SeqCst) == self.hasty
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        subtract(&counts().partings);
    }
}

fn begin() -> &'static Counts {
    let counts = counts();
    BEGUN.fetch_add(1, Ordering::SeqCst);
    counts.forks.fetch_add(1, Ordering::SeqCst);
    counts
}

/// Must be called before a fork. Keeps threads from entering the lock. Waits until no thread is inside the lock, or until the
/// time `end`. If threads have a `Parting`, the wait may last until `FORK_TIMEOUT` after `end`. The parent must call `over`
/// after the fork.
pub fn wait(end: Instant) {
    let counts = begin();
    let is_before = |end| Instant::now() < end;
    let (is_inside, is_parting) = (|| is_any(&counts.inside), || is_any(&counts.partings));
    while is_inside() && is_before(end) || is_parting() && is_before(end + FORK_TIMEOUT) {
        thread::sleep_micros(50);
    }
    if is_parting() {
        HASTY.fetch_add(1, Ordering::SeqCst);
    }
}

/// Begins a fork without waiting. If the forking thread itself may be inside the lock, call this function instead of `wait`
/// before the fork.
pub fn hurry() {
    begin();
    HASTY.fetch_add(1, Ordering::SeqCst);
}

/// Ends a fork in the parent.
pub fn over() {
    subtract(&counts().forks);
}

/// Ends a fork in the child, by clearing the counts if the kernel has not cleared them.
pub fn begin_in_child() {
    if TO_BE_CLEARED.load(Ordering::Relaxed) {
        let Counts { inside, forks, partings } = counts();
        [inside, forks, partings].iter().for_each(|count| count.store(0, Ordering::SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// This is a single test, because the process has only one fork lock.
    #[test]
    fn forks_and_changes_exclude_each_other() {
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let outer = enter();
            let fork = scope.spawn(move || {
                wait(Instant::now() + Duration::from_secs(60));
                tell.send(()).unwrap();
            });
            while !is_any(&counts().forks) {
                std::thread::yield_now();
            }
            // The fork waits for this thread, which is still inside.
            let inner = try_enter().unwrap();
            assert!(scope.spawn(|| try_enter().is_none()).join().unwrap());
            assert!(told.try_recv().is_err());
            drop(inner);
            assert!(told.try_recv().is_err());
            drop(outer);
            fork.join().unwrap();
            assert!(told.try_recv().is_ok() && try_enter().is_none());
            over();
            assert!(try_enter().is_some() && !is_any(&counts().inside) && !is_any(&counts().forks));
        });
        // After the end of its usual waiting time, a fork still waits for a thread with a `Parting`. If a fork does not wait
        // for a thread with a `Parting`, that thread detects the fork.
        let inside = enter();
        let parting = Parting::begin().unwrap();
        std::thread::scope(|scope| {
            let fork = scope.spawn(|| wait(Instant::now()));
            while !is_any(&counts().forks) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!fork.is_finished() && parting.is_undisturbed());
            drop(parting);
            fork.join().unwrap();
            over();
        });
        let parting = Parting::begin().unwrap();
        hurry();
        assert!(!parting.is_undisturbed());
        over();
        drop((parting, inside));
        // After a thread has given up waiting for a fork, no call on this thread waits for the same fork again.
        hurry();
        assert!(!has_waited());
        drop(enter());
        assert!(has_waited() && Parting::begin().is_none() && end_of_wait() <= Instant::now());
        over();
        // If a thread stays inside the lock, a fork waits for that thread until the fork's limit, and no longer.
        let hangs = enter();
        wait(Instant::now() + Duration::from_millis(1));
        over();
        drop(hangs);
    }

    /// Runs `body` in a child, and returns the result of `body`. The child gets a new pid namespace if this user may make one.
    fn in_child(body: impl FnOnce() -> bool) -> bool {
        let clone = |flags: libc::c_int| {
            // SAFETY: without a stack for the child, clone is a fork. The child reads its own memory and exits.
            unsafe {
                libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD | flags), 0, 0, 0, 0) as libc::pid_t
            }
        };
        let child = Some(clone(libc::CLONE_NEWPID)).filter(|child| *child >= 0).unwrap_or_else(|| clone(0));
        if child == 0 {
            let is_true = body();
            // SAFETY: the child exits.
            unsafe { libc::_exit(is_true.into()) };
        }
        let mut status = -1;
        // SAFETY: this waits for a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    }

    /// The counts are right even if both parent and child have the pid 1, each in its own pid namespace.
    #[test]
    fn a_child_has_no_thread_of_its_parent() {
        let is_new = || !is_any(&counts().inside) && !is_any(&counts().forks);
        assert!(in_child(|| {
            let inside = enter();
            counts().forks.fetch_add(1, Ordering::SeqCst);
            in_child(|| {
                let begins_new = is_new();
                drop(inside);
                begins_new && is_new()
            })
        }));
    }
}
