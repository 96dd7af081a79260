//! How a fork finds the library at rest, so that the child has whole data: the writer between two passes, no thread laying
//! down a record, and everything published applied.
//!
//! The forking thread asks the writer, and waits for a while. The writer keeps the registering threads from beginning another
//! record, makes a last pass, and stands still until the fork is over. A fork does not wait for ever, and goes on if the
//! writer hangs in a slow disk: then the child learns that it does not have everything, or, if the writer was changing what it
//! has inherited, nothing.
//!
//! The child touches none of this: the lock in it may be held by a thread that does not exist there.

use std::ptr;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::slot::Slot;
use crate::sys::thread;

/// How long a fork waits for the writer to have everything.
const PATIENCE: Duration = Duration::from_millis(50);
/// How much longer it waits for the writer to come to rest at all.
const GRACE: Duration = Duration::from_millis(25);
/// Forks that begin within this time of a standstill share it. Later ones wait for the next, so that threads which fork all
/// the time do not keep others from registering.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// How a fork has found the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// Nothing is known, or the writer was at work: nothing that is inherited can be used.
    Disturbed = 0,
    /// No writer runs.
    NoWriter = 1,
    /// What is there is sound, but there may be more that was registered.
    Partial = 2,
    /// Everything that was registered is there.
    Whole = 3,
}

impl Rest {
    /// The value with this number.
    pub fn of(number: u32) -> Rest {
        [Rest::NoWriter, Rest::Partial, Rest::Whole]
            .into_iter()
            .find(|rest| *rest as u32 == number)
            .unwrap_or(Rest::Disturbed)
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Standstill {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that begin to register now have to wait.
    halting: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Where the writer's state is, as long as one runs.
    writer: Option<WriterState>,
    /// The writer changes what a child would take over.
    moving: bool,
    /// Forks that wait for the writer.
    waiting: u32,
    /// The writer has come to rest for them.
    answered: bool,
    /// It had everything then.
    whole: bool,
    /// Forks under way. The writer does not move.
    forking: u32,
    /// When the first of them began.
    since: Option<Instant>,
    halted: Vec<Arc<Slot>>,
}

#[derive(Clone, Copy, Debug)]
struct WriterState(*mut ());

// SAFETY: an address, used by nobody here.
unsafe impl Send for WriterState {}

impl State {
    fn is_asked(&self) -> bool {
        self.waiting > 0 && self.forking == 0 && !self.answered
    }

    /// Whether a fork can begin.
    fn is_ready(&self) -> bool {
        match self.since {
            None => self.answered,
            Some(since) => self.whole && since.elapsed() < SHARED_FOR,
        }
    }
}

impl Standstill {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer begins to run, whose state is at this address until `end`.
    pub fn begin(&self, writer: *mut ()) {
        let mut state = self.state();
        state.writer = Some(WriterState(writer));
        (state.moving, state.whole) = (false, false);
    }

    /// There is no writer any more.
    pub fn end(&self) {
        let mut state = self.state();
        (state.writer, state.moving) = (None, false);
        drop(state);
        self.changed.notify_all();
    }

    /// The writer begins to change what a child would take over. Waits while the process forks.
    pub fn enter(&self) {
        let mut state = self.state();
        while state.forking > 0 || state.answered {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.moving = true;
    }

    /// The writer has done so.
    pub fn leave(&self) {
        self.rest();
    }

    fn rest(&self) -> bool {
        let mut state = self.state();
        let was_moving = std::mem::take(&mut state.moving);
        // A system call each time, if it were for nobody.
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        was_moving
    }

    /// Runs what takes time and leaves alone what a child would take over, in the middle of what the writer does.
    pub fn aside<T>(&self, body: impl FnOnce() -> T) -> T {
        let was_moving = self.rest();
        let result = body();
        if was_moving {
            let mut state = self.state();
            // Not for one that waits: this is in the way of what it waits for.
            while state.forking > 0 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.moving = true;
        }
        result
    }

    /// Whether a fork waits for the writer.
    pub fn is_asked(&self) -> bool {
        self.state().is_asked()
    }

    /// From now on threads that begin to register wait. `barrier::all_threads` and then the search for such threads have to
    /// follow. False if nobody asks for it any more.
    pub fn begin_halt(&self) -> bool {
        let state = self.state();
        let asked = state.is_asked();
        if asked {
            self.halting.store(true, Ordering::SeqCst);
        }
        asked
    }

    /// Halts threads. False if nobody asks for it any more.
    pub fn halt(&self, slots: impl Iterator<Item = Arc<Slot>>) -> bool {
        let mut state = self.state();
        if !state.is_asked() {
            return false;
        }
        state.halted.extend(slots);
        state.halted.iter().for_each(|slot| slot.halt());
        true
    }

    /// Whether all halted threads have ended what they had begun.
    pub fn is_quiet(&self) -> bool {
        !self.state().halted.iter().any(|slot| slot.is_busy())
    }

    /// The writer begins its last pass before a fork. False if the fork has not waited.
    pub fn enter_last(&self) -> bool {
        let mut state = self.state();
        let asked = state.is_asked();
        state.moving |= asked;
        asked
    }

    /// The writer has come to rest, and does not `enter` before the fork is over.
    pub fn answer(&self, whole: bool) {
        let mut state = self.state();
        state.moving = false;
        if state.is_asked() {
            (state.answered, state.whole) = (true, whole);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// A thread that begins to register waits for the end of a fork. It must have told the writer of itself before.
    pub fn wait_to_register(&self) {
        fence(Ordering::SeqCst);
        while self.halting.load(Ordering::SeqCst) {
            thread::sleep_micros(50);
        }
    }

    /// Before a fork: brings the library to rest, as far as it gets in time. `wake` wakes the writer. Also says where the
    /// writer's state is. To be followed by `over` in the parent.
    pub fn prepare(&self, wake: impl FnOnce()) -> (Rest, *mut ()) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state();
        if state.writer.is_some() {
            state.waiting += 1;
            drop(state);
            wake();
            state = self.state();
            state = self.wait(state, end, |state| state.writer.is_none() || state.is_ready());
            // It pauses where it writes to a file next.
            state = self.wait(state, end + GRACE, |state| !state.moving);
            state.waiting -= 1;
        }
        state.since.get_or_insert_with(Instant::now);
        state.forking += 1;
        match state.writer {
            None => (Rest::NoWriter, ptr::null_mut()),
            Some(_) if state.moving => (Rest::Disturbed, ptr::null_mut()),
            Some(WriterState(writer)) if state.whole => (Rest::Whole, writer),
            Some(WriterState(writer)) => (Rest::Partial, writer),
        }
    }

    /// As `prepare`, without a pass of the writer, if it is at rest already and `is_at_rest` says that it has everything.
    pub fn prepare_at_once(&self, is_at_rest: impl FnOnce() -> bool) -> Option<(Rest, *mut ())> {
        let mut state = self.state();
        let WriterState(writer) = state.writer.filter(|_| !state.moving && state.waiting == 0 && state.forking == 0)?;
        self.halting.store(true, Ordering::SeqCst);
        if !is_at_rest() {
            self.halting.store(false, Ordering::SeqCst);
            return None;
        }
        (state.forking, state.whole, state.since) = (1, true, Some(Instant::now()));
        Some((Rest::Whole, writer))
    }

    fn wait<'s>(
        &self,
        mut state: MutexGuard<'s, State>,
        end: Instant,
        is_done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        while !is_done(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// After a fork, in the parent.
    pub fn over(&self) {
        let mut state = self.state();
        state.forking = state.forking.saturating_sub(1);
        if state.forking > 0 {
            return;
        }
        (state.answered, state.whole, state.since) = (false, false, None);
        self.halting.store(false, Ordering::SeqCst);
        state.halted.drain(..).for_each(|slot| slot.resume());
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{scope, sleep};

    use super::*;

    fn writer() -> *mut () {
        ptr::without_provenance_mut(64)
    }

    /// What the writer does once it is asked.
    fn answer(still: &Standstill, whole: bool) {
        while !still.is_asked() {
            thread::sleep_micros(100);
        }
        assert!(still.begin_halt() && still.halt(std::iter::empty()) && still.is_quiet() && still.enter_last());
        still.answer(whole);
    }

    #[test]
    fn nobody_waits_without_a_writer() {
        let still = Standstill::default();
        let begin = Instant::now();
        assert_eq!(still.prepare(|| panic!("nobody to wake")).0, Rest::NoWriter);
        still.over();
        assert!(begin.elapsed() < PATIENCE && !still.is_asked() && !still.begin_halt());
    }

    #[test]
    fn the_writer_answers_and_stands_still_until_the_fork_is_over() {
        let still = Standstill::default();
        still.begin(writer());
        for whole in [true, false] {
            let (passed, passes) = mpsc::channel();
            scope(|scope| {
                scope.spawn(|| {
                    answer(&still, whole);
                    still.enter();
                    passed.send(()).unwrap();
                    still.leave();
                });
                let rest = if whole { Rest::Whole } else { Rest::Partial };
                assert_eq!(still.prepare(|| {}), (rest, writer()));
                assert!(passes.recv_timeout(Duration::from_millis(20)).is_err(), "it goes on while the process forks");
                still.over();
                passes.recv_timeout(Duration::from_secs(60)).unwrap();
            });
        }
    }

    #[test]
    fn a_writer_that_does_not_answer_is_not_waited_for() {
        let still = Standstill::default();
        still.begin(writer());
        let begin = Instant::now();
        // It sleeps, or does not come to it.
        assert_eq!(still.prepare(|| {}), (Rest::Partial, writer()));
        assert!(begin.elapsed() >= PATIENCE);
        assert!(!still.begin_halt() && !still.enter_last(), "too late");
        still.answer(true);
        still.over();
        still.enter();
        assert_eq!(still.prepare(|| {}), (Rest::Disturbed, ptr::null_mut()));
        still.over();
        // In a slow write it is as good as at rest, and does not come back from it before the fork is over.
        let (written, writes) = mpsc::channel();
        scope(|scope| {
            scope.spawn(|| {
                still.aside(|| sleep(2 * PATIENCE));
                written.send(()).unwrap();
            });
            assert_eq!(still.prepare(|| {}).0, Rest::Partial);
            assert!(writes.recv_timeout(2 * PATIENCE).is_err());
            still.over();
        });
        still.end();
        assert_eq!(still.prepare(|| {}).0, Rest::NoWriter);
    }

    #[test]
    fn a_writer_at_rest_need_not_answer() {
        let still = Standstill::default();
        assert!(still.prepare_at_once(|| true).is_none(), "there is none");
        still.begin(writer());
        assert!(still.prepare_at_once(|| false).is_none() && !still.halting.load(Ordering::SeqCst));
        let halting = || still.halting.load(Ordering::SeqCst);
        assert_eq!(still.prepare_at_once(halting), Some((Rest::Whole, writer())));
        assert!(still.prepare_at_once(|| true).is_none(), "another fork is under way");
        assert_eq!(still.prepare(|| {}).0, Rest::Whole);
        assert!(!still.is_asked() && !still.enter_last());
        still.over();
        still.over();
        still.wait_to_register();
        still.enter();
        assert!(still.prepare_at_once(|| true).is_none(), "it moves");
    }

    #[test]
    fn forks_share_a_standstill_and_the_last_one_ends_it() {
        let still = Standstill::default();
        still.begin(writer());
        let slot = Arc::new(Slot::new(0));
        scope(|scope| {
            scope.spawn(|| {
                while !still.begin_halt() {
                    thread::sleep_micros(100);
                }
                slot.begin();
                assert!(still.halt([slot.clone()].into_iter()) && !still.is_quiet());
                slot.end();
                assert!(still.is_quiet() && still.enter_last());
                still.answer(true);
            });
            assert_eq!(still.prepare(|| {}).0, Rest::Whole);
            assert_eq!(still.prepare(|| {}).0, Rest::Whole);
            assert!(!slot.is_kept());
            still.over();
            assert!(!slot.is_kept() && still.halting.load(Ordering::SeqCst));
            still.over();
            assert!(slot.is_kept());
            still.wait_to_register();
        });
    }
}
