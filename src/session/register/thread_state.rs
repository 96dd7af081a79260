//! The state of each registering thread.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::error::Result;
use crate::format::unwind::Cache;
use crate::queue::record::{Event, EventKind};
use crate::queue::shared::Shared;
use crate::queue::status::Status;
use crate::queue::thread_queue::ThreadQueue;
use crate::registry::ids::IdPool;
use crate::session::process::Process;
use crate::sink::region::Regions;
use crate::sys::mapping::Words;
use crate::sys::thread;

/// A handle that no session has. The value is not 0, because free entries of `Process::sessions` contain 0.
pub(super) const NO_HANDLE: u64 = 1;

/// The state of a registering thread between calls. While a thread sleeps, this state may leave the processor's cache, and the
/// thread's next call then waits for each cache line that it reads. So the fields that each call needs lie together, in few
/// cache lines.
#[repr(C, align(128))]
pub struct Local {
    /// The handle of the session that the thread used last, and the session's entry in `Process::sessions`.
    pub(super) handle: u64,
    pub(super) place: &'static AtomicU64,
    pub(super) process: &'static Process,
    /// This reference and the next two lead directly to parts of `process` and of its shared state, which saves each call a
    /// pointer access.
    pub(super) fork_words: &'static Words,
    pub(super) status: &'static Status,
    pub(super) regions: &'static Regions,
    pub(super) thread_queue: ThreadQueue,
    pub(super) indices: Range<u64>,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) id_pool: IdPool<'static>,
    pub(super) unwind: Cache,
}

impl Local {
    pub fn new(process: &'static Process, shared: &'static Shared) -> Result<Local> {
        Ok(Local {
            handle: NO_HANDLE,
            place: &process.sessions[0],
            process,
            fork_words: process.host.page.words,
            status: &shared.status,
            regions: &process.regions,
            thread_queue: ThreadQueue::new(shared)?,
            indices: 0..0,
            pid: shared.status.pid,
            tid: thread::id(),
            id_pool: IdPool::new(),
            unwind: Cache::default(),
        })
    }

    /// An event that is complete except for the fields that depend on the chunk and the time.
    pub(super) fn event(&self, kind: EventKind, id: u64, index: u64, addr: u64, size: u64) -> Event {
        Event { id, index, addr, size, tid: self.tid, kind, ..Event::default() }
    }

    pub(super) fn next_index(&mut self) -> u64 {
        self.indices.next().unwrap_or_else(|| {
            self.indices = self.thread_queue.shared.index_block();
            self.indices.next().unwrap_or_default()
        })
    }

    /// See `ThreadQueue::unread_until`.
    pub fn unread_until(&self) -> u64 {
        self.thread_queue.unread_until()
    }

    /// Whether the session that the thread used last is open.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.place.load(Ordering::Acquire) == self.handle
    }

    #[inline(always)]
    pub(super) fn wants_groups(&self) -> bool {
        self.status.wanted().want_groups()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // In a forked child, this state is a copy of the parent's state, and refers to a chunk that is not mapped in the child.
        if !self.process.is_this_one() {
            return;
        }
        self.id_pool.give_back(&self.thread_queue.shared.ids);
        self.thread_queue.finish();
    }
}
