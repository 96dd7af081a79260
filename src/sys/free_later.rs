//! Delays the freeing of memory that an unwinder no longer needs, because a thread may still be reading this memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the memory is kept. An unwinder needs only some nanoseconds to read the memory. But on a busy machine, the thread
/// that runs the unwinder may be preempted before the unwinder has read everything.
const RETIREMENT: Duration = Duration::from_secs(10);
/// The time between two calls of `keep` counts only up to this limit. If more than `STEP` passes between two calls of `keep`, a
/// debugger or SIGSTOP may have stopped the whole process. One of the stopped threads may still be reading the memory.
const STEP: Duration = Duration::from_secs(1);

/// Memory that is kept for a while before it is freed.
pub(super) struct FreeLater<T>(Mutex<Kept<T>>);

struct Kept<T> {
    /// The pieces of memory, the oldest first. Each piece is stored with the value that `age` had when the piece was added.
    all: VecDeque<(Duration, T)>,
    /// The sum of the intervals between the calls of `keep`. An interval counts as at most `STEP`. `looked` is the
    /// time of the last call of `keep`.
    age: Duration,
    looked: Option<Instant>,
}

impl<T> FreeLater<T> {
    pub const fn new() -> FreeLater<T> {
        FreeLater(Mutex::new(Kept { all: VecDeque::new(), age: Duration::ZERO, looked: None }))
    }

    /// Keeps memory, and frees older memory that has been kept for long enough.
    pub fn keep(&self, memory: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep(memory, Instant::now());
    }
}

impl<T> Kept<T> {
    fn keep(&mut self, memory: T, now: Instant) {
        let since = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        self.age += since.min(STEP);
        self.looked = Some(now);
        while self.all.front().is_some_and(|(came, _)| self.age - *came > RETIREMENT) {
            self.all.pop_front();
        }
        match self.all.try_reserve(1) {
            Ok(()) => self.all.push_back((self.age, memory)),
            Err(_) => std::mem::forget(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        let mut kept = Kept { all: VecDeque::new(), age: Duration::ZERO, looked: None };
        let mut now = Instant::now();
        kept.keep(0, now);
        // The process is stopped for an hour.
        now += Duration::from_secs(3600);
        kept.keep(1, now);
        assert_eq!(kept.all.front().map(|(_, memory)| *memory), Some(0));
        for number in 2..11 {
            now += Duration::from_secs(1);
            kept.keep(number, now);
            assert_eq!(kept.all.front().map(|(_, memory)| *memory), Some(0), "{number}");
        }
        now += Duration::from_secs(1);
        kept.keep(11, now);
        assert_eq!(kept.all.front().map(|(_, memory)| *memory), Some(1));
        assert_eq!(kept.all.len(), 11);
    }
}
