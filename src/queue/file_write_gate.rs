//! The gate through which all writes to the files pass, so that the end of the process cuts no write short.
//!
//! The exit handler shuts the gate if the writer has not written everything in time. Without the gate, a write could be cut
//! short, and readers discard everything after an incomplete record.

use std::time::Duration;

use crate::sys::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct WriteGate {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: bool,
    shut: bool,
}

impl WriteGate {
    /// Runs `change`, a function that writes to a file. If the gate is shut, the call waits for the end of the process and
    /// never returns.
    pub fn pass<T>(&self, change: impl FnOnce() -> T) -> T {
        self.enter();
        let result = change();
        let mut state = self.state();
        state.inside = false;
        if state.shut {
            self.left.notify_all();
        }
        result
    }

    fn enter(&self) {
        let mut state = self.state();
        while state.shut {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.inside = true;
    }

    pub fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// Shuts the gate permanently, and waits until no write is under way. Returns false if a write takes longer than
    /// `timeout`.
    pub fn shut(&self, timeout: Duration) -> bool {
        let mut state = self.state();
        state.shut = true;
        let waited = self.left.wait_timeout_while(state, timeout, |state| state.inside);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{mpsc, Arc};

    use super::*;

    #[test]
    fn a_change_in_hand_is_finished_and_none_is_begun() {
        let write_gate = Arc::new(WriteGate::default());
        let changes = Arc::new(AtomicU32::new(0));
        let (begun, begins) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        // The thread waits at the gate until the tests end.
        let (for_thread, counted) = (write_gate.clone(), changes.clone());
        std::thread::spawn(move || loop {
            for_thread.pass(|| {
                begun.send(()).unwrap();
                may_go_on.recv().unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
            });
        });
        begins.recv().unwrap();
        assert!(!write_gate.shut(Duration::from_millis(1)), "somebody is inside");
        go_on.send(()).unwrap();
        assert!(write_gate.shut(Duration::from_secs(60)));
        assert_eq!(changes.load(Ordering::SeqCst), 1);
        assert!(begins.recv_timeout(Duration::from_millis(20)).is_err());
    }
}
