//! The C calls for code memory that is a mapping of an ELF file.

use std::ffi::c_void;

use super::boundary::blocking_boundary;
use super::status::jitsym_status;
use super::types::*;
use super::{input, output};
use crate::session;

/// Makes a region of code memory: a mapping of an ELF file that the library writes. Every profiler that reads ELF files, such as
/// perf, names the code in it, and unwinds through it, with no further step. Code in it is registered as elsewhere, by
/// `jitsym_register` with its executable address.
///
/// If the file is not available (no sink `JITSYM_SINK_REGION`, a directory mounted `noexec`, no room), the memory is there all
/// the same. Code that is registered in it goes to the other sinks, and `jitsym_stats.region_refused` and `jitsym_last_error`
/// report it. The memory stays when the session is closed, until `jitsym_region_release` or the end of the process.
///
/// When `fork` returns, the child has a copy of a region with two views. If there is no memory for that, or after a system call
/// that runs no handlers, both see what the other writes. The child also has a file for the region after its first call that uses
/// a session of its parent, or at once with `JITSYM_INIT_FORK_NOW`.
///
/// Parameters:
/// - `out`: receives the region; `out->struct_size` is set by the caller.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`; `JITSYM_ERR_SIZE_ZERO`;
/// `JITSYM_ERR_TOO_LARGE` above 1 GiB, or an alignment of 512 MiB; `JITSYM_ERR_ALIGNMENT`. `JITSYM_ERR_NO_MEMORY`, also if
/// nothing is free near the address, or there are 768 regions. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
///
/// # Safety
/// `options` is NULL or points to `struct_size` readable bytes; `out` is NULL or points to `out->struct_size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_region_create(
    session: *mut jitsym,
    options: *const jitsym_region_options,
    out: *mut jitsym_region,
) -> jitsym_status {
    blocking_boundary(|| {
        // SAFETY: the caller's promise about `options`.
        let wanted = unsafe { input::region(options)? };
        // SAFETY: the caller's promise about `out`.
        unsafe { output::write_region(out, || session::find(session as usize as u64)?.create_region(&wanted)) }
    })
}

/// Turns existing memory of the runtime into a region: a private mapping of an ELF file with the same bytes and protections takes
/// its place.
///
/// During the call other threads may execute the memory, but nobody may write to it or change its protection. Afterwards the runtime
/// may write to it, change protections, unmap parts, give pages up (`madvise`) and fork as before, and let it grow by `mremap` to
/// twice its size, or by 32 MiB.
///
/// The file takes room for the bytes that are there and for registered code, in addition to the memory that these take. On a file
/// system in memory (tmpfs), or of an unknown kind, it takes as much room as the memory has. Earlier advice about the memory
/// (`madvise`) and its protection key are lost.
///
/// Code that is registered there already is named by the file from now on.
///
/// Code that replaces dead code has its own name. The library tells perf of it through a change of protection. Where the runtime
/// makes the memory executable again each time it has written to it (W^X), that change serves. In memory that is writable and
/// executable at once, the library changes the protection of the pages of code that is about to be registered, and changes it
/// back; they stay writable and executable.
///
/// Parameters:
/// - `addr`, `size`: whole pages.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`, `_ADDRESS_RANGE`; `JITSYM_ERR_TOO_LARGE` above 1 GiB.
/// `JITSYM_ERR_NOT_PLAIN` (also for a stack of the calling thread), `JITSYM_ERR_LOCKED`, `JITSYM_ERR_REGION` if the memory cannot be
/// adopted. `JITSYM_ERR_NO_MEMORY`, also
/// if no address space is free below it, or there are 768 regions. `JITSYM_ERR_NOT_RUNNING` without `JITSYM_SINK_REGION`.
/// `JITSYM_ERR_SINK_FAILED` if the file cannot be made, or must not be executed (`noexec`, SELinux `execmod`):
/// `jitsym_last_error` says more. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`. After a failure the memory is as it was.
///
/// Any thread; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_adopt(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.adopt_region(addr as u64, size))
}

/// Makes a region with two views larger, at its end, up to `jitsym_region_options.max_size`. Nothing that is there moves.
///
/// Parameters:
/// - `exec`: where the region begins.
/// - `size`: its new size in bytes, rounded up to whole pages. A smaller one than it has changes nothing.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION` if none begins there, or it has one view; `JITSYM_ERR_TOO_LARGE`;
/// `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_SINK_FAILED` if the host has closed its file; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_grow(session: *mut jitsym, exec: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.grow_region(exec as u64, size))
}

/// Gives pages of a region back, when no code in them is registered or runs any more. They read zero afterwards, and take memory
/// again when they are written to; for that there has to be room where the file is, or the kernel raises `SIGBUS`.
///
/// Parameters:
/// - `addr`, `size`: whole pages of the executable view.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`; `JITSYM_ERR_REGION` if they do not lie in a region.
/// `JITSYM_ERR_NO_MEMORY` if the file system cannot do that, or pages are unmapped. `JITSYM_ERR_SINK_FAILED` if the host has
/// closed the file. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_discard(session: *mut jitsym, addr: *mut c_void, size: u64) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.discard_region(addr as u64, size))
}

/// Ends a region. One that was created is unmapped; one that was adopted becomes plain memory again, with the same bytes and
/// protections, under the same conditions as `jitsym_region_adopt`. Code that was registered in it is written before; its file
/// stays, for profiles that are read later. Unregister the code in it as usual. Code that continues to run in adopted memory has
/// to be registered again, to have a name there.
///
/// Parameters:
/// - `exec`: where the region begins.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_REGION`; `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
///
/// Any thread; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_region_release(session: *mut jitsym, exec: *mut c_void) -> jitsym_status {
    blocking_boundary(|| session::find(session as usize as u64)?.release_region(exec as u64))
}
