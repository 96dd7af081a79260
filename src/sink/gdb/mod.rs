//! The sink for gdb and lldb keeps names, lines and unwind tables of live code in memory, as ELF objects that debuggers read.
//!
//! A debugger reads these objects when it attaches, and when the process reports a new object. A core file contains the
//! objects. If another sink runs that needs the same records, this sink runs too, even if the host has not asked for it. A gdb
//! sink that the host has not asked for lists only a limited number of functions while no debugger listens.

mod group;
pub mod objects;
#[cfg(test)]
pub mod tests;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::objects::{Code, Objects};
use crate::api::options::{Config, Sinks};
use crate::queue::status::Status;
use crate::registry::{Live, Registry};
use crate::sink::NewCode;
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, Round, Sink};
use crate::sys::{debugger, valgrind};

pub static KIND: Kind = Kind {
    bit: Sinks::GDB,
    word: "gdb",
    wants: Sinks::GROUPS,
    is_default: false,
    make: Some(|status| Box::new(Gdb::new(status.clone()))),
};

/// The maximum number of functions that the sink lists if the host has not asked for the sink. At 120 to 800 bytes each
/// (docs/debugging.md), these functions take 1 to 7 MB.
const UNASKED_MOST: usize = 8 << 10;
/// While no debugger listens, new code is collected for this long before it is put into an object. A large amount of new code
/// is put into an object immediately.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// The longest time for which new code is collected. The time grows if most code ends before it is put into an object, because
/// a longer wait saves work on code that ends soon.
const LONGEST_BATCH_TIME: Duration = Duration::from_millis(400);
/// While no debugger listens, the removal of ended code takes at most 1/`SHARE` of the writer's time.
const SHARE: u32 = 20;

/// In a forked child: the objects of the parent's writer, which are still in the child's list of objects.
static INHERITED: Mutex<Option<Objects>> = Mutex::new(None);

fn take_inherited() -> Option<Objects> {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Empties the list of objects in a forked child that does not run this sink. The child's sinks must already be open.
pub fn end_inherited() {
    drop(take_inherited());
}

struct Gdb {
    status: Arc<Status>,
    objects: Objects,
    /// While no debugger listens, ended code stays in the objects at least until this time.
    not_before: Instant,
    /// The time at which `bring_up_to_date` first found code that was in no object. `None` if all code is in objects.
    fresh_since: Option<Instant>,
    /// How many functions have ended since `fresh_since`.
    ended: usize,
    /// How long new code is collected before it is put into an object.
    batch_time: Duration,
}

impl Gdb {
    fn new(status: Arc<Status>) -> Gdb {
        Gdb {
            status,
            objects: Objects::default(),
            not_before: Instant::now(),
            fresh_since: None,
            ended: 0,
            batch_time: BATCH_TIME,
        }
    }

    fn add(&mut self, code: &Code<'_>) {
        let is_known = self.objects.addr_of(code.id).is_some();
        if is_known || code.info.is_some() && self.objects.live_count() < self.most() {
            self.objects.add(code);
        }
    }

    /// How many functions the sink may list. This number can change while the sink runs.
    fn most(&self) -> usize {
        if self.status.sinks_by_default().has(Sinks::GDB) {
            UNASKED_MOST
        } else {
            usize::MAX
        }
    }

    /// Updates the objects. If `now` is true, a caller waits for the update, and all new code is put into objects. If `now` is
    /// false, new code may wait for a later update.
    fn bring_up_to_date(&mut self, now: bool) -> io::Result<()> {
        let is_watched = debugger::is_watched();
        // While a debugger listens, each call that registers code waits until the debugger has read the code's object.
        self.status.set_watched(is_watched);
        if self.objects.have_dead() && (is_watched || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            let done = self.objects.take_out_dead(is_watched);
            self.not_before = Instant::now() + begin.elapsed() * SHARE;
            done?;
        }
        if self.objects.is_fresh_enough(1) && self.objects.is_fresh_dead() {
            self.ended += self.objects.forget_dead_fresh();
        }
        let is_enough = self.objects.is_fresh_enough(1);
        let fresh = self.objects.fresh_count();
        if fresh == 0 {
            (self.fresh_since, self.ended) = (None, 0);
        } else {
            let since = *self.fresh_since.get_or_insert_with(Instant::now);
            if is_watched || now || is_enough || since.elapsed() >= self.batch_time {
                let all = fresh + std::mem::take(&mut self.ended);
                self.fresh_since = None;
                let live = self.objects.list_fresh(self.objects.live_count() < self.most())?;
                let longer = if 2 * live < all { self.batch_time * 2 } else { BATCH_TIME };
                self.batch_time = longer.min(LONGEST_BATCH_TIME);
            }
        }
        if is_watched {
            self.objects.settle_breakpoints();
        }
        Ok(())
    }
}

impl Sink for Gdb {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        (self.fresh_since, self.ended, self.batch_time) = (None, 0, BATCH_TIME);
        if let Some(inherited) = take_inherited() {
            self.objects = inherited;
            return Ok(());
        }
        self.objects = Objects::default();
        // In a forked child that does not take over code, the list still has the parent's objects.
        if !debugger::unlist_all() {
            return Err("the list that debuggers read is in use since before the fork".into());
        }
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        let info = code.origin.info();
        let (id, addr, size, name) = (code.id, code.live.addr, code.live.size, code.name);
        self.add(&Code { id, addr, size, name, info });
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        let NewCode { id, live, name, info, .. } = *code;
        self.add(&Code { id, addr: live.addr, size: live.size, name, info: Some(info) });
    }

    fn load_live(&mut self, registry: &mut Registry, group_of: GroupOf<'_>) -> bool {
        // After a fork, the objects may already contain the parent's code. Code that an object already has at the same address
        // needs no new entry.
        let wants = |gdb: &Gdb, id, live: &Live| {
            gdb.objects.addr_of(id).map_or_else(|| gdb.objects.live_count() < gdb.most(), |addr| addr != live.addr)
        };
        each_live(registry, group_of, self, wants, |gdb, id, live, name, info| {
            gdb.add(&Code { id, addr: live.addr, size: live.size, name, info: Some(info) });
        })
    }

    fn gone(&mut self, id: u64) {
        self.objects.remove(id);
    }

    fn write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        // If there is no memory, new code waits for a later round. The sink can run although the host did not ask for the sink,
        // so a lack of memory is not reported as a failure of the sink. If a debugger is connected to valgrind, this process
        // cannot see the debugger's breakpoints. So under valgrind, each round puts all new code into objects.
        if !round.is_last || debugger::is_watched() {
            let _ = self.bring_up_to_date(round.now || valgrind::is_running());
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.objects.have_dead() || self.objects.fresh_count() > 0
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::LetGo {
            *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::mem::take(&mut self.objects));
            return Ok(());
        }
        self.objects.clear();
        if debugger::is_watched() {
            self.objects.settle_breakpoints();
        }
        self.status.set_watched(false);
        Ok(())
    }
}
