//! The C calls for code memory that is a mapping of an ELF file.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::status::jitsym_status;
use super::types::*;
use super::{input, output};
use crate::session;

/// Makes a region of code memory: a mapping of an ELF file that the library writes. The memory stays until
/// `jitsym_region_release`, even if the session is closed.
///
/// If the file cannot be made (no sink `JITSYM_SINK_REGION`, a directory mounted `noexec`, no room), the call still returns
/// memory, whose code goes to the map and the jitdump. `jitsym_stats.region_refused` and `jitsym_last_error` report this.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_SIZE_ZERO`, `_TOO_LARGE`, `_ALIGNMENT`,
/// `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_region_create(
    session: *mut jitsym,
    options: *const jitsym_region_options,
    out: *mut jitsym_region,
) -> jitsym_status {
    blocking_boundary(|| {
        // SAFETY: the caller promises that `options` is NULL or valid.
        let wanted = unsafe { input::region(options)? };
        // SAFETY: the caller promises that `out` is NULL or valid.
        unsafe { output::write_region(out, || session::find(session as usize as u64)?.create_region(&wanted)) }
    })
}

/// Turns existing memory into a region: a private mapping of an ELF file with the same bytes and protections replaces the
/// memory. `addr`, `size`: whole pages, at most 1 GiB. During the call, other threads may execute the memory, but must not
/// write to it or change its protection. After a failure the memory is unchanged.
///
/// Adopted memory works as before, within [limits](regions.md#limits), such as those of `mremap`. When code in writable and
/// executable memory replaces [dead code](regions.md#epochs), the library briefly changes the protection of the new code's
/// pages. The file also names code registered before.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SINK_FAILED` if the file cannot be made or must not be executed (`noexec`, SELinux
/// `execmod`); `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`, `_ADDRESS_RANGE`, `_TOO_LARGE`, `_NOT_PLAIN`, `_LOCKED`, `_REGION`,
/// `_NO_MEMORY`, `_NOT_RUNNING`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_adopt(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.adopt_region(addr as u64, size))
}

/// Adds memory at the end of a region with two views, up to `jitsym_region_options.max_size`. Existing memory does not move.
/// `exec`: where the region begins. `size`: the new size in bytes, rounded up to whole pages; a smaller size changes nothing.
///
/// Added memory has no [locks or advice](regions.md#locks-advice-and-keys) (`mlock`, `madvise`); existing memory keeps them.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION`, also if the region has one view; `JITSYM_ERR_SINK_FAILED` if the host has closed
/// the region's file, and the library cannot reopen it; `JITSYM_ERR_TOO_LARGE`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`,
/// `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_grow(session: *mut jitsym, exec: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.grow_region(exec as u64, size))
}

/// Frees the memory of whole pages of a region. The pages then read as zero. No code in the pages may still be registered or
/// run. `addr`, `size`: the pages, in the executable view.
///
/// If a later write finds no room in the file system, the kernel raises `SIGBUS`.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NO_MEMORY` if the file system cannot discard pages, or some pages are unmapped;
/// `JITSYM_ERR_SINK_FAILED` if the host has closed the file and the library cannot reopen it, or this forked child has no file
/// for the region; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`, `_REGION`, `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_discard(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.discard_region(addr as u64, size))
}

/// Ends a region. A created region is unmapped. An adopted region becomes plain memory with the same bytes, protections, locks
/// and advice. `exec`: where the region begins. During the call, other threads may execute adopted memory, but must not write
/// to it or change its protection. The call unregisters no code.
///
/// The region's file stays for later profiles. Memory that the host has mapped over the region stays too. Code that continues
/// to run in adopted memory needs a new registration to keep its name.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_release(session: *mut jitsym, exec: *mut c_void) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.release_region(exec as u64))
}
