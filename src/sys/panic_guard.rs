//! The panic guard: nothing that goes wrong inside unwinds into the host, or prints anything.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the library keeps for each thread: cells of plain values, so that access costs no more than finding them.
pub struct PerThread {
    /// The thread runs code of this library (`INSIDE`), and the call that is under way has noted why it is refused (`NOTED`).
    state: Cell<u8>,
    /// The running code does not know what the host's threads are doing.
    is_beside_host: Cell<bool>,
    /// The state of a registering thread, except during a call that uses it.
    pub local: Cell<Option<NonNull<c_void>>>,
    /// Such a call is under way.
    pub in_use: Cell<bool>,
    /// The thread ends: what it still calls leaves no state behind.
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

/// Runs `body` as code of this library. `None` if it has panicked.
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
            // Dropping a payload can panic again; it is a string in all but hostile cases, and lost only once.
            std::mem::forget(payload);
            None
        }
    }
}

/// Runs `body` as one call, for what is noted in it, and without a guard.
#[inline]
pub fn as_one_call<T>(body: impl FnOnce() -> T) -> T {
    PER_THREAD.with(|thread| {
        let outer = thread.state.replace(thread.state.get() & INSIDE);
        let result = body();
        thread.state.set(outer);
        result
    })
}

/// The call that is under way has noted why it is refused.
pub fn set_noted() {
    PER_THREAD.with(|thread| thread.state.set(thread.state.get() | NOTED));
}

/// Whether it has.
pub fn has_noted() -> bool {
    PER_THREAD.with(|thread| thread.state.get() & NOTED != 0)
}

/// Keeps Rust from printing a message about a panic in this library to the host's standard error. Panics of the host's own
/// Rust code, if there is any, go to the hook that was there before.
pub fn silence_panics() {
    // Not a lock: one that another thread holds when the process forks would never be released in the child.
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

/// Marks the calling thread as one of the library's own.
pub fn enter_for_good() {
    PER_THREAD.with(|thread| thread.state.set(INSIDE));
}

/// Takes that back: the calling thread goes on as one of the host's.
pub fn leave_for_good() {
    PER_THREAD.with(|thread| thread.state.set(0));
}

/// Runs `body`, which does not panic. The host's threads may write to the code that it registers, or unmap that, at any time.
pub fn beside_host<T>(body: impl FnOnce() -> T) -> T {
    PER_THREAD.with(|thread| {
        let outer = thread.is_beside_host.replace(true);
        let result = body();
        thread.is_beside_host.set(outer);
        result
    })
}

/// Whether the calling thread runs such a body.
pub fn is_beside_host() -> bool {
    PER_THREAD.with(|thread| thread.is_beside_host.get())
}

/// Rust's printer of backtraces asks this function for the stack. It finds no frame, and the compiler leaves out the rest of the
/// printer: a fifth of the library, for messages that nobody sees. Neither C library shows the name to a program. An archive that
/// is used as rustc writes it would, so the feature `capi` is without it.
#[cfg(all(feature = "reserve", not(feature = "capi")))]
#[no_mangle]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _argument: *mut c_void) -> std::ffi::c_int {
    const END_OF_STACK: std::ffi::c_int = 5;
    END_OF_STACK
}

#[cfg(all(feature = "reserve", not(feature = "capi")))]
std::arch::global_asm!(".hidden _Unwind_Backtrace");
