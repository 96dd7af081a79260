//! The C calls that allocate and free memory for single pieces of code.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::output;
use super::status::jitsym_status;
use super::types::*;
use crate::session;

/// Allocates memory for one piece of code. Write the code at `out->write`; register and run it at `out->exec`. The memory stays
/// until `jitsym_free`, even if the session is closed. `size`: in bytes, at most 1 GiB, rounded up to a multiple of 64.
/// `alignment`: a power of two up to 4096, or 0; values below 64 count as 64. `near_addr`: all of the memory is within 2 GiB of
/// this address; 0: anywhere.
///
/// The memory lies in a [region of the library](regions.md#memory-for-each-function), and may contain the bytes of earlier
/// code. For direct calls to another piece (signed 32-bit displacements), pass that piece's address as `near_addr`.
///
/// The call also returns memory if the region's file cannot be made, or if the session writes nothing. A forked child owns
/// copies of its parent's pieces.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_SIZE_ZERO`, `_TOO_LARGE`, `_ALIGNMENT`, `_NO_MEMORY`, `_SESSION`,
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
        // SAFETY: the caller promises that `out` is NULL or valid.
        unsafe { output::write_region(out, alloc) }
    })
}

/// Makes memory from `jitsym_alloc` smaller, and frees the rest. Call this before the code is registered. `exec`: start of the
/// memory in the executable view. `size`: bytes still needed, at most the memory's size; rounded up to a multiple of 64.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_TOO_LARGE`, `_REGION`, `_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_shrink(session: *mut jitsym, exec: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.shrink(exec as u64, size))
}

/// Unregisters all code in memory from `jitsym_alloc`, and frees the memory. No thread may still run this code. `exec`: start
/// of the memory in the executable view. `session`: any open session.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION`, `_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O at times.
#[no_mangle]
pub extern "C" fn jitsym_free(session: *mut jitsym, exec: *mut c_void) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.free(exec as u64))
}
