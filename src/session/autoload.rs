//! What happens when the library is loaded: it asks to be called when the process exits. If the variable `JITSYM` asks for the bridge,
//! the shared library begins to look at the lists of debuggers, in programs that never call it.
//!
//! Exit handlers run in the reverse order of their registration. One that is registered at load runs after all those that
//! the host registers later, so that code which the host registers while it shuts down is written too. A process that ends
//! without a session pays nothing else.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::session::config::environment_asks_for_bridge;
use crate::session::exit::{arm_waiting, at_quick_exit, flush_at_exit};
use crate::session::lifecycle::STOP_TIMEOUT;
use crate::session::process::blocking_guarded;
use crate::session::signal::flush_from_signal;
use crate::sys::{loader, panic_guard};

static ARMED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor(unsafe)]
fn at_load() {
    loader::look_up();
    arm();
    if environment_asks_for_bridge() {
        // Looked up: linkers keep all that is called from here, which is most of the library. A program with the static library in it
        // has no function of that name, and its first session starts the bridge.
        let start = loader::function(c"jitsym_start_bridge");
        // SAFETY: the name is this library's, and the function is that of capi/bridge.rs.
        if let Some(start) = unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn()>>(start) } {
            start();
        }
    }
}

/// Registers the exit handler, once. Called by the first session too: the linker may leave constructors out of a static
/// library, and then the handler runs a little earlier than it could.
pub fn arm() {
    if !ARMED.swap(true, Ordering::Relaxed) {
        // First, because the last one runs first.
        arm_waiting();
        // SAFETY: the handler may run at any time. The C library forgets it when a plugin is unloaded that this code lies in.
        unsafe {
            libc::atexit(at_exit);
            // A program that calls quick_exit wants no destructors to run, and its files complete all the same: that is what such
            // handlers are for. Ours touches nothing of the program's.
            at_quick_exit(at_exit);
        }
    }
}

extern "C" fn at_exit() {
    if panic_guard::is_inside() {
        // Called by a signal handler that interrupted this library, whose locks its own thread may hold.
        let _ = flush_from_signal(STOP_TIMEOUT);
        return;
    }
    // Nothing may unwind into the C library; there is nobody to hear of a failure.
    let _ = blocking_guarded(|| {
        flush_at_exit();
        Ok(())
    });
}
