//! Channels, waits and locks for models (see `sync`). The locks are loom's locks, with the interface of the standard
//! library's locks.
//!
//! In a model, waits never time out. So a model fails if a thread waits for an event that never happens.

use std::collections::VecDeque;
use std::sync::LockResult;
use std::time::Duration;

use super::atomic::{AtomicU32, Ordering};
pub use loom::sync::{Mutex, MutexGuard};
pub use loom::thread::yield_now;

/// Replaces `std::sync::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

/// Replaces `std::sync::WaitTimeoutResult`.
#[derive(Clone, Copy, Debug)]
pub struct InTime;

impl InTime {
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
        self.0.wait(guard)
    }

    pub fn wait_timeout<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        _: Duration,
    ) -> LockResult<(MutexGuard<'m, T>, InTime)> {
        Ok((self.0.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()), InTime))
    }

    pub fn wait_timeout_while<'m, T>(
        &self,
        mut guard: MutexGuard<'m, T>,
        _: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'m, T>, InTime)> {
        while condition(&mut guard) {
            guard = self.0.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Ok((guard, InTime))
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A clock that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Instant {
        Instant(Duration::ZERO)
    }

    pub fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl std::ops::Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Waits until the word differs from `expected`, as a wait for a futex does. The time limit is ignored, because no time passes
/// in a model.
pub fn wait(word: &AtomicU32, expected: u32, _: Option<Duration>) {
    while word.load(Ordering::Relaxed) == expected {
        yield_now();
    }
}

/// Does nothing, because in a model a waiting thread does not sleep, but keeps reading the word.
pub fn wake(_: &AtomicU32, _: u32) {}

/// A channel that replaces crossbeam's channel, which does not work with loom. A single lock protects this channel, so the
/// channel gives stronger ordering guarantees than crossbeam's channel. If the library relies on the stronger guarantees by
/// mistake, models do not detect the mistake.
pub mod channel {
    use super::{Mutex, VecDeque};
    use std::fmt;
    use std::sync::Arc;

    pub struct Sender<T>(Arc<Mutex<VecDeque<T>>>);
    pub struct Receiver<T>(Arc<Mutex<VecDeque<T>>>);

    pub fn bounded<T>(_: usize) -> (Sender<T>, Receiver<T>) {
        let queue = Arc::new(Mutex::new(VecDeque::new()));
        (Sender(queue.clone()), Receiver(queue))
    }

    /// A value for which the channel had no room.
    #[derive(Debug)]
    pub struct TrySendError<T>(T);

    impl<T> TrySendError<T> {
        pub fn into_inner(self) -> T {
            self.0
        }
    }

    impl<T> fmt::Debug for Sender<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Sender").finish_non_exhaustive()
        }
    }

    impl<T> fmt::Debug for Receiver<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Receiver").finish_non_exhaustive()
        }
    }

    impl<T> Sender<T> {
        /// Always succeeds: the queue has no bound.
        pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push_back(value);
            Ok(())
        }

        pub fn is_full(&self) -> bool {
            false
        }
    }

    impl<T> Receiver<T> {
        pub fn try_recv(&self) -> Result<T, Option<T>> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front().ok_or(None)
        }
    }
}

/// Tells loom about reads and writes of memory that is not atomic. Each piece of this memory has a number.
#[derive(Debug)]
pub struct Witness([loom::cell::UnsafeCell<()>; PIECES]);

/// The number of pieces of memory in a `Witness`. A model can have at most this many pieces.
const PIECES: usize = 4;

impl Default for Witness {
    fn default() -> Self {
        Witness(std::array::from_fn(|_| loom::cell::UnsafeCell::new(())))
    }
}

impl Witness {
    #[track_caller]
    pub fn written(&self, piece: u32) {
        self.0[piece as usize].with_mut(|_| ());
    }

    #[track_caller]
    pub fn read(&self, piece: u32) {
        self.0[piece as usize].with(|_| ());
    }
}
