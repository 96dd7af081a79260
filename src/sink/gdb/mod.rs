//! gdb and lldb: names, lines and unwind tables of live code, as objects in memory that a debugger or a core file finds.
//!
//! Debuggers read these when they attach, and when the process tells them of another one. A core file has them by itself.

mod objects;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::objects::{Code, Objects};
use crate::api::options::{Config, Sinks};
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sink::region::NewCode;
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, Origin, Sink, Turn};
use crate::sys::debugger;

/// See the module's description.
pub static KIND: Kind = Kind {
    bit: Sinks::GDB,
    word: "gdb",
    wants: Sinks::GROUPS,
    is_silent: false,
    is_default: false,
    is_told_of_regions: true,
    make: Some(|status| Box::new(Gdb::new(status.clone()))),
};

/// While no debugger listens, this much code comes together before it is put into an object, or what comes within this time.
const BATCH: usize = 4096;
const BATCH_TIME: Duration = Duration::from_millis(50);
/// While no debugger listens, taking out what has ended costs at most this part of the writer's time.
const SHARE: u32 = 20;

struct Gdb {
    status: Arc<Status>,
    objects: Objects,
    /// When code that has ended is taken out again, if no debugger listens.
    not_before: Instant,
    /// When the first of the code has come that no object speaks of yet.
    fresh_since: Option<Instant>,
}

impl Gdb {
    fn new(status: Arc<Status>) -> Gdb {
        Gdb { status, objects: Objects::default(), not_before: Instant::now(), fresh_since: None }
    }

    /// Has the objects say what is known. `now`: somebody waits for that.
    fn bring_up_to_date(&mut self, now: bool) -> io::Result<()> {
        let is_watched = debugger::is_watched();
        // Calls wait until a debugger knows the code.
        self.status.set_watched(is_watched);
        if self.objects.have_dead() && (is_watched || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            let done = self.objects.take_out_dead(is_watched);
            self.not_before = Instant::now() + begin.elapsed() * SHARE;
            done?;
        }
        let fresh = self.objects.fresh_count();
        let since = self.fresh_since.filter(|_| fresh > 0).unwrap_or_else(Instant::now);
        self.fresh_since = Some(since);
        if is_watched || now || fresh >= BATCH || since.elapsed() >= BATCH_TIME {
            self.objects.list_fresh()?;
        }
        if is_watched {
            self.objects.settle_breakpoints();
        }
        Ok(())
    }
}

impl Sink for Gdb {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        self.objects = Objects::default();
        // Those of a forked child's parent.
        if !debugger::unlist_all() {
            return Err("the list that debuggers read is in use since before the fork".into());
        }
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        let info_records = match code.origin {
            Origin::Registered(_, _, load) => Some(load.info_records()),
            Origin::Moved { .. } => None,
            Origin::LeftRegion(_, info_records) => Some(info_records),
        };
        let (id, addr, size, name) = (code.id, code.live.addr, code.live.size, code.name);
        self.objects.add(&Code { id, addr, size, name, info_records });
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        let NewCode { id, live, name, info_records, .. } = *code;
        self.objects.add(&Code { id, addr: live.addr, size: live.size, name, info_records: Some(info_records) });
    }

    fn load_live(&mut self, registry: &mut Registry, _: u64, group_of: GroupOf<'_>) -> bool {
        each_live(registry, group_of, |id, live, name, info_records| {
            self.objects.add(&Code { id, addr: live.addr, size: live.size, name, info_records: Some(info_records) });
        })
    }

    fn gone(&mut self, id: u64) {
        self.objects.remove(id);
    }

    fn write(&mut self, turn: &mut Turn<'_>) -> io::Result<()> {
        // What there was no memory for waits. That is no failure of what was asked for.
        let _ = self.bring_up_to_date(turn.now);
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.objects.have_dead() || self.objects.fresh_count() > 0
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        self.objects.clear();
        if how != Close::LetGo && debugger::is_watched() {
            self.objects.settle_breakpoints();
        }
        self.status.set_watched(false);
        Ok(())
    }
}
