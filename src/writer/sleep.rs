//! Lets the writer sleep when there is no work, and ends the process if only the library's threads are left.

use std::time::{Duration, Instant};

use super::source::Source;
use super::Writer;
use crate::sys::last_thread;
use crate::sys::{barrier, host_fds};

/// How long the writer writes nothing after it has answered a signal handler.
const REST: Duration = Duration::from_millis(100);
/// Once the process's first thread has ended, the writer checks at this interval whether other threads exist. At this interval,
/// the writer also checks whether a debugger is gone.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often the writer checks whether the process's first thread has ended. If the first thread has used the library, no check
/// is needed, because the end of the first thread wakes the writer.
const LOOK_SELDOM: Duration = Duration::from_secs(10);

impl Writer {
    /// Sleeps until the writer is woken, unless there is work already.
    pub(super) fn sleep(&mut self) {
        // An idle process should keep little memory.
        self.shared.pool.forget_asked();
        self.take_back();
        self.shared.pool.rest();
        self.shared.clock.rest();
        self.shared.set_asleep(true);
        barrier::all_threads();
        // From now on, a thread that publishes a record or sends a message finds that the writer sleeps. `collect` finds all
        // records and messages from before this point.
        self.collect();
        let is_asked = self.is_asked();
        if !is_asked && self.sources.iter().any(Source::has_unread) {
            self.end_with_the_last_thread();
        } else if !is_asked {
            // A debugger that detaches does not wake the writer. So while a debugger may write to regions, the writer checks
            // regularly whether the debugger is gone.
            let look = self.applier.regions.any_writable().then_some(LOOK_AROUND);
            let again = self.applier.sinks.again_in().into_iter().chain(self.inherits_in()).chain(look).min();
            if last_thread::first_has_ended() {
                self.end_with_the_last_thread();
                self.shared.parker.park(Some(again.map_or(LOOK_AROUND, |time| time.min(LOOK_AROUND))));
            } else if again.is_some() || self.shared.first_tells() {
                self.shared.parker.park(again);
            } else {
                while self.shared.is_asleep() && !last_thread::first_has_ended() {
                    self.shared.parker.park(Some(LOOK_SELDOM));
                }
            }
        }
        self.shared.set_asleep(false);
    }

    /// Ends the process if no other thread exists. The writer calls this function while there is work that cannot be done now,
    /// for instance because memory is short.
    pub(super) fn look_around(&mut self) {
        self.shared.set_asleep(true);
        self.end_with_the_last_thread();
        self.shared.set_asleep(false);
    }

    /// Ends the process if only this thread is left. The C library ends a process when the last thread of the process ends. But
    /// if nobody has closed the session, the threads of libjitsym keep the process alive, so the writer ends the process.
    fn end_with_the_last_thread(&mut self) {
        if last_thread::first_has_ended() && last_thread::is_this_one() {
            host_fds::end_process();
        }
    }

    /// Pauses after a signal handler's flush, because the handler most likely ends the process now, which would interrupt a
    /// write.
    pub(super) fn rest(&mut self) {
        let end = Instant::now() + REST;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_asked() {
                return;
            }
            self.shared.parker.park(Some(left));
            self.collect();
        }
    }

    /// Waits for a request while the process exits. Without a request, the writer writes nothing: no call waits for the writer,
    /// so the process could end during a write, and leave an incomplete record.
    pub(super) fn wait_to_be_asked(&mut self) {
        self.collect();
        if !self.is_asked() {
            self.shared.parker.park(None);
        }
    }
}
