//! The background thread: collects what the registering threads have laid down, in the order of time, and writes it out.
//!
//! It sleeps between passes and never waits inside a channel, so that no registering thread pays for waking it. The pause
//! adapts to the load; after a second without work it sleeps until it is woken.

mod apply;
mod merge;
mod sinks;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::capi::boundary;
use crate::chunk::{Chunk, Event, Kind};
use crate::engine::{Engine, Message, Requests};
use crate::error::Result;
use crate::format::jitdump::set_time;
use crate::ids::Recycler;
use crate::process::Process;
use crate::registry::Registry;
use crate::slot::Slot;
use crate::sys::barrier;
use crate::Id;
use merge::Merge;
use sinks::{Groups, SinkSet};

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A pass with at least this many bytes shortens the pause.
const BUSY_BYTES: usize = 64 * 1024;
/// Passes without work, at the longest pause, before the writer sleeps until it is woken.
const IDLE_PASSES: u32 = 20;

/// The answer to a request to stop: how it went, and the writer for the next thread.
pub type Stopped = (Result<()>, Box<Writer>);

/// Everything that only the writer touches. Handed from one thread to the next when sessions close and open again.
pub struct Writer {
    process: &'static Process,
    engine: &'static Engine,
    registry: Registry,
    recycler: Recycler,
    pub sinks: SinkSet,
    sources: BTreeMap<u64, Source>,
    /// Requests as they have come in; they are answered after a pass that began later.
    asked: u64,
    answered: u64,
    stop: Option<Sender<Stopped>>,
    exiting: bool,
    /// Time of the last record.
    last_time: u64,
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
    pub fn new(process: &'static Process, engine: &'static Engine) -> Writer {
        Writer {
            process,
            engine,
            registry: Registry::default(),
            recycler: Recycler::default(),
            sinks: SinkSet::new(process, engine),
            sources: BTreeMap::new(),
            asked: 0,
            answered: 0,
            stop: None,
            exiting: false,
            last_time: 0,
        }
    }

    /// The thread's body: runs until it is told to stop. A panic ends the library's work, not the process.
    pub fn run(self: Box<Self>) {
        let process = self.process;
        boundary::enter_for_good();
        if catch_unwind(AssertUnwindSafe(|| self.run_until_stopped())).is_err() {
            process.set_last_error("the writer failed".into());
            process.set_broken();
            if let Some(engine) = process.engine() {
                end_requests(engine);
            }
        }
    }

    fn run_until_stopped(mut self: Box<Self>) {
        let mut pause = SHORTEST_PAUSE;
        let mut idle_passes = 0;
        loop {
            // What was committed before a request was made may have been stamped or published after the pass began in which
            // the request came in. A pass that begins now has all of it.
            let (due, stop) = (self.asked, self.stop.take());
            let asked = stop.is_some() || due > self.answered;
            if asked {
                barrier::all_threads();
            } else if self.exiting {
                self.wait_to_be_asked();
                continue;
            }
            let bytes = self.pass(asked);
            if asked {
                self.answer(due);
            }
            if let Some(ack) = stop {
                self.finish(ack);
                return;
            }
            if self.is_asked() {
                continue;
            }
            pause = if bytes >= BUSY_BYTES { pause / 2 } else { pause * 2 }.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            let idle = bytes == 0 && pause == LONGEST_PAUSE && !self.sinks.have_work();
            idle_passes = if idle { idle_passes + 1 } else { 0 };
            if idle_passes > IDLE_PASSES {
                self.sleep();
                idle_passes = 0;
                pause = SHORTEST_PAUSE;
            } else {
                std::thread::park_timeout(pause);
            }
        }
    }

    fn is_asked(&self) -> bool {
        self.stop.is_some() || self.asked > self.answered
    }

    fn answer(&mut self, due: u64) {
        self.answered = due;
        let mut requests = self.engine.requests();
        requests.answered = due;
        requests.result = self.sinks.result().err();
        self.engine.tell_waiting();
    }

    /// While the process exits: a write that it interrupts would leave a torn record.
    fn wait_to_be_asked(&mut self) {
        self.collect();
        if !self.is_asked() {
            std::thread::park();
        }
    }

    /// Sleeps until it is woken, unless there is something to do already.
    fn sleep(&mut self) {
        self.engine.set_asleep(true);
        barrier::all_threads();
        // Whoever publishes a record or sends something from now on sees the announcement; what came before is found here.
        self.collect();
        if !self.is_asked() && !self.sources.values().any(Source::has_unread) {
            std::thread::park();
        }
        self.engine.set_asleep(false);
    }

    /// Reads everything that was published, writes it, and recycles the chunks. `now`: whoever asked wants all sinks up to
    /// date. Returns how many bytes were read.
    fn pass(&mut self, now: bool) -> usize {
        // Records stamped later than this wait for the next pass. A record that came about because of another one is stamped
        // after the other was published; so if it is read in this pass, the other one is found in this pass too.
        let cutoff = self.engine.clock.now();
        fence(Ordering::SeqCst);
        self.collect();
        let mut merge = Merge::new(self.sources.values().map(Source::readings));
        let mut groups = Groups::default();
        let mut bytes = 0;
        while let Some((chunk, mut event)) = merge.next(cutoff) {
            self.keep_order(chunk, &mut event);
            bytes += size_of::<Event>() + event.body_len as usize;
            self.apply(chunk, &event, &mut groups);
        }
        self.sinks.write_groups(&mut groups);
        let forgotten = self.registry.forget_oldest();
        if forgotten > 0 {
            self.engine.counters.map_forgotten.add(forgotten as u64);
            self.sinks.note_forgotten();
        }
        if now {
            self.sinks.check_dump();
        }
        self.sinks.write_map(&self.registry, now);
        self.recycle();
        self.engine.counters.live.set(self.registry.live_count() as u64);
        bytes
    }

    /// Time must not go back in the file. A record that was stamped before the end of an earlier pass but published after it is
    /// given the time of the last record that was written then. That is as true: its call had not returned yet, so its code
    /// had not run.
    fn keep_order(&mut self, chunk: Chunk, event: &mut Event) {
        if event.timestamp < self.last_time {
            event.timestamp = self.last_time;
            if event.kind == Kind::Load {
                // SAFETY: this pass recycles the chunk at its end, and there is no other reference to this body yet.
                set_time(unsafe { chunk.body_mut(event) }, self.last_time);
            }
        }
        self.last_time = event.timestamp;
    }

    /// Finds out which chunks there are to read, and what was asked for.
    fn collect(&mut self) {
        let mut requests = self.engine.requests();
        self.asked = requests.asked;
        self.exiting = requests.exiting;
        self.stop = requests.stop.take().or(self.stop.take());
        drop(requests);
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
        if pool.is_low() {
            self.take_back();
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

    /// Closes the files and hands everything to whoever waits for it.
    fn finish(mut self: Box<Self>, ack: Sender<Stopped>) {
        // Nobody can unregister it any more.
        for id in self.registry.remove_all() {
            self.retire(id);
        }
        self.engine.counters.live.set(0);
        self.sinks.close();
        let result = self.sinks.result();
        self.engine.stop_sinks();
        self.engine.set_writer_thread(None);
        end_requests(self.engine);
        let _ = ack.send((result, self));
    }

    /// Begins a new life: throws away what calls that lost the race with the last close have left behind (they returned
    /// `Closed`), and takes requests again.
    pub fn begin(&mut self) {
        self.collect();
        let mut requests = self.engine.requests();
        // Including what was asked for since `collect`: nobody would answer it any more.
        self.asked = requests.asked;
        self.answered = self.asked;
        *requests = Requests { open: true, asked: self.asked, answered: self.asked, ..Requests::default() };
        drop(requests);
        let mut merge = Merge::new(self.sources.values().map(Source::readings));
        while let Some((_, event)) = merge.next(u64::MAX) {
            match event.kind {
                Kind::Load => self.retire(event.id),
                Kind::Unregister => self.recycler.add(&self.engine.ids, Id(event.id)),
                Kind::Move | Kind::UnregisterRange => {}
            }
        }
        self.recycle();
    }

    /// Ends the id of code that the writer itself took out of the registry.
    fn retire(&mut self, id: u64) {
        // If its owner is faster, that call's record recycles it.
        if self.engine.ids.retire(Id(id)) {
            self.recycler.add(&self.engine.ids, Id(id));
        }
    }
}

/// Nobody answers requests any more.
fn end_requests(engine: &Engine) {
    let mut requests = engine.requests();
    requests.open = false;
    // Whoever waits for it learns that nobody will come.
    requests.stop = None;
    engine.tell_waiting();
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
