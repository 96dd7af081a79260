//! A oneshot channel, which passes one value from one thread to another.
//!
//! A channel of `std` would allocate a handle for the waiting thread, and a failure of this allocation would end the process.

use std::fmt;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::sys::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub struct Give<T>(Arc<Place<T>>);

pub struct Take<T>(Arc<Place<T>>);

struct Place<T> {
    state: Mutex<Value<T>>,
    changed: Condvar,
}

enum Value<T> {
    Waiting,
    Given(T),
    /// The sender was dropped, the receiver has given up, or the value was taken.
    Over,
}

impl<T> fmt::Debug for Give<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Give").finish_non_exhaustive()
    }
}

pub fn oneshot<T>() -> (Give<T>, Take<T>) {
    let place = Arc::new(Place { state: Mutex::new(Value::Waiting), changed: Condvar::new() });
    (Give(place.clone()), Take(place))
}

impl<T> Place<T> {
    fn state(&self) -> MutexGuard<'_, Value<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, state: Value<T>) {
        *self.state() = state;
        self.changed.notify_all();
    }
}

impl<T> Give<T> {
    /// Passes the value to the receiver. Returns false if the receiver has given up.
    pub fn give(self, value: T) -> bool {
        let mut state = self.0.state();
        let is_awaited = matches!(*state, Value::Waiting);
        if is_awaited {
            *state = Value::Given(value);
            drop(state);
            self.0.changed.notify_all();
        }
        is_awaited
    }
}

impl<T> Drop for Give<T> {
    fn drop(&mut self) {
        if matches!(*self.0.state(), Value::Waiting) {
            self.0.end(Value::Over);
        }
    }
}

impl<T> Take<T> {
    /// Waits for the value without a time limit. Returns `None` if no value can arrive any longer.
    pub fn wait(&self) -> Option<T> {
        loop {
            match self.take(Duration::from_secs(60)) {
                Ok(value) => return Some(value),
                Err(Error::Timeout) => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns the value if the value was sent. If the value was not sent, the receiver gives up, and the sender's `give`
    /// returns false.
    pub fn give_up(self) -> Option<T> {
        match std::mem::replace(&mut *self.0.state(), Value::Over) {
            Value::Given(value) => Some(value),
            Value::Waiting | Value::Over => None,
        }
    }

    /// Waits for the value for at most `timeout`. After the error `Timeout`, the value may still arrive. After the error
    /// `Internal`, the value can no longer arrive.
    pub fn take(&self, timeout: Duration) -> Result<T> {
        let is_waiting = |state: &mut Value<T>| matches!(state, Value::Waiting);
        let waited = self.0.changed.wait_timeout_while(self.0.state(), timeout, is_waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, Value::Over) {
            Value::Given(value) => Ok(value),
            Value::Over => Err(Error::Internal),
            Value::Waiting => {
                *state = Value::Waiting;
                Err(Error::Timeout)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_once_late_or_never() {
        let (give, take) = oneshot();
        assert_eq!(take.take(Duration::from_millis(1)), Err(Error::Timeout));
        let thread = std::thread::spawn(move || give.give(7));
        assert_eq!(take.take(Duration::from_secs(60)), Ok(7));
        thread.join().unwrap();
        assert_eq!(take.take(Duration::from_secs(60)), Err(Error::Internal));
        let (give, take) = oneshot::<u32>();
        drop(give);
        assert_eq!(take.take(Duration::from_secs(60)), Err(Error::Internal));
    }
}
