//! The background thread: collects what the registering threads have laid down, in the order of time, and writes it out.
//!
//! It sleeps between passes and never waits inside a channel, so that no registering thread pays for waking it. The pause
//! adapts to the load; after a second without work it sleeps until it is woken.

mod fork;
mod late;
mod ledger;
mod live;
mod merge;
#[cfg(jitsym_loom)]
pub mod models;
pub mod recover;
mod regions;
mod repair;
mod stand_ins;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::api::Id;
use crate::queue::chunk::Chunk;
use crate::queue::engine::{Engine, Message};
use crate::queue::host::Host;
use crate::queue::oneshot::Give;
use crate::queue::record::{flag, Event, Kind};
use crate::queue::requests::{Change, Requests, Stop};
use crate::queue::spool::layout::State;
use crate::queue::thread_slot::Slot;
use crate::sink::jitdump::groups::Groups;
use crate::sink::region::Regions;
use crate::sys::last_thread::{self, LastThread};
use crate::sys::sync::MutexGuard;
use crate::sys::{barrier, delegate, memory, thread};
pub use fork::Inheritance;
pub use ledger::{Ledger, Notice};
pub use merge::Merge;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long nothing is written behind an answer to a signal handler.
const REST: Duration = Duration::from_millis(100);
/// A pass with at least this many bytes shortens the pause.
const BUSY_BYTES: usize = 64 * 1024;
/// What a pass has read is written and committed by about this much: its chunks are then used again while the processor still
/// has them in its caches.
const COMMIT_BYTES: usize = 1 << 20;
/// Once the process's first thread has ended, the writer looks so often whether there are others. (A thread that ends and has used
/// the library wakes it, so that it learns of the first one's end.)
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it looks whether a first thread has ended that does not wake it then, because it has never used the library.
const LOOK_SELDOM: Duration = Duration::from_secs(10);
/// How long an exit waits for threads that lay down a record.
const RECORD_PATIENCE: Duration = Duration::from_secs(1);
/// How often a writer that has work looks whether its spool is still there.
const LOOK_AT_SPOOL: Duration = Duration::from_millis(100);
/// Passes without work, at the longest pause, before the writer sleeps until it is woken.
const IDLE_PASSES: u32 = 20;

/// Everything that only the writer touches. Handed from one thread to the next when sessions close and open again.
pub struct Writer {
    pub host: &'static Host,
    pub engine: &'static Engine,
    pub ledger: Ledger,
    sources: BTreeMap<u64, Source>,
    /// Requests as they have come in; they are answered after a pass that began later.
    asked: u64,
    answered: u64,
    stop: Option<Stop>,
    change: Option<Change>,
    /// Nothing is wanted any more.
    off: bool,
    exiting: bool,
    /// The state as of the last pass.
    committed: State,
    /// What the sinks were opened with.
    config: Option<Config>,
    /// Everything that was stamped before is read, but for what was published late.
    cutoff: u64,
    /// Memory has run out, and something is left unread for that.
    short: bool,
    /// When the spool was seen to be there.
    spool_seen: Option<Instant>,
    last_thread: LastThread,
}

/// A registering thread as the writer sees it.
struct Source {
    slot: Arc<Slot>,
    /// Chunks that are full, oldest first.
    full: VecDeque<Chunk>,
    /// The chunk that the thread was filling when this pass began.
    current: Option<Chunk>,
    /// The thread had ended when this pass began.
    ended: bool,
}

impl Writer {
    pub fn new(host: &'static Host, engine: &'static Engine, regions: Arc<Regions>) -> Writer {
        Writer {
            host,
            engine,
            ledger: Ledger::new(engine.status.clone(), regions, true),
            sources: BTreeMap::new(),
            asked: 0,
            answered: 0,
            stop: None,
            change: None,
            off: false,
            exiting: false,
            committed: State::default(),
            config: None,
            cutoff: 0,
            short: false,
            spool_seen: None,
            last_thread: LastThread::default(),
        }
    }

    /// The thread's body: runs until it is told to stop. The writer then goes `home`, for the next thread.
    pub fn run(mut self: Box<Self>, home: Give<Box<Writer>>) {
        self.engine.urgent.run();
        let stop = self.run_until_stopped();
        let result = self.finish(stop.off);
        home.give(self);
        stop.ack.give(result);
    }

    fn run_until_stopped(&mut self) -> Stop {
        let mut pause = SHORTEST_PAUSE;
        let mut idle_passes = 0;
        loop {
            if self.standstill().is_asked() {
                self.stand_still();
            }
            // What was committed before a request was made may have been stamped or published after the pass began in which
            // the request came in. A pass that begins now has all of it.
            let (due, stop, change) = (self.asked, self.stop.take(), self.change.take());
            let urgent = self.engine.urgent.pending(self.exiting);
            let asked = stop.is_some() || change.is_some() || due > self.answered || urgent.is_some();
            if self.exiting && asked {
                self.shut_out();
            } else if asked {
                barrier::all_threads();
            } else if self.exiting {
                self.wait_to_be_asked();
                continue;
            }
            let bytes = self.pass(asked);
            // First: who asks may be the exiting thread, and then end the process.
            if let Some(change) = change {
                self.change_sinks(change);
            }
            if stop.is_some() || due > self.answered {
                self.answer(due);
            }
            if let Some(number) = urgent {
                self.engine.urgent.answer(number, self.problem());
            }
            if let Some(stop) = stop {
                return stop;
            }
            if self.is_asked() {
                continue;
            }
            if urgent.is_some() {
                self.rest();
            }
            pause = if bytes >= BUSY_BYTES { pause / 2 } else { pause * 2 }.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            let idle = bytes == 0
                && pause == LONGEST_PAUSE
                && !self.ledger.sinks.have_work()
                && !self.ledger.region_code.have_work;
            idle_passes = if idle { idle_passes + 1 } else { 0 };
            if idle_passes > IDLE_PASSES {
                self.sleep();
                idle_passes = 0;
                pause = SHORTEST_PAUSE;
            } else {
                self.engine.parker.park_timeout(pause);
            }
        }
    }

    /// Whoever asked in a signal handler most likely ends the process now, and would cut a write that is under way.
    fn rest(&mut self) {
        let end = Instant::now() + REST;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_asked() {
                return;
            }
            self.engine.parker.park_timeout(left);
            self.collect();
        }
    }

    fn is_asked(&self) -> bool {
        self.stop.is_some()
            || self.change.is_some()
            || self.asked > self.answered
            || self.engine.urgent.is_pending()
            || self.standstill().is_asked()
    }

    fn answer(&mut self, due: u64) {
        if self.exiting {
            self.ledger.sinks.trim();
            self.ledger.finish_regions();
            self.ledger.sinks.close_to_remove();
        }
        self.answered = due;
        let mut requests = self.engine.requests();
        requests.answered = due;
        requests.result = self.problem();
        self.engine.tell_waiting();
    }

    /// Why not everything is written.
    fn problem(&self) -> Option<Error> {
        if self.short {
            Some(Error::NoMemory)
        } else {
            self.ledger.sinks.result().err()
        }
    }

    /// The process exits: what other threads register from now on would be lost with them, and so they are told that it is not
    /// taken.
    fn shut_out(&mut self) {
        self.engine.shut_out();
        barrier::all_threads();
        self.collect();
        let engine = self.engine;
        let others = || self.sources.values().map(|source| &source.slot).filter(|slot| engine.is_shut_out(slot.tid));
        others().for_each(|slot| slot.shut());
        barrier::all_threads();
        let end = Instant::now() + RECORD_PATIENCE;
        while others().any(|slot| slot.is_busy()) {
            if Instant::now() > end {
                return;
            }
            thread::sleep_micros(20);
        }
        engine.set_exit_whole();
    }

    /// While the process exits: a write that it interrupts would leave a torn record.
    fn wait_to_be_asked(&mut self) {
        self.collect();
        if !self.is_asked() {
            self.engine.parker.park();
        }
    }

    /// Sleeps until it is woken, unless there is something to do already.
    fn sleep(&mut self) {
        // Nobody has registered anything for a while: an idle process keeps little.
        self.take_back();
        self.engine.pool.shrink_to_start();
        self.engine.clock.rest();
        self.engine.set_asleep(true);
        barrier::all_threads();
        // Whoever publishes a record or sends something from now on sees the announcement; what came before is found here.
        self.collect();
        if !self.is_asked() && !self.sources.values().any(Source::has_unread) {
            let again = self.ledger.sinks.again_in().into_iter().chain(self.ledger.region_code.again_in()).min();
            if last_thread::first_has_ended() {
                self.sleep_as_the_last(again);
            } else if let Some(time) = again {
                self.engine.parker.park_timeout(time);
            } else if self.engine.first_tells() {
                self.engine.parker.park();
            } else {
                while self.engine.is_asleep() && !last_thread::first_has_ended() {
                    self.engine.parker.park_timeout(LOOK_SELDOM);
                }
            }
        }
        self.engine.set_asleep(false);
    }

    /// Sleeps, unless the host has no thread any more. The C library ends a process with its last thread, which is one of ours as long
    /// as nobody closes the session.
    fn sleep_as_the_last(&mut self, again: Option<Duration>) {
        if self.last_thread.is_this_one(|| !self.engine.is_asleep()) {
            // Exit handlers find the descriptors that the host has left open.
            delegate::run(&thread::end_process);
        }
        self.engine.parker.park_timeout(again.map_or(LOOK_AROUND, |time| time.min(LOOK_AROUND)));
    }

    /// Reads everything that was published, writes it, and recycles the chunks. `now`: whoever asked wants all sinks up to
    /// date. Returns how many bytes were read.
    fn pass(&mut self, now: bool) -> usize {
        self.standstill().enter();
        let bytes = self.pass_inside(now);
        self.standstill().leave();
        bytes
    }

    fn pass_inside(&mut self, now: bool) -> usize {
        self.engine.clear_hurry();
        self.engine.clock.rebase();
        self.short = memory::is_short();
        if self.short {
            // Whoever asks for something has to be told.
            self.collect();
            return 0;
        }
        // Records stamped later than this wait for the next pass. A record that came about because of another one is stamped
        // after the other was published; so if it is read in this pass, the other one is found in this pass too.
        let cutoff = self.engine.clock.now();
        self.cutoff = cutoff;
        fence(Ordering::SeqCst);
        self.collect();
        let mut merge = Merge::new(self.sources.values().map(Source::readings));
        let mut groups = Groups::default();
        let (mut bytes, mut uncommitted) = (0, 0);
        while !self.short {
            let Some((chunk, mut event)) = merge.next(cutoff) else { break };
            uncommitted += size_of::<Event>() + event.body_len as usize;
            self.ledger.apply(chunk, &mut event, &mut groups);
            self.short = memory::is_short();
            if uncommitted >= COMMIT_BYTES {
                bytes += std::mem::take(&mut uncommitted);
                let until = self.ledger.last_time;
                self.commit(&mut merge, &mut groups, false, until);
            }
        }
        self.commit(&mut merge, &mut groups, now, cutoff);
        bytes += uncommitted;
        if (bytes > 0 || now) && self.spool_seen.is_none_or(|seen| now || seen.elapsed() >= LOOK_AT_SPOOL) {
            self.spool_seen = Some(Instant::now());
            self.renew_spool();
        }
        bytes
    }

    /// Writes everything that was read, which is all that was stamped before `until`, and recycles the chunks that it was in.
    fn commit(&mut self, merge: &mut Merge, groups: &mut Groups, now: bool, until: u64) {
        let ledger = &mut self.ledger;
        ledger.sinks.write_groups(groups);
        if ledger.sinks.remember() {
            // Memory is for what a sink that is started later has to say.
            if !ledger.sinks.map_runs() {
                ledger.registry.forget_dead();
            }
            ledger.registry.tidy();
        }
        let forgotten = ledger.registry.forget_oldest();
        if forgotten > 0 {
            self.engine.status.counters.map_forgotten.add(forgotten as u64);
            ledger.sinks.changed();
        }
        if now {
            ledger.sinks.check_dump();
        }
        let memory = self.engine.pool.memory();
        ledger.sinks.write(&mut ledger.registry, now, &|file| memory.header().set_next_map(file));
        ledger.write_regions(now, until);
        let state = ledger.state();
        if merge.mark(memory.next_pass()) || state != self.committed {
            memory.commit(&state);
            self.committed = state;
        }
        // What replaces the jitdump holds what is committed.
        if ledger.repair(now, &|file| memory.header().set_next_dump(file)) {
            ledger.sinks.announce_paths();
            if let Some(config) = &self.config {
                memory.header().set_files(&ledger.sinks.files(config));
            }
            self.committed = ledger.state();
            memory.commit(&self.committed);
        }
        self.heed_notices();
        self.engine.ids.prepare();
        self.recycle();
        self.engine.status.counters.live.set(self.ledger.live_count() as u64);
    }

    /// If somebody has removed the spool, as cleaners of shared memory do, makes another one as soon as no record is on its way.
    fn renew_spool(&mut self) {
        let pool = &self.engine.pool;
        let Some(config) = self.config.as_ref().filter(|_| pool.memory().is_spool_lost()) else { return };
        self.host.last_error.set("somebody has removed the spool".into());
        self.take_back();
        if self.sources.values().any(Source::has_unread) || !pool.shut() {
            return;
        }
        if let Some(why) = pool.open(Some(&config.spool_dir)) {
            self.host.last_error.set(why);
        }
        let memory = pool.memory();
        memory.header().set_files(&self.ledger.sinks.files(config));
        memory.commit(&self.ledger.state());
    }

    /// Tells the ids what has become of them.
    fn heed_notices(&mut self) {
        let ids = &self.engine.ids;
        for notice in self.ledger.notices.drain(..) {
            match notice {
                // The caller has retired the id; nothing refers to it any more.
                Notice::Unregistered(id) => ids.recycle(Id(id)),
                // If its owner is faster, that call's record recycles it.
                Notice::Retired(id) if ids.retire(Id(id)) => ids.recycle(Id(id)),
                Notice::Retired(_) => {}
                Notice::Read(id) => {
                    ids.set_read(Id(id));
                    self.engine.add_unread(-1);
                }
            }
        }
    }

    /// The requests; none if a signal handler waits, which may have interrupted the thread that has them.
    fn requests(&self) -> Option<MutexGuard<'static, Requests>> {
        match self.engine.try_requests() {
            None if !self.engine.urgent.is_pending() => Some(self.engine.requests()),
            requests => requests,
        }
    }

    /// Finds out which chunks there are to read, and what was asked for.
    fn collect(&mut self) {
        if let Some(mut requests) = self.requests() {
            self.asked = requests.asked;
            self.exiting = requests.exiting.is_some();
            self.stop = requests.stop.take().or(self.stop.take());
            if self.change.is_none() {
                self.change = requests.change.take();
            }
        }
        for source in self.sources.values_mut() {
            // Before the channel is emptied: what an ended thread has sent is then in the channel.
            source.ended = source.slot.is_detached();
            source.current = source.slot.current();
        }
        // After the slots, so that a chunk which a thread changes now is found at least once, and the older chunks of a
        // thread are always known before newer ones.
        while let Some(message) = self.engine.receive() {
            match message {
                Message::Attach(slot) => {
                    // Its full chunks, if it has any, come behind this message.
                    let current = slot.current();
                    let source = Source { slot, full: VecDeque::new(), current, ended: false };
                    self.sources.insert(source.slot.number, source);
                }
                Message::Full { slot, chunk } => {
                    if let Some(source) = self.sources.get_mut(&slot) {
                        source.full.push_back(chunk);
                    }
                }
            }
        }
    }

    /// Gives back the chunks that are read to their end and that no thread writes to any more.
    fn recycle(&mut self) {
        let pool = &self.engine.pool;
        self.sources.retain(|_, source| {
            while let Some(&chunk) = source.full.front() {
                // The thread has sent it, and is about to take it out of its slot.
                let still_in_slot = source.slot.current() == Some(chunk);
                if still_in_slot || chunk.consumed() < chunk.committed() {
                    break;
                }
                source.full.pop_front();
                pool.recycle(chunk);
            }
            !(source.ended && source.full.is_empty())
        });
        // Before the pool grows: memory that nobody uses is better than more.
        if pool.is_low() {
            self.take_back();
        }
        pool.shrink_if_cramped();
        if !self.off {
            pool.replenish();
        }
    }

    /// Takes back the chunks of threads that have nothing in them to be read and are not laying down anything.
    fn take_back(&self) {
        let slots = self.sources.values().map(|source| &source.slot);
        let idle = |slot: &&Arc<Slot>| slot.current().is_some_and(|chunk| chunk.consumed() == chunk.committed());
        let wanted: Vec<&Arc<Slot>> = slots.filter(idle).filter(|slot| slot.want()).collect();
        if wanted.is_empty() {
            return;
        }
        barrier::all_threads();
        for chunk in wanted.iter().filter_map(|slot| slot.take()) {
            self.engine.pool.recycle(chunk);
        }
    }

    /// Closes the files.
    fn finish(&mut self, off: bool) -> Result<()> {
        self.standstill().enter();
        let problem = if off {
            // A sink that could not start is none of those that are stopped.
            let unwritten = self.engine.status.sinks_unwell() != Sinks::NONE;
            self.turn_off();
            unwritten.then_some(Error::SinkFailed)
        } else {
            // Nobody can unregister it any more. What follows from that has time until there is another session: a program
            // that ends need not wait for it.
            self.ledger.finish_regions();
            self.ledger.sinks.close();
            self.ledger.sinks.result().err()
        };
        if self.short {
            self.engine.set_left_unread();
        }
        let problem = if self.short { Some(Error::NoMemory) } else { problem };
        self.engine.status.counters.live.set(0);
        self.engine.pool.memory().commit(&self.ledger.state());
        self.engine.pool.shrink(0);
        self.engine.status.stop_sinks();
        self.engine.urgent.end(problem);
        end_requests(self.engine, problem);
        self.config = None;
        delegate::stop();
        problem.map_or(Ok(()), Err)
    }

    /// Begins a new life: ends what the last session has left registered, throws away what calls that lost the race with the
    /// last close have left behind (they returned `Closed`), and takes requests again.
    fn begin(&mut self) {
        self.off = false;
        let Ledger { registry, region_code, notices, .. } = &mut self.ledger;
        registry.remove_all(|id| notices.push(Notice::Retired(id)));
        region_code.registry.remove_all(|id| notices.push(Notice::Retired(id)));
        self.ledger.regions.no_code_at_all();
        self.heed_notices();
        self.collect();
        let mut requests = self.engine.requests();
        // Including what was asked for since `collect`: nobody would answer it any more.
        self.asked = requests.asked;
        self.answered = self.asked;
        let exiting = requests.exiting;
        *requests = Requests { open: true, asked: self.asked, answered: self.asked, exiting, ..Requests::default() };
        drop(requests);
        if exiting.is_some() {
            // Nobody waits for what is written in this session, but for the exiting thread.
            self.exiting = true;
            self.shut_out();
        }
        let mut merge = Merge::new(self.sources.values().map(Source::readings));
        while let Some((_, event)) = merge.next(u64::MAX) {
            match event.kind {
                Kind::Load => self.ledger.notices.push(Notice::Retired(event.id)),
                Kind::Unregister => self.ledger.notices.push(Notice::Unregistered(event.id)),
                Kind::Move | Kind::UnregisterRange => {}
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

    /// Begins on the thread that is to run it: sees to dead processes if asked to, opens the spool and the sinks. False if no sink
    /// runs that is wanted.
    pub fn start(&mut self, config: &Config, recover: bool) -> bool {
        let engine = self.engine;
        if recover {
            engine.status.counters.recovered.add(recover::tidy(&config.spool_dir, config.recover));
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
        true
    }

    /// Opens the sinks. Returns those that run.
    fn open(&mut self, config: &Config) -> Sinks {
        let running = self.ledger.sinks.open(config);
        self.ledger.sinks.announce_paths();
        let memory = self.engine.pool.memory();
        memory.header().set_files(&self.ledger.sinks.files(config));
        memory.commit(&self.ledger.state());
        self.config = Some(config.clone());
        running
    }
}

/// The writer has panicked: that ends the library's work, not the process.
pub fn fail(host: &Host, engine: &Engine) {
    host.last_error.set("the writer failed".into());
    host.set_broken();
    engine.status.stop_sinks();
    delegate::stop();
    engine.urgent.end(Some(Error::Internal));
    end_requests(engine, Some(Error::Internal));
}

/// Nobody answers requests any more. `problem`: why not everything is written.
fn end_requests(engine: &Engine, problem: Option<Error>) {
    let mut requests = engine.requests();
    (requests.open, requests.result) = (false, problem);
    // Whoever waits for it learns that nobody will come.
    (requests.stop, requests.change) = (None, None);
    engine.tell_waiting();
    drop(requests);
    engine.status.standstill.end();
}

impl Source {
    fn has_unread(&self) -> bool {
        self.readings().any(|chunk| chunk.consumed() < chunk.committed())
    }

    /// The chunks to read in this pass, oldest first.
    fn readings(&self) -> impl Iterator<Item = Chunk> + '_ {
        // If the thread has sent the chunk meanwhile, it is there twice.
        let current = self.current.filter(|current| !self.full.contains(current));
        self.full.iter().copied().chain(current)
    }
}
