//! The lock between forks and threads that change what a child takes over: regions, pieces of memory, what the collector, the
//! bridge and the unwinder know. Any number of threads may be inside at a time, and none while the process forks.
//!
//! Nobody waits for ever. A fork goes on after a while, because somebody who is inside may wait for a disk. So does a thread that waits
//! for a fork: the host's own handlers run between ours and the fork itself, and may wait for a lock that this thread holds.
//!
//! While memory shows a file that is about to change (`Parting`), a child would execute what the file has later. This takes no disk, so
//! forks wait longer for it. If one does not, the thread is told, and leaves the file as the child needs it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::thread;

/// How long a thread waits for a fork. Copying the page tables of a very large process takes its time.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that are inside, and threads that fork. There is one of each in a process.
static INSIDE: Count = Count(AtomicU64::new(0));
static FORKS: Count = Count(AtomicU64::new(0));
/// Threads that part memory from a file.
static PARTINGS: Count = Count(AtomicU64::new(0));
/// How many forks did not wait for these.
static HASTY: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many times the thread is inside: who is need not wait for a fork, which waits for it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A number of threads, with the process whose threads they are: a forked child begins with none, however it was made.
struct Count(AtomicU64);

impl Count {
    fn get(&self) -> u32 {
        of_process(self.0.load(Ordering::SeqCst), std::process::id())
    }

    fn change(&self, change: impl Fn(u32) -> u32) {
        let process = std::process::id();
        let changed = |word| Some(u64::from(process) << 32 | u64::from(change(of_process(word, process))));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    }

    fn add(&self) {
        self.change(|count| count + 1);
    }

    fn subtract(&self) {
        self.change(|count| count.saturating_sub(1));
    }
}

fn of_process(word: u64, process: u32) -> u32 {
    if word >> 32 == u64::from(process) {
        word as u32
    } else {
        0
    }
}

/// As long as this is there, its thread is inside.
#[derive(Debug)]
pub struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        INSIDE.subtract();
    }
}

/// Waits while the process forks.
pub fn enter() -> Inside {
    let end = Instant::now() + FORK_TIMEOUT;
    loop {
        match try_enter() {
            Some(inside) => return inside,
            None if Instant::now() < end => thread::sleep_micros(50),
            None => return inside(),
        }
    }
}

/// `None` while the process forks.
pub fn try_enter() -> Option<Inside> {
    let is_nested = DEPTH.get() > 0;
    // First: a fork that begins now sees it.
    let inside = inside();
    (is_nested || FORKS.get() == 0).then_some(inside)
}

fn inside() -> Inside {
    INSIDE.add();
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
        let end = Instant::now() + FORK_TIMEOUT;
        loop {
            let hasty = HASTY.load(Ordering::SeqCst);
            PARTINGS.add();
            let parting = Parting { hasty };
            // A fork that has waited for this thread before does not wait again.
            if FORKS.get() == 0 {
                return Some(parting);
            }
            drop(parting);
            if Instant::now() > end {
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
        PARTINGS.subtract();
    }
}

/// Before a fork: keeps others from going inside, and waits until nobody is, or until `end`. To be followed by `over` in the parent.
pub fn wait(end: Instant) {
    FORKS.add();
    let is_before = |end| Instant::now() < end;
    while INSIDE.get() > 0 && is_before(end) || PARTINGS.get() > 0 && is_before(end + FORK_TIMEOUT) {
        thread::sleep_micros(50);
    }
    if PARTINGS.get() > 0 {
        HASTY.fetch_add(1, Ordering::SeqCst);
    }
}

/// Before a fork that can wait for nobody, because its own thread may be inside. To be followed by `over` in the parent.
pub fn hurry() {
    FORKS.add();
    HASTY.fetch_add(1, Ordering::SeqCst);
}

/// After a fork, in the parent.
pub fn over() {
    FORKS.subtract();
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
            while FORKS.get() == 0 {
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
            assert!(try_enter().is_some() && (INSIDE.get(), FORKS.get()) == (0, 0));
        });
        // A fork waits longer for memory that is parted from a file. One that cannot wait is noticed.
        let inside = enter();
        let parting = Parting::begin().unwrap();
        std::thread::scope(|scope| {
            let fork = scope.spawn(|| wait(Instant::now()));
            while FORKS.get() == 0 {
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
        // Somebody who hangs keeps no fork.
        let hangs = enter();
        wait(Instant::now() + Duration::from_millis(1));
        over();
        drop(hangs);
        // What another process has counted is nothing here.
        INSIDE.0.store(u64::from(std::process::id() + 1) << 32 | 7, Ordering::SeqCst);
        assert_eq!(INSIDE.get(), 0);
        INSIDE.subtract();
        assert_eq!(INSIDE.get(), 0);
    }
}
