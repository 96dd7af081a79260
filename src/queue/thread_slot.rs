//! The state that a registering thread and the writer share: which chunk the thread fills, and whether it is laying down a record.
//!
//! A thread with nothing to register still holds a chunk. When chunks run short the writer takes such chunks back. For that
//! both sides announce first and look afterwards: the thread that it lays down a record, the writer that it wants the chunk.
//! A barrier between the two (`Shared::order` on the thread's side, `barrier::all_threads` on the writer's) makes sure that
//! at least one of them sees the other.
//!
//! In the same way threads are kept from laying down anything while the process forks (`quiesce`).

use std::ptr::NonNull;
use std::time::Duration;

use crate::queue::chunk::Chunk;
use crate::sys::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use crate::sys::sync::{yield_now, Instant};
use crate::sys::thread;

/// The thread's place.
#[derive(Debug)]
pub struct ThreadSlot {
    /// Unique number.
    pub number: u64,
    /// The thread.
    pub tid: u32,
    /// The chunk that the thread fills; null if it has none.
    current: AtomicPtr<u8>,
    /// The thread is gone.
    detached: AtomicBool,
    /// The thread lays down a record, or changes chunks.
    busy: AtomicBool,
    /// The owner of the chunk: `KEPT`, `WANTED` or `TAKEN`, and whether the thread is `HALTED` or `SHUT`.
    claim: AtomicU8,
}

/// The chunk is the thread's.
const KEPT: u8 = 0;
/// The writer decides whether it takes the chunk; the thread keeps off until it has.
const WANTED: u8 = 1;
/// The writer has taken the chunk.
const TAKEN: u8 = 2;
/// A bit beside the others: the thread lays down nothing until it is taken away.
const HALTED: u8 = 4;
/// Another bit: the thread lays down no more records, because the process exits.
const SHUT: u8 = 8;

impl ThreadSlot {
    pub fn new(number: u64) -> ThreadSlot {
        ThreadSlot {
            number,
            tid: thread::id(),
            current: AtomicPtr::default(),
            detached: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            claim: AtomicU8::new(KEPT),
        }
    }

    /// The chunk that the thread fills.
    pub fn current(&self) -> Option<Chunk> {
        let start = NonNull::new(self.current.load(Ordering::Acquire))?;
        // SAFETY: only the writer recycles chunks, and none that is in a slot, so what is found there exists.
        Some(unsafe { Chunk::at(start) })
    }

    /// Sets the chunk that the thread fills.
    pub fn set_current(&self, chunk: Option<Chunk>) {
        self.current.store(chunk.map_or(std::ptr::null_mut(), Chunk::as_ptr), Ordering::Release);
    }

    /// The thread is gone, and leaves its last chunk in the slot to the writer.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Whether the thread is gone.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// The thread begins a record, or to hand over its chunk. `Shared::order` has to follow, then `is_kept`.
    #[inline]
    pub fn begin(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// The thread has published the record, or given it up. Whoever sees the end sees the record.
    #[inline]
    pub fn end(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Whether the thread, having begun, may use its chunk.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.claim.load(Ordering::Relaxed) == KEPT
    }

    /// Waits, not having begun, until the writer has decided and nobody halts the thread. True if the chunk is gone; `None` if
    /// the thread is still halted after this time.
    #[cold]
    pub fn settle(&self, patience: Duration) -> Option<bool> {
        let begin = Instant::now();
        for turn in 0.. {
            match self.claim.load(Ordering::Acquire) {
                KEPT => break,
                TAKEN => {
                    // Fails if it is halted just now.
                    if self.claim.compare_exchange(TAKEN, KEPT, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        return Some(true);
                    }
                }
                claim if claim & SHUT != 0 => break,
                claim if claim & HALTED != 0 && begin.elapsed() > patience => return None,
                // Yielding alone gives a writer of lower priority no processor.
                _ if turn < 100 => yield_now(),
                _ => thread::sleep_micros(50),
            }
        }
        Some(false)
    }

    /// Halts the thread: `barrier::all_threads` has to follow. Once it is no longer busy, it lays down nothing until `resume`.
    pub fn hold_threads(&self) {
        self.claim.fetch_or(HALTED, Ordering::SeqCst);
    }

    /// Ends the thread's records permanently: `barrier::all_threads` has to follow. Records that it has begun may still come as
    /// long as it is busy.
    pub fn shut(&self) {
        self.claim.fetch_or(SHUT, Ordering::SeqCst);
    }

    /// Whether the thread lays down no more records.
    #[cold]
    pub fn is_shut(&self) -> bool {
        self.claim.load(Ordering::Relaxed) & SHUT != 0
    }

    /// Whether the thread lays down a record that it has begun before. If not, all that it has published is seen from now on.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Lets the thread continue.
    pub fn resume(&self) {
        self.claim.fetch_and(!HALTED, Ordering::Release);
    }

    /// The writer wants the chunk. `barrier::all_threads` has to follow, then `take`. False if an earlier taking is not even
    /// noticed yet.
    pub fn want(&self) -> bool {
        self.claim.compare_exchange(KEPT, WANTED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The chunk that the writer wants, if the thread is not using it.
    pub fn wanted(&self) -> Option<Chunk> {
        let idle = !self.is_busy();
        self.current().filter(|_| idle)
    }

    /// The thread keeps the chunk that the writer has wanted.
    pub fn keep(&self) {
        self.claim.store(KEPT, Ordering::Release);
    }

    /// The chunk, if the thread is not using it and the writer has read all of it.
    pub fn take(&self) -> Option<Chunk> {
        let chunk = self.wanted().filter(|chunk| chunk.consumed() == chunk.committed());
        if chunk.is_some() {
            self.set_current(None);
        }
        self.claim.store(if chunk.is_some() { TAKEN } else { KEPT }, Ordering::Release);
        chunk
    }
}
