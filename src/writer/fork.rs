//! Stops the writer's work during a fork, and lets a child find the writer's state.

use std::time::Duration;

use super::merge::READ_MOST;
use super::{Source, Writer};
use crate::api::options::Config;
use crate::queue::quiesce::Quiesce;
use crate::sys::sync::Instant;
use crate::sys::{barrier, thread};

/// How long a fork waits for threads that are writing a record.
const THREADS_TIMEOUT: Duration = Duration::from_millis(10);

impl Writer {
    pub(super) fn quiesce(&self) -> &'static Quiesce {
        &self.shared.status.quiesce
    }

    /// Quiesces the writer for a fork, once the registrations of earlier calls are written.
    pub(super) fn be_quiescent(&mut self) {
        let still = self.quiesce();
        if self.exiting || !still.begin_hold() {
            // During an exit the writer cannot quiesce, because the end of the process may interrupt any write.
            still.answer(false, u64::MAX);
            return;
        }
        barrier::all_threads();
        self.collect();
        let unread: u64 = self.sources.iter().map(Source::unread).sum();
        if unread > READ_MOST && self.applier.last_time >= still.needed() {
            return still.answer(false, self.applier.last_time);
        }
        if !still.hold_threads(self.sources.iter().map(|source| source.slot.clone())) {
            return;
        }
        barrier::all_threads();
        let end = Instant::now() + THREADS_TIMEOUT;
        let mut quiet = still.is_quiet();
        while !quiet && Instant::now() < end {
            thread::sleep_micros(20);
            quiet = still.is_quiet();
        }
        if still.enter_last() {
            self.round_inside(false);
            still.answer(quiet && !self.sources.iter().any(Source::has_unread), u64::MAX);
        }
    }

    /// Whether a fork needs a pause in the middle of this round.
    pub(super) fn is_to_pause(&self) -> bool {
        let may_pause = || self.works_until.is_none_or(|time| Instant::now() >= time);
        self.quiesce().is_in_a_hurry() && may_pause()
    }

    /// Pauses in the middle of a round, if a fork needs a pause. Before the call, all collected groups must be written to the
    /// jitdump, because a forked child takes over only groups that are in the parent's jitdump.
    pub(super) fn let_forks_begin(&mut self) {
        if self.is_to_pause() {
            let begin = Instant::now();
            self.quiesce().give_way();
            // After a pause, the writer works at least for the duration of that pause.
            self.works_until = Some(Instant::now() + begin.elapsed());
        }
    }

    /// The options with which the sinks were opened. `None` while the sinks are closed.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Publishes the address of this writer, so that a forked child finds the writer. The address stays valid until the writer
    /// has finished.
    pub fn announce(&mut self) {
        let still = self.quiesce();
        still.begin((&raw mut *self).cast(), self.host.page.shared);
    }

    /// Returns the parent's writer in a forked child. `place` is the address that `announce` has published.
    ///
    /// # Safety
    /// `place` is NULL or the address from `announce`. The writer was quiescent at the fork, and nobody else in the child uses
    /// the writer.
    pub unsafe fn of_parent(place: *mut ()) -> Option<&'static mut Writer> {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<Writer>().as_mut() }
    }
}
