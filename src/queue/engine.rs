//! What registering threads and the writer share: the pool, the ids, the channel between them.

use std::sync::TryLockError;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Fork, Sinks};
use crate::queue::chunk::{Chunk, Cursor};
use crate::queue::pool::Pool;
use crate::queue::quiesce::Found;
use crate::queue::requests::Requests;
use crate::queue::signal_flush::Urgent;
use crate::queue::status::{LastError, Status};
use crate::queue::thread_slot::Slot;
use crate::registry::ids::Ids;
use crate::registry::Registry;
use crate::sys::clock::{self, Timekeeper};
use crate::sys::park::Parker;
use crate::sys::sync::atomic::{
    compiler_fence, fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use crate::sys::sync::channel::{self, Receiver, Sender};
use crate::sys::sync::{Arc, Condvar, Instant, Mutex, MutexGuard, PoisonError};
use crate::sys::{barrier, memory, thread};

/// The first code index. perf names files after process and index, in a directory that other writers of the same process use
/// too: CPython, V8, LLVM and wasmtime count from 0, other copies of this library from the address where they lie.
fn first_index() -> u64 {
    /// A copy is larger than this, so that no two begin with the same number.
    const PLACE: usize = 1 << 16;
    let place = (first_index as *const () as usize / PLACE) as u64 & 0x7fff_ffff;
    (1 << 40) + (place << 28)
}

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
}

/// The shared state. One a process, never freed.
#[derive(Debug)]
pub struct Engine {
    pub pool: Pool,
    pub ids: Ids,
    pub status: Arc<Status>,
    pub clock: Timekeeper,
    messages: (Sender<Message>, Receiver<Message>),
    requests: Mutex<Requests>,
    answered: Condvar,
    next_index: AtomicU64,
    next_slot: AtomicU64,
    /// Number of threads that have a place.
    attached: AtomicUsize,
    unwind_records: AtomicBool,
    drop_when_full: AtomicBool,
    max_wait_ms: AtomicU32,
    fork: AtomicU8,
    /// Number of registrations and moves whose code bytes the writer has to read yet.
    unread: AtomicI64,
    /// The writer sleeps until it is woken.
    asleep: AtomicBool,
    /// Somebody has woken the writer because chunks run short, and it has not come to that yet.
    hurried: AtomicBool,
    /// The process's first thread wakes the writer when it ends, and has not begun to.
    first_tells: AtomicBool,
    /// What the writer sleeps at.
    pub parker: Parker,
    /// What signal handlers ask the writer for.
    pub urgent: Urgent,
    /// The process exits, and only the thread by which it does so registers anything.
    shut: AtomicBool,
    /// No other thread has anything left to be written.
    exit_whole: AtomicBool,
    /// A writer has ended with records unread, for want of memory.
    left_unread: AtomicBool,
}

impl Engine {
    pub fn new(config: &Config, last_error: &Arc<LastError>) -> Result<Engine> {
        let pool = Pool::new(config.max_memory).map_err(|_| Error::NoMemory)?;
        // The channel takes its memory in one piece.
        if !memory::is_there((pool.most_chunks() + 1024) * 64) {
            return Err(Error::NoMemory);
        }
        // Room for every chunk that there can be, and for many threads that start at once.
        let messages = channel::bounded(pool.most_chunks() + 1024);
        barrier::register();
        Ok(Engine {
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
            drop_when_full: AtomicBool::new(false),
            max_wait_ms: AtomicU32::new(0),
            fork: AtomicU8::new(config.fork as u8),
            unread: AtomicI64::new(0),
            asleep: AtomicBool::new(false),
            hurried: AtomicBool::new(false),
            first_tells: AtomicBool::new(false),
            parker: Parker::default(),
            urgent: Urgent::default(),
            shut: AtomicBool::new(false),
            exit_whole: AtomicBool::new(false),
            left_unread: AtomicBool::new(false),
        })
    }

    /// Takes over what a new configuration says about registering threads.
    pub fn configure(&self, config: &Config) {
        clock::find_host();
        self.unwind_records.store(config.unwind, Ordering::Relaxed);
        self.drop_when_full.store(config.drop_when_full, Ordering::Relaxed);
        let wait = u32::try_from(config.max_wait.as_millis()).unwrap_or(u32::MAX);
        self.max_wait_ms.store(wait, Ordering::Relaxed);
        self.fork.store(config.fork as u8, Ordering::Relaxed);
    }

    /// What a forked child is to take over.
    pub fn fork(&self) -> Fork {
        let mode = self.fork.load(Ordering::Relaxed);
        [Fork::AtOnce, Fork::Alone].into_iter().find(|known| *known as u8 == mode).unwrap_or_default()
    }

    /// Takes over the ids and indices that were given out in the parent before the fork.
    pub fn inherit(&mut self, parent: &Engine, registries: [&mut Registry; 2]) {
        self.ids = parent.ids.inherit(registries);
        self.next_index = AtomicU64::new(parent.next_index.load(Ordering::Relaxed));
    }

    /// Whether unwinding records are wanted in the jitdump.
    #[inline]
    pub fn unwind_records(&self) -> bool {
        self.unwind_records.load(Ordering::Relaxed)
    }

    /// What registering threads have to lay down records for: see [`Status::wanted`].
    #[inline]
    pub fn wanted(&self) -> Sinks {
        self.status.wanted()
    }

    /// Whether there is nothing to lay down records for.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.wanted() == Sinks::NONE
    }

    /// Counts code whose bytes the writer has to read.
    #[inline]
    pub fn add_unread(&self, change: i64) {
        if change != 0 {
            self.unread.fetch_add(change, Ordering::AcqRel);
        }
    }

    /// Whether there is such code.
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Acquire) > 0
    }

    /// A block of code indices that nobody else has.
    pub fn index_block(&self) -> std::ops::Range<u64> {
        let start = self.next_index.fetch_add(INDEX_BLOCK, Ordering::Relaxed);
        start..start + INDEX_BLOCK
    }

    /// Makes the place of a thread, and tells the writer.
    pub fn attach(&self) -> Result<Arc<Slot>> {
        let slot = Arc::new(Slot::new(self.next_slot.fetch_add(1, Ordering::Relaxed)));
        self.attached.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = self.send(Message::Attach(slot.clone())) {
            self.detached();
            return Err(error);
        }
        self.status.standstill.wait_to_register();
        if self.is_shut_out(slot.tid) {
            slot.detach();
            self.detached();
            return Err(Error::Closed);
        }
        Ok(slot)
    }

    /// From now on only the thread registers anything by which the process exits.
    pub fn shut_out(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Whether a thread may not register anything any more. One that begins to must have told the writer of itself before.
    pub fn is_shut_out(&self, tid: u32) -> bool {
        fence(Ordering::SeqCst);
        self.shut.load(Ordering::SeqCst) && self.urgent.exits_elsewhere(tid)
    }

    /// A writer ends without having read everything.
    pub fn set_left_unread(&self) {
        self.left_unread.store(true, Ordering::Release);
    }

    /// Whether records are left in the spool that nobody will write.
    pub fn has_left_unread(&self) -> bool {
        self.left_unread.load(Ordering::Acquire)
    }

    /// The pass that is made next reads all that other threads have registered.
    pub fn set_exit_whole(&self) {
        self.exit_whole.store(true, Ordering::Release);
    }

    /// Whether nothing is left of what other threads have registered, once the exit is answered.
    pub fn is_exit_whole(&self) -> bool {
        self.exit_whole.load(Ordering::Acquire)
    }

    /// A thread has ended its place.
    pub fn detached(&self) {
        self.attached.fetch_sub(1, Ordering::Release);
    }

    /// Whether nobody registers anything but `own` threads, and everything that was registered is written. Only while those
    /// that begin to register are kept waiting, and the writer is.
    fn is_at_rest(&self, own: usize) -> bool {
        fence(Ordering::SeqCst);
        self.attached.load(Ordering::Acquire) == own && !self.pool.memory().has_unread()
    }

    /// Before a fork: brings the library to rest. `attached`: the calling thread has a place.
    pub fn come_to_rest(&self, attached: bool) -> Found {
        let still = &self.status.standstill;
        // Most processes that fork have one thread, and have registered nothing for a while.
        match still.prepare_at_once(|| self.is_at_rest(attached.into())) {
            Some(found) => found,
            None => still.prepare(|| self.wake()),
        }
    }

    /// An empty chunk for a thread, if there is one.
    pub fn take_chunk(&self) -> Option<Cursor> {
        let taken = self.pool.take();
        // Waking costs more than a hundred registrations, so only one thread does it.
        if self.pool.is_low() && !self.hurried.swap(true, Ordering::Relaxed) {
            self.wake();
        }
        taken
    }

    /// The writer comes to what it was woken for.
    pub fn clear_hurry(&self) {
        self.hurried.store(false, Ordering::Relaxed);
    }

    /// Memory, as soon as `take` finds some, within the time that the session allows.
    #[cold]
    pub fn wait_for(&self, mut take: impl FnMut() -> Option<Cursor>) -> Option<Cursor> {
        if let Some(cursor) = take() {
            return Some(cursor);
        }
        self.wake();
        let wait = Duration::from_millis(self.max_wait_ms.load(Ordering::Relaxed).into());
        if !self.may_wait() || wait.is_zero() {
            return None;
        }
        self.status.counters.waited.add(1);
        let end = Instant::now() + wait;
        loop {
            thread::sleep_micros(100);
            match take() {
                None if Instant::now() < end && self.may_wait() => {}
                result => return result,
            }
        }
    }

    /// A chunk that the writer makes free, as long as it gets on with its work. When threads only register faster than it writes,
    /// waiting costs all of them less than ever more memory, whose pages have to be made; if it hangs in a slow disk, memory is
    /// what helps.
    #[cold]
    pub fn wait_for_writer(&self) -> Option<Cursor> {
        const HANGING: Duration = Duration::from_millis(2);
        // For a thread that always comes too late.
        const LONGEST: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut pass, mut since) = (self.pool.memory().next_pass(), begin);
        while self.may_wait() {
            // Waking eight threads ten times a millisecond would cost as much as writing what they register.
            thread::sleep_micros(400);
            let taken = self.pool.take();
            if taken.is_some() {
                return taken;
            }
            let now = Instant::now();
            let latest = self.pool.memory().next_pass();
            if latest != pass {
                (pass, since) = (latest, now);
            }
            if now - since >= HANGING || now - begin >= LONGEST {
                break;
            }
        }
        None
    }

    /// Without memory the writer makes none free, nor without anything to write.
    fn may_wait(&self) -> bool {
        !self.drop_when_full.load(Ordering::Relaxed) && !memory::is_short() && !self.is_off()
    }

    /// Sends to the writer. There is room but in a storm of new threads, so waiting is the exception.
    pub fn send(&self, message: Message) -> Result<()> {
        let wait = Duration::from_millis(self.max_wait_ms.load(Ordering::Relaxed).into());
        self.messages.0.send_timeout(message, wait).map_err(|_| {
            self.status.counters.dropped.add(1);
            Error::Dropped
        })
    }

    /// Sends to the writer if there is room.
    pub fn send_now(&self, message: Message) -> bool {
        self.messages.0.try_send(message).is_ok()
    }

    /// What was sent. For the writer, which never waits here: then no sender ever has to wake it.
    pub fn receive(&self) -> Option<Message> {
        self.messages.1.try_recv().ok()
    }

    /// Says that the writer sleeps until it is woken, or that it does not.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Whether nobody has woken the writer since it said so.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Whether the calling thread, if it is the process's first one, wakes the writer when it ends; what the host does at its end
    /// may come after that.
    pub fn set_first_tells(&self, tells: bool) {
        if thread::id() == std::process::id() {
            self.first_tells.store(tells, Ordering::Relaxed);
        }
    }

    /// Whether the writer will be woken before the process's first thread ends.
    pub fn first_tells(&self) -> bool {
        self.first_tells.load(Ordering::Relaxed)
    }

    /// Stands between what a registering thread announces and what it looks at afterwards. The other side, in the writer,
    /// calls `barrier::all_threads` between the same two; where the kernel makes that a barrier for every thread, nothing is
    /// left to do here but to keep the compiler from changing the order.
    #[inline]
    pub fn order(&self) {
        if barrier::is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Called after each record: whoever publishes one while the writer sleeps wakes it.
    #[inline]
    pub fn wake_if_asleep(&self) {
        self.order();
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the writer.
    #[cold]
    pub fn wake(&self) {
        self.set_asleep(false);
        self.parker.unpark();
    }

    /// The requests, for the writer and for whoever starts and ends it.
    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody else has them.
    pub fn try_requests(&self) -> Option<MutexGuard<'_, Requests>> {
        match self.requests.try_lock() {
            Ok(requests) => Some(requests),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Tells those who wait that there is an answer, or that there will be none.
    pub fn tell_waiting(&self) {
        self.answered.notify_all();
    }

    /// Waits until everything committed before the call is in the files. `Closed` if the writer has ended, with everything
    /// written but for an error: see `last_answer`.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        self.ask(timeout, false)
    }

    /// What the writer has answered last, or has ended with.
    pub fn last_answer(&self) -> Result<()> {
        self.requests().result.map_or(Ok(()), Err)
    }

    /// As `flush`, when the process exits.
    pub fn flush_at_exit(&self, timeout: Duration) -> Result<()> {
        self.ask(timeout, true)
    }

    fn ask(&self, timeout: Duration, exiting: bool) -> Result<()> {
        let mut requests = self.requests();
        if requests.exit_is_elsewhere() {
            return Err(Error::Timeout);
        }
        if exiting {
            requests.exiting = Some(thread::id());
        }
        if !requests.open {
            // A writer that begins later would not know of it.
            return Err(Error::Closed);
        }
        requests.asked += 1;
        let mine = requests.asked;
        drop(requests);
        self.wake();
        let unanswered = |requests: &mut Requests| requests.open && requests.answered < mine;
        let (requests, waited) = self
            .answered
            .wait_timeout_while(self.requests(), timeout, unanswered)
            .unwrap_or_else(PoisonError::into_inner);
        match requests.result {
            _ if waited.timed_out() => Err(Error::Timeout),
            // The writer ended before it came to this: what ends it writes everything.
            _ if requests.answered < mine => Err(Error::Closed),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
