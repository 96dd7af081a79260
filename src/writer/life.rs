//! How the writer begins and ends: with the first session and the last one, at the exit of the process, and when it fails.

use std::time::{Duration, Instant};

use super::recover;
use super::sources::Source;
use super::{Ledger, Merge, Notice, Writer};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::queue::engine::Engine;
use crate::queue::host::Host;
use crate::queue::record::{flag, EventKind};
use crate::queue::requests::Requests;
use crate::sys::{barrier, delegate, thread};

/// How long an exit waits for threads that lay down a record, and how often it looks at least: the whole process may have been stopped.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);
const RECORD_LOOKS: u32 = 100;

impl Writer {
    /// Begins on the thread that is to run it: sees to dead processes if asked to, opens the spool and the sinks. False if no sink
    /// runs that is wanted.
    pub fn start(&mut self, config: &Config, recover: bool) -> bool {
        let engine = self.engine;
        if recover {
            recover::tidy(&engine.status, config, config.recover);
        }
        let was_open = engine.pool.is_open();
        if let Some(why) = engine.pool.open(config.spool.then_some(config.spool_dir.as_path())) {
            self.host.last_error.set(why);
        }
        self.begin();
        if self.open(config) == Sinks::NONE && config.sinks != Sinks::NONE {
            engine.status.stop_sinks();
            if !was_open {
                engine.pool.shut();
            }
            return false;
        }
        let unasked = self.unasked(config, engine.status.sinks());
        let started = self.ledger.sinks.start(config, unasked);
        engine.status.set_unasked(started);
        self.ledger.sinks.announce(started, started);
        self.heed_debugger();
        true
    }

    /// Opens the sinks. Returns those that run.
    pub(super) fn open(&mut self, config: &Config) -> Sinks {
        let running = self.ledger.sinks.open(config);
        self.ledger.sinks.announce_paths();
        let memory = self.engine.pool.memory();
        memory.header().set_files(&self.ledger.sinks.files(config));
        memory.commit(&self.ledger.state());
        self.config = Some(config.clone());
        running
    }

    /// Begins a new life: ends what the last session has left registered, discards the records of calls that lost the race with the
    /// last close (they returned `Closed`), and takes requests again.
    pub(super) fn begin(&mut self) {
        self.off = false;
        let Ledger { registry, sinks, notices, .. } = &mut self.ledger;
        registry.remove_all(|id| notices.push(Notice::Retired(id)));
        sinks.region.registry.remove_all(|id| notices.push(Notice::Retired(id)));
        self.ledger.regions.no_code_at_all();
        self.heed_notices();
        self.collect();
        let mut requests = self.engine.requests();
        // Including what was asked for since `collect`: nobody would answer it any more.
        self.asked = requests.asked;
        (self.told, self.answered) = (self.asked, self.asked);
        let (asked, told, answered, exiting) = (self.asked, self.told, self.answered, requests.exiting);
        *requests = Requests { open: true, asked, told, answered, exiting, ..Requests::default() };
        drop(requests);
        if exiting.is_some() {
            // Only the exiting thread waits for the writes of this session.
            self.exiting = true;
            self.shut_out();
        }
        let mut merge = Merge::new(self.sources.iter().map(Source::readings));
        while let Some((_, event)) = merge.next(u64::MAX) {
            match event.kind {
                EventKind::Load => self.ledger.notices.push(Notice::Retired(event.id)),
                EventKind::Unregister => self.ledger.notices.push(Notice::Unregistered(event.id)),
                EventKind::Move | EventKind::UnregisterRange => {}
            }
            if event.flags & flag::STABLE != 0 {
                self.ledger.notices.push(Notice::Read(event.id));
            }
        }
        let memory = self.engine.pool.memory();
        merge.mark(memory.next_pass());
        memory.commit(&self.ledger.state());
        self.heed_notices();
        self.engine.ids.prepare();
        self.recycle();
    }

    /// Closes the files.
    pub(super) fn finish(&mut self, off: bool) -> Result<()> {
        self.quiesce().enter();
        let problem = if off {
            (!self.turn_off()).then_some(Error::SinkFailed)
        } else {
            // Code can no longer be unregistered. The ends of registrations can wait for the next session: a program that ends need
            // not wait for them.
            self.ledger.finish_regions();
            self.ledger.sinks.close();
            self.ledger.sinks.result().err()
        };
        if self.short {
            self.engine.set_left_unread();
        }
        // Its end takes as long as what is still to be done here.
        delegate::stop();
        let problem = if self.short { Some(Error::NoMemory) } else { problem };
        self.engine.status.counters.live.set(0);
        self.engine.pool.memory().commit(&self.ledger.state());
        self.engine.pool.shrink();
        self.engine.status.stop_sinks();
        self.publish();
        self.tidy_children(true);
        self.engine.signal_flush.end(problem);
        end_requests(self.engine, problem);
        self.config = None;
        problem.map_or(Ok(()), Err)
    }

    /// The process exits: what other threads register from now on would be lost with them, and so they are told that it is not
    /// taken.
    pub(super) fn shut_out(&mut self) {
        self.engine.shut_out();
        barrier::all_threads();
        self.collect();
        let engine = self.engine;
        let others = || self.sources.iter().map(|source| &source.slot).filter(|slot| engine.is_shut_out(slot.tid));
        others().for_each(|slot| slot.shut());
        barrier::all_threads();
        let (end, mut looks) = (Instant::now() + RECORD_TIMEOUT, 0);
        while others().any(|slot| slot.is_busy()) {
            if looks >= RECORD_LOOKS && Instant::now() > end {
                return;
            }
            thread::sleep_micros(20);
            looks += 1;
        }
        engine.set_exit_whole();
    }
}

/// The writer has panicked: that ends the library's work, not the process.
pub fn fail(host: &Host, engine: &Engine) {
    host.last_error.set("the writer failed".into());
    host.set_broken();
    engine.status.stop_sinks();
    delegate::stop();
    engine.signal_flush.end(Some(Error::Internal));
    end_requests(engine, Some(Error::Internal));
}

/// Nobody answers requests any more. `problem`: why not everything is written.
fn end_requests(engine: &Engine, problem: Option<Error>) {
    let mut requests = engine.requests();
    (requests.open, requests.result) = (false, problem);
    // A thread that waits for it learns that it will never come.
    (requests.stop, requests.change) = (None, None);
    engine.tell_waiting();
    drop(requests);
    engine.status.quiesce.end();
}
