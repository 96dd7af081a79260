//! Reports live code to the unwinder of the process, which C++ exceptions, `backtrace` and `pthread_exit` use.
//!
//! The unwinder must know the unwind table of code before the code runs, and must forget the table when the code ends. So
//! while this sink runs, calls either wait for the writer, or report code to the unwinder themselves (`told_in_calls`).

mod tables;
#[cfg(test)]
mod tests;
mod told;
pub mod told_in_calls;

use std::io;
use std::sync::Arc;

use self::tables::Tables;
use self::told::{told, told_at_first, Told, TOLD};
use crate::api::options::{Config, Sinks};
use crate::queue::status::Status;
use crate::registry::{Live, Registry};
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, NewCode, Sink};
use crate::sys::timed_lock::Locked;
use crate::sys::unwinder;

pub static KIND: Kind = Kind {
    bit: Sinks::UNWINDER,
    word: "unwinder",
    wants: Sinks::GROUPS.with(Sinks::MUST_WAIT),
    is_default: false,
    make: Some(|status| Box::new(Unwinder { status: status.clone() })),
};

/// Makes the unwinder of a forked child forget the parent's code. The child's sinks must already be open. If the child runs
/// this sink, the unwinder keeps the code that the child has taken over.
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
    /// The tables to which the writer adds code. `None` if calls that register code add the code themselves, or if the lock
    /// cannot be taken in time.
    fn to_add(&self) -> Option<Locked<'static, Told>> {
        let is_by_callers = self.status.sinks_with_notes().has(Sinks::BY_CALLERS);
        (!is_by_callers).then(told).flatten()
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
            // In a forked child that does not take over code, these tables are still the parent's tables.
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
        self.to_add().into_iter().for_each(|mut told| told.add(code.id, place, code.origin.info()));
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        let place = (code.live.addr, code.live.size);
        self.to_add().into_iter().for_each(|mut told| told.add(code.id, place, Some(code.info)));
    }

    fn load_live(&mut self, registry: &mut Registry, group_of: GroupOf<'_>) -> bool {
        let Some(mut told) = told() else { return false };
        // Code that the unwinder has known since before a fork need not be added again.
        let wants =
            |told: &Told, id, live: &Live| !told.tables.iter().all(|tables| tables.has(id, (live.addr, live.size)));
        each_live(registry, group_of, &mut *told, wants, |told, id, live, _, info| {
            told.add(id, (live.addr, live.size), Some(info));
        })
    }

    fn gone(&mut self, id: u64) {
        told().into_iter().for_each(|mut told| told.tables.iter_mut().for_each(|tables| tables.remove(id)));
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::LetGo {
            TOLD.try_lock().into_iter().for_each(|mut told| told.is_let_go = true);
            return Ok(());
        }
        told_in_calls::end();
        told().into_iter().for_each(|mut told| (told.is_let_go, told.tables) = (false, Vec::new()));
        Ok(())
    }
}
