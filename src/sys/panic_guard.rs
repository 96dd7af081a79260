//! The panic guard makes sure that no panic of the library unwinds into the host or prints a message.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that the library keeps for each thread. All fields are cells of plain values, so an access costs only the lookup
/// of the thread's storage.
pub struct PerThread {
    /// Two flags. `INSIDE` means that the thread runs code of this library. `NOTED` means that `last_error::note` was called
    /// for the current call.
    state: Cell<u8>,
    /// Whether the thread runs inside `beside_host`. During `beside_host`, other threads may change or unmap the code that
    /// this thread registers.
    is_beside_host: Cell<bool>,
    /// The state that a registering thread keeps between its calls. `None` while there is no state, and while a call has taken
    /// the state out of the cell.
    pub local: Cell<Option<NonNull<c_void>>>,
    /// Whether a running call of this thread uses the state in `local`.
    pub in_use: Cell<bool>,
    /// Whether the thread is ending. If an ending thread still calls the library, the call frees the thread's state before it
    /// returns.
    pub is_ending: Cell<bool>,
}

const INSIDE: u8 = 1;
const NOTED: u8 = 2;

thread_local! {
    pub static PER_THREAD: PerThread = const {
        PerThread {
            state: Cell::new(0),
            is_beside_host: Cell::new(false),
            local: Cell::new(None),
            in_use: Cell::new(false),
            is_ending: Cell::new(false),
        }
    };
}

/// Runs `body` as code of this library. Returns `None` if `body` has panicked.
#[inline]
pub fn guarded<T>(body: impl FnOnce(&PerThread) -> T) -> Option<T> {
    let result = PER_THREAD.with(|thread| {
        let outer = thread.state.replace(INSIDE);
        let result = panic::catch_unwind(AssertUnwindSafe(|| body(thread)));
        thread.state.set(outer);
        result
    });
    match result {
        Ok(value) => Some(value),
        Err(payload) => {
            // The payload is leaked, because its destructor could panic again. The payload is nearly always a string.
            std::mem::forget(payload);
            None
        }
    }
}

/// Runs `body`, which is one call of the library. While `body` runs, reasons that earlier calls have noted for a refusal
/// (`last_error::note`) are ignored. Panics are not caught.
#[inline]
pub fn as_one_call<T>(body: impl FnOnce() -> T) -> T {
    PER_THREAD.with(|thread| {
        let outer = thread.state.replace(thread.state.get() & INSIDE);
        let result = body();
        thread.state.set(outer);
        result
    })
}

/// Sets the flag which says that the current call has noted a reason for its refusal.
pub fn set_noted() {
    PER_THREAD.with(|thread| thread.state.set(thread.state.get() | NOTED));
}

pub fn has_noted() -> bool {
    PER_THREAD.with(|thread| thread.state.get() & NOTED != 0)
}

/// Keeps Rust from printing messages about panics of this library to standard error. Panics of the host's own Rust code still
/// reach the host's panic hook.
pub fn silence_panics() {
    // `DONE` is an atomic and not a lock. If another thread held a lock during a fork, the lock would never be released in
    // the child.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !std::thread::panicking() && !DONE.swap(true, Ordering::Relaxed) {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_inside() {
                before(info);
            }
        }));
    }
}

/// Whether the calling thread runs code of this library.
pub fn is_inside() -> bool {
    PER_THREAD.with(|thread| thread.state.get() & INSIDE != 0)
}

/// Marks the calling thread as a thread of the library.
pub fn enter_for_good() {
    PER_THREAD.with(|thread| thread.state.set(INSIDE));
}

/// Ends the effect of `enter_for_good`: the calling thread counts as a thread of the host from now on.
pub fn leave_for_good() {
    PER_THREAD.with(|thread| thread.state.set(0));
}

/// Runs `body`, which must not panic. The host's threads may write to the code that `body` registers, or unmap the code, at
/// any time.
pub fn beside_host<T>(body: impl FnOnce() -> T) -> T {
    PER_THREAD.with(|thread| {
        let outer = thread.is_beside_host.replace(true);
        let result = body();
        thread.is_beside_host.set(outer);
        result
    })
}

pub fn is_beside_host() -> bool {
    PER_THREAD.with(|thread| thread.is_beside_host.get())
}

/// Replaces the function from which Rust's backtrace printer gets the frames of the stack. This replacement reports no frame,
/// so the compiler leaves out the code that prints frames, which would be a fifth of the library. The library does not need
/// this code, because its panic messages are never shown.
///
/// The shared and the static C library of this project do not export this name. Builds with the feature `capi` (cargo-c) do not
/// contain this function: programs are linked with rustc's unchanged archive, which would export the name `_Unwind_Backtrace`.
#[cfg(all(feature = "reserve", not(feature = "capi")))]
#[no_mangle]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _argument: *mut c_void) -> std::ffi::c_int {
    const END_OF_STACK: std::ffi::c_int = 5;
    END_OF_STACK
}

#[cfg(all(feature = "reserve", not(feature = "capi")))]
std::arch::global_asm!(".hidden _Unwind_Backtrace");
