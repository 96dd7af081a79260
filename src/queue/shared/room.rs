//! Provides room for records: takes empty chunks, and limits how long a thread waits for a chunk.

use std::time::Duration;

use super::Shared;
use crate::queue::chunk::{Cursor, CHUNK_SIZE};
use crate::sys::sync::atomic::Ordering;
use crate::sys::sync::Instant;
use crate::sys::{reserve, thread};

impl Shared {
    /// Takes a chunk of at least this size, if possible. `filled` is true if the calling thread has filled a chunk before.
    pub fn take_chunk(&self, size: usize, filled: bool) -> Option<Cursor> {
        let taken = self.pool.take(size);
        if filled {
            self.ask_for_chunks(size);
        } else if self.pool.is_scarce() {
            // Wakes the writer early, so that it takes idle chunks back before a thread has to wait.
            self.hurry();
        }
        taken
    }

    /// Takes the next free chunk, if it has room for a body of this length. The calling thread has filled a chunk of `size`
    /// bytes. The next chunk may have fewer than `size` bytes, because this function enlarges no chunk. Until the writer has
    /// made larger chunks, frequent changes of the chunk cost a thread less time than enlarging a chunk.
    pub fn next_chunk(&self, size: usize, body: usize) -> Option<Cursor> {
        let taken = self.pool.take_as_it_is(body);
        self.ask_for_chunks((2 * size).min(CHUNK_SIZE));
        taken
    }

    /// Notes that threads need chunks of this size, and wakes the writer if few chunks are free. Waking the writer costs more
    /// time than a hundred registrations, so only one thread wakes the writer. Without a writer's thread, each full chunk is
    /// written at once.
    fn ask_for_chunks(&self, size: usize) {
        self.pool.ask_for(size);
        if self.pool.is_low() || self.in_place.is_used() {
            self.hurry();
        }
    }

    /// Wakes the writer, at most once a round, even if many threads need chunks. Without a writer's thread, this function does
    /// not run the writer at once, because the calling thread may be in the middle of a record. The writer runs when the next
    /// record is complete (`end_record`).
    pub(in crate::queue) fn hurry(&self) {
        if self.in_place.is_used() {
            self.set_asleep(true);
        } else if !self.hurried.load(Ordering::Relaxed) && !self.hurried.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Lets `hurry` wake the writer again. Called when a round begins.
    pub fn clear_hurry(&self) {
        self.hurried.store(false, Ordering::Relaxed);
    }

    /// Waits until `take` finds memory, but not longer than the session allows (`max_wait`).
    #[cold]
    pub fn wait_for(&self, mut take: impl FnMut() -> Option<Cursor>) -> Option<Cursor> {
        if let Some(cursor) = take() {
            return Some(cursor);
        }
        self.wake();
        if let Some(cursor) = self.in_place.is_used().then(&mut take).flatten() {
            return Some(cursor);
        }
        let wait = Duration::from_millis(self.max_wait_ms.load(Ordering::Relaxed).into());
        if !self.may_wait() || wait.is_zero() {
            return None;
        }
        self.status.counters.waited.add(1);
        let end = Instant::now() + wait;
        loop {
            thread::sleep_micros(100);
            match take() {
                // Other threads may have taken the memory that the writer freed, so the writer has to free more memory.
                None if Instant::now() < end && self.may_wait() => match self.in_place.is_used() {
                    true => self.wake(),
                    false => self.hurry(),
                },
                result => return result,
            }
        }
    }

    /// Waits until the writer frees a chunk. Gives up if the writer makes no progress for `HANGING`, and after `LONGEST` in
    /// any case. If threads merely register faster than the writer writes, waiting costs less than the page faults of new
    /// memory. If a slow disk blocks the writer, only new memory helps.
    #[cold]
    pub fn wait_for_writer(&self, size: usize) -> Option<Cursor> {
        const HANGING: Duration = Duration::from_millis(2);
        // This limit is needed because other threads may take each freed chunk before this thread finds it.
        const LONGEST: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut round, mut since) = (self.pool.memory().next_round(), begin);
        while self.may_wait() {
            if self.in_place.is_used() {
                self.wake();
                if let Some(taken) = self.pool.take(size) {
                    return Some(taken);
                }
            }
            // A sleep of less than 0.4 ms would cost too much processor time. If eight threads wake every 0.1 ms, their wakes
            // cost as much time as writing their records.
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

    /// Returns true if a thread that found no room may wait, and if the writer can make room. While memory is short, waiting
    /// cannot help, because the writer then leaves records in their chunks. If no records are wanted, waiting is useless.
    fn may_wait(&self) -> bool {
        let is_short = self.short.load(Ordering::Relaxed) || reserve::is_short();
        !self.drop_when_full.load(Ordering::Relaxed) && !is_short && !self.is_off()
    }
}
