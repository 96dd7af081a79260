//! The one thing that happens when the library is loaded: it asks to be called when the process exits.
//!
//! Exit handlers run in the reverse order of their registration. One that is registered at load runs behind all those that
//! the host registers later, so that code which the host registers while it shuts down is written too. A process that ends
//! without a session pays nothing else.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::capi::boundary::boundary;

static ARMED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor(unsafe)]
fn at_load() {
    arm();
}

/// Registers the exit handler, once. Called by the first session too: the linker may leave constructors out of a static
/// library, and then the handler runs a little earlier than it could.
pub fn arm() {
    if !ARMED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler may run at any time, and the library stays loaded until the process ends (`-z nodelete`).
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    // Nothing may unwind into the C library; there is nobody to hear of a failure.
    let _ = boundary(|| {
        crate::session::flush_at_exit();
        Ok(())
    });
}
