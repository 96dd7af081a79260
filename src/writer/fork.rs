//! How the writer quiesces for a fork, and how a child finds the writer's state.

use std::time::Duration;

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
        if self.exiting || still.is_pressed() || !still.begin_hold() {
            // During an exit the writer cannot quiesce, because the end of the process may interrupt any write. A fork that
            // does not wait for a round begins at once.
            still.answer(false);
            return;
        }
        barrier::all_threads();
        self.collect();
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
            self.gave_way = false;
            self.round_inside(false);
            if self.gave_way {
                // The fork is over, and the threads register again.
                still.leave();
            } else {
                still.answer(quiet && !self.sources.iter().any(Source::has_unread));
            }
        }
    }

    /// The options with which the sinks were opened. `None` while the sinks are closed.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Publishes the address of this writer, so that a forked child finds the writer. The writer stays at this address until
    /// the writer has finished.
    pub fn announce(&mut self) {
        let still = self.quiesce();
        still.begin((&raw mut *self).cast(), self.host.page.shared);
    }

    /// In a forked child: the parent's writer, at the address that `announce` has published.
    ///
    /// # Safety
    /// `place` is NULL or the address from `announce`. The writer was quiescent at the fork, and nobody else in the child
    /// uses it.
    pub unsafe fn of_parent(place: *mut ()) -> Option<&'static mut Writer> {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<Writer>().as_mut() }
    }
}
