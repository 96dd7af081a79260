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
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use crate::capi::boundary;
use crate::chunk::{Chunk, Event, Kind};
use crate::engine::{Engine, Message, Slot};
use crate::error::Result;
use crate::ids::Recycler;
use crate::process::Process;
use crate::registry::Registry;
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

/// How long a pass waits for records that are being laid down.
const STRAGGLER_WAIT: Duration = Duration::from_millis(1);
/// Passes that are put off for one that takes longer. Then the order of time in the file gives way: readers cope.
const DEFERRED_PASSES: u32 = 10;

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
    /// Requests that have come in and are answered after a pass that began later.
    flushes: Vec<Sender<Result<()>>>,
    stop: Option<Sender<Stopped>>,
    /// When the last of them came in.
    asked_at: u64,
    /// Passes given up, one after the other, because a record stamped earlier was still being laid down.
    deferred_passes: u32,
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
            flushes: Vec::new(),
            stop: None,
            asked_at: 0,
            deferred_passes: 0,
        }
    }

    /// The thread's body: runs until it is told to stop. A panic ends the library's work, not the process.
    pub fn run(self: Box<Self>) {
        let process = self.process;
        boundary::enter_for_good();
        if catch_unwind(AssertUnwindSafe(|| self.run_until_stopped())).is_err() {
            process.set_last_error("the writer failed".into());
            process.set_broken();
        }
    }

    fn run_until_stopped(mut self: Box<Self>) {
        let mut pause = SHORTEST_PAUSE;
        let mut idle_passes = 0;
        loop {
            // What was committed before a request was sent may have been stamped or published after the pass began in which
            // the request came in. A pass that begins now has all of it.
            let (flushes, stop) = (std::mem::take(&mut self.flushes), self.stop.take());
            let asked = stop.is_some() || !flushes.is_empty();
            if asked {
                barrier::all_threads();
                while self.engine.clock.now() < self.asked_at + self.engine.clock.slack() {
                    std::hint::spin_loop();
                }
            }
            let bytes = self.pass(asked);
            for ack in flushes {
                // If this fails nobody waits any more.
                let _ = ack.send(self.sinks.result());
            }
            if let Some(ack) = stop {
                self.finish(ack);
                return;
            }
            if self.stop.is_some() || !self.flushes.is_empty() {
                continue;
            }
            pause = if bytes >= BUSY_BYTES { pause / 2 } else { pause * 2 }.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            let idle = bytes == 0 && pause == LONGEST_PAUSE && !self.sinks.have_work();
            idle_passes = if idle { idle_passes + 1 } else { 0 };
            if idle_passes > IDLE_PASSES && self.engine.barriers {
                self.sleep();
                idle_passes = 0;
                pause = SHORTEST_PAUSE;
            } else {
                std::thread::park_timeout(pause);
            }
        }
    }

    /// Sleeps until it is woken, unless there is something to do already.
    fn sleep(&self) {
        self.engine.set_asleep(true);
        barrier::all_threads();
        // Whoever publishes a record from now on sees the announcement; what was published before is seen here.
        if !self.has_work() {
            std::thread::park();
        }
        self.engine.set_asleep(false);
    }

    fn has_work(&self) -> bool {
        self.sources.values().any(|source| {
            let chunk = current_chunk(&source.slot);
            chunk.is_some_and(|chunk| chunk.consumed() < chunk.committed())
        })
    }

    /// Reads everything that was published, writes it, and recycles the chunks. `now`: whoever asked wants all sinks up to
    /// date. Returns how many bytes were read.
    fn pass(&mut self, now: bool) -> usize {
        // Records stamped later than this wait for the next pass. All that are stamped earlier are waited for, so the time in
        // the file does not go back, and a record that came about because of another one never goes before it.
        let cutoff = self.engine.clock.now() - self.engine.clock.slack();
        fence(Ordering::SeqCst);
        self.collect();
        if !self.await_stragglers() && !now && self.deferred_passes < DEFERRED_PASSES {
            self.deferred_passes += 1;
            return 0;
        }
        self.deferred_passes = 0;
        // Again, because a thread that was waited for may have changed chunks.
        self.collect();
        let mut merge = Merge::new(self.sources.values().map(Source::readings));
        let mut groups = Groups::default();
        let mut bytes = 0;
        while let Some((chunk, event)) = merge.next(cutoff) {
            bytes += size_of::<Event>() + event.body_len as usize;
            self.apply(chunk, &event, &mut groups);
        }
        self.sinks.write_groups(&mut groups);
        if self.registry.forget_oldest() > 0 {
            self.sinks.note_forgotten();
        }
        self.sinks.write_map(&self.registry, now);
        self.recycle();
        self.engine.counters.live.set(self.registry.live_count() as u64);
        bytes
    }

    /// Waits for the threads that are just laying down a record, which may be stamped before this pass began. False if one
    /// takes long: it copies much, or has lost its processor.
    fn await_stragglers(&self) -> bool {
        let slots = self.sources.values().map(|source| &source.slot);
        let busy: Vec<(&Slot, u32)> =
            slots.map(|slot| (&**slot, slot.progress())).filter(|(_, progress)| progress % 2 == 1).collect();
        let end = Instant::now() + STRAGGLER_WAIT;
        busy.iter().all(|(slot, progress)| loop {
            if slot.progress() != *progress {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        })
    }

    /// Finds out which chunks there are to read, and what was asked for.
    fn collect(&mut self) {
        for source in self.sources.values_mut() {
            // Before the channel is emptied: what an ended thread has sent is then in the channel.
            source.ended = source.slot.detached.load(Ordering::Acquire);
            source.current = current_chunk(&source.slot);
        }
        // After the slots, so that a chunk which a thread changes now is found at least once, and the older chunks of a
        // thread are always known before newer ones.
        while let Some(message) = self.engine.receive() {
            match message {
                Message::Attach(slot) => {
                    let source = Source { slot, full: VecDeque::new(), current: None, ended: false };
                    self.sources.insert(source.slot.number, source);
                }
                Message::Full { slot, chunk } => {
                    if let Some(source) = self.sources.get_mut(&slot) {
                        source.full.push_back(chunk);
                    }
                }
                Message::Flush(ack) => {
                    self.flushes.push(ack);
                    self.asked_at = self.engine.clock.now();
                }
                Message::Stop(ack) => {
                    self.stop = Some(ack);
                    self.asked_at = self.engine.clock.now();
                }
            }
        }
    }

    /// Gives back the chunks that are read to their end and that no thread writes to any more.
    fn recycle(&mut self) {
        let pool = &self.engine.pool;
        self.sources.retain(|_, source| {
            while let Some(&chunk) = source.full.front().filter(|chunk| chunk.consumed() == chunk.committed()) {
                source.full.pop_front();
                pool.recycle(chunk);
            }
            !(source.ended && source.full.is_empty())
        });
    }

    /// Closes the files and hands everything to whoever waits for it.
    fn finish(mut self: Box<Self>, ack: Sender<Stopped>) {
        // Nobody can unregister it any more.
        for id in self.registry.remove_all() {
            self.retire(id);
        }
        self.engine.counters.live.set(0);
        self.flushes.clear();
        self.sinks.close();
        let result = self.sinks.result();
        self.engine.stop_sinks();
        self.engine.set_writer_thread(None);
        let _ = ack.send((result, self));
    }

    /// Throws away what calls that lost the race with the last close have left behind: they returned `Closed`.
    pub fn discard_leftovers(&mut self) {
        self.collect();
        self.flushes.clear();
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

/// The chunk that a thread is filling.
fn current_chunk(slot: &Slot) -> Option<Chunk> {
    // SAFETY: only the writer recycles chunks, and none that is in a slot, so what is found there exists.
    unsafe { Chunk::from_ptr(slot.current.load(Ordering::Acquire)) }
}

impl Source {
    /// The chunks to read in this pass, oldest first.
    fn readings(&self) -> impl Iterator<Item = Chunk> + '_ {
        // If the thread has sent the chunk meanwhile, it is there twice.
        let current = self.current.filter(|current| !self.full.contains(current));
        self.full.iter().copied().chain(current)
    }
}
