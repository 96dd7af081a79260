//! Starts and stops sinks while the writer runs, and turns the library off when no sink is wanted.

use std::time::{Duration, Instant};

use super::Writer;
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::api::Id;
use crate::queue::requests::Change;
use crate::registry::Home;
use crate::sink::with_wants;
use crate::sys::{barrier, debugger, reserve, thread};

/// How long `turn_off` waits for threads that are writing a record.
const TURN_OFF_TIMEOUT: Duration = Duration::from_secs(2);

impl Writer {
    /// Starts and stops sinks. The last round has written all code that was registered before that round.
    pub(super) fn change_sinks(&mut self, change: Change) {
        let Change { on, off, config, ack } = change;
        self.quiesce().enter();
        self.write_all_inherited();
        let result = if reserve::is_short() { Err(Error::NoMemory) } else { self.change(on, off, config) };
        self.quiesce().leave();
        ack.give(result);
    }

    /// If a debugger listens, lets the debugger set breakpoints in all regions, and starts the gdb sink if another sink runs. A
    /// gdb sink that already runs by default continues without its limit on the number of functions, and the debugger finds its
    /// entries even during this change.
    pub(super) fn heed_debugger(&mut self) {
        self.applier.regions.heed_debugger();
        let status = &self.shared.status;
        let (running, failed) = (status.sinks(), status.sinks_failed());
        let is_complete = running.without(status.sinks_by_default()).with(failed).has(Sinks::GDB);
        let is_in_order = running != Sinks::NONE && !is_complete && !self.no_debugger;
        if !is_in_order || reserve::is_short() || !debugger::is_watched() {
            return;
        }
        let Some(config) = self.config.clone().filter(|config| config.debugger) else { return };
        self.quiesce().enter();
        let _ = self.change(Sinks::GDB, Sinks::NONE, config);
        self.quiesce().leave();
        let status = &self.shared.status;
        if !status.sinks().has(Sinks::GDB) {
            // Nobody has asked for the sink, so this error is no failure.
            self.no_debugger = true;
            status.remove_sinks(Sinks::GDB, with_wants);
        }
    }

    /// Returns the gdb sink if it should run in addition to `others`, for core files and for a debugger that starts later. The
    /// gdb sink should run only if `others` already want complete records, because it then does not slow down calls.
    pub(super) fn by_default(&self, config: &Config, others: Sinks) -> Sinks {
        let is_wanted = config.debugger && !self.no_debugger && !others.has(Sinks::GDB);
        let is_free = with_wants(others).has(Sinks::GROUPS) && debugger::is_alone();
        if is_wanted && is_free && !debugger::is_watched() {
            Sinks::GDB
        } else {
            Sinks::NONE
        }
    }

    fn change(&mut self, on: Sinks, off: Sinks, config: Config) -> Result<()> {
        // If the host has disabled the gdb sink, the gdb sink does not start automatically.
        self.no_debugger = (self.no_debugger || off.has(Sinks::GDB)) && !on.has(Sinks::GDB);
        let applier = &mut self.applier;
        let status = applier.status.clone();
        // The gdb sink may have started automatically since the change was asked for.
        let by_default = status.sinks_by_default();
        // A sink that already runs by default when the host asks for it continues to run.
        let raised = Sinks(by_default.0 & on.0);
        let fresh = on.without(status.sinks());
        let left = status.sinks().without(by_default).without(off).with(on);
        // A sink that was started by default must stop if no sink in `left` wants complete records.
        let unwanted = by_default.without(raised);
        let ends = if with_wants(left).has(Sinks::GROUPS) { Sinks::NONE } else { unwanted };
        if config.remember {
            status.add_sinks(Sinks::REMEMBER, Sinks::REMEMBER);
        }
        let unwritten = status.sinks_failed_now().0 & off.0 != 0;
        applier.sinks.stop(off.with(ends), Some(&mut applier.registry));
        let more = self.by_default(&config, left.with(status.sinks()));
        let applier = &mut self.applier;
        let started = applier.sinks.start(&config, fresh.with(more));
        status.set_by_default(Sinks(unwanted.without(ends.with(off)).0 | started.0 & more.0));
        let memory = self.shared.pool.memory();
        memory.header().set_files(&applier.sinks.files(&config));
        if started != Sinks::NONE {
            // Reads all code registered so far, now that the files and the marker exist.
            self.round_inside(false);
        }
        let applier = &mut self.applier;
        applier.sinks.announce(fresh.with(started), started);
        applier.sinks.announce_paths();
        if started.has(Sinks::MAP) {
            // The new map must not contain code that has already ended.
            applier.registry.forget_dead(Home::Plain);
            applier.sinks.changed();
        }
        // The live code gets the current time as its time stamp, not the times of its registrations. A perf recording may
        // already run, and may contain memory mappings from before the marker. If the code had an earlier time than these
        // mappings, perf would use the mappings instead of the code.
        let time = self.until.max(applier.last_time);
        let has_all = applier.sinks.load_live(started.with(raised), &mut applier.registry, time);
        if started.has(Sinks::JITDUMP) {
            // A record that is published late must get a time stamp above `time`, as in `write_inherited_part`.
            applier.last_time = time + 1;
        }
        self.config = Some(config);
        self.round_inside(true);
        match (status.sinks_failed().0 & on.0, status.sinks().0 & on.0) {
            _ if self.short || !has_all => Err(Error::NoMemory),
            (0, _) if unwritten => Err(Error::SinkFailed),
            (0, _) => Ok(()),
            (_, 0) => Err(Error::NoSink),
            _ => Err(Error::SinkFailed),
        }
    }

    /// When no sink is wanted, gives back all memory, including the chunks that threads hold. Returns whether all records were
    /// written to the files.
    ///
    /// Takes back the chunk of each thread. If a thread is writing a record, first waits until the record is written. A thread
    /// that then requests a new chunk gets no chunk, and finds that no sink is wanted. The sinks end last, because their files
    /// must contain every record that was accepted.
    pub(super) fn turn_off(&mut self) -> bool {
        self.off = true;
        let shared = self.shared;
        shared.status.end_wants();
        shared.pool.forget_asked();
        // While the process exits, the loop does not wait for chunks, because all threads except the exiting thread keep their
        // chunks (`shut_out`).
        let is_exit = self.exiting;
        let end = Instant::now() + TURN_OFF_TIMEOUT;
        loop {
            barrier::all_threads();
            if self.round_inside(false) > 0 {
                // When the last chunk has been taken back, the spool is removed. The files must be up to date before the spool
                // is removed.
                self.round_inside(true);
            }
            self.take_back();
            if shared.pool.shut() || is_exit || Instant::now() > end {
                break;
            }
            thread::sleep_micros(100);
        }
        self.applier.finish_regions();
        // `sinks_failed_now` does not include sinks that could not start.
        let is_written = shared.status.sinks_failed_now() == Sinks::NONE;
        shared.status.stop_sinks();
        self.applier.sinks.stop(Sinks::ANY, None);
        self.forget_all();
        is_written
    }

    /// Ends all registrations, and gives back all memory for them.
    fn forget_all(&mut self) {
        let (applier, ids) = (&mut self.applier, &self.shared.ids);
        applier.registry.remove_all(|id| {
            if ids.retire(Id(id)) {
                ids.recycle(Id(id));
            }
        });
        applier.registry.give_back();
        applier.sinks.forget();
        self.applier.notices = Vec::new();
    }
}
