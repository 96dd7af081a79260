//! The C calls for code memory that is a mapping of an ELF file.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::status::jitsym_status;
use super::types::*;
use super::{input, output};
use crate::session;

/// Makes a region of code memory: a mapping of an ELF file that the library writes. Register code in the region by
/// `jitsym_register` with an address in the executable view. The memory stays until `jitsym_region_release`, even when
/// the session is closed. The caller sets `out->struct_size`.
///
/// If the file is not available (no sink `JITSYM_SINK_REGION`, a directory mounted `noexec`, no room), the call still
/// returns memory. Code in this memory is then written to the other sinks, and `jitsym_stats.region_refused` and
/// `jitsym_last_error` report the failure.
///
/// [docs/regions.md](regions.md#fork-exit-crash) describes what a forked child has of a region with two views (without
/// `JITSYM_REGION_ONE_VIEW`).
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_SIZE_ZERO`, `_ALIGNMENT`;
/// `JITSYM_ERR_TOO_LARGE` for sizes above 1 GiB or alignments above 512 MiB; `JITSYM_ERR_NO_MEMORY`, also if no address
/// space is free near `near_addr`, or 768 regions exist; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
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

/// Turns existing memory of the runtime into a region: a private mapping of an ELF file with the same bytes and
/// protections replaces the memory. `addr`, `size`: whole pages. During the call other threads may execute the memory,
/// but nobody may write to it or change its protection. After a failure the memory is unchanged.
///
/// Afterwards the runtime uses the memory as before: the runtime may write, change protections, unmap parts, give up
/// pages and fork. [docs/regions.md](regions.md#locks-advice-and-keys) tells which advice (`madvise`), locks and keys the
/// memory keeps, and which of them the call refuses. It also describes the [limits](regions.md#limits) of `mremap`. The
/// file takes [room on its file system](regions.md#fork-exit-crash).
///
/// The file also names code that is already registered in the memory. When new code replaces dead code in memory that
/// is writable and executable at once, the library changes the protection of the new code's pages for a moment
/// ([epochs](regions.md#epochs)).
///
/// The call also returns `JITSYM_ERR_NOT_PLAIN` if the memory contains a stack of the calling thread, and
/// `JITSYM_ERR_NO_MEMORY` if no address space is free near the memory, or if 768 regions exist.
/// `JITSYM_ERR_SINK_FAILED` means that the file cannot be made, or must not be executed (`noexec`, SELinux `execmod`).
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`, `_ADDRESS_RANGE`; `JITSYM_ERR_TOO_LARGE` above 1 GiB;
/// `JITSYM_ERR_NOT_PLAIN`, `_LOCKED`, `_REGION` if the memory cannot be adopted; `JITSYM_ERR_NO_MEMORY`,
/// `_NOT_RUNNING`, `_SINK_FAILED`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_adopt(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.adopt_region(addr as u64, size))
}

/// Adds memory at the end of a region with two views, up to `jitsym_region_options.max_size`. Existing memory does not
/// move. `exec`: where the region begins. `size`: the new size in bytes, rounded up to whole pages; a size below the
/// current size changes nothing. Existing memory keeps its locks (`mlock`) and its advice (`madvise`), and the added
/// memory has none.
///
/// [docs/regions.md](regions.md#locks-advice-and-keys) lists what memory keeps.
///
/// `JITSYM_ERR_SINK_FAILED` means that the host has closed the region's file, and that the library cannot reopen the
/// file.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION` if no region begins at `exec`, or the region has one view;
/// `JITSYM_ERR_TOO_LARGE`, `_NO_MEMORY`, `_SINK_FAILED`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_grow(session: *mut jitsym, exec: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.grow_region(exec as u64, size))
}

/// Gives pages of a region back to the system. No code in these pages may still be registered or run. The pages read as
/// zero afterwards. `addr`, `size`: whole pages of the executable view.
///
/// The pages take memory again when they are written to. If the file system has no room for the pages at that time, the
/// kernel raises `SIGBUS`.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`; `JITSYM_ERR_REGION` if the pages do not lie in a region;
/// `JITSYM_ERR_NO_MEMORY` if the file system cannot give pages back, or some pages are unmapped;
/// `JITSYM_ERR_SINK_FAILED` as for `jitsym_region_grow`, or in a forked child if the child has no file of its own;
/// `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_discard(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.discard_region(addr as u64, size))
}

/// Ends a region. A created region is unmapped. An adopted region becomes plain memory again, with the same bytes,
/// protections, locks and advice. Memory that the host has mapped in place of the region's memory stays. During the call
/// other threads may execute adopted memory, but nobody may write to it or change its protection. `exec`: where the region
/// begins. The call unregisters no code: unregister code in the region as usual.
///
/// The call first writes code that was registered in the region. The region's file stays, for profiles that are read
/// later. If code continues to run in adopted memory, register this code again: otherwise its later samples have no
/// name.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_release(session: *mut jitsym, exec: *mut c_void) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.release_region(exec as u64))
}
