//! The C calls that make and free trampolines.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::input;
use super::status::jitsym_status;
use super::types::*;
use crate::api::error::Error;
use crate::session;

/// Makes a function that calls `target` with the same arguments, and returns the same result. Stacks show this function with
/// the name, file, line and `lines` of `code` (`JITSYM_CODE(NULL, 0, name)`; `flags` may be `JITSYM_CODE_MORE`, other fields
/// must be 0). `target`: a function of any type. `stack_words`: how many words (8 bytes) of arguments the caller passes on the
/// stack; at most 32. `out_entry`: gets the function's address. If `session` is NULL, no sink runs and no code is remembered,
/// or the library makes no code for this machine, it gets `target`.
///
/// The function stays until `jitsym_trampoline_free`, even if the session is closed or all sinks are disabled.
/// [trampolines.md](trampolines.md) has an example, the costs and the limits.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, also for a field that must be 0;
/// `JITSYM_ERR_TOO_LARGE` for too many words; or a status of `jitsym_alloc` or `jitsym_register`. After an error, no function
/// was made.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O at times.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_trampoline(
    session: *mut jitsym,
    target: *mut c_void,
    stack_words: u32,
    code: *const jitsym_code,
    out_entry: *mut *mut c_void,
) -> jitsym_status {
    let handle = session as usize as u64;
    let tell = |entry: *mut c_void| {
        // SAFETY: the pointer is not NULL where `tell` is called, and the caller promises that the pointer is writable.
        unsafe { out_entry.write(entry) };
    };
    if !out_entry.is_null() && (session.is_null() || session::is_off(handle)) {
        tell(target);
        return jitsym_status::JITSYM_OK;
    }
    blocking_boundary(|| {
        if out_entry.is_null() {
            return Err(Error::Null.because("out_entry is NULL", []));
        }
        let session = session::find(handle)?;
        if session.is_idle() {
            return session.still_open(()).map(|()| tell(target));
        }
        // SAFETY: the caller promises that `code` is NULL or valid.
        let entry = unsafe { input::named(code, |code| session.trampoline(target as u64, stack_words, code))? };
        tell(entry as *mut c_void);
        Ok(())
    })
}

/// Unregisters and frees a function from `jitsym_trampoline`. No thread may still run it, or its target below it. `entry`: the
/// function's address. Another address, such as a `target` that `jitsym_trampoline` has handed back, is left alone.
/// `session`: any open session. If it is NULL, the call does nothing.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O at times.
#[no_mangle]
pub extern "C" fn jitsym_trampoline_free(session: *mut jitsym, entry: *mut c_void) -> jitsym_status {
    if session.is_null() {
        return jitsym_status::JITSYM_OK;
    }
    blocking_boundary(|| session::find(session as usize as u64)?.free_trampoline(entry as u64))
}
