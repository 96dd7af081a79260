//! What registering threads and the writer share: the pool, the ids, the channel between them, the counters.

use std::sync::atomic::{compiler_fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use crate::chunk::{Chunk, Pool};
use crate::config::{Config, Sinks};
use crate::error::{Error, Result};
use crate::ids::Ids;
use crate::stats::Counters;
use crate::sys::clock::Clock;
use crate::sys::{barrier, thread};
use crate::writer::Stopped;

/// The first code index. perf names files after the index, in a directory that other writers of the same process (CPython,
/// V8, LLVM) use too, and they all count from 0.
const FIRST_INDEX: u64 = 1 << 40;
/// Threads take code indices by this many.
const INDEX_BLOCK: u64 = 1024;

/// What a registering thread tells the writer, besides the records in its chunk.
pub enum Message {
    /// A thread has begun to register.
    Attach(Arc<Slot>),
    /// A thread has filled a chunk, and writes to it no more.
    Full {
        /// The thread's slot.
        slot: u64,
        /// The chunk.
        chunk: Chunk,
    },
    /// Write out everything and answer.
    Flush(Sender<Result<()>>),
    /// Write out everything, close the files, and hand the writer back.
    Stop(Sender<Stopped>),
}

/// The place of one registering thread.
#[derive(Debug)]
pub struct Slot {
    /// Unique number.
    pub number: u64,
    /// The chunk that the thread fills; null while it changes chunks.
    pub current: AtomicPtr<u8>,
    /// The thread is gone.
    pub detached: AtomicBool,
    /// Odd while the thread lays down a record: from before it takes the time to after it has published.
    progress: AtomicU32,
}

impl Slot {
    /// The thread begins a record; it takes the time afterwards.
    #[inline]
    pub fn begin(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// The thread has published the record, or given it up.
    #[inline]
    pub fn end(&self) {
        let progress = self.progress.load(Ordering::Relaxed) | 1;
        self.progress.store(progress.wrapping_add(1), Ordering::Release);
    }

    /// A number that is odd while a record is being laid down, and another one for each record.
    pub fn progress(&self) -> u32 {
        self.progress.load(Ordering::Acquire)
    }
}

/// The shared state. One a process, never freed.
#[derive(Debug)]
pub struct Engine {
    pub pool: Pool,
    pub ids: Ids,
    pub counters: Counters,
    pub clock: Clock,
    pub pid: u32,
    messages: (Sender<Message>, Receiver<Message>),
    /// Bits of the sinks that are running; none makes every call return at once.
    sinks: AtomicU32,
    sinks_failed: AtomicU32,
    next_index: AtomicU64,
    next_slot: AtomicU64,
    unwind_records: AtomicBool,
    drop_when_full: AtomicBool,
    max_wait_ms: AtomicU32,
    /// The writer sleeps until it is woken.
    asleep: AtomicBool,
    writer_thread: Mutex<Option<Thread>>,
    /// Whether the writer can make a barrier for all threads. If not it never sleeps for good, and never relies on one.
    pub barriers: bool,
}

impl Engine {
    pub fn new(config: &Config) -> Result<Engine> {
        let pool = Pool::new(config.max_memory).map_err(|_| Error::NoMemory)?;
        // Room for every chunk there can be, and for many threads that start at once.
        let messages = crossbeam_channel::bounded(2 * pool.capacity() + 1024);
        Ok(Engine {
            pool,
            ids: Ids::new(),
            counters: Counters::default(),
            clock: config.clock,
            pid: std::process::id(),
            messages,
            sinks: AtomicU32::new(0),
            sinks_failed: AtomicU32::new(0),
            next_index: AtomicU64::new(FIRST_INDEX),
            next_slot: AtomicU64::new(0),
            unwind_records: AtomicBool::new(false),
            drop_when_full: AtomicBool::new(false),
            max_wait_ms: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            writer_thread: Mutex::new(None),
            barriers: barrier::register(),
        })
    }

    /// Takes over what a new configuration says about registering threads.
    pub fn configure(&self, config: &Config) {
        self.unwind_records.store(config.unwind, Ordering::Relaxed);
        self.drop_when_full.store(config.drop_when_full, Ordering::Relaxed);
        let wait = u32::try_from(config.max_wait.as_millis()).unwrap_or(u32::MAX);
        self.max_wait_ms.store(wait, Ordering::Relaxed);
    }

    /// Whether unwinding records are wanted in the jitdump.
    #[inline]
    pub fn unwind_records(&self) -> bool {
        self.unwind_records.load(Ordering::Relaxed)
    }

    /// The sinks that are running.
    #[inline]
    pub fn sinks(&self) -> Sinks {
        Sinks(self.sinks.load(Ordering::Relaxed))
    }

    /// The sinks that could not start or have failed.
    pub fn sinks_failed(&self) -> Sinks {
        Sinks(self.sinks_failed.load(Ordering::Relaxed))
    }

    /// Says which sinks run and which do not though they should.
    pub fn set_sinks(&self, running: Sinks, failed: Sinks) {
        self.sinks_failed.store(failed.0, Ordering::Relaxed);
        self.sinks.store(running.0, Ordering::Relaxed);
    }

    /// A sink has failed; the others go on.
    pub fn sink_failed(&self, sink: Sinks) {
        self.sinks.fetch_and(!sink.0, Ordering::Relaxed);
        self.sinks_failed.fetch_or(sink.0, Ordering::Relaxed);
    }

    /// Nothing is written any more.
    pub fn stop_sinks(&self) {
        self.sinks.store(0, Ordering::Relaxed);
    }

    /// A block of code indices that nobody else has.
    pub fn index_block(&self) -> std::ops::Range<u64> {
        let start = self.next_index.fetch_add(INDEX_BLOCK, Ordering::Relaxed);
        start..start + INDEX_BLOCK
    }

    /// Makes the place of a thread, and tells the writer.
    pub fn attach(&self) -> Result<Arc<Slot>> {
        let slot = Arc::new(Slot {
            number: self.next_slot.fetch_add(1, Ordering::Relaxed),
            current: AtomicPtr::default(),
            detached: AtomicBool::new(false),
            progress: AtomicU32::new(0),
        });
        self.send(Message::Attach(slot.clone()))?;
        Ok(slot)
    }

    /// An empty chunk for a thread.
    pub fn take_chunk(&self) -> Option<Chunk> {
        if self.pool.is_low() {
            self.wake();
        }
        if self.drop_when_full.load(Ordering::Relaxed) {
            return self.pool.take();
        }
        self.pool.take_within(Duration::from_millis(self.max_wait_ms.load(Ordering::Relaxed).into()))
    }

    /// Sends to the writer. There is room but in a storm of new threads, so waiting is the exception.
    pub fn send(&self, message: Message) -> Result<()> {
        self.messages.0.send_timeout(message, Duration::from_millis(100)).map_err(|_| Error::Dropped)
    }

    /// What was sent. For the writer, which never waits here: then no sender ever has to wake it.
    pub fn receive(&self) -> Option<Message> {
        self.messages.1.try_recv().ok()
    }

    /// The thread that `wake` wakes.
    pub fn set_writer_thread(&self, thread: Option<Thread>) {
        *self.writer_thread.lock().unwrap_or_else(PoisonError::into_inner) = thread;
    }

    /// Says that the writer sleeps until it is woken, or that it does not.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Called after each record. One relaxed load: `barrier::all_threads` in the writer, between announcing its sleep and
    /// looking for records a last time, orders it against the publishing of the record.
    #[inline]
    pub fn wake_if_asleep(&self) {
        compiler_fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the writer.
    #[cold]
    pub fn wake(&self) {
        self.set_asleep(false);
        if let Some(thread) = &*self.writer_thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Waits until everything committed before the call is in the files.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        let answer = self.ask_to_flush()?;
        match answer.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(Error::Timeout),
            // The writer stopped before it came to the message: what stops it writes everything.
            Err(RecvTimeoutError::Disconnected) => Err(Error::Closed),
        }
    }

    /// As `flush`, for a thread that is ending: waiting in a channel needs thread-local storage, which is gone already.
    pub fn flush_polling(&self, timeout: Duration) {
        let Ok(answer) = self.ask_to_flush() else { return };
        let end = Instant::now() + timeout;
        while answer.try_recv() == Err(TryRecvError::Empty) && Instant::now() < end {
            thread::sleep_briefly();
        }
    }

    fn ask_to_flush(&self) -> Result<Receiver<Result<()>>> {
        let (ack, answer) = crossbeam_channel::bounded(1);
        self.send(Message::Flush(ack))?;
        self.wake();
        Ok(answer)
    }
}
