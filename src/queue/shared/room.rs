//! Room for records: empty chunks, and how long a thread waits for one.

use std::time::Duration;

use super::Shared;
use crate::queue::chunk::{Cursor, CHUNK_SIZE};
use crate::sys::sync::atomic::Ordering;
use crate::sys::sync::Instant;
use crate::sys::{reserve, thread};

impl Shared {
    /// An empty chunk of at least this size for a thread, if there is one. `filled`: it has filled another one.
    pub fn take_chunk(&self, size: usize, filled: bool) -> Option<Cursor> {
        let taken = self.pool.take(size);
        if filled {
            self.ask_for_chunks(size);
        } else if self.pool.is_scarce() {
            // Before somebody has to wait.
            self.hurry();
        }
        taken
    }

    /// The next chunk for a thread that has filled one of this size, with room for a body of this length, if such a one is free. It may
    /// be smaller: making it larger would cost the thread more than changing chunks more often until the writer has made larger ones.
    pub fn next_chunk(&self, size: usize, body: usize) -> Option<Cursor> {
        let taken = self.pool.take_as_it_is(body);
        self.ask_for_chunks((2 * size).min(CHUNK_SIZE));
        taken
    }

    /// A thread needs chunks of this size. Waking costs more than a hundred registrations, so only one thread does it, and none for
    /// its first chunk.
    fn ask_for_chunks(&self, size: usize) {
        self.pool.ask_for(size);
        if self.pool.is_low() {
            self.hurry();
        }
    }

    /// Wakes the writer, once a round: for many threads that want the same, one wakes it.
    pub(super) fn hurry(&self) {
        if !self.hurried.load(Ordering::Relaxed) && !self.hurried.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// The writer sees to the reason for which it was woken.
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
                // Others may have been faster, so the writer goes on making room.
                None if Instant::now() < end && self.may_wait() => self.hurry(),
                result => return result,
            }
        }
    }

    /// A chunk that the writer makes free, as long as it makes progress. When threads only register faster than it writes,
    /// waiting costs them less than more memory, whose pages have to be made. If it hangs in a slow disk, only memory helps.
    #[cold]
    pub fn wait_for_writer(&self, size: usize) -> Option<Cursor> {
        const HANGING: Duration = Duration::from_millis(2);
        // For a thread that always comes too late.
        const LONGEST: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut round, mut since) = (self.pool.memory().next_round(), begin);
        while self.may_wait() {
            // Waking eight threads ten times a millisecond would cost as much as writing what they register.
            thread::sleep_micros(400);
            let taken = self.pool.take(size);
            if taken.is_some() {
                return taken;
            }
            let now = Instant::now();
            let latest = self.pool.memory().next_round();
            if latest != round {
                (round, since) = (latest, now);
            }
            if now - since >= HANGING || now - begin >= LONGEST {
                break;
            }
        }
        None
    }

    /// Without memory the writer makes none free, nor without anything to write.
    fn may_wait(&self) -> bool {
        let is_short = self.short.load(Ordering::Relaxed) || reserve::is_short();
        !self.drop_when_full.load(Ordering::Relaxed) && !is_short && !self.is_off()
    }
}
