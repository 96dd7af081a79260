//! The exit handlers, which write pending records if the process exits while a session is open.

use std::time::{Duration, Instant};

use crate::api::error::Error;
use crate::session::lifecycle::STOP_TIMEOUT;
use crate::session::{explain, fork, process};
use crate::sys::{panic_guard, thread};

/// The maximum time that the exit handler takes. The handler first waits for the writer, and then writes and removes the
/// remaining files.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2 * STOP_TIMEOUT.as_secs());

/// The minimum time that is left for writing and removing files, even if the process was stopped during the wait for the
/// writer.
const FILES_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes pending records when the process exits while a session is open. Waits for the writer at most for `STOP_TIMEOUT`, as a
/// close does. If the writer does not answer in time, this function then waits for the end of the writer's current write, so
/// that no record is truncated. Each wait is limited, so a disk that hangs does not block the exit for ever. Unwritten records
/// stay in the spool. The spool is removed once everything is written.
pub fn flush_at_exit() {
    let end = Instant::now() + EXIT_TIMEOUT;
    let Ok(process) = fork::current_once_taken_over(end) else { return };
    // Another thread may be about to open the first session.
    let opened_elsewhere = || process.with_lifecycle(end, |_| Ok(process.shared())).ok().flatten();
    let Some(shared) = process.shared().or_else(opened_elsewhere) else { return };
    // The exit is recorded even if no sink runs, so that a sink that another thread is starting does not write.
    if !shared.signal_flush.exit() {
        return wait_for_exit();
    }
    let has_ended = shared.status.has_ended();
    let asked = if has_ended { Err(Error::NotRunning) } else { shared.flush(STOP_TIMEOUT) };
    match asked {
        Err(Error::Timeout) => _ = shared.status.write_gate.shut(STOP_TIMEOUT),
        // A thread did not finish its record in time, so the files and the spool are left as they are.
        Ok(()) | Err(Error::SinkFailed) if !shared.is_exit_whole() => {}
        Ok(()) | Err(Error::SinkFailed | Error::Closed | Error::NotRunning) => {
            let end = end.max(Instant::now() + FILES_TIMEOUT);
            let left = end.saturating_duration_since(Instant::now());
            let is_done = process.regions.write_last(left) && process.remove_files_at_exit(end);
            if is_done && !process.host.is_broken() && !shared.has_left_unread() {
                shared.pool.memory().remove_spool();
            }
        }
        Err(_) => {}
    }
    shared.signal_flush.exit_is_over();
    explain::summary(process, &shared.status);
}

/// Registers the exit handler `after_exit`. Some C libraries allow several threads to call `exit` at once, and run each handler
/// on one of these threads. If a thread finds no handler left to run, the thread ends the process. `after_exit` waits until the
/// pending records are written, so that a second thread does not end the process too early.
pub fn arm_waiting() {
    // SAFETY: it is sound to call the handler at any time. When a plugin that contains this code is unloaded, the C library
    // removes the handler.
    unsafe {
        libc::atexit(after_exit);
        at_quick_exit(after_exit);
    }
}

extern "C" {
    pub fn at_quick_exit(handler: extern "C" fn()) -> libc::c_int;
}

extern "C" fn after_exit() {
    // If a signal handler has interrupted this library and called `exit`, this thread may hold the library's locks. `is_inside`
    // is called before `blocking_guarded`, because inside the guard it always returns true.
    let may_write = !panic_guard::is_inside();
    process::blocking_guarded(|| {
        // The C library may have assigned the first handler to another thread, which has not run this handler yet.
        let has_begun = process::current_shared().is_none_or(|shared| shared.signal_flush.has_exit_begun());
        if may_write && !has_begun {
            flush_at_exit();
        } else {
            wait_for_exit();
        }
    });
}

/// If another thread is also exiting the process, this function waits until the other thread has written the pending records.
fn wait_for_exit() {
    let Some(shared) = process::current_shared() else { return };
    if shared.signal_flush.is_exit_under_way(thread::id()) {
        // Registers a handler for the next thread that calls `exit`.
        arm_waiting();
    }
    let end = Instant::now() + EXIT_TIMEOUT;
    while shared.signal_flush.is_exit_under_way(thread::id()) && Instant::now() < end {
        thread::sleep_micros(200);
    }
}
