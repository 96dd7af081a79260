//! The unwinder of the process: C++ exceptions, `backtrace` and the end of a thread find the callers of code.
//!
//! It has to know a table before the code runs, and no table of code that has ended. So calls wait for the writer while this sink
//! runs.

mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Mutex, MutexGuard, TryLockError};

use self::tables::Tables;
use crate::api::options::{Config, Sinks};
use crate::format::jitdump::raw::RawRecords;
use crate::format::jitdump::{id, shadow};
use crate::registry::Registry;
use crate::sink::region::NewCode;
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, Sink};
use crate::sys::unwinder;

/// See the module's description.
pub static KIND: Kind = Kind {
    bit: Sinks::UNWINDER,
    word: "unwinder",
    wants: Sinks::GROUPS.with(Sinks::AWAITED),
    is_silent: false,
    is_default: false,
    is_told_of_regions: true,
    make: Some(|_| Box::new(Unwinder)),
};

/// What the unwinders of the process have been told. They know it in a forked child too, whether that takes its parent's code over or
/// not.
struct Told {
    /// Of each unwinder.
    tables: Vec<Tables>,
    /// The parent's sink has handed them over to a child.
    is_let_go: bool,
}

static TOLD: Mutex<Told> = Mutex::new(Told { tables: Vec::new(), is_let_go: false });

/// `None` in a child that was forked while another thread had them: nobody else waits for this.
fn told() -> Option<MutexGuard<'static, Told>> {
    match TOLD.try_lock() {
        Ok(told) => Some(told),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// In a forked child, when its sinks are open: without this sink the unwinder forgets the code.
pub fn end_inherited() {
    if let Some(mut told) = told().filter(|told| told.is_let_go) {
        told.tables.clear();
    }
}

struct Unwinder;

impl Told {
    fn add(&mut self, id: u64, (addr, size): (u64, u64), info_records: Option<&[u8]>) {
        for tables in &mut self.tables {
            match info_records {
                Some(records) => tables.add(id, (addr, size), eh_frame(records).unwrap_or_default()),
                None => tables.moved(id, (addr, size)),
            }
        }
    }
}

/// The unwind tables among the records before a LOAD. Those of a shadow count for nothing.
fn eh_frame(info_records: &[u8]) -> Option<&[u8]> {
    let mut records = RawRecords::from(info_records, shadow::len(info_records));
    let record = records.find(|record| record.id == id::UNWINDING_INFO)?;
    Some(record.unwinding_info()?.tables()?.0)
}

impl Sink for Unwinder {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        let mut told = told().ok_or("the unwinder's tables are in use since before the fork")?;
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
        told().into_iter().for_each(|mut told| told.add(code.id, place, code.origin.info_records()));
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        let place = (code.live.addr, code.live.size);
        told().into_iter().for_each(|mut told| told.add(code.id, place, Some(code.info_records)));
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

    fn close(&mut self, how: Close) -> io::Result<()> {
        if let Some(mut told) = told() {
            told.is_let_go = how == Close::LetGo;
            if !told.is_let_go {
                told.tables.clear();
            }
        }
        Ok(())
    }
}
