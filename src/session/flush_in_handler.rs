//! The flush that a signal handler may request.

use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::session::process;
use crate::sys::futex::keeping_errno;

/// Writes everything that was registered before this call; `jitsym_flush_from_signal` in C. A signal handler may call this
/// function, whatever code the handler has interrupted.
pub fn flush_from_signal(timeout: Duration) -> Result<()> {
    keeping_errno(|| ask_from_signal(timeout))
}

fn ask_from_signal(timeout: Duration) -> Result<()> {
    let process =
        process::current().map_err(|error| if error == Error::Session { Error::NotRunning } else { error })?;
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    let shared = process.shared().ok_or(Error::NotRunning)?;
    if shared.in_place.is_used() {
        return Err(Error::Writer);
    }
    shared.signal_flush.flush(timeout, || shared.wake_thread())
}
