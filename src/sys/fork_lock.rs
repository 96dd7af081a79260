//! The lock between forks and threads that change what a child takes over: regions, pieces of memory, what the collector, the
//! bridge and the unwinder know. Any number of threads may be inside at a time, and none while the process forks.
//!
//! Nobody waits for ever. A fork goes on after a while, because somebody who is inside may wait for a disk. So does a thread that waits
//! for a fork: the host's own handlers run between ours and the fork itself, and may wait for a lock that this thread holds. It does not
//! wait for the same fork again, because it may have many calls to make until it gives that lock back.
//!
//! While memory shows a file that is about to change (`Parting`), a child would execute what the file has later. This takes no disk, so
//! forks wait longer for it. If one does not, the thread is told, and leaves the file as the child needs it.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{mapping, thread};

/// How long a thread waits for a fork. Copying the page tables of a very large process takes its time.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

/// How many threads of this process do what. A forked child begins with none, however it was made: the memory is zero there.
#[derive(Debug)]
#[repr(C)]
struct Counts {
    /// Are inside.
    inside: AtomicU32,
    /// Fork.
    forks: AtomicU32,
    /// Part memory from a file.
    partings: AtomicU32,
}

static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(ptr::null_mut());
/// The kernel does not clear the counts in a child.
static TO_BE_CLEARED: AtomicBool = AtomicBool::new(false);
/// How many forks did not wait for threads that part memory.
static HASTY: AtomicU64 = AtomicU64::new(0);
/// How many forks have begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many times the thread is inside: who is need not wait for a fork, which waits for it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// As many forks had begun when the thread has waited for one in vain.
    static IN_VAIN: Cell<u64> = const { Cell::new(0) };
}

/// Whether the thread has waited for this fork before.
fn has_waited() -> bool {
    IN_VAIN.get() == BEGUN.load(Ordering::SeqCst)
}

/// Until when the thread waits for a fork.
fn end_of_wait() -> Instant {
    Instant::now() + if has_waited() { Duration::ZERO } else { FORK_TIMEOUT }
}

/// The thread has waited for a fork in vain.
fn give_up() {
    IN_VAIN.set(BEGUN.load(Ordering::SeqCst));
}

fn counts() -> &'static Counts {
    // SAFETY: what is stored there stays for ever.
    unsafe { COUNTS.load(Ordering::Acquire).as_ref() }.unwrap_or_else(new_counts)
}

/// A handler of a signal may fork, so this takes no memory from an allocator.
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
            // SAFETY: it stays for ever, and any value is a valid atomic.
            unsafe { &*new }
        }
        // SAFETY: as above.
        Err(faster) => unsafe { &*faster },
    }
}

fn is_any(count: &AtomicU32) -> bool {
    count.load(Ordering::SeqCst) > 0
}

fn subtract(count: &AtomicU32) {
    // In a child it may begin with none.
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// As long as this is there, its thread is inside.
#[derive(Debug)]
pub struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        subtract(&counts().inside);
    }
}

/// Waits while the process forks.
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

/// `None` while the process forks.
pub fn try_enter() -> Option<Inside> {
    let is_nested = DEPTH.get() > 0;
    // First: a fork that begins now sees it.
    let inside = inside();
    (is_nested || !is_any(&counts().forks)).then_some(inside)
}

fn inside() -> Inside {
    counts().inside.fetch_add(1, Ordering::SeqCst);
    DEPTH.set(DEPTH.get() + 1);
    Inside(())
}

/// As long as this is there, its thread parts memory from a file that children of the process must not share.
#[derive(Debug)]
pub struct Parting {
    hasty: u64,
}

impl Parting {
    /// `None` if forks leave no time for it.
    pub fn begin() -> Option<Parting> {
        let end = end_of_wait();
        loop {
            let hasty = HASTY.load(Ordering::SeqCst);
            counts().partings.fetch_add(1, Ordering::SeqCst);
            let parting = Parting { hasty };
            // A fork that has waited for this thread before does not wait again.
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

    /// Whether no child has the memory as it was meanwhile. A fork that has not come so far yet has it as it is now.
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

/// Before a fork: keeps others from going inside, and waits until nobody is, or until `end`. To be followed by `over` in the parent.
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

/// Before a fork that can wait for nobody, because its own thread may be inside. To be followed by `over` in the parent.
pub fn hurry() {
    begin();
    HASTY.fetch_add(1, Ordering::SeqCst);
}

/// After a fork, in the parent.
pub fn over() {
    subtract(&counts().forks);
}

/// After a fork, in the child: what the kernel has not done.
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

    /// In one test, because there is one lock.
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
            // The fork waits for this thread, which has not come to its end.
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
        // A fork waits longer for memory that is parted from a file. One that cannot wait is noticed.
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
        // A thread that has waited for a fork in vain does not wait for it again, in whatever call.
        hurry();
        assert!(!has_waited());
        drop(enter());
        assert!(has_waited() && Parting::begin().is_none() && end_of_wait() <= Instant::now());
        over();
        // Somebody who hangs keeps no fork.
        let hangs = enter();
        wait(Instant::now() + Duration::from_millis(1));
        over();
        drop(hangs);
    }

    /// What `body` says in a child, which is the first process of a pid namespace if this user may have that.
    fn in_child(body: impl FnOnce() -> bool) -> bool {
        let clone = |flags: libc::c_int| {
            // SAFETY: without a stack for the child this is a fork. The child looks at its own memory and ends.
            unsafe {
                libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD | flags), 0, 0, 0, 0) as libc::pid_t
            }
        };
        let child = Some(clone(libc::CLONE_NEWPID)).filter(|child| *child >= 0).unwrap_or_else(|| clone(0));
        if child == 0 {
            let is_true = body();
            // SAFETY: it ends.
            unsafe { libc::_exit(is_true.into()) };
        }
        let mut status = -1;
        // SAFETY: it waits for its own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    }

    /// Also where both have the number 1.
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
