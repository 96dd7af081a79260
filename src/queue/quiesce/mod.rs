//! Quiesces the library for a fork, so that the child has whole data. A quiescent library has its writer between two rounds, no
//! thread that is laying down a record, and everything published applied.
//!
//! The forking thread asks the writer, and waits for a while. The writer keeps the registering threads from beginning another
//! record, makes a last round, and stays quiescent until the fork is over. A fork does not wait for ever, and proceeds if the writer
//! hangs in a slow disk. Then the child learns that its data is incomplete, or, if the writer was changing that data, that it has
//! none.
//!
//! Nor does any other thread wait for ever. Between our handler and the fork itself the host's own handlers run. They may wait for
//! a lock held by a thread that waits here. So threads and writer continue after a while, and note that in memory that the child
//! shares (`WithChildren`). The child sees there at least everything that was noted before it was forked.
//!
//! The child uses none of this: its lock may be held by a thread that does not exist there.

use std::ptr;
use std::time::Duration;

use crate::queue::thread_slot::ThreadSlot;
use crate::sys::mapping::WithChildren;
use crate::sys::sync::atomic::{fence, AtomicBool, Ordering};
use crate::sys::sync::{Arc, Condvar, Instant, Mutex, MutexGuard, PoisonError};
use crate::sys::thread;

/// Forks that begin within this time of a quiesce share it. Later ones wait for the next, so that threads which fork all
/// the time do not keep others from registering.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// How long a thread that registers something is kept by a fork.
pub const HELD_FOR: Duration = Duration::from_millis(50);
/// How long the writer is kept. Copying the page tables of a very large process takes its time.
const STILL_FOR: Duration = Duration::from_secs(1);

/// The state in which a fork has found the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// Nothing is known, or the writer was at work: nothing that is inherited can be used.
    Disturbed = 0,
    /// No writer runs.
    NoWriter = 1,
    /// The inherited data is sound, but more may have been registered.
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

/// The result of a fork's search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub rest: Rest,
    /// Where the writer's state is.
    pub writer: *mut (),
    /// The counts in the shared memory when the fork began.
    writer_went_on: u32,
    thread_went_on: u32,
}

impl Found {
    pub const NOTHING: Found = Found::inherited(Rest::Disturbed, ptr::null_mut());

    /// In a child that has inherited this itself, and changes nothing of it.
    pub const fn inherited(rest: Rest, writer: *mut ()) -> Found {
        Found { rest, writer, writer_went_on: 0, thread_went_on: 0 }
    }

    /// In the child: the library's state at the fork itself.
    pub fn rest_in_child(&self, shared: &WithChildren) -> Rest {
        let sound = shared.writer_went_on.load(Ordering::SeqCst) == self.writer_went_on;
        let whole = shared.thread_went_on.load(Ordering::SeqCst) == self.thread_went_on;
        match self.rest {
            Rest::NoWriter => Rest::NoWriter,
            _ if !sound => Rest::Disturbed,
            Rest::Whole if !whole => Rest::Partial,
            rest => rest,
        }
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Quiesce {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that begin to register now have to wait.
    halting: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Where the writer's state is, as long as one runs.
    writer: Option<WriterState>,
    /// Where children look whether this quiesce has held.
    shared: Option<&'static WithChildren>,
    /// The writer changes what a child would take over.
    moving: bool,
    /// It is in the middle of such a change, and does something slow for which no fork waits.
    is_aside: bool,
    /// Forks that wait for the writer.
    waiting: u32,
    /// The writer is quiescent for them.
    answered: bool,
    /// It had everything then.
    whole: bool,
    /// Forks under way. The writer does not move.
    forking: u32,
    /// When the first of them began.
    since: Option<Instant>,
    halted: Vec<Arc<ThreadSlot>>,
}

#[derive(Clone, Copy, Debug)]
struct WriterState(*mut ());

// SAFETY: an address, used by nobody here.
unsafe impl Send for WriterState {}

impl State {
    fn is_asked(&self) -> bool {
        self.waiting > 0 && self.forking == 0 && !self.answered
    }

    /// The result for a fork that begins now.
    fn found(&self) -> Found {
        let shared = |word: fn(&WithChildren) -> u32| self.shared.map_or(0, word);
        let (rest, writer) = match self.writer {
            None => (Rest::NoWriter, ptr::null_mut()),
            Some(_) if self.moving => (Rest::Disturbed, ptr::null_mut()),
            Some(WriterState(writer)) if self.whole => (Rest::Whole, writer),
            Some(WriterState(writer)) => (Rest::Partial, writer),
        };
        let writer_went_on = shared(|shared| shared.writer_went_on.load(Ordering::SeqCst));
        let thread_went_on = shared(|shared| shared.thread_went_on.load(Ordering::SeqCst));
        Found { rest, writer, writer_went_on, thread_went_on }
    }

    /// A thread gives up waiting for a fork.
    fn give_up_threads(&mut self) {
        self.whole = false;
        self.shared.inspect(|shared| _ = shared.thread_went_on.fetch_add(1, Ordering::SeqCst));
    }

    /// Whether a fork can begin.
    fn is_ready(&self) -> bool {
        match self.since {
            None => self.answered,
            Some(since) => self.whole && since.elapsed() < SHARED_FOR,
        }
    }
}

impl Quiesce {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer begins to run, whose state is at this address until `end`.
    pub fn begin(&self, writer: *mut (), shared: &'static WithChildren) {
        let mut state = self.state();
        (state.writer, state.shared) = (Some(WriterState(writer)), Some(shared));
        (state.moving, state.is_aside, state.whole) = (false, false, false);
    }

    /// The writer has ended.
    pub fn end(&self) {
        let mut state = self.state();
        (state.writer, state.moving, state.is_aside) = (None, false, false);
        drop(state);
        self.changed.notify_all();
    }

    /// The writer begins to change what a child would take over. Waits while the process forks.
    pub fn enter(&self) {
        let state = self.state();
        self.wait_for_forks(state, |state| state.forking > 0 || state.answered).moving = true;
    }

    /// The writer has made that change.
    pub fn leave(&self) {
        self.rest(false);
    }

    /// Ends a change, or interrupts it. Returns whether there was one.
    fn rest(&self, is_aside: bool) -> bool {
        let mut state = self.state();
        let was_moving = std::mem::take(&mut state.moving);
        state.is_aside |= is_aside && was_moving;
        // Without a waiting fork this would be a useless system call each time.
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        was_moving
    }

    /// Runs slow work that does not change the data that a child takes over, while the writer is at work.
    pub fn aside<T>(&self, body: impl FnOnce() -> T) -> T {
        let was_moving = self.rest(true);
        let result = body();
        if was_moving {
            let state = self.state();
            // Not for a fork that still waits: waiting here would delay the round that it waits for.
            let mut state = self.wait_for_forks(state, |state| state.forking > 0);
            (state.moving, state.is_aside) = (true, false);
        }
        result
    }

    fn wait_for_forks<'s>(
        &self,
        mut state: MutexGuard<'s, State>,
        is_in_the_way: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        while is_in_the_way(&state) {
            let left = state.since.map_or(STILL_FOR, |since| STILL_FOR.saturating_sub(since.elapsed()));
            if left.is_zero() {
                state.whole = false;
                state.shared.inspect(|shared| _ = shared.writer_went_on.fetch_add(1, Ordering::SeqCst));
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// A thread has been halted for too long, and continues.
    pub fn go_on(&self, slot: &ThreadSlot) {
        self.state().give_up_threads();
        slot.resume();
    }

    /// Whether a fork waits for the writer.
    pub fn is_asked(&self) -> bool {
        self.state().is_asked()
    }

    /// From now on threads that begin to register wait. `barrier::all_threads` and then the search for such threads have to
    /// follow. False if nobody asks for it any more.
    pub fn begin_hold(&self) -> bool {
        let state = self.state();
        let asked = state.is_asked();
        if asked {
            self.halting.store(true, Ordering::SeqCst);
        }
        asked
    }

    /// Halts threads. False if nobody asks for it any more.
    pub fn hold_threads(&self, slots: impl Iterator<Item = Arc<ThreadSlot>>) -> bool {
        let mut state = self.state();
        if !state.is_asked() {
            return false;
        }
        state.halted.extend(slots);
        state.halted.iter().for_each(|slot| slot.hold_threads());
        true
    }

    /// Whether all halted threads have ended what they had begun.
    pub fn is_quiet(&self) -> bool {
        !self.state().halted.iter().any(|slot| slot.is_busy())
    }

    /// The writer begins its last round before a fork. False if the fork has not waited.
    pub fn enter_last(&self) -> bool {
        let mut state = self.state();
        let asked = state.is_asked();
        state.moving |= asked;
        asked
    }

    /// The writer is quiescent, and does not `enter` before the fork is over.
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
        let begin = Instant::now();
        fence(Ordering::SeqCst);
        while self.halting.load(Ordering::SeqCst) {
            if begin.elapsed() > HELD_FOR {
                self.state().give_up_threads();
                break;
            }
            thread::sleep_micros(50);
        }
    }

    /// Before a fork: quiesces the library, as far as that succeeds within `patience`. Of that, two thirds are for the writer to have
    /// everything, and the rest is for it to become quiescent at all. `wake` wakes the writer. To be followed by `over` in the parent.
    pub fn prepare(&self, patience: Duration, wake: impl FnOnce()) -> Found {
        let begin = Instant::now();
        let grace = patience / 3;
        let mut state = self.state();
        if state.writer.is_some() {
            state.waiting += 1;
            drop(state);
            wake();
            state = self.state();
            state = self.wait(state, begin + (patience - grace), |state| state.writer.is_none() || state.is_ready());
            // It pauses where it writes to a file next.
            state = self.wait(state, begin + patience, |state| !state.moving);
            state.waiting -= 1;
        }
        state.since.get_or_insert_with(Instant::now);
        state.forking += 1;
        state.found()
    }

    /// As `prepare`, without a round of the writer, if it is quiescent already and `is_quiescent` says that it has everything.
    pub fn prepare_at_once(&self, is_quiescent: impl FnOnce() -> bool) -> Option<Found> {
        let mut state = self.state();
        let is_at_rest = !state.moving && !state.is_aside && state.waiting == 0 && state.forking == 0;
        state.writer.filter(|_| is_at_rest)?;
        self.halting.store(true, Ordering::SeqCst);
        if !is_quiescent() {
            self.halting.store(false, Ordering::SeqCst);
            return None;
        }
        (state.forking, state.whole, state.since) = (1, true, Some(Instant::now()));
        Some(state.found())
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
mod tests;
