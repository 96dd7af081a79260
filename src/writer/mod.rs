//! The writer: a background thread that collects the records of the registering threads in chronological order, and writes them
//! to the sinks.
//!
//! The writer sleeps between rounds and never waits inside a channel, so registering threads do not pay for waking the writer.
//! The pause between rounds adapts to the load. After a second without work the writer sleeps until it is woken.

mod applier;
mod collect;
mod fork;
mod inherit;
mod life;
mod merge;
#[cfg(jitsym_loom)]
pub mod models;
pub mod recover;
mod regions;
mod sink_changes;
mod sleep;
mod source;
#[cfg(test)]
mod tests;
pub mod threadless;

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::error::Error;
use crate::api::options::Config;
use crate::queue::oneshot::Give;
use crate::queue::process_state::Host;
use crate::queue::record::Event;
use crate::queue::requests::{Change, Requests, Stop};
use crate::queue::shared::Shared;
use crate::queue::spool::layout::{FileState, Progress};
use crate::queue::status::Stats;
use crate::registry::Home;
use crate::sink::region::Regions;
use crate::sink::retry::Retry;
use crate::sink::Round;
use crate::sys::sync::{self, MutexGuard};
use crate::sys::{barrier, privileges, reserve};
pub use applier::{Applier, Notice};
pub use inherit::Inheritance;
pub use life::fail;
pub use merge::Merge;
use merge::READ_MOST;
use source::Source;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A round with at least this many bytes shortens the pause before the next round. Each round has a fixed cost: with a region,
/// about a dozen write calls.
const BUSY_BYTES: usize = 256 * 1024;
/// A round writes and commits after about this many bytes, so that threads reuse the chunks while the chunks are still in the
/// processor's caches.
const COMMIT_BYTES: usize = 1 << 20;
/// After this number of bytes, the writer checks again whether a fork needs a pause in the middle of the round.
const LOOK_BYTES: usize = 64 << 10;
/// How often a writer that has work checks whether its spool still exists.
const LOOK_AT_SPOOL: Duration = Duration::from_millis(100);
/// How long a writer runs before it registers the process for the kernel's barriers. In a process with several threads, this
/// registration takes time, which a program that ends early should not spend.
const BARRIERS_AFTER: Duration = Duration::from_millis(100);
/// A thread's clock is ahead of the writer's clock by less than this time.
const CLOCK_AHEAD: Duration = Duration::from_millis(10);
/// If a signal interrupts a thread, the thread's clock is ahead of the writer's clock by at most this many nanoseconds or
/// ticks. This limit is valid only while the writer stays on the same processor.
const SIGNAL_AHEAD: u64 = 50_000;
/// If the pause has reached `LONGEST_PAUSE`, and more than this many rounds in succession read nothing, the writer sleeps
/// until it is woken.
const IDLE_ROUNDS: u32 = 20;

/// The data that only the writer uses. If a session opens after all sessions have closed, the new thread continues with the
/// data of the old thread.
pub struct Writer {
    pub host: &'static Host,
    pub shared: &'static Shared,
    pub applier: Applier,
    /// The registering threads, sorted by the numbers of their slots.
    sources: Vec<Source>,
    /// The number of the last request. Before the writer answers a request, it must complete a round that began after the
    /// request.
    asked: u64,
    /// The number of the last request to write everything.
    asked_to_write: u64,
    /// The time of the latest request.
    asked_at: u64,
    /// Some calls wait until certain sinks have reported the calls' code. `told` is the number of the last request for which
    /// the sinks have reported the code. `to_be_told` is the number of the last request for which they have to report the code
    /// in this round.
    to_be_told: u64,
    told: u64,
    answered: u64,
    stop: Option<Stop>,
    change: Option<Change>,
    /// Whether all sinks were turned off.
    off: bool,
    /// Whether the sinks close after this round.
    is_last_round: bool,
    exiting: bool,
    /// The progress that was committed last.
    committed: Progress,
    /// The options with which the sinks were opened.
    config: Option<Config>,
    /// The time at which a forked child writes the next part of the inherited code to the map and the jitdump. `None` if no
    /// inherited code is left to write.
    inherit_at: Option<Instant>,
    /// Whether the perf map contains the inherited code. If so, the jitdump may contain a part of this code.
    is_inheriting: bool,
    /// All records stamped before this time have been read, except for records that were published late.
    until: u64,
    /// Whether memory has run out. Some records may then still be unread.
    short: bool,
    /// Before this time, the writer does not pause in the middle of a round. So the writer also makes progress in a process
    /// that forks all the time.
    works_until: Option<sync::Instant>,
    /// If this field is set, the gdb sink does not start automatically.
    no_debugger: bool,
    /// The last time at which the writer found that the spool exists.
    spool_seen: Option<Instant>,
    /// When to try again to replace a removed spool. `None` unless the last attempt to replace it has failed.
    spool_retry: Option<Retry>,
}

enum Turn {
    /// The writer has to end.
    Stop(Stop),
    /// The process exits, and no thread waits for the writer.
    Exit,
    /// The writer has made a round.
    Done {
        /// How many bytes the round has read.
        bytes: usize,
        /// Whether a request was the reason for this call of `turn`.
        asked: bool,
        /// Whether a request was made during this call.
        again: bool,
    },
}

impl Writer {
    pub fn new(host: &'static Host, shared: &'static Shared, regions: Arc<Regions>) -> Writer {
        Writer {
            host,
            shared,
            applier: Applier::new(shared.status.clone(), regions, true),
            sources: Vec::new(),
            asked: 0,
            asked_to_write: 0,
            to_be_told: 0,
            told: 0,
            answered: 0,
            stop: None,
            change: None,
            off: false,
            is_last_round: false,
            exiting: false,
            committed: Progress::default(),
            config: None,
            inherit_at: None,
            is_inheriting: false,
            until: 0,
            asked_at: 0,
            short: false,
            works_until: None,
            no_debugger: false,
            spool_seen: None,
            spool_retry: None,
        }
    }

    /// The body of the writer's thread. Runs until the writer is asked to stop, and then passes the writer to `home` for the
    /// next thread.
    pub fn run(mut self: Box<Self>, home: Give<Box<Writer>>) {
        self.shared.signal_flush.run();
        let stop = self.run_until_stopped();
        let result = self.finish(stop.off);
        home.give(self);
        stop.ack.give(result);
    }

    /// Ends a writer for which no call waits any more. The writer has already opened its files.
    pub fn end_unwanted(mut self: Box<Self>, home: Give<Box<Writer>>) {
        self.round(true);
        let _ = self.finish(false);
        home.give(self);
    }

    fn run_until_stopped(&mut self) -> Stop {
        let mut pause = SHORTEST_PAUSE;
        let mut idle_rounds = 0;
        let mut has_registered = barrier::is_light();
        let begin = Instant::now();
        loop {
            let (bytes, asked, again) = match self.turn() {
                Turn::Stop(stop) => return stop,
                Turn::Exit => {
                    self.wait_to_be_asked();
                    continue;
                }
                Turn::Done { bytes, asked, again } => (bytes, asked, again),
            };
            if bytes > 0 {
                idle_rounds = 0;
            }
            if again {
                continue;
            }
            // Registers the process for the kernel's barriers only when no caller waits. In a process with several threads,
            // this registration takes milliseconds. Until the process is registered, threads use fences.
            if !has_registered && begin.elapsed() > BARRIERS_AFTER {
                has_registered = true;
                barrier::register();
            }
            pause = if bytes >= BUSY_BYTES { pause / 2 } else { pause * 2 }.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            // A request shortens the pause before a round. So a round that was made for a request does not count as idle.
            let is_idle = bytes == 0 && pause == LONGEST_PAUSE;
            idle_rounds = if is_idle { idle_rounds + u32::from(!asked) } else { 0 };
            if idle_rounds <= IDLE_ROUNDS {
                self.shared.parker.park(Some(self.inherits_in().map_or(pause, |left| left.min(pause))));
                continue;
            }
            idle_rounds = 0;
            if self.applier.sinks.have_work() {
                self.look_around();
            } else {
                self.sleep();
                pause = SHORTEST_PAUSE;
            }
        }
    }

    /// Makes a round, and answers requests. If a fork waits, quiesces for the fork before the round.
    fn turn(&mut self) -> Turn {
        if self.quiesce().is_asked() {
            self.be_quiescent();
        }
        // Reads the requests before the round, so that this round serves them. If they were read later, they would wait for a
        // second round, after the writes of this round.
        self.look_at_requests();
        // A round that begins after a request reads all records that were committed before the request. An earlier round may
        // miss some of these records, because they may have been stamped or published after the earlier round began.
        let (due, stop, change) = (self.asked, self.stop.take(), self.change.take());
        let signal_flush = self.shared.signal_flush.pending(self.exiting);
        let to_write =
            stop.is_some() || change.is_some() || self.asked_to_write > self.answered || signal_flush.is_some();
        let asked = to_write || due > self.answered;
        self.to_be_told = due;
        if self.exiting && asked {
            self.shut_out();
        } else if asked {
            barrier::all_threads();
        } else if self.exiting {
            return Turn::Exit;
        }
        self.is_last_round = stop.is_some();
        let bytes = self.round(to_write);
        // The writer changes the sinks before it answers other requests, because the process may end right after an answer, if
        // the thread that waits for the answer is exiting the process.
        if let Some(change) = change {
            self.change_sinks(change);
        }
        if stop.is_some() || due > self.answered {
            self.answer(due);
        }
        if let Some(number) = signal_flush {
            self.shared.signal_flush.answer(number, self.problem());
        }
        if let Some(stop) = stop {
            self.applier.regions.heed_debugger();
            return Turn::Stop(stop);
        }
        self.heed_debugger();
        let again = self.is_asked();
        match signal_flush {
            _ if again => {}
            Some(_) => self.rest(),
            None => self.write_inherited(),
        }
        Turn::Done { bytes, asked, again }
    }

    fn is_asked(&self) -> bool {
        self.stop.is_some()
            || self.change.is_some()
            || self.asked > self.answered
            || self.shared.signal_flush.is_pending()
            || self.quiesce().is_asked()
    }

    fn answer(&mut self, due: u64) {
        if self.exiting {
            self.applier.sinks.trim();
            self.applier.finish_regions();
            self.applier.sinks.close_to_remove();
            self.tidy_children(true);
        }
        self.answered = due;
        let mut requests = self.shared.requests();
        requests.answered = due;
        requests.result = self.problem();
        drop(requests);
        // The round has already answered the calls that wait for sinks, unless memory was short.
        self.answer_told(due);
        self.shared.tell_waiting();
    }

    /// Makes the sinks for which calls wait report their changes, and then answers these calls. The round calls this function
    /// before it writes files.
    fn tell(&mut self) {
        if self.to_be_told > self.told {
            let applier = &mut self.applier;
            let time = applier.last_time;
            // A debugger sets its breakpoints as soon as the code is reported to it.
            applier.regions.heed_debugger();
            applier.sinks.tell(&mut Round {
                registry: &mut applier.registry,
                now: false,
                is_last: false,
                time,
                announce: &|_, _| {},
            });
            self.answer_told(self.to_be_told);
            self.shared.tell_waiting();
        }
    }

    fn answer_told(&mut self, due: u64) {
        if due > self.told {
            self.told = due;
            let mut requests = self.shared.requests();
            requests.told = due;
            requests.not_told = if self.short { Some(Error::NoMemory) } else { self.applier.sinks.not_told() };
        }
    }

    /// The reason why some data is not written. `None` if everything is written.
    fn problem(&self) -> Option<Error> {
        if self.short {
            Some(Error::NoMemory)
        } else {
            self.applier.sinks.result().err()
        }
    }

    /// Reads everything that was published, writes it, and recycles the chunks. `now`: whether a caller wants all files to
    /// be complete. Returns how many bytes were read.
    fn round(&mut self, now: bool) -> usize {
        self.quiesce().enter();
        let bytes = self.round_inside(now);
        self.quiesce().leave();
        // Forks do not wait for `tidy_children`, because it is called after `leave`.
        self.tidy_children(false);
        bytes
    }

    /// Returns the time of this round. The round must read all records that were stamped before the last request, but a
    /// thread's clock may be ahead of the writer's clock. So this function waits until the writer's clock reaches the time of
    /// the request, but not longer than `CLOCK_AHEAD`. The clocks can differ if the kernel stops the writer while the writer
    /// changes the clock (`sys/tsc`). The old and the new clock then diverge until the writer continues.
    fn time_of_round(&self) -> u64 {
        let begin = Instant::now();
        // A signal handler cannot record the time of its request, so the latest possible time is used.
        let from_signal = self.shared.signal_flush.is_pending();
        let earliest = if from_signal { self.shared.clock.now() + SIGNAL_AHEAD } else { 0 };
        let asked_at = self.asked_at.max(earliest);
        loop {
            // `is_late` is computed before `now`, because this thread may be stopped between these lines.
            let is_late = begin.elapsed() > CLOCK_AHEAD;
            let now = self.shared.clock.now();
            if now >= asked_at || is_late {
                return now;
            }
            std::hint::spin_loop();
        }
    }

    fn round_inside(&mut self, now: bool) -> usize {
        self.shared.clear_hurry();
        self.shared.clock.rebase();
        self.short = reserve::is_short();
        if self.short {
            // Requests must be answered even if memory is short.
            self.collect();
            self.shared.set_short(true);
            return 0;
        }
        // Records stamped later than `until` are read in the next round. Suppose that the call for record A has returned before
        // the call for record B begins. Then A is published before B is stamped. So a round that reads B also finds A.
        let until = self.time_of_round();
        self.until = until;
        fence(Ordering::SeqCst);
        self.collect();
        self.heed_rights();
        let mut merge = Merge::new(self.sources.iter().map(Source::readings));
        let (mut bytes, mut uncommitted, mut look_at) = (0, 0, LOOK_BYTES);
        while !self.short {
            let (applier, short) = (&mut self.applier, &mut self.short);
            let may = |event: &Event| {
                // If memory is short, a record stays in its chunk, and is read later.
                *short = !applier.make_room(event);
                !*short
            };
            let Some((chunk, mut event)) = merge.next_if(until, may) else { break };
            uncommitted += size_of::<Event>() + event.body_len as usize;
            self.applier.apply(chunk, &mut event);
            self.short = reserve::is_short();
            if uncommitted >= look_at {
                look_at += LOOK_BYTES;
                let is_behind = merge.unread() > READ_MOST;
                self.quiesce().set_behind(is_behind.then_some(self.applier.last_time));
                if uncommitted >= COMMIT_BYTES || self.is_to_pause() {
                    bytes += std::mem::take(&mut uncommitted);
                    look_at = LOOK_BYTES;
                    let until = self.applier.last_time;
                    self.commit(&mut merge, false, until);
                    self.let_forks_begin();
                }
            }
        }
        self.quiesce().set_behind(None);
        self.shared.set_short(self.short);
        if !self.short {
            self.tell();
        }
        self.commit(&mut merge, now, until);
        bytes += uncommitted;
        if (bytes > 0 || now) && self.spool_seen.is_none_or(|seen| now || seen.elapsed() >= LOOK_AT_SPOOL) {
            self.spool_seen = Some(Instant::now());
            self.renew_spool();
        }
        bytes
    }

    /// Writes everything that was read, and recycles the chunks of these records. All records stamped before `until` have been
    /// read.
    fn commit(&mut self, merge: &mut Merge, now: bool, until: u64) {
        let applier = &mut self.applier;
        if applier.sinks.remember() && !applier.sinks.map_runs() {
            // A sink that starts later has to report only live code, so no memory is spent on dead code.
            applier.registry.forget_dead(Home::Plain);
        }
        applier.registry.tidy();
        let forgotten = applier.registry.forget_oldest();
        if forgotten > 0 {
            self.shared.status.counters.map_forgotten.add(forgotten as u64);
            applier.sinks.changed();
        }
        let memory = self.shared.pool.memory();
        let (header, round, time) = (memory.header(), memory.next_round(), applier.last_time);
        // Marks the chunks before any file is renamed, because a rename commits the round.
        let is_marked = merge.mark(round);
        let has_dump = applier.sinks.dump().is_some();
        let announce = |_, file: FileState| {
            header.set_next_map(file.identity);
            // If there is a jitdump, recovery reads the addresses of code from the jitdump. So the new map alone does not
            // commit the round. The round is committed later, together with the state of the jitdump.
            if !has_dump {
                header.prepare(round, &Progress { last_time: time, map: Some(file), ..Progress::default() });
            }
        };
        let is_last = self.is_last_round;
        applier.sinks.write(&mut Round { registry: &mut applier.registry, now, is_last, time, announce: &announce });
        applier.write_regions(now, until);
        let mut state = applier.state();
        let written = state;
        let announce = |_, file| header.prepare(round, &Progress { dump: Some(file), ..written });
        let is_repaired = applier.sinks.repair(&mut Round {
            registry: &mut applier.registry,
            now,
            is_last,
            time,
            announce: &announce,
        });
        if is_repaired {
            applier.sinks.announce_paths();
            if let Some(config) = &self.config {
                header.set_files(&applier.sinks.files(config));
            }
            state = applier.state();
        }
        if is_marked || state != self.committed {
            memory.commit(&state);
            self.committed = state;
        }
        self.heed_notices();
        self.shared.ids.prepare();
        self.recycle();
        self.shared.status.counters.live.set(self.applier.live_count() as u64);
        self.publish();
    }

    /// Publishes the state of this process for other processes.
    fn publish(&self) {
        let pool = &self.shared.pool;
        let (memory, memory_held) = (pool.bytes_used(), pool.bytes_held());
        let stats = Stats { memory, memory_held, ..self.shared.status.stats() };
        pool.memory().header().published().set(&stats, &self.host.last_error);
    }

    /// Makes a new spool if the old spool was removed, for instance by a program that cleans up shared memory. If records are
    /// unread, or if a new spool cannot be made now, a later round makes the spool. While the process exits, no new spool is
    /// made, because the exit itself removes the spool.
    fn renew_spool(&mut self) {
        if self.exiting {
            return;
        }
        let pool = &self.shared.pool;
        let is_due = self.spool_retry.as_ref().is_some_and(Retry::is_due);
        // A pool that is shut gets a spool when the pool is reopened, so no spool is made for such a pool here.
        let is_wanted = is_due && pool.is_open() && !pool.memory().has_spool() || pool.memory().is_spool_lost();
        let Some(config) = self.config.as_ref().filter(|config| is_wanted && config.spool) else { return };
        if !is_due {
            self.host.last_error.set("somebody has removed the spool".into());
        }
        self.take_back();
        if self.sources.iter().any(Source::has_unread) || !pool.shut() {
            return;
        }
        let why = pool.open(Some(&config.spool_dir));
        self.spool_retry = why.is_some().then(|| Retry::after(self.spool_retry.as_ref()));
        if let Some(why) = why {
            self.host.last_error.set(why);
        }
        let memory = pool.memory();
        memory.header().set_files(&self.applier.sinks.files(config));
        memory.commit(&self.applier.state());
    }

    /// Removes the empty spools of forked children that ended without exit handlers. The function looks for empty spools only
    /// after several forks, or after a single fork if `any` is true.
    fn tidy_children(&self, any: bool) {
        let Some(config) = self.config.as_ref().filter(|config| config.spool) else { return };
        // The number of forks is checked before the rights of the process, because the check of the rights takes several system
        // calls.
        if self.shared.children_are_due(any) && !privileges::are_more() {
            recover::remove_empty(&config.spool_dir);
        }
    }

    /// Locks the requests. Returns `None` if another thread has the lock and a signal handler waits for the writer. The handler
    /// may have interrupted the thread that has the lock, and this thread cannot release the lock before the handler returns.
    fn requests(&self) -> Option<MutexGuard<'static, Requests>> {
        match self.shared.try_requests() {
            None if !self.shared.signal_flush.is_pending() => Some(self.shared.requests()),
            requests => requests,
        }
    }
}
