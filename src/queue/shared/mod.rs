//! The state that registering threads and the writer share: the pool of chunks, the ids of code, and the channel for
//! messages.

mod ask;
mod room;
mod wake;

use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Fork, Sinks};
use crate::queue::chunk::Chunk;
use crate::queue::pool::Pool;
use crate::queue::quiesce::Found;
use crate::queue::requests::Requests;
use crate::queue::signal_flush::SignalFlush;
use crate::queue::status::{LastError, Status};
use crate::queue::thread_slot::ThreadSlot;
use crate::queue::writer_in_calls::{InPlace, TRY_AGAIN};
use crate::registry::ids::Ids;
use crate::registry::Registry;
use crate::sys::clock;
use crate::sys::park::Parker;
use crate::sys::stamp_clock::Timekeeper;
use crate::sys::sync::atomic::{fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use crate::sys::sync::channel::{self, Receiver, Sender};
use crate::sys::sync::{Arc, Condvar, Instant, Mutex};
use crate::sys::{reserve, thread};

/// The lowest code index that this library uses.
pub const INDICES_START: u64 = 1 << 40;

/// The first code index of this copy of the library. perf makes files from a jitdump, and the name of each such file contains
/// the pid and the code index. Other jitdump writers in the process may use the same directory, so each writer must use its own
/// indices. The indices of CPython, V8, LLVM and wasmtime begin at 0. Each copy of this library counts from a number that is
/// derived from the copy's address.
fn first_index() -> u64 {
    /// Each copy of the library is larger than this number of bytes, so the addresses of two copies differ by at least this
    /// number. Two copies therefore begin with different indices.
    const PLACE: usize = 1 << 16;
    let place = (first_index as *const () as usize / PLACE) as u64 & 0x7fff_ffff;
    INDICES_START + (place << 28)
}

/// After this number of forks, the writer looks for spools that children have left.
const FORKS: u32 = 16;

/// Number of code indices that a thread takes at once.
const INDEX_BLOCK: u64 = 1024;

/// The messages that a registering thread sends to the writer in addition to the records in its chunk.
pub enum Message {
    /// A thread has begun to register.
    Attach(Arc<ThreadSlot>),
    /// A thread has filled a chunk, and no longer writes to it.
    Full { slot: u64, chunk: Chunk },
}

/// The shared state. A process has one shared state, and never frees it.
#[derive(Debug)]
pub struct Shared {
    pub pool: Pool,
    pub ids: Ids,
    pub status: Arc<Status>,
    pub clock: Timekeeper,
    messages: (Sender<Message>, Receiver<Message>),
    requests: Mutex<Requests>,
    answered: Condvar,
    next_index: AtomicU64,
    next_slot: AtomicU64,
    /// Number of threads that have a slot.
    attached: AtomicUsize,
    unwind_records: AtomicBool,
    inline_records: AtomicBool,
    drop_when_full: AtomicBool,
    max_wait_ms: AtomicU32,
    fork: AtomicU8,
    /// Number of forks since the writer last looked for spools of children.
    forks: AtomicU32,
    /// Number of registrations and of moves whose code bytes the writer still has to read.
    unread: AtomicI64,
    /// One bit for each kind of additional work that threads have to do after their next record (`wake`).
    attention: AtomicU8,
    /// Whether a thread could not run the writer in place (`queue/writer_in_calls`), because another thread was running the
    /// writer or a fork was under way.
    missed: AtomicBool,
    /// Whether a lack of free chunks has woken the writer, and no round has begun since.
    hurried: AtomicBool,
    /// Whether the end of the process's first thread will wake the writer (`set_first_tells`).
    first_tells: AtomicBool,
    pub parker: Parker,
    /// The writer that runs inside the host's calls. Used only if the library has no thread that runs the writer.
    pub in_place: InPlace,
    pub signal_flush: SignalFlush,
    /// Whether the process exits. If this field is true, only the exiting thread may register code.
    shut: AtomicBool,
    /// Whether the next round reads all records of the threads other than the exiting thread.
    exit_whole: AtomicBool,
    /// Whether a writer has ended without reading all records, because memory was short.
    left_unread: AtomicBool,
    /// Whether memory is short. If this field is true, the writer leaves records in their chunks.
    short: AtomicBool,
}

impl Shared {
    pub fn new(config: &Config, last_error: &Arc<LastError>) -> Result<Shared> {
        let pool = Pool::new(config.max_memory).map_err(|_| Error::NoMemory)?;
        // The channel allocates its memory in one piece, and cannot report a failure of this allocation. So this code first
        // checks whether the memory is available.
        if !reserve::is_there((pool.most_chunks() + 1024) * 64) {
            return Err(Error::NoMemory);
        }
        // The channel has room for one message about each chunk that can exist, and also for the messages of many threads
        // that start at once.
        let messages = channel::bounded(pool.most_chunks() + 1024);
        Ok(Shared {
            pool,
            ids: Ids::new(),
            status: Arc::new(Status::new(std::process::id(), config.clock, last_error.clone())),
            clock: Timekeeper::new(config.clock),
            messages,
            requests: Mutex::default(),
            answered: Condvar::new(),
            next_index: AtomicU64::new(first_index()),
            next_slot: AtomicU64::new(0),
            attached: AtomicUsize::new(0),
            unwind_records: AtomicBool::new(false),
            inline_records: AtomicBool::new(false),
            drop_when_full: AtomicBool::new(false),
            max_wait_ms: AtomicU32::new(0),
            fork: AtomicU8::new(config.fork as u8),
            forks: AtomicU32::new(0),
            unread: AtomicI64::new(0),
            attention: AtomicU8::new(0),
            missed: AtomicBool::new(false),
            hurried: AtomicBool::new(false),
            first_tells: AtomicBool::new(false),
            parker: Parker::default(),
            in_place: InPlace::default(),
            signal_flush: SignalFlush::default(),
            shut: AtomicBool::new(false),
            exit_whole: AtomicBool::new(false),
            left_unread: AtomicBool::new(false),
            short: AtomicBool::new(false),
        })
    }

    /// Applies those parts of a new configuration that concern registering threads.
    pub fn configure(&self, config: &Config) {
        clock::find_host();
        self.unwind_records.store(config.unwind, Ordering::Relaxed);
        self.inline_records.store(config.inlines, Ordering::Relaxed);
        self.drop_when_full.store(config.drop_when_full, Ordering::Relaxed);
        let wait = u32::try_from(config.max_wait.as_millis()).unwrap_or(u32::MAX);
        self.max_wait_ms.store(wait, Ordering::Relaxed);
        self.fork.store(config.fork as u8, Ordering::Relaxed);
    }

    pub fn fork(&self) -> Fork {
        let mode = self.fork.load(Ordering::Relaxed);
        [Fork::FirstCall, Fork::AtOnce, Fork::Alone].into_iter().find(|known| *known as u8 == mode).unwrap_or_default()
    }

    /// Counts a fork. Returns whether the writer should now look for spools of children.
    pub fn has_forked(&self) -> bool {
        self.forks.fetch_add(1, Ordering::Relaxed) + 1 >= FORKS
    }

    /// Whether the writer should now look for spools of children. If `any` is true, the result is true after one fork. If `any`
    /// is false, the result is true after `FORKS` forks. If the result is true, the count of forks begins again: at 0 if `any`
    /// is true, otherwise at 1. With 1, a later call with `any` true returns true for the last child, which may still be alive
    /// now.
    pub fn children_are_due(&self, any: bool) -> bool {
        let are_due = self.forks.load(Ordering::Relaxed) >= if any { 1 } else { FORKS };
        if are_due {
            self.forks.store(u32::from(!any), Ordering::Relaxed);
        }
        are_due
    }

    /// In a forked child: continues with the parent's ids and code indices.
    pub fn inherit(&mut self, parent: &Shared, registry: &mut Registry) {
        self.ids = parent.ids.inherit(registry);
        self.next_index = AtomicU64::new(parent.next_index.load(Ordering::Relaxed));
    }

    /// Whether registering threads have to add unwinding records for the jitdump.
    #[inline]
    pub fn unwind_records(&self) -> bool {
        self.unwind_records.load(Ordering::Relaxed)
    }

    /// Whether registering threads have to add records of inlined functions for the jitdump.
    pub fn inline_records(&self) -> bool {
        self.inline_records.load(Ordering::Relaxed)
    }

    /// The sinks for which threads write records, with flags in the highest bits (see [`Status::wanted`]).
    #[inline]
    pub fn wanted(&self) -> Sinks {
        self.status.wanted()
    }

    /// Whether threads write no records, because `wanted` is empty. Sinks may still be writing earlier records.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.wanted() == Sinks::NONE
    }

    #[inline]
    pub fn add_unread(&self, change: i64) {
        if change != 0 {
            self.unread.fetch_add(change, Ordering::AcqRel);
        }
    }

    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Acquire) > 0
    }

    /// A block of code indices that only the caller has.
    pub fn index_block(&self) -> std::ops::Range<u64> {
        let start = self.next_index.fetch_add(INDEX_BLOCK, Ordering::Relaxed);
        start..start + INDEX_BLOCK
    }

    /// Makes a slot for the calling thread and sends it to the writer.
    pub fn attach(&self) -> Result<Arc<ThreadSlot>> {
        if self.messages.0.is_full() && self.in_place.is_used() {
            self.wake();
        }
        let slot = Arc::new(ThreadSlot::new(self.next_slot.fetch_add(1, Ordering::Relaxed)));
        self.attached.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = self.send(Message::Attach(slot.clone())) {
            self.detached();
            return Err(error);
        }
        self.status.quiesce.wait_to_register();
        if self.is_shut_out(slot.tid) {
            slot.detach();
            self.detached();
            return Err(Error::Closed);
        }
        Ok(slot)
    }

    /// From now on, only the exiting thread may register code.
    pub fn shut_out(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Whether the thread `tid` must no longer register code, because another thread exits the process. A new thread has to
    /// send its slot to the writer before it calls this function.
    pub fn is_shut_out(&self, tid: u32) -> bool {
        fence(Ordering::SeqCst);
        self.shut.load(Ordering::SeqCst) && self.signal_flush.exits_elsewhere(tid)
    }

    pub fn set_left_unread(&self) {
        self.left_unread.store(true, Ordering::Release);
    }

    /// Notes whether memory is short.
    pub fn set_short(&self, is_short: bool) {
        self.short.store(is_short, Ordering::Relaxed);
    }

    pub fn has_left_unread(&self) -> bool {
        self.left_unread.load(Ordering::Acquire)
    }

    pub fn set_exit_whole(&self) {
        self.exit_whole.store(true, Ordering::Release);
    }

    /// Whether the exiting thread's flush covers everything that other threads have registered. The result is valid once the
    /// flush is answered.
    pub fn is_exit_whole(&self) -> bool {
        self.exit_whole.load(Ordering::Acquire)
    }

    /// Decreases the number of threads that have a slot, because a thread gives up its slot.
    pub fn detached(&self) {
        self.attached.fetch_sub(1, Ordering::Release);
    }

    /// Whether the writer has consumed all records, and only the calling thread has a slot. `own` is 1 if the calling thread
    /// has a slot, otherwise 0. During this call, the writer and all threads that begin to register must be kept waiting.
    fn is_quiescent(&self, own: usize) -> bool {
        fence(Ordering::SeqCst);
        self.attached.load(Ordering::Acquire) == own && !self.pool.memory().has_unread()
    }

    /// Before a fork: quiesces the library (`queue::quiesce`) within `patience`. If the calling thread has a slot, the writer
    /// has to read records up to the time `own`. All unread records of the calling thread have time stamps up to `own`.
    pub fn quiesce(&self, own: Option<u64>, patience: Duration) -> Found {
        let still = &self.status.quiesce;
        // In most processes that fork, only the forking thread registers code. Usually this thread has registered nothing for a
        // while, so the writer has read all records, and no round of the writer is needed.
        match still.prepare_at_once(|| self.is_quiescent(own.is_some().into())) {
            Some(found) => found,
            None => {
                let again = self.in_place.is_used().then_some(TRY_AGAIN);
                still.prepare(own.unwrap_or_default(), patience, again, || {
                    self.wake();
                    self.slow_threads_down();
                })
            }
        }
    }

    /// Sends a message to the writer. This function waits only while the channel is full, for instance because very many
    /// threads start at once.
    pub fn send(&self, message: Message) -> Result<()> {
        if self.messages.0.is_full() {
            self.hurry();
        }
        let end = Instant::now() + Duration::from_millis(self.max_wait_ms.load(Ordering::Relaxed).into());
        let mut message = message;
        // The channel's blocking `send` is not used, because it needs thread-local storage with a destructor (see
        // `sys/dynamic_symbols`).
        while let Err(full) = self.messages.0.try_send(message) {
            if Instant::now() >= end {
                self.status.counters.dropped.add(1);
                return Err(Error::Dropped);
            }
            message = full.into_inner();
            thread::sleep_micros(100);
        }
        Ok(())
    }

    /// Sends a message to the writer. Returns false if the channel is full.
    pub fn send_now(&self, message: Message) -> bool {
        self.messages.0.try_send(message).is_ok()
    }

    /// The next message. Only the writer calls this function. The writer never waits in the channel, so no sender has to wake
    /// it.
    pub fn receive(&self) -> Option<Message> {
        self.messages.1.try_recv().ok()
    }
}
