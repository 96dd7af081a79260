//! Records which code the unwinders of the process know. A lock protects this record.

use std::time::{Duration, Instant};

use super::tables::Tables;
use crate::format::code_info::Info;
use crate::queue::file_thread;
use crate::sys::thread;
use crate::sys::timed_lock::{Locked, TimedLock};
use crate::sys::unwinder::{self, Dialect};

/// The code that the unwinders of the process know. In a forked child, the unwinders still know the parent's code, even if the
/// child does not take this code over.
pub(super) struct Told {
    pub tables: Vec<Tables>,
    /// True in a forked child from the time when the parent's sink is closed until the child's sink takes over the tables.
    pub is_let_go: bool,
    /// If true, the calls that register code add the code to the tables. If false, the writer adds the code.
    pub by_callers: bool,
}

pub(super) static TOLD: TimedLock<Told> =
    TimedLock::new(Told { tables: Vec::new(), is_let_go: false, by_callers: false });

/// How long `told_at_first` waits for threads that hold the lock while they register code with an unwinder. A thread that holds
/// the lock does not wait for a disk or for the writer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the sink waits for an unwinder's own lock. The wait has a limit, because the lock may never be released. The calls
/// that start the sink wait longer than `LOCK_PATIENCE`.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Takes the lock. `Unwinder::open` must already have taken the lock in this process (`told_at_first`). Returns `None` if other
/// threads hold the lock for too long.
pub(super) fn told() -> Option<Locked<'static, Told>> {
    TOLD.lock_in_time()
}

/// Takes the lock for the first time in a process. Tries again and again for at most `PATIENCE`, and never blocks on the lock.
/// A child may be forked while another thread changes the lock's state. No thread of the child completes the change, so a
/// thread of the child that blocks on the lock would wait for ever.
pub(super) fn told_at_first() -> Option<Locked<'static, Told>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match TOLD.try_lock() {
            None if Instant::now() < end => thread::sleep_micros(100),
            told => return told,
        }
    }
}

impl Told {
    /// Whether the unwinder's tables can be changed. If a child was forked while another thread of the parent had the
    /// unwinder's lock, the tables can never be changed in the child. The child's unwinder then keeps the code that it knows.
    pub fn can_change(&mut self) -> bool {
        let has_lock = unwinder::dialect() == Some(Dialect::Each);
        let can_change = !has_lock || file_thread::run_for(LOCK_PATIENCE, unwinder::await_changes).is_some();
        if !can_change {
            std::mem::forget(std::mem::take(&mut self.tables));
        }
        can_change
    }

    pub fn add(&mut self, id: u64, (addr, size): (u64, u64), info: Option<Info<'_>>) {
        for tables in &mut self.tables {
            match info {
                Some(info) => tables.add(id, (addr, size), info.parts().eh_frame().unwrap_or_default()),
                None => tables.moved(id, (addr, size)),
            }
        }
    }
}
