//! The code that runs when the library is loaded, and registers the library's exit handlers.
//!
//! If the variable `JITSYM` requests the bridge, the shared library also starts the bridge, even in programs that never call
//! the library.
//!
//! Exit handlers run in the reverse order of their registration. So a handler that is registered at load runs after all
//! handlers of the host. So even code that the host registers during its shutdown is written to the files. The exit handlers
//! are the only cost for a process that ends without a session.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::session::config::environment_asks_for_bridge;
use crate::session::exit::{arm_waiting, at_quick_exit, flush_at_exit};
use crate::session::flush_in_handler::flush_from_signal;
use crate::session::lifecycle::STOP_TIMEOUT;
use crate::session::process::blocking_guarded;
use crate::sys::{dynamic_symbols, panic_guard};

static ARMED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor(unsafe)]
fn at_load() {
    dynamic_symbols::look_up();
    arm();
    if environment_asks_for_bridge() {
        // `jitsym_start_bridge` is looked up by name, because a direct call would make linkers keep most of the library in
        // every program. In a program with the static library, the look-up finds no function, and the first session starts the
        // bridge.
        let start = dynamic_symbols::function(c"jitsym_start_bridge");
        // SAFETY: only this library has a function of this name, and capi/bridge.rs defines the function with this type.
        if let Some(start) = unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn()>>(start) } {
            start();
        }
    }
}

/// Registers the exit handler, once. The first session calls this function too, because the linker may leave constructors out
/// of a static library. If the session registers the exit handler, the handler runs before the exit handlers that the host
/// registered earlier.
pub fn arm() {
    if !ARMED.swap(true, Ordering::Relaxed) {
        // The waiting handler has to run last, so it is registered first.
        arm_waiting();
        // SAFETY: it is sound to call the handler at any time. When a plugin that contains this code is unloaded, the C library
        // removes the handler.
        unsafe {
            libc::atexit(at_exit);
            // A program that calls quick_exit runs no destructors, but still needs complete files. `at_exit` uses nothing that
            // belongs to the program.
            at_quick_exit(at_exit);
        }
    }
}

extern "C" fn at_exit() {
    if panic_guard::is_inside() {
        // A signal handler has interrupted this library and called `exit`, so this thread may hold the library's locks.
        let _ = flush_from_signal(STOP_TIMEOUT);
        return;
    }
    // `blocking_guarded` keeps a panic from unwinding into the C library, and ignores a failure, because no caller could
    // receive it.
    blocking_guarded(flush_at_exit);
}
