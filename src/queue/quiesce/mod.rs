//! Quiesces the library for a fork, so that the child inherits complete data.
//!
//! The library is quiescent when the writer is between two rounds, no thread is writing a record, and the writer has applied
//! all published records.
//!
//! The forking thread asks the writer to quiesce, and waits for a limited time. The writer keeps the registering threads from
//! beginning another record, makes a last round, and stays quiescent until the fork is over. The process may fork without this
//! last round, for instance because a slow disk blocks the writer, or because the writer has to apply too many records of other
//! threads. After a fork without the last round, the child finds that its data is incomplete. If the writer is changing the
//! data at the moment of the fork, the child finds that its data is unusable.
//!
//! The waits of the registering threads and of the writer also have a limit. The host's own fork handlers run between the
//! library's fork handler and the fork itself. A handler of the host may wait for a lock whose holder waits for the end of the
//! fork. To end this deadlock, the threads and the writer give up waiting after a while, and increment a counter in memory that
//! the parent shares with the child (`WithChildren`). The counter shows the child that a thread or the writer gave up before
//! the fork, or just after the fork.
//!
//! The child does not use the parent's `Quiesce`. A thread of the parent may have held the lock in the parent's `Quiesce` at
//! the fork, and this thread does not exist in the child.

use std::cell::Cell;
use std::ptr;
use std::time::Duration;

use crate::queue::thread_slot::ThreadSlot;
use crate::sys::mapping::WithChildren;
use crate::sys::sync::atomic::{fence, AtomicBool, Ordering};
use crate::sys::sync::{Arc, Condvar, Instant, Mutex, MutexGuard, PoisonError};
use crate::sys::thread;

/// Several forks can use the same quiescent state if they begin within `SHARED_FOR` after the first of these forks. A fork that
/// begins later waits for the next quiescent state. Without this limit, threads that fork all the time would keep other threads
/// from registering code.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// The maximum time for which a registering thread waits for a fork.
pub const HELD_FOR: Duration = Duration::from_millis(50);
/// The maximum time for which the writer waits for a fork. This limit is long, because a fork of a very large process has to
/// copy many page tables.
const STILL_FOR: Duration = Duration::from_secs(1);

/// A fork that has waited for its whole `patience` waits for this time at most if the writer is changing data and only lacks a
/// processor. Without this wait, children of a busy machine could use nothing of their parent.
const STARVED_FOR: Duration = Duration::from_secs(1);
/// The pause between two looks at the state of the writer's thread.
const LOOK: Duration = Duration::from_millis(5);

thread_local! {
    /// True while this thread prepares a fork and wakes the writer. If the library has no thread, waking the writer runs the
    /// writer on this thread. If this value is true, the writer must not wait for the fork.
    static RUNS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// The state in which a fork has found the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// The state is unknown, or the writer was changing data: the child can use nothing that it has inherited.
    Disturbed = 0,
    NoWriter = 1,
    /// The inherited data is sound, but lacks the effects of some calls before the fork.
    Partial = 2,
    /// The inherited data contains everything that was registered.
    Whole = 3,
}

impl Rest {
    /// Returns the value with this number, or `Disturbed` if no value has this number.
    pub fn of(number: u32) -> Rest {
        [Rest::NoWriter, Rest::Partial, Rest::Whole]
            .into_iter()
            .find(|rest| *rest as u32 == number)
            .unwrap_or(Rest::Disturbed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub rest: Rest,
    /// The address of the writer's state.
    pub writer: *mut (),
    /// The counts that `WithChildren` had when the fork began.
    writer_went_on: u32,
    thread_went_on: u32,
}

impl Found {
    pub const NOTHING: Found = Found::inherited(Rest::Disturbed, ptr::null_mut());

    /// The result if a forked child forks before it has used its inherited state. The new child inherits this state too.
    pub const fn inherited(rest: Rest, writer: *mut ()) -> Found {
        Found { rest, writer, writer_went_on: 0, thread_went_on: 0 }
    }

    /// In the child: the library's state at the moment of the fork.
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

#[derive(Debug, Default)]
pub struct Quiesce {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether threads that begin to register, or have ended a record, have to wait.
    halting: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The address of the writer's state, while a writer runs.
    writer: Option<WriterState>,
    /// Memory that the process shares with its children. In this memory, a child finds whether the library stayed quiescent
    /// until the fork.
    shared: Option<&'static WithChildren>,
    /// Whether the writer is changing data that a child would take over.
    moving: bool,
    /// The thread that changes the data.
    mover: u32,
    /// Whether the writer has interrupted a change of data (in `Quiesce::aside`, for slow work). While `aside` runs, a fork may
    /// begin.
    is_aside: bool,
    /// Number of forks that wait for the writer.
    waiting: u32,
    /// Number of the forks counted in `waiting` that no longer wait for a last round.
    pressing: u32,
    /// `None` if the writer has time for a last round; otherwise the time up to which the writer has applied all records.
    behind: Option<u64>,
    /// The time up to which the writer has to apply records before the waiting forks may begin.
    needed: u64,
    /// Whether the writer is quiescent for the waiting forks.
    answered: bool,
    /// The time up to which the writer had applied all records when it answered the waiting forks.
    answered_to: u64,
    /// Whether the writer had applied all published records at the moment when it became quiescent.
    whole: bool,
    /// Number of forks under way. While this number is not 0, the writer waits before it changes data, but not longer than
    /// `STILL_FOR`.
    forking: u32,
    /// The time at which the first of the forks under way began.
    since: Option<Instant>,
    halted: Vec<Arc<ThreadSlot>>,
    /// Whether the threads in `halted` are halted: true from `hold_threads` until the last fork is over.
    held: bool,
}

#[derive(Clone, Copy, Debug)]
struct WriterState(*mut ());

// SAFETY: the address is never dereferenced here.
unsafe impl Send for WriterState {}

impl State {
    /// The calling thread begins to change data that a child would take over.
    fn begin_to_move(&mut self) {
        (self.moving, self.mover) = (true, thread::id());
    }

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

    /// Notes that a thread has given up waiting for the end of a fork.
    fn give_up_threads(&mut self) {
        self.whole = false;
        self.shared.inspect(|shared| _ = shared.thread_went_on.fetch_add(1, Ordering::SeqCst));
    }

    /// Whether the writer has too much to do for a last round, but has applied all records up to the time `needed`.
    fn is_behind(&self, needed: u64) -> bool {
        self.behind.is_some_and(|time| time >= needed)
    }

    /// Whether a fork can begin now if it needs all records up to the time `needed`.
    fn is_ready(&self, needed: u64) -> bool {
        let is_answered = match self.since {
            None => self.answered && self.answered_to >= needed,
            Some(since) => self.whole && since.elapsed() < SHARED_FOR,
        };
        is_answered || self.is_behind(needed) && !self.moving || self.writer.is_none()
    }
}

impl Quiesce {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a writer begins to run. The writer's state stays at the address `writer` until `end` is called.
    pub fn begin(&self, writer: *mut (), shared: &'static WithChildren) {
        let mut state = self.state();
        (state.writer, state.shared) = (Some(WriterState(writer)), Some(shared));
        (state.moving, state.is_aside, state.behind, state.whole) = (false, false, None, false);
    }

    /// Notes that the writer has ended.
    pub fn end(&self) {
        let mut state = self.state();
        (state.writer, state.moving, state.is_aside) = (None, false, false);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that the writer begins to change data that a child would take over. If the process is forking, this function
    /// first waits for the end of the fork, but not longer than `STILL_FOR`.
    pub fn enter(&self) {
        let state = self.state();
        self.wait_for_forks(state, |state| state.forking > 0 || state.answered).begin_to_move();
    }

    /// Notes that the change that began with `enter` is complete.
    pub fn leave(&self) {
        self.rest(false);
    }

    /// Ends the writer's change of data, or interrupts it (`is_aside`). Returns whether a change was under way.
    fn rest(&self, is_aside: bool) -> bool {
        let mut state = self.state();
        let was_moving = std::mem::take(&mut state.moving);
        state.is_aside |= is_aside && was_moving;
        // If no fork waits, `notify_all` would be a useless system call.
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        was_moving
    }

    /// Runs `body`, which is slow work of the writer. `body` changes no data that a child takes over, so a fork may begin while
    /// `body` runs.
    pub fn aside<T>(&self, body: impl FnOnce() -> T) -> T {
        let was_moving = self.rest(true);
        let result = body();
        if was_moving {
            let state = self.state();
            // This wait is only for forks under way. The writer must not wait here for a fork that has not begun, because this
            // fork needs the writer's next round.
            let mut state = self.wait_for_forks(state, |state| state.forking > 0);
            state.is_aside = false;
            state.begin_to_move();
        }
        result
    }

    fn wait_for_forks<'s>(
        &self,
        mut state: MutexGuard<'s, State>,
        is_in_the_way: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        let begin = Instant::now();
        while is_in_the_way(&state) {
            let left = STILL_FOR.saturating_sub(state.since.unwrap_or(begin).elapsed());
            if left.is_zero() {
                state.whole = false;
                state.shared.inspect(|shared| _ = shared.writer_went_on.fetch_add(1, Ordering::SeqCst));
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Lets a halted thread continue, because the thread has waited for too long.
    pub fn go_on(&self, slot: &ThreadSlot) {
        self.state().give_up_threads();
        slot.resume();
    }

    /// Sets `State::behind`. A fork that needs only records up to the time `behind` can begin as soon as the writer is not
    /// changing data.
    pub fn set_behind(&self, behind: Option<u64>) {
        self.state().behind = behind;
    }

    pub fn needed(&self) -> u64 {
        self.state().needed
    }

    /// Whether the writer should pause in the middle of its round (`give_way`).
    pub fn is_in_a_hurry(&self) -> bool {
        let state = self.state();
        state.waiting > 0 && !RUNS_WRITER.get() && (state.pressing > 0 || state.is_behind(state.needed))
    }

    /// Pauses the writer in the middle of its round, so that forks can begin. If `behind` is a time, forks that need only
    /// records up to this time can begin. If `behind` is `None`, only forks that have stopped waiting for a last round can
    /// begin. The writer's round continues when the forks that began in the pause are over.
    pub fn give_way(&self) {
        let behind = self.state().behind;
        match behind {
            // A fork that needs records after `time` gets no answer from this call.
            Some(time) => self.answer(false, time),
            None => self.leave(),
        }
        let state = self.state();
        let is_in_the_way = |state: &State| state.forking > 0 || state.answered || state.pressing > 0;
        self.wait_for_forks(state, is_in_the_way).begin_to_move();
    }

    /// Whether a fork waits for the writer.
    pub fn is_asked(&self) -> bool {
        self.state().is_asked()
    }

    /// Whether `enter` would now wait for a fork.
    pub fn is_under_way(&self) -> bool {
        let state = self.state();
        let is_late = state.since.is_some_and(|since| since.elapsed() >= STILL_FOR);
        (state.forking > 0 || state.answered) && !is_late
    }

    /// Makes each thread that begins to register wait. After this call, the writer has to call `barrier::all_threads`, and then
    /// to look for threads that began to register before this call. Returns false if no fork waits for the writer now.
    pub fn begin_hold(&self) -> bool {
        let state = self.state();
        let asked = state.is_asked();
        if asked {
            self.halting.store(true, Ordering::SeqCst);
        }
        asked
    }

    /// Halts the threads of these slots. Returns false if no fork waits for the writer now.
    pub fn hold_threads(&self, slots: impl Iterator<Item = Arc<ThreadSlot>>) -> bool {
        let mut state = self.state();
        if !state.is_asked() {
            return false;
        }
        state.halted.extend(slots);
        state.held = true;
        state.halted.iter().for_each(|slot| slot.hold_threads());
        true
    }

    /// Whether all halted threads have finished the records that they had begun.
    pub fn is_quiet(&self) -> bool {
        !self.state().halted.iter().any(|slot| slot.is_busy())
    }

    /// Notes that the writer begins its last round before a fork. Returns false if no fork waits for the writer now.
    pub fn enter_last(&self) -> bool {
        let mut state = self.state();
        let asked = state.is_asked();
        if asked {
            state.begin_to_move();
        }
        asked
    }

    /// Notes that the writer is quiescent. The writer's next `enter` waits until the fork is over.
    ///
    /// `whole` is true if the writer has applied all records while the threads were halted. If `whole` is true but the threads
    /// are no longer halted, because a fork has begun and ended since `hold_threads`, the waiting forks get no answer. `to` is
    /// the time up to which the writer has applied all records. If any waiting fork needs records after `to`, the waiting forks
    /// get no answer.
    pub fn answer(&self, whole: bool, to: u64) {
        let mut state = self.state();
        state.moving = false;
        if state.is_asked() && (state.held || !whole) && to >= state.needed {
            (state.answered, state.answered_to, state.whole) = (true, to, whole);
        }
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for the end of a fork, for a limited time. Called by a thread that begins to register, after it has sent its
    /// slot to the writer.
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

    /// Waits for the end of a fork, for a limited time. While a fork waits for the writer, a thread calls this function after
    /// it has ended a record, because the writer may need the processor of this thread.
    #[cold]
    pub fn wait_after_record(&self) {
        let (begin, mut pause) = (Instant::now(), 50);
        while self.halting.load(Ordering::Relaxed) && begin.elapsed() <= HELD_FOR {
            thread::sleep_micros(pause);
            // Many threads that wake up often would use the processor time that the writer needs.
            pause = (2 * pause).min(1000);
        }
    }

    /// Before a fork: quiesces the library, as far as possible within `patience`. Returns the state for the child. After the
    /// fork, the parent has to call `over`.
    ///
    /// The call first waits until the library is quiescent, but not longer than two thirds of `patience`. If the writer has too
    /// much to do for a last round, this wait ends once the writer has applied the records up to the time `needed`. If the
    /// writer is still changing data after the first wait, the call also waits until the writer pauses. Both waits together
    /// last for at most `patience`, and `STARVED_FOR` longer if the writer only lacks a processor. `wake` wakes the writer. If `again` is given, `wake` is called repeatedly during the first
    /// wait, with a pause of at most `again` after each call.
    pub fn prepare(&self, needed: u64, patience: Duration, again: Option<Duration>, mut wake: impl FnMut()) -> Found {
        let begin = Instant::now();
        let grace = patience / 3;
        let mut state = self.state();
        if state.writer.is_some() {
            state.waiting += 1;
            state.needed = state.needed.max(needed);
            self.halting.store(true, Ordering::SeqCst);
            let end = begin + (patience - grace);
            loop {
                drop(state);
                RUNS_WRITER.set(true);
                wake();
                RUNS_WRITER.set(false);
                let step = again.map_or(end, |again| end.min(Instant::now() + again));
                state = self.wait(self.state(), step, |state| state.is_ready(needed));
                if again.is_none() || state.is_ready(needed) || Instant::now() >= end {
                    break;
                }
            }
            if state.moving {
                // The writer pauses soon (`give_way`), or at its next write to a file (`aside`).
                state.pressing += 1;
                state = self.wait(state, begin + (patience - LOOK), |state| !state.moving);
                state = self.wait_for_processor(state, begin + patience + STARVED_FOR);
                state.pressing -= 1;
            }
            state.waiting -= 1;
            if state.waiting == 0 {
                state.needed = 0;
            }
        }
        state.since.get_or_insert_with(Instant::now);
        state.forking += 1;
        state.found()
    }

    /// Waits until the writer pauses, as long as the writer's thread can run and only waits for a processor. The wait ends if
    /// two looks find the thread blocked, for instance by a disk.
    fn wait_for_processor<'s>(&'s self, mut state: MutexGuard<'s, State>, end: Instant) -> MutexGuard<'s, State> {
        let mut can_run = true;
        while state.moving && Instant::now() < end {
            let (mover, could_run) = (state.mover, can_run);
            drop(state);
            can_run = thread::can_run(mover);
            state = self.state();
            if !can_run && !could_run {
                break;
            }
            state = self.wait(state, Instant::now() + LOOK, |state| !state.moving);
        }
        state
    }

    /// Like `prepare`, but without a round of the writer. Returns `None` unless a writer exists and is idle, no other fork
    /// waits or is under way, and `is_quiescent` returns true (all records are applied).
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
        state: MutexGuard<'s, State>,
        end: Instant,
        is_done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        let left = end.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, |state| !is_done(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends a fork. Must be called in the parent. After the last of several forks, the writer and the threads continue.
    pub fn over(&self) {
        let mut state = self.state();
        state.forking = state.forking.saturating_sub(1);
        if state.forking > 0 {
            return;
        }
        (state.answered, state.whole, state.since, state.held) = (false, false, None, false);
        self.halting.store(false, Ordering::SeqCst);
        state.halted.drain(..).for_each(|slot| slot.resume());
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
