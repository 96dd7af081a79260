//! The functions of the C API. These functions take pointers and return statuses.
//!
//! Every function checks the input from C (`input`), calls the session, and turns the result into a status. All functions of
//! this module except `jitsym_flush_from_signal` run inside the panic boundary, which turns a panic into a status.

#![allow(non_camel_case_types)]

pub mod alloc;
pub(crate) mod boundary;
pub mod bridge;
pub mod collector;
pub mod info;
mod input;
mod output;
pub mod region;
pub mod status;
pub mod types;

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::Id;
use crate::session::{self, Given, Local};
use crate::sys::panic_guard::{self, PerThread};
use crate::sys::valgrind;
use boundary::{blocking_boundary, boundary, boundary_on};
use input::CodeInput;
use status::jitsym_status;
use types::*;

/// Opens a session. The first session also starts the sinks, and the background thread that writes their files. If at least one
/// sink starts, the call succeeds: `jitsym_get_stats` and `jitsym_last_error` report the sinks that failed.
///
/// A later session starts those of its sinks that do not run yet, with its own directories, dialect and bounds. All other
/// options of the first session stay in effect until the last session closes. However, the `file_mode` of a later session can
/// remove permission bits from new files. A later session starts failed or disabled sinks only if the session would otherwise
/// have no running sink.
///
/// A new session with the same directories continues the files of closed sessions. As the first call in a forked child,
/// `jitsym_init` also continues the parent's sessions, with the new options.
///
/// `JITSYM_ERR_CONFLICT` also means that the variable `JITSYM_LATE` forbids starting the sinks of a later session.
/// `JITSYM_ERR_TIMEOUT` means that a disk blocks this call, or another call that opens or closes a session or enables sinks.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_ENUM`, `_PATH` for bad options;
/// `JITSYM_ERR_CONFLICT`, `_TIMEOUT` (10 seconds), `_NO_SINK`, `_NO_MEMORY`, `_THREAD`, `_TOO_MANY_SESSIONS`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_init(options: *const jitsym_options, out: *mut *mut jitsym) -> jitsym_status {
    blocking_boundary(|| {
        if out.is_null() {
            return Err(Error::Null);
        }
        panic_guard::silence_panics();
        // SAFETY: the caller promises that `options` is NULL or valid.
        let options = unsafe { input::options(options)? };
        let handle = session::open(&options)?;
        // SAFETY: `out` is not NULL, and the caller promises that `out` is writable.
        unsafe { out.write(handle as *mut jitsym) };
        Ok(())
    })
}

/// Registers code: from now on, samples in [addr, addr + size) belong to `name`. Call this when the bytes are final and before
/// the code runs. The call ends all earlier code that overlaps this range. The call writes the id to `out_id`, unless `out_id`
/// is NULL. The id is 0 if no sink runs and no code is remembered (`JITSYM_INIT_REMEMBER`).
///
/// If no sink runs and no code is remembered, the call does not read `code`.
///
/// The call waits for `JITSYM_SINK_UNWINDER` and `JITSYM_SINK_VALGRIND`, because these sinks must get the code before it runs.
/// While a debugger listens, the call also waits for `JITSYM_SINK_GDB`. If the wait fails, the code is registered, `out_id` is
/// written, and `jitsym_flush` waits for the sinks. `JITSYM_ERR_TIMEOUT` then means that the library's thread has reported
/// nothing to any sink for a second (a minute under valgrind, or while a debugger reads new code). `JITSYM_ERR_SINK_FAILED`
/// means that some code could not be reported to valgrind. `JITSYM_ERR_NO_MEMORY` means that the writer lacks memory.
///
/// These statuses can also have other causes. Then the code is not registered, and `out_id` is not written. With some
/// unwinders, `JITSYM_ERR_TIMEOUT` can mean that another thread's call has been in the unwinder for
/// [10 seconds](exceptions.md#how-long-it-holds). In a forked child, `JITSYM_ERR_SINK_FAILED` and `JITSYM_ERR_TIMEOUT` can mean
/// that the child's sinks have not started yet.
///
/// Returns `JITSYM_OK`; a status that names what is wrong with `code`; `JITSYM_ERR_DROPPED` or `_NO_MEMORY` if there
/// was no room; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`; for some sinks `JITSYM_ERR_TIMEOUT` and
/// `_SINK_FAILED`.
///
/// Any thread, concurrently; not from a signal handler. If `code->bytes` is set, the call takes no lock and makes no system
/// call in the steady state.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
#[link_section = ".text.hot.jitsym"]
pub unsafe extern "C" fn jitsym_register(
    session: *mut jitsym,
    code: *const jitsym_code,
    out_id: *mut jitsym_id,
) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        if !out_id.is_null() {
            // SAFETY: the pointer is not NULL, and the caller promises that the pointer is writable.
            unsafe { out_id.write(0) };
        }
        return jitsym_status::JITSYM_OK;
    }
    // SAFETY: the caller of this function promises what `register` requires.
    unsafe { register(session, code, out_id) }
}

/// Does the work of `jitsym_register` if the session is not off. This function is separate so that `jitsym_register` need not
/// save registers while the session is off.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[inline(never)]
#[link_section = ".text.hot.jitsym"]
unsafe extern "C" fn register(session: *mut jitsym, code: *const jitsym_code, out_id: *mut jitsym_id) -> jitsym_status {
    boundary_on(|thread| {
        let handle = session as usize as u64;
        let mut place = MaybeUninit::uninit();
        let tell = |id: Id| {
            if !out_id.is_null() {
                // SAFETY: the pointer is not NULL, and the caller promises that the pointer is writable.
                unsafe { out_id.write(id.0) };
            }
        };
        match session::usual_local(thread, handle) {
            Some(local) => {
                // SAFETY: here and below, the caller promises that `code` is NULL or valid.
                let code = unsafe { input::code(code, &mut place)? };
                if code.has_file() {
                    register_with_file(thread, local, handle, code, tell)
                } else {
                    match session::register_as_usual(thread, local, code) {
                        Ok(registered) => registered.map(tell),
                        Err(flags) => register_otherwise(handle, || Ok(code), flags, tell),
                    }
                }
            }
            // SAFETY: as above.
            None => register_otherwise(handle, || unsafe { input::code(code, &mut place) }, None, tell),
        }
    })
}

/// Registers code that has a file, under a name that is composed of the code's name, file and line.
#[inline(never)]
fn register_with_file(
    thread: &PerThread,
    local: &mut Local,
    handle: u64,
    code: CodeInput<'_>,
    tell: impl FnOnce(Id),
) -> Result<()> {
    match code.with_name(|code| session::register_as_usual(thread, local, code)).unwrap_or(Err(None)) {
        Ok(registered) => registered.map(tell),
        Err(flags) => register_otherwise(handle, || Ok(code), flags, tell),
    }
}

/// Registers code on the slow path. The fast path (`register_as_usual`) is impossible, for instance, if `Given::is_usual` is
/// false, or if the thread last used another session. `flags`: the record flags that `Regions::before_code` has returned for
/// this code, or `None` if `before_code` was not called yet. Calls `tell` with the id before waiting for the sinks, because the
/// code stays registered even if the wait fails.
#[inline(never)]
fn register_otherwise<'a>(
    handle: u64,
    code: impl FnOnce() -> Result<CodeInput<'a>>,
    mut flags: Option<u8>,
    tell: impl FnOnce(Id),
) -> Result<()> {
    valgrind::without_races(|| {
        let session = session::find(handle)?;
        if session.is_idle() {
            return session.still_open(Id(0)).map(tell);
        }
        let code = code()?;
        let registered = code.with_code(|code| session.register(code, flags.take()));
        // If `flags` is still set, `with_code` has refused the code without a call of `session.register`.
        if let Some(flags) = flags {
            session::not_registered(code.addr(), code.size(), flags);
        }
        tell(registered.map_err(|error| error.of_code(code.name()))?);
        if code.more() {
            return Ok(());
        }
        session.known()
    })
}

/// Reports that code now runs at another address. The code keeps its id, name, lines and unwind description. Call this
/// after the bytes are copied and before the code runs at the new address.
///
/// Earlier samples at the old address keep the name.
///
/// Returns `JITSYM_ERR_UNKNOWN_ID`; a status that names what is wrong with `target`; or a status of `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_move(
    session: *mut jitsym,
    id: jitsym_id,
    target: *const jitsym_move_target,
) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| {
        let session = session::find(session as usize as u64)?;
        if session.is_idle() {
            return session.still_open(());
        }
        // SAFETY: the caller promises that `target` is NULL or valid.
        let target = unsafe { input::move_target(target, session.code_size(Id(id))?)? };
        session.move_code(Id(id), &target)
    })
}

/// Reports that code is no longer in use. Call this before the code's memory is freed or overwritten.
///
/// The perf map keeps the name until new code uses the addresses.
///
/// Returns `JITSYM_ERR_UNKNOWN_ID` if no code has this id, also if newer code was registered over the code; or a status of
/// `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister(session: *mut jitsym, id: jitsym_id) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| session::find(session as usize as u64)?.unregister(Id(id)))
}

/// Unregisters all code that has any byte in [addr, addr + size). A range without code is no error. `flags`: 0, or
/// `JITSYM_RANGE_UNMAP`.
///
/// The call unregisters code of all sessions. Until the next `jitsym_flush`, `jitsym_unregister` may return `JITSYM_OK` for an
/// id of this code, but has no effect.
///
/// Returns `JITSYM_ERR_FLAGS`, `JITSYM_ERR_SIZE_ZERO`, `JITSYM_ERR_ADDRESS_RANGE`; or a status of `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister_range(session: *mut jitsym, addr: u64, size: u64, flags: u32) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| session::find(session as usize as u64)?.unregister_range(addr, size, input::range_flags(flags)?))
}

/// Waits until everything that was registered before the call is in the files. `timeout_ms`: the longest wait in
/// milliseconds; 0 means 10 seconds. Call this before `_exit` and `exec`, which run no exit handlers.
///
/// `JITSYM_ERR_SINK_FAILED` also reports a sink that could not start earlier and still cannot start.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT`; `JITSYM_ERR_SINK_FAILED` if a sink cannot write (other sinks are up to
/// date); `JITSYM_ERR_NO_MEMORY` if the writer lacks memory; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_flush(session: *mut jitsym, timeout_ms: u32) -> jitsym_status {
    blocking_boundary(|| {
        let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        session::find(session as usize as u64)?.flush(timeout)
    })
}

/// Writes everything that was registered before the call, for a crash handler. `timeout_ms`: the longest wait in
/// milliseconds; 0 means 1 second. The call needs no session.
///
/// The handler may have interrupted any code. The call takes no lock, allocates nothing and does not change `errno`. The
/// background thread writes, and the call waits. If the background thread needs something that the interrupted thread holds,
/// such as the lock of `malloc`, the call returns `JITSYM_ERR_TIMEOUT`. After a failure, some code may be only in the spool
/// (`JITSYM_SPOOL_SHARED`).
///
/// `JITSYM_ERR_FORKED` means that this forked child has not continued its parent's sessions yet. A handler on the background
/// thread gets `JITSYM_ERR_WRITER`, and cannot use the host's descriptors. If another thread is ending the process, the call
/// returns `JITSYM_ERR_TIMEOUT` at once.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT`; `JITSYM_ERR_NOT_RUNNING` or `_FORKED` if there is nothing to write;
/// `JITSYM_ERR_WRITER`, `_SINK_FAILED`, `_INTERNAL`.
///
/// Any thread, concurrently, and from a signal handler, even on an alternate stack.
#[no_mangle]
pub extern "C" fn jitsym_flush_from_signal(timeout_ms: u32) -> jitsym_status {
    const DEFAULT_MS: u32 = 1000;
    let timeout = Duration::from_millis(if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms }.into());
    // There is no panic boundary here, because a panic boundary uses thread-local storage. Nothing in this call can
    // panic.
    match valgrind::without_races_in_handler(|| session::flush_from_signal(timeout)) {
        Ok(()) => jitsym_status::JITSYM_OK,
        Err(error) => error.into(),
    }
}

/// Starts sinks for all sessions of a running process. When the call returns `JITSYM_OK`, all known live code is in the
/// files. `sinks`: `JITSYM_SINK_*` bits. 0: the sinks that options and environment selected for this session (if none:
/// map, jitdump, region).
///
/// Code is known if it was registered while a sink ran, or with `JITSYM_INIT_REMEMBER`. Code whose id is 0 is not known:
/// register this code again. The files get the bytes that are now at the code's address. If only the perf map ran at the
/// registration, lines and unwind tables are known only with `JITSYM_INIT_REMEMBER`.
///
/// The started sinks use the options of this session, unless a running sink already uses other values. Running sinks do not
/// change. Files that still exist are continued.
///
/// `JITSYM_ERR_SINK_FAILED` means that a sink cannot start or write now, but another sink runs. `JITSYM_ERR_TIMEOUT` can also
/// mean that the process exits.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_FORBIDDEN` if the variable `JITSYM_LATE` is
/// `off`; `JITSYM_ERR_CONFLICT`, `_NO_SINK`, `_SINK_FAILED`, `_TIMEOUT` (10 seconds), `_NO_MEMORY`, `_THREAD`,
/// `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_enable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.enable(sinks)
    })
}

/// Stops sinks for all sessions of a running process. The call first writes everything that was registered before. The
/// files stay, and `jitsym_enable` continues them. `sinks`: `JITSYM_SINK_*` bits; 0: all.
///
/// With `JITSYM_INIT_REMOVE_FILES`, the call removes the files. When the last sink stops, the background thread ends, memory
/// and spool are freed, and all ids become unknown. `JITSYM_INIT_REMEMBER` keeps the background thread, the memory, the spool
/// and the ids.
///
/// Returns `JITSYM_OK`, also if the sinks do not run; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_SINK_FAILED` if a
/// sink could not write everything (the sink is stopped anyway); `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_TIMEOUT` as for
/// `jitsym_enable`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_disable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.disable(sinks)
    })
}

/// Closes a session: everything registered is written. The files stay. Code stays registered as long as another session
/// is open. The last close also ends the background thread.
///
/// In a forked child, the call closes the child's copy of the session.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after 10 seconds, and `JITSYM_ERR_SINK_FAILED` (the session is closed
/// anyway); `JITSYM_ERR_SESSION`, also for NULL; `JITSYM_ERR_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_close(session: *mut jitsym) -> jitsym_status {
    blocking_boundary(|| session::close(session as usize as u64))
}

/// Copies the counters to `out`. For exact numbers call `jitsym_flush` first.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_get_stats(session: *mut jitsym, out: *mut jitsym_stats) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        // SAFETY: the caller promises that `out` is NULL or valid.
        unsafe { output::write_stats(out, &session.stats()) }
    })
}

/// Copies a text to `buf`. The text describes the last failure of a sink or of `jitsym_init`, or this thread's last call with
/// bad arguments. The text is cut to fit, and NUL-terminated. An empty text means that nothing failed. `session` may be NULL,
/// for instance after a failed `jitsym_init`.
///
/// For a sink or `jitsym_init`, the text names the operation, the file, and the system's error. For a refused call, the
/// text names the status, and the field, index and value that are wrong.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if `size` is 0; `JITSYM_ERR_SESSION`, `_CLOSED`,
/// `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_last_error(session: *mut jitsym, buf: *mut c_char, size: usize) -> jitsym_status {
    blocking_boundary(|| {
        if !session.is_null() {
            session::find(session as usize as u64)?;
        }
        // SAFETY: the caller promises that `buf` is NULL or valid.
        unsafe { output::write_text(&session::last_error(), buf, size) }
    })
}

/// Copies the NUL-terminated path of a sink's file to `buf`. `JITSYM_DIR_MAX` + 64 bytes are always enough.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_ENUM` if `sink` is not a single `JITSYM_SINK_*` bit; `JITSYM_ERR_NOT_RUNNING` if the sink
/// does not run or has no file; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if the path does not fit; `JITSYM_ERR_TIMEOUT` if the
/// path of a region's file is not known within 10 seconds; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_path(session: *mut jitsym, sink: u32, buf: *mut c_char, size: usize) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        let path = session.path(input::sink(sink)?)?;
        // SAFETY: the caller promises that `buf` is NULL or valid.
        unsafe { output::write_bytes(path.as_os_str().as_bytes(), buf, size) }
    })
}
