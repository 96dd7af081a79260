//! Keeps names, lines and unwind tables of live code in memory, so that any thread and any signal handler can look up code.

mod function;
mod runs;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::runs::Runs;
pub use self::runs::{at, begin_in_child, Found};
use crate::api::options::{Config, Sinks};
use crate::format::code_info::Info;
use crate::registry::{Live, Registry};
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, NewCode, Round, Sink};

pub static KIND: Kind = Kind {
    bit: Sinks::LOOKUP,
    word: "lookup",
    wants: Sinks::GROUPS,
    is_default: false,
    make: Some(|_| Box::new(Lookup::default())),
};

/// How long new code is collected before threads can find it, unless a caller waits. Each time, code is copied.
const BATCH_TIME: Duration = Duration::from_millis(20);

/// In a forked child: the runs of the parent's writer.
static INHERITED: Mutex<Option<Runs>> = Mutex::new(None);

fn take_inherited() -> Option<Runs> {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Forgets the parent's code in a forked child that does not run this sink. The child's sinks must already be open.
pub fn end_inherited() {
    take_inherited().into_iter().for_each(|mut runs| runs.clear());
}

#[derive(Default)]
struct Lookup {
    runs: Runs,
    /// The time at which `write` first found code that threads cannot find yet.
    fresh_since: Option<Instant>,
    /// Whether some code could not be added, because memory was short.
    lacks_code: bool,
    /// Whether `write` has yet to report that code is lacking.
    is_unreported: bool,
}

impl Lookup {
    /// Adds code, or moves code whose info is `None`.
    fn add(&mut self, id: u64, live: &Live, name: &[u8], info: Option<Info<'_>>) {
        let kept = if info.is_none() { self.runs.info_of(id) } else { None };
        let info = info.or(kept.as_deref().map(Info::new)).unwrap_or_default();
        self.runs.end(id);
        if self.runs.add((live.addr, live.size), id, name, info).is_err() {
            (self.lacks_code, self.is_unreported) = (true, true);
        }
    }
}

impl Sink for Lookup {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        (self.lacks_code, self.fresh_since) = (false, None);
        // Code that ended with the last session can no longer be found, because the host may have unmapped its memory.
        match take_inherited() {
            Some(inherited) => self.runs = inherited,
            None => self.runs.clear(),
        }
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        self.add(code.id, code.live, code.name, code.origin.info());
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        self.add(code.id, code.live, code.name, Some(code.info));
    }

    fn load_live(&mut self, registry: &mut Registry, group_of: GroupOf<'_>) -> bool {
        // In a forked child, the runs have the parent's code. Some of this code may have ended before the fork.
        self.runs.retain(|id, addr| registry.get(id).is_some_and(|live| live.addr == addr));
        let wants = |lookup: &Lookup, id, live: &Live| lookup.runs.addr_of(id) != Some(live.addr);
        let has_all = each_live(registry, group_of, self, wants, |lookup, id, live, name, info| {
            lookup.add(id, live, name, Some(info));
        });
        has_all && !self.lacks_code
    }

    fn gone(&mut self, id: u64) {
        self.runs.end(id);
    }

    fn write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        self.runs.free_replaced();
        if self.runs.has_changes() {
            let since = *self.fresh_since.get_or_insert_with(Instant::now);
            if round.now || since.elapsed() >= BATCH_TIME {
                self.runs.publish()?;
                self.fresh_since = None;
            }
        }
        match std::mem::take(&mut self.is_unreported) {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => Ok(()),
        }
    }

    fn is_ok(&self) -> bool {
        !self.lacks_code
    }

    fn has_work(&self) -> bool {
        self.runs.has_changes() || self.runs.has_replaced()
    }

    fn leave(&mut self, _: &mut Registry, _: bool) {
        self.runs.clear();
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::Leave {
            self.runs.clear();
        }
        if how == Close::LetGo {
            *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::mem::take(&mut self.runs));
        }
        // After the last session has closed, the code can still be found.
        Ok(())
    }
}
