//! Regions are made and ended by one thread at a time, and not while the process forks: a child would have half of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys::sync::outside::{Mutex, MutexGuard, PoisonError};
use crate::sys::thread;

/// How long a fork waits for regions to be made or ended, and the other way round. Copying a very large one takes its time;
/// nobody is kept for ever.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

/// See the module's description.
#[derive(Debug, Default)]
pub struct Changing {
    one: Mutex<()>,
    /// Threads that change something.
    changers: AtomicU32,
    /// Threads that fork.
    forks: AtomicU32,
}

/// As long as this is there, regions may be made and ended.
pub struct Changer<'c> {
    changing: &'c Changing,
    _one: MutexGuard<'c, ()>,
}

impl Changing {
    pub const fn new() -> Changing {
        Changing { one: Mutex::new(()), changers: AtomicU32::new(0), forks: AtomicU32::new(0) }
    }

    pub fn begin(&self) -> Changer<'_> {
        let end = Instant::now() + FORK_TIMEOUT;
        while !self.enter() && Instant::now() < end {
            self.changers.fetch_sub(1, Ordering::SeqCst);
            thread::sleep_micros(50);
        }
        self.alone()
    }

    /// As `begin`, for what need not be now.
    pub fn begin_unless_forking(&self) -> Option<Changer<'_>> {
        if !self.enter() {
            self.changers.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        Some(self.alone())
    }

    /// Whether nobody forks.
    fn enter(&self) -> bool {
        self.changers.fetch_add(1, Ordering::SeqCst);
        self.forks.load(Ordering::SeqCst) == 0
    }

    fn alone(&self) -> Changer<'_> {
        Changer { changing: self, _one: self.one.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Before a fork. To be followed by `after_fork` in the parent; the child uses none of this.
    pub fn before_fork(&self) {
        self.forks.fetch_add(1, Ordering::SeqCst);
        let end = Instant::now() + FORK_TIMEOUT;
        while self.changers.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep_micros(50);
        }
    }

    pub fn after_fork(&self) {
        self.forks.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Changer<'_> {
    fn drop(&mut self) {
        self.changing.changers.fetch_sub(1, Ordering::SeqCst);
    }
}
