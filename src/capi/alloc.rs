//! The C calls for code memory in pieces.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::output;
use super::status::jitsym_status;
use super::types::*;
use crate::session;

/// Allocates memory for one piece of code, as `malloc` does for data. Write the code at `out->write`, register it with
/// `out->exec`, run it there. The memory is the caller's until `jitsym_free`, also after the session is closed. `size`:
/// in bytes, at most 1 GiB, rounded up to 64. `alignment`: a power of two up to 4096; at least 64, also if it is 0.
/// `near_addr`: an address that is within 32 bits of all of the memory; 0: anywhere. `out`: its `struct_size` is set by
/// the caller.
///
/// The memory is a piece of a region that the library manages ([docs/regions.md](regions.md#memory-for-each-function)).
/// The memory may contain the bytes of earlier code. Code may fill all of the memory, and needs no room after it
/// (`jitsym_code.free_after`). A signed displacement of 32 bits reaches all of the memory from `near_addr`, and the
/// reverse. For code that calls another piece directly, pass the address of that piece.
///
/// If there can be no file, the call still returns memory, as `jitsym_region_create` does. Without sinks, a session
/// that writes nothing is enough (`JITSYM_INIT_OFF_BY_DEFAULT`). A forked child has a copy of all memory, and owns what
/// its parent had allocated.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_SIZE_ZERO`, `_TOO_LARGE`, `_ALIGNMENT`;
/// `JITSYM_ERR_NO_MEMORY`, also if nothing is free near the address, or there are 256 regions; `JITSYM_ERR_SESSION`,
/// `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O at times.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_alloc(
    session: *mut jitsym,
    size: u64,
    alignment: u64,
    near_addr: u64,
    out: *mut jitsym_region,
) -> jitsym_status {
    blocking_boundary(|| {
        let alloc = || session::find(session as usize as u64)?.alloc(size, alignment, near_addr);
        // SAFETY: the caller's promise about `out`.
        unsafe { output::write_region(out, alloc) }
    })
}

/// Takes back the end of memory from `jitsym_alloc`, for code whose size is known only when it is made. `exec`: where
/// the memory begins, in the executable view. `size`: bytes that are still needed, rounded up to 64. Call it before the
/// code is registered.
///
/// Other code may use the part that is taken back at once, so no code may be registered there.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`; `JITSYM_ERR_TOO_LARGE` if `size` is more than there is;
/// `JITSYM_ERR_REGION` if no such memory begins there; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_shrink(session: *mut jitsym, exec: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.shrink(exec as u64, size))
}

/// Takes back memory from `jitsym_alloc`, when no thread runs code there any longer. Code that is registered there is
/// unregistered first, as by `jitsym_unregister_range`. `exec`: where the memory begins, in the executable view. Any
/// session will do.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION` if no such memory begins there, for instance because it was freed;
/// `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O at times.
#[no_mangle]
pub extern "C" fn jitsym_free(session: *mut jitsym, exec: *mut c_void) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.free(exec as u64))
}
