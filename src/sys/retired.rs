//! Memory that an unwinder was told of and has forgotten. A thread that found something in it just before may still read it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it stays. Unwinders need some nanoseconds, but on a busy machine a thread may wait for its processor meanwhile.
const RETIREMENT: Duration = Duration::from_secs(10);

/// What is kept, the oldest first.
pub(super) struct Retired<T>(Mutex<VecDeque<(Instant, T)>>);

impl<T> Retired<T> {
    pub const fn new() -> Retired<T> {
        Retired(Mutex::new(VecDeque::new()))
    }

    /// Keeps something, and frees what has been kept for long enough.
    pub fn keep(&self, memory: T) {
        let mut retired = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while retired.front().is_some_and(|(since, _)| since.elapsed() > RETIREMENT) {
            retired.pop_front();
        }
        match retired.try_reserve(1) {
            Ok(()) => retired.push_back((Instant::now(), memory)),
            Err(_) => std::mem::forget(memory),
        }
    }
}
