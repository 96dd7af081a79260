//! What the unwinders of the process have been told, and the lock on that.

use std::time::{Duration, Instant};

use super::tables::Tables;
use crate::format::info::Info;
use crate::queue::own_fds;
use crate::sys::thread;
use crate::sys::timed_lock::{Locked, TimedLock};
use crate::sys::unwinder::{self, Dialect};

/// What the unwinders of the process have been told. They know it in a forked child too, whether that takes its parent's code over or
/// not.
pub(super) struct Told {
    /// Of each unwinder.
    pub tables: Vec<Tables>,
    /// The parent's sink has handed them over to a child.
    pub is_let_go: bool,
    /// Calls tell of code that begins to live, and the writer does not.
    pub by_callers: bool,
}

pub(super) static TOLD: TimedLock<Told> =
    TimedLock::new(Told { tables: Vec::new(), is_let_go: false, by_callers: false });

/// How long the sink waits at first for others that tell an unwinder something. None of these waits for a disk or for the writer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it waits for the lock of an unwinder that nobody may give back. Calls wait longer for the sink.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// For those who come after `Unwinder::open` has had them in the same process. `None` if others have them all the time.
pub(super) fn told() -> Option<Locked<'static, Told>> {
    TOLD.lock_in_time()
}

/// As `told`, but in a child that was forked while another thread had them nobody waits for the lock itself.
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
    /// Whether the unwinder takes changes. It does not for ever in a child that was forked while another thread of the parent had its
    /// lock. Then it keeps what it knows.
    pub fn can_change(&mut self) -> bool {
        let has_lock = unwinder::dialect() == Some(Dialect::Each);
        let can_change = !has_lock || own_fds::run_for(LOCK_PATIENCE, unwinder::await_changes).is_some();
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
