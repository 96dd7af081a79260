//! Starts and ends the writer: with the first and the last session, at the exit of the process, and after a failure of the
//! writer.

use std::time::{Duration, Instant};

use super::recover;
use super::source::Source;
use super::{Applier, Merge, Notice, Writer};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::queue::process_state::Host;
use crate::queue::record::{flag, EventKind};
use crate::queue::requests::Requests;
use crate::queue::shared::Shared;
use crate::sys::{barrier, host_fds, thread};

/// `RECORD_TIMEOUT` is how long an exit waits for threads that are writing a record. The exit checks these threads at least
/// `RECORD_LOOKS` times before it gives up. A time limit alone is not enough, because the whole process may be stopped during
/// the wait.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);
const RECORD_LOOKS: u32 = 100;

impl Writer {
    /// Starts the writer. Must be called on the thread that will run the writer. If `recover` is set, cleans up the spools of
    /// dead processes (`recover::tidy`) before it opens the spool and the sinks. Returns false if sinks are wanted, but none of
    /// them runs.
    pub fn start(&mut self, config: &Config, recover: bool) -> bool {
        let shared = self.shared;
        if recover {
            recover::tidy(&shared.status, config, config.recover);
        }
        let was_open = shared.pool.is_open();
        if let Some(why) = shared.pool.open(config.spool.then_some(config.spool_dir.as_path())) {
            self.host.last_error.set(why);
        }
        self.begin();
        if self.open(config) == Sinks::NONE && config.sinks != Sinks::NONE {
            shared.status.stop_sinks();
            if !was_open {
                shared.pool.shut();
            }
            return false;
        }
        let by_default = self.by_default(config, shared.status.sinks());
        let started = self.applier.sinks.start(config, by_default);
        shared.status.set_by_default(started);
        self.applier.sinks.announce(started, started);
        self.heed_debugger();
        true
    }

    /// Opens the sinks. Returns the sinks that run.
    pub(super) fn open(&mut self, config: &Config) -> Sinks {
        let running = self.applier.sinks.open(config);
        self.applier.sinks.announce_paths();
        let memory = self.shared.pool.memory();
        memory.header().set_files(&self.applier.sinks.files(config));
        memory.commit(&self.applier.state());
        self.config = Some(config.clone());
        running
    }

    /// Prepares for a new session: ends the registrations that the last session left, and accepts requests again. Discards
    /// records that were published too late to be written when the last session closed, and whose calls have returned `Closed`.
    pub(super) fn begin(&mut self) {
        (self.off, self.is_last_round, self.inherit_at, self.is_inheriting) = (false, false, None, false);
        let Applier { registry, notices, .. } = &mut self.applier;
        registry.remove_all(|id| notices.push(Notice::FreeLater(id)));
        self.applier.regions.no_code_at_all();
        self.heed_notices();
        self.collect();
        let mut requests = self.shared.requests();
        // Requests that were made after `collect` are marked as answered here, because no later round answers these requests.
        self.asked = requests.asked;
        (self.told, self.answered) = (self.asked, self.asked);
        let (asked, told, answered) = (self.asked, self.told, self.answered);
        *requests = Requests { open: true, asked, told, answered, ..Requests::default() };
        drop(requests);
        if self.shared.signal_flush.has_exit_begun() {
            // The process is already exiting, so only the exiting thread waits for the writes of this session.
            self.exiting = true;
            self.shut_out();
        }
        let mut merge = Merge::new(self.sources.iter().map(Source::readings));
        while let Some((_, event)) = merge.next(u64::MAX) {
            match event.kind {
                EventKind::Load => self.applier.notices.push(Notice::FreeLater(event.id)),
                EventKind::Unregister => self.applier.notices.push(Notice::Unregistered(event.id)),
                EventKind::Move | EventKind::UnregisterRange => {}
            }
            if event.flags & flag::STABLE != 0 {
                self.applier.notices.push(Notice::Read(event.id));
            }
        }
        let memory = self.shared.pool.memory();
        merge.mark(memory.next_round());
        memory.commit(&self.applier.state());
        self.heed_notices();
        self.shared.ids.prepare();
        self.recycle();
    }

    pub(super) fn finish(&mut self, off: bool) -> Result<()> {
        self.quiesce().enter();
        let problem = if off {
            (!self.turn_off()).then_some(Error::SinkFailed)
        } else {
            // Code can no longer be unregistered. The remaining registrations end only when the next session begins, so that a
            // program that exits spends no time on them.
            self.applier.finish_regions();
            self.applier.sinks.close();
            self.applier.sinks.result().err()
        };
        if self.short {
            self.shared.set_left_unread();
        }
        // Stops the thread of `host_fds` early, so that it ends in parallel with the rest of this function.
        host_fds::stop();
        let problem = if self.short { Some(Error::NoMemory) } else { problem };
        self.shared.status.counters.live.set(0);
        self.shared.pool.memory().commit(&self.applier.state());
        self.shared.pool.shrink();
        self.shared.status.stop_sinks();
        self.publish();
        self.tidy_children(true);
        self.shared.signal_flush.end(problem);
        end_requests(self.shared, problem);
        self.config = None;
        problem.map_or(Ok(()), Err)
    }

    /// Called while the process exits. From now on, calls of all threads except the exiting thread return an error, because
    /// registrations of other threads would no longer be written.
    pub(super) fn shut_out(&mut self) {
        self.shared.shut_out();
        barrier::all_threads();
        self.collect();
        let shared = self.shared;
        let others = || self.sources.iter().map(|source| &source.slot).filter(|slot| shared.is_shut_out(slot.tid));
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
        shared.set_exit_whole();
    }
}

/// Ends the library's work, but not the process, after the writer has panicked.
pub fn fail(host: &Host, shared: &Shared) {
    host.last_error.set("the writer failed".into());
    host.set_broken();
    shared.status.stop_sinks();
    host_fds::stop();
    shared.signal_flush.end(Some(Error::Internal));
    end_requests(shared, Some(Error::Internal));
}

/// Wakes the threads that wait for answers, because no request is answered from now on. `problem`: why some data is not
/// written. `None` if everything is written.
fn end_requests(shared: &Shared, problem: Option<Error>) {
    let mut requests = shared.requests();
    (requests.open, requests.result) = (false, problem);
    // The requests `stop` and `change` are dropped, so that the waiting threads learn that there will be no answer.
    (requests.stop, requests.change) = (None, None);
    shared.tell_waiting();
    drop(requests);
    shared.status.quiesce.end();
}
