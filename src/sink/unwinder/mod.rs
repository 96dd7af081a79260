//! The unwinder of the process: C++ exceptions, `backtrace` and the end of a thread find the callers of code.
//!
//! It has to know a table before the code runs, and no table of code that has ended. So calls wait for the writer while this sink
//! runs.

mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Mutex, PoisonError};

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
    make: Some(|_| Box::new(Unwinder::default())),
};

/// In a forked child: what its parent's writer has told the unwinder, which knows it in the child too.
static INHERITED: Mutex<Vec<Tables>> = Mutex::new(Vec::new());

fn take_inherited() -> Vec<Tables> {
    std::mem::take(&mut *INHERITED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// In a forked child, when its sinks are open: without this sink the unwinder forgets the code.
pub fn end_inherited() {
    drop(take_inherited());
}

#[derive(Default)]
struct Unwinder {
    /// Of each unwinder of the process.
    tables: Vec<Tables>,
}

impl Unwinder {
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
        self.tables = take_inherited();
        if self.tables.is_empty() {
            self.tables = unwinder::dialects().map(Tables::new).collect();
        }
        if self.tables.is_empty() {
            return Err("the process has no unwinder that can be told of code".into());
        }
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        self.add(code.id, (code.live.addr, code.live.size), code.origin.info_records());
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        self.add(code.id, (code.live.addr, code.live.size), Some(code.info_records));
    }

    fn load_live(&mut self, registry: &mut Registry, _: u64, group_of: GroupOf<'_>) -> bool {
        each_live(registry, group_of, |id, live, _, info_records| {
            let place = (live.addr, live.size);
            // What it has known since before a fork stays.
            if !self.tables.iter().all(|tables| tables.has(id, place)) {
                self.add(id, place, Some(info_records));
            }
        })
    }

    fn gone(&mut self, id: u64) {
        self.tables.iter_mut().for_each(|tables| tables.remove(id));
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        let tables = std::mem::take(&mut self.tables);
        if how == Close::LetGo {
            *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = tables;
        }
        Ok(())
    }
}
