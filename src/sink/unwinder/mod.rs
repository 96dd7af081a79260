//! The unwinder of the process: C++ exceptions, `backtrace` and the end of a thread find the callers of code.
//!
//! It has to know a table before the code runs, and no table of code that has ended. So calls wait for the writer while this sink
//! runs, or tell the unwinder themselves (`by_callers`).

pub mod by_callers;
mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::tables::Tables;
use crate::api::options::{Config, Sinks};
use crate::format::jitdump::raw::RawRecords;
use crate::format::jitdump::{frame_load, id};
use crate::queue::own_fds;
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sink::region::NewCode;
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, Sink};
use crate::sys::thread;
use crate::sys::timed_lock::{Locked, TimedLock};
use crate::sys::unwinder::{self, Dialect};

/// See the module's description.
pub static KIND: Kind = Kind {
    bit: Sinks::UNWINDER,
    word: "unwinder",
    wants: Sinks::GROUPS.with(Sinks::MUST_WAIT),
    is_silent: false,
    is_default: false,
    is_told_of_regions: true,
    make: Some(|status| Box::new(Unwinder { status: status.clone() })),
};

/// What the unwinders of the process have been told. They know it in a forked child too, whether that takes its parent's code over or
/// not.
struct Told {
    /// Of each unwinder.
    tables: Vec<Tables>,
    /// The parent's sink has handed them over to a child.
    is_let_go: bool,
    /// Calls tell of code that begins to live, and the writer does not.
    by_callers: bool,
}

static TOLD: TimedLock<Told> = TimedLock::new(Told { tables: Vec::new(), is_let_go: false, by_callers: false });

/// How long the sink waits at first for others that tell an unwinder something. None of these waits for a disk or for the writer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it waits for the lock of an unwinder that nobody may give back. Calls wait longer for the sink.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// For those who come after `Unwinder::open` has had them in the same process. `None` if others have them all the time.
fn told() -> Option<Locked<'static, Told>> {
    TOLD.lock_in_time()
}

/// In a forked child, when its sinks are open: without this sink the unwinder forgets the code, and with it that which the child does
/// not take over.
pub fn end_inherited(lives: impl Fn(u64) -> bool) {
    let Some(mut told) = TOLD.try_lock() else { return };
    if told.is_let_go && !told.tables.is_empty() && told.can_change() {
        told.tables.clear();
    }
    told.tables.iter_mut().for_each(|tables| tables.retain(&lives));
}

struct Unwinder {
    status: Arc<Status>,
}

impl Unwinder {
    /// What the writer adds tables to, unless calls do that.
    fn to_add(&self) -> Option<Locked<'static, Told>> {
        let is_by_callers = self.status.sinks_with_notes().has(Sinks::BY_CALLERS);
        (!is_by_callers).then(told).flatten()
    }
}

impl Told {
    /// Whether the unwinder takes changes. It does not for ever in a child that was forked while another thread of the parent had its
    /// lock. Then it keeps what it knows.
    fn can_change(&mut self) -> bool {
        let has_lock = unwinder::dialect() == Some(Dialect::Each);
        let can_change = !has_lock || own_fds::run_for(LOCK_PATIENCE, unwinder::await_changes).is_some();
        if !can_change {
            std::mem::forget(std::mem::take(&mut self.tables));
        }
        can_change
    }

    fn add(&mut self, id: u64, (addr, size): (u64, u64), info_records: Option<&[u8]>) {
        for tables in &mut self.tables {
            match info_records {
                Some(records) => tables.add(id, (addr, size), eh_frame(records).unwrap_or_default()),
                None => tables.moved(id, (addr, size)),
            }
        }
    }
}

/// The unwind tables among the records before a LOAD. Those of a frame load count for nothing.
fn eh_frame(info_records: &[u8]) -> Option<&[u8]> {
    let mut records = RawRecords::from(info_records, frame_load::len(info_records));
    let record = records.find(|record| record.id == id::UNWINDING_INFO)?;
    Some(record.unwinding_info()?.tables()?.0)
}

/// As `told`, but in a child that was forked while another thread had them nobody waits for the lock itself.
fn told_at_first() -> Option<Locked<'static, Told>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match TOLD.try_lock() {
            None if Instant::now() < end => thread::sleep_micros(100),
            told => return told,
        }
    }
}

impl Sink for Unwinder {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        let mut told = told_at_first().ok_or("the unwinder's tables are in use since before the fork")?;
        told.by_callers = false;
        if !told.can_change() {
            return Err("another thread has had the unwinder's lock since before the fork".into());
        }
        if !std::mem::take(&mut told.is_let_go) {
            // Those of the parent, in a child that takes nothing over.
            told.tables.clear();
        }
        if told.tables.is_empty() {
            told.tables = unwinder::dialects().map(Tables::new).collect();
        }
        if told.tables.is_empty() {
            return Err("the process has no unwinder that can be told of code".into());
        }
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        let place = (code.live.addr, code.live.size);
        self.to_add().into_iter().for_each(|mut told| told.add(code.id, place, code.origin.info_records()));
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        let place = (code.live.addr, code.live.size);
        self.to_add().into_iter().for_each(|mut told| told.add(code.id, place, Some(code.info_records)));
    }

    fn load_live(&mut self, registry: &mut Registry, _: u64, group_of: GroupOf<'_>) -> bool {
        let Some(mut told) = told() else { return false };
        each_live(registry, group_of, |id, live, _, info_records| {
            let place = (live.addr, live.size);
            // What it has known since before a fork stays.
            if !told.tables.iter().all(|tables| tables.has(id, place)) {
                told.add(id, place, Some(info_records));
            }
        })
    }

    fn gone(&mut self, id: u64) {
        told().into_iter().for_each(|mut told| told.tables.iter_mut().for_each(|tables| tables.remove(id)));
    }

    /// It has the table that the unwinder finds there until it is told of another place.
    fn leaves(&mut self, _: u64) {}

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::LetGo {
            TOLD.try_lock().into_iter().for_each(|mut told| told.is_let_go = true);
            return Ok(());
        }
        by_callers::end();
        told().into_iter().for_each(|mut told| (told.is_let_go, told.tables) = (false, Vec::new()));
        Ok(())
    }
}
