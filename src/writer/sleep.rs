//! When the writer has nothing to do: how long it sleeps, and what wakes it.

use std::time::{Duration, Instant};

use super::source::Source;
use super::Writer;
use crate::sys::last_thread;
use crate::sys::{barrier, host_fds};

/// How long nothing is written after an answer to a signal handler.
const REST: Duration = Duration::from_millis(100);
/// Once the process's first thread has ended, the writer checks at this interval whether there are others. (A thread that ends and
/// has used the library wakes it, so that it learns of the first one's end.)
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it looks whether a first thread has ended that does not wake it then, because it has never used the library.
const LOOK_SELDOM: Duration = Duration::from_secs(10);

impl Writer {
    /// Sleeps until it is woken, unless there is something to do already.
    pub(super) fn sleep(&mut self) {
        // Nobody has registered anything for a while: an idle process keeps little.
        self.shared.pool.forget_asked();
        self.take_back();
        self.shared.pool.rest();
        self.shared.clock.rest();
        self.shared.set_asleep(true);
        barrier::all_threads();
        // A thread that publishes a record or sends a message from now on sees the announcement. Earlier records and messages are
        // found here.
        self.collect();
        let is_asked = self.is_asked();
        if !is_asked && self.sources.iter().any(Source::has_unread) {
            self.end_with_the_last_thread();
        } else if !is_asked {
            let again = self.applier.sinks.again_in();
            if last_thread::first_has_ended() {
                self.end_with_the_last_thread();
                self.shared.parker.park_timeout(again.map_or(LOOK_AROUND, |time| time.min(LOOK_AROUND)));
            } else if let Some(time) = again {
                self.shared.parker.park_timeout(time);
            } else if self.shared.first_tells() {
                self.shared.parker.park();
            } else {
                while self.shared.is_asleep() && !last_thread::first_has_ended() {
                    self.shared.parker.park_timeout(LOOK_SELDOM);
                }
            }
        }
        self.shared.set_asleep(false);
    }

    /// Work is left that the writer can do nothing about, as without memory, and perhaps nobody else either.
    pub(super) fn look_around(&mut self) {
        self.shared.set_asleep(true);
        self.end_with_the_last_thread();
        self.shared.set_asleep(false);
    }

    /// The C library ends a process with its last thread, and ours is the last as long as nobody closes the session.
    fn end_with_the_last_thread(&mut self) {
        if last_thread::first_has_ended() && last_thread::is_this_one() {
            host_fds::end_process();
        }
    }

    /// A signal handler that asked most likely ends the process now, and would cut a write that is under way.
    pub(super) fn rest(&mut self) {
        let end = Instant::now() + REST;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_asked() {
                return;
            }
            self.shared.parker.park_timeout(left);
            self.collect();
        }
    }

    /// While the process exits: a write that it interrupts would leave a torn record.
    pub(super) fn wait_to_be_asked(&mut self) {
        self.collect();
        if !self.is_asked() {
            self.shared.parker.park();
        }
    }
}
