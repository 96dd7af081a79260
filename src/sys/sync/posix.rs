//! POSIX locks with the interface of the standard library's locks, for builds that look for races (see `sync`).
//!
//! These locks are never poisoned, because no code of the library may panic while it holds a lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::{Duration, SystemTime};

/// Replaces `std::sync::Mutex`.
#[derive(Debug)]
pub struct Mutex<T> {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock has a guard, so one thread at a time uses the value.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: only the holder of the lock has a guard, so one thread at a time uses the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Replaces `std::sync::MutexGuard`.
pub struct MutexGuard<'m, T>(&'m Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // SAFETY: the lock was initialised, and does not move while it is held, because the guard borrows it.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
        Ok(MutexGuard(self))
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        // SAFETY: the lock was initialised, and does not move while it is held, because the guard borrows it.
        match unsafe { libc::pthread_mutex_trylock(self.lock.get()) } {
            0 => Ok(MutexGuard(self)),
            _ => Err(TryLockError::WouldBlock),
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread has the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.lock.get()) };
    }
}

/// Replaces `std::sync::Condvar`.
#[derive(Debug)]
pub struct Condvar(UnsafeCell<libc::pthread_cond_t>);

// SAFETY: POSIX allows threads to share a condition variable.
unsafe impl Send for Condvar {}
// SAFETY: POSIX allows threads to share a condition variable.
unsafe impl Sync for Condvar {}

/// Replaces `std::sync::WaitTimeoutResult`.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER))
    }

    pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
        // SAFETY: the condition variable and the lock were initialised, and this thread has the lock.
        unsafe { libc::pthread_cond_wait(self.0.get(), guard.0.lock.get()) };
        Ok(guard)
    }

    pub fn wait_timeout<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'m, T>, WaitTimeoutResult)> {
        let end =
            SystemTime::now().checked_add(timeout).and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
        let end = end.map_or(libc::timespec { tv_sec: libc::time_t::MAX, tv_nsec: 0 }, |end| libc::timespec {
            tv_sec: end.as_secs() as libc::time_t,
            tv_nsec: end.subsec_nanos().into(),
        });
        // SAFETY: the condition variable and the lock were initialised, this thread has the lock, and the time is valid.
        let result = unsafe { libc::pthread_cond_timedwait(self.0.get(), guard.0.lock.get(), ptr::from_ref(&end)) };
        Ok((guard, WaitTimeoutResult(result == libc::ETIMEDOUT)))
    }

    pub fn wait_timeout_while<'m, T>(
        &self,
        mut guard: MutexGuard<'m, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'m, T>, WaitTimeoutResult)> {
        let end = std::time::Instant::now().checked_add(timeout);
        while condition(&mut guard) {
            let left = end.map_or(timeout, |end| end.saturating_duration_since(std::time::Instant::now()));
            if left.is_zero() {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = self.wait_timeout(guard, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        Ok((guard, WaitTimeoutResult(false)))
    }

    pub fn notify_all(&self) {
        // SAFETY: the condition variable was initialised.
        unsafe { libc::pthread_cond_broadcast(self.0.get()) };
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}
