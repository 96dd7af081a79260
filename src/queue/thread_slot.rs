//! The state that a registering thread and the writer share: which chunk the thread fills, and whether it is writing a record.
//!
//! An idle thread still holds a chunk, which the writer takes back when chunks run short. The thread announces that it writes a
//! record, and the writer announces that it wants the chunk. Each side first makes its announcement, then uses a barrier
//! (`Shared::order` in the thread, `barrier::all_threads` in the writer), and then looks for the other side's announcement.
//! Because of the barriers, at least one side finds the announcement of the other side.
//!
//! The writer also uses an announcement and a barrier to keep threads from writing records while the process forks (see
//! `queue::quiesce`).

use std::ptr::NonNull;
use std::time::Duration;

use crate::queue::chunk::Chunk;
use crate::sys::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use crate::sys::sync::{yield_now, Instant};
use crate::sys::thread;

#[derive(Debug)]
pub struct ThreadSlot {
    pub number: u64,
    pub tid: u32,
    /// The chunk that the thread fills; null if it has none.
    current: AtomicPtr<u8>,
    /// Whether the thread has ended or has given up its slot.
    detached: AtomicBool,
    /// Whether the thread is writing a record or changing chunks.
    busy: AtomicBool,
    /// `KEPT`, `WANTED` or `TAKEN`, depending on who owns the chunk. The value may also contain the bits `HALTED` and `SHUT`.
    claim: AtomicU8,
}

/// The chunk belongs to the thread.
const KEPT: u8 = 0;
/// The writer decides whether to take the chunk. Until the decision, the thread does not use the chunk.
const WANTED: u8 = 1;
/// The writer has taken the chunk.
const TAKEN: u8 = 2;
/// This bit can be added to `KEPT`, `WANTED` or `TAKEN`. While the bit is set, the thread writes no records.
const HALTED: u8 = 4;
/// This bit can also be added to `KEPT`, `WANTED` or `TAKEN`. Once the bit is set, the thread never writes a record again,
/// because the process exits.
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

    pub fn current(&self) -> Option<Chunk> {
        let start = NonNull::new(self.current.load(Ordering::Acquire))?;
        // SAFETY: the chunk exists, because only the writer recycles a chunk that was in a slot, and only after the chunk has
        // left the slot.
        Some(unsafe { Chunk::at(start) })
    }

    pub fn set_current(&self, chunk: Option<Chunk>) {
        self.current.store(chunk.map_or(std::ptr::null_mut(), Chunk::as_ptr), Ordering::Release);
    }

    /// Notes that the thread has ended. The thread's last chunk stays in the slot, for the writer.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Announces a record or a change of chunks. After this call, the thread has to call `Shared::order` first and `is_kept`
    /// second.
    #[inline]
    pub fn begin(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Announces that the record is published or given up. The record is visible to a thread that reads this announcement.
    #[inline]
    pub fn end(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Whether the thread may use its chunk. Must be called after `begin`.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.claim.load(Ordering::Relaxed) == KEPT
    }

    /// Waits until the writer has decided about the chunk and the thread is not halted. The thread must not be busy. Returns
    /// `Some(true)` if the writer has taken the chunk, and `None` if the thread is still halted after `patience`.
    #[cold]
    pub fn settle(&self, patience: Duration) -> Option<bool> {
        let begin = Instant::now();
        for turn in 0.. {
            match self.claim.load(Ordering::Acquire) {
                KEPT => break,
                TAKEN => {
                    // Fails if the thread is halted at this moment.
                    if self.claim.compare_exchange(TAKEN, KEPT, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        return Some(true);
                    }
                }
                claim if claim & SHUT != 0 => break,
                claim if claim & HALTED != 0 && begin.elapsed() > patience => return None,
                // With `yield_now` alone, a writer of lower priority would never run.
                _ if turn < 100 => yield_now(),
                _ => thread::sleep_micros(50),
            }
        }
        Some(false)
    }

    /// Halts the thread: once it is no longer busy, it writes no records until `resume`. After this call, the caller has to
    /// call `barrier::all_threads`.
    pub fn hold_threads(&self) {
        self.claim.fetch_or(HALTED, Ordering::SeqCst);
    }

    /// After this call, the thread never begins a record again. A busy thread may still finish its record. The caller has to
    /// call `barrier::all_threads` next.
    pub fn shut(&self) {
        self.claim.fetch_or(SHUT, Ordering::SeqCst);
    }

    /// Whether `shut` has stopped the thread from writing records.
    #[cold]
    pub fn is_shut(&self) -> bool {
        self.claim.load(Ordering::Relaxed) & SHUT != 0
    }

    /// If the result is false, everything that the thread has published so far is visible to the caller.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    pub fn resume(&self) {
        self.claim.fetch_and(!HALTED, Ordering::Release);
    }

    /// Announces that the writer wants the chunk. After this call, the writer has to call `barrier::all_threads` first, and
    /// then `take` or `keep`. Returns false if the writer cannot take the chunk now, for instance because the thread has not
    /// yet detected that the writer has taken an earlier chunk.
    pub fn want(&self) -> bool {
        self.claim.compare_exchange(KEPT, WANTED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Returns the chunk, if the thread is not using it. Must be called after `want`.
    pub fn wanted(&self) -> Option<Chunk> {
        let idle = !self.is_busy();
        self.current().filter(|_| idle)
    }

    /// Leaves the chunk to the thread. Must be called after `want`.
    pub fn keep(&self) {
        self.claim.store(KEPT, Ordering::Release);
    }

    /// Takes the chunk if the thread is not using it and the writer has read all records in it; otherwise the thread keeps the
    /// chunk. Must be called after `want`.
    pub fn take(&self) -> Option<Chunk> {
        let chunk = self.wanted().filter(|chunk| chunk.consumed() == chunk.committed());
        if chunk.is_some() {
            self.set_current(None);
        }
        self.claim.store(if chunk.is_some() { TAKEN } else { KEPT }, Ordering::Release);
        chunk
    }
}
