//! Requests to the writer, such as a flush, and the wait for the answer.

use std::sync::TryLockError;
use std::time::Duration;

use super::Shared;
use crate::api::error::{Error, Result};
use crate::queue::requests::Requests;
use crate::queue::writer_in_calls::TRY_AGAIN;
use crate::sys::sync::{MutexGuard, PoisonError};
use crate::sys::thread;

/// Each wait for an answer consists of steps of this length. Each time the process is stopped, the timeout advances by at most
/// one step.
const STEP: Duration = Duration::from_secs(1);

impl Shared {
    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests, or `None` if another thread has locked them.
    pub fn try_requests(&self) -> Option<MutexGuard<'_, Requests>> {
        match self.requests.try_lock() {
            Ok(requests) => Some(requests),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Wakes the waiting threads. Called after each answer, and also when no further answer is possible.
    pub fn tell_waiting(&self) {
        self.answered.notify_all();
    }

    /// Waits until the files contain everything that was committed before the call. Returns `Closed` if the writer has ended.
    /// If the result is `Closed` and `last_answer` returns no error, the writer has written everything.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        let mine = self.ask(true)?;
        self.wait(timeout, |requests| requests.answered >= mine, |requests| requests.result)
    }

    /// Waits until certain sinks have received everything that was committed before this call. These sinks must receive a
    /// call's code before the call returns (`Sinks::MUST_WAIT`). The writer reports the code to these sinks before it writes
    /// files. After each `step` without an answer, `goes_on` decides whether to wait further.
    pub fn wait_until_told(&self, step: Duration, mut goes_on: impl FnMut() -> bool) -> Result<()> {
        let mine = self.ask(false)?;
        loop {
            match self.wait(step, |requests| requests.told >= mine, |requests| requests.not_told) {
                Err(Error::Timeout) if !self.signal_flush.exits_elsewhere(thread::id()) && goes_on() => {}
                answer => return answer,
            }
        }
    }

    /// Sets the time of the request that the calling thread makes. All records that the calling thread has made are stamped at
    /// or before the time of the request.
    pub fn date(&self, requests: &mut Requests) {
        requests.asked_at = requests.asked_at.max(self.clock.now()).max(self.clock.now_after_ends());
    }

    /// The writer's last answer, or the result with which the writer has ended.
    pub fn last_answer(&self) -> Result<()> {
        self.requests().result.map_or(Ok(()), Err)
    }

    /// Makes a request and returns its number. Returns `Timeout` while another thread exits the process, because the exit
    /// does not wait for requests of other threads.
    fn ask(&self, to_write: bool) -> Result<u64> {
        if self.in_place.is_mine() {
            return Err(Error::Writer);
        }
        let mut requests = self.requests();
        if self.signal_flush.exits_elsewhere(thread::id()) {
            return Err(Error::Timeout);
        }
        if !requests.open {
            // A writer that starts later would not receive this request.
            return Err(Error::Closed);
        }
        requests.asked += 1;
        let mine = requests.asked;
        if to_write {
            requests.asked_to_write = mine;
        }
        self.date(&mut requests);
        drop(requests);
        self.wake();
        Ok(mine)
    }

    fn wait(
        &self,
        timeout: Duration,
        is_answered: impl Fn(&Requests) -> bool,
        problem: impl Fn(&Requests) -> Option<Error>,
    ) -> Result<()> {
        let unanswered = |requests: &mut Requests| requests.open && !is_answered(requests);
        let (mut requests, mut left) = (self.requests(), timeout);
        let is_late = loop {
            let step = left.min(if self.in_place.is_used() { TRY_AGAIN } else { STEP });
            let waited = self.answered.wait_timeout_while(requests, step, unanswered);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            (requests, left) = (again, left - step);
            if !waited.timed_out() || left.is_zero() {
                break waited.timed_out();
            }
            if self.in_place.is_used() {
                // Another thread was running the writer when this thread made its request.
                drop(requests);
                self.wake();
                requests = self.requests();
            }
        };
        match problem(&requests) {
            _ if is_late => Err(Error::Timeout),
            // The writer ended before it answered this request. `last_answer` returns whether the writer has written
            // everything.
            _ if !is_answered(&requests) => Err(Error::Closed),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
