//! A lock for which every wait has a limit, because the lock's holder may wait for a disk.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::sync::outside::{Condvar, Mutex, MutexGuard, PoisonError};

/// The maximum time that a call waits for a lock which another call holds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A value and its lock.
pub struct TimedLock<T> {
    state: Mutex<State>,
    came_back: Condvar,
    value: UnsafeCell<T>,
}

struct State {
    is_taken: bool,
    waiting: u32,
}

// SAFETY: only the holder of the lock has a guard, so one thread at a time uses the value.
unsafe impl<T: Send> Sync for TimedLock<T> {}

/// While this guard exists, no other thread can use the value.
pub struct Locked<'l, T>(&'l TimedLock<T>);

impl<T> TimedLock<T> {
    pub const fn new(value: T) -> TimedLock<T> {
        let state = State { is_taken: false, waiting: 0 };
        TimedLock { state: Mutex::new(state), came_back: Condvar::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. Returns `None` if other threads hold the lock until `end`.
    pub fn lock_until(&self, end: Instant) -> Option<Locked<'_, T>> {
        let mut state = self.state();
        if state.is_taken {
            let left = end.saturating_duration_since(Instant::now());
            state.waiting += 1;
            let waited = self.came_back.wait_timeout_while(state, left, |state| state.is_taken);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        Self::take(state).then(|| Locked(self))
    }

    /// Waits for the lock. Returns `None` if other threads hold the lock for longer than `PATIENCE`.
    pub fn lock_in_time(&self) -> Option<Locked<'_, T>> {
        self.lock_until(Instant::now() + PATIENCE)
    }

    /// Takes the lock without waiting. Returns `None` if another thread holds the lock, or is just taking it. A forked child
    /// uses this function, because a lock that another thread of the parent held at the fork is never released in the child.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        Self::take(self.state.try_lock().ok()?).then(|| Locked(self))
    }

    /// Returns whether the lock was free at the fork. Called in a forked child, which has one thread.
    pub fn is_free(&self) -> bool {
        self.try_lock().is_some()
    }

    /// Moves the parent's value to this lock, in a forked child that takes over its parent's state. No other thread of the
    /// child uses this lock yet.
    pub fn take_over(&self, parent: &TimedLock<T>)
    where
        T: Default,
    {
        if let (Some(mut own), Some(mut of_parent)) = (self.try_lock(), parent.try_lock()) {
            *own = std::mem::take(&mut of_parent);
        }
    }

    fn take(mut state: MutexGuard<'_, State>) -> bool {
        !std::mem::replace(&mut state.is_taken, true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for TimedLock<T> {
    fn default() -> TimedLock<T> {
        TimedLock::new(T::default())
    }
}

impl<T> fmt::Debug for TimedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedLock").finish_non_exhaustive()
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_taken = false;
        let is_awaited = state.waiting > 0;
        drop(state);
        // If no thread waits, `notify_all` would be a useless system call.
        if is_awaited {
            self.0.came_back.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_nobody_waits_for_ever() {
        let lock = TimedLock::new(0);
        let soon = || Instant::now() + Duration::from_secs(60);
        let mut locked = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none() && lock.lock_until(Instant::now() + Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let threads =
                [(); 4].map(|()| scope.spawn(|| (0..100).for_each(|_| *lock.lock_until(soon()).unwrap() += 1)));
            *locked += 1;
            drop(locked);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(*lock.try_lock().unwrap(), 401);
    }
}
