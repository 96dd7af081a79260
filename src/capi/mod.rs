//! The functions of the C API. These functions take pointers and return statuses.
//!
//! Every function checks the input from C (`input`), calls the session, and turns the result into a status. All functions of
//! this module except `jitsym_flush_from_signal` run inside the panic boundary, which turns a panic into a status. So do the
//! functions of the other modules except `stack` and `info`.

#![allow(non_camel_case_types)]

pub mod alloc;
pub(crate) mod boundary;
pub mod bridge;
pub mod collector;
pub mod info;
mod input;
mod output;
mod probes;
pub mod region;
pub mod stack;
pub mod status;
pub mod trampoline;
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

/// Opens a session. The first session also starts the sinks, and the thread that writes their files. The call succeeds if at
/// least one sink starts; `jitsym_get_stats` and `jitsym_last_error` report failed sinks.
///
/// A later session starts those of its sinks that do not run yet, with its own directories, dialect and bounds. Failed or
/// disabled sinks start only if the later session would otherwise have no running sink. The first session's other options stay
/// in effect until the last close, but a later `file_mode` can remove permission bits from new files.
///
/// A session with the same directories continues the files of closed sessions. As a forked child's first call, `jitsym_init`
/// also continues the parent's sessions, with the new options.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_ENUM`, `_PATH` for bad options;
/// `JITSYM_ERR_CONFLICT`, also if the variable `JITSYM_LATE` forbids a later session's sinks; `JITSYM_ERR_TIMEOUT` if a disk
/// blocks opening or closing sessions or enabling sinks for 10 seconds; `JITSYM_ERR_NO_SINK`, `_NO_MEMORY`, `_THREAD`,
/// `_TOO_MANY_SESSIONS`.
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
/// the code runs. Earlier code that overlaps this range ends. The id is written to `out_id`, which may be NULL. If no sink runs
/// and no code is remembered (`JITSYM_INIT_REMEMBER`), the id is 0, and `code` is not read.
///
/// The call waits until `JITSYM_SINK_UNWINDER`, `JITSYM_SINK_VALGRIND` and (while a debugger listens) `JITSYM_SINK_GDB` have
/// the code, because the unwinder and valgrind must get code before it runs. If this wait fails, the code is registered,
/// `out_id` is written, and `jitsym_flush` waits for the sinks. The status is `JITSYM_ERR_TIMEOUT` if the library's thread
/// reported nothing to any sink for a second (a minute under valgrind, or while a debugger reads new code),
/// `JITSYM_ERR_SINK_FAILED` if some code could not be reported to valgrind, or `JITSYM_ERR_NO_MEMORY` if the writer lacks
/// memory.
///
/// Other causes of these statuses leave the code unregistered. For example, another thread's call has been in the
/// [unwinder](exceptions.md#how-long-it-holds) for 10 seconds (`JITSYM_ERR_TIMEOUT`), or a forked child's sinks have not
/// started yet (`JITSYM_ERR_TIMEOUT`, `JITSYM_ERR_SINK_FAILED`).
///
/// Returns `JITSYM_OK`; a status for the fault in `code`; `JITSYM_ERR_DROPPED`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`,
/// `_BUSY`; for some sinks `JITSYM_ERR_TIMEOUT`, `_SINK_FAILED`.
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
            // SAFETY: the code was registered, so `code` is valid.
            unsafe { probes::load(id, code) };
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
        // If `flags` is still set, `with_code` has refused the code before calling `session.register`.
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

/// Reports that code now runs at another address. The code keeps its id, name, lines and unwind description. Call this after
/// the bytes are copied and before the code runs there.
///
/// Earlier samples keep the name.
///
/// Returns `JITSYM_ERR_UNKNOWN_ID`; a status for the fault in `target`; or a status of `jitsym_register`.
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
        session.move_code(Id(id), &target)?;
        probes::moved(id, target.addr);
        Ok(())
    })
}

/// Reports that code is no longer in use. Call this before the code's memory is freed or overwritten.
///
/// The perf map keeps the name until new code uses the addresses.
///
/// Returns `JITSYM_ERR_UNKNOWN_ID` if no code has this id, for example because newer code overwrote it; or a status of
/// `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister(session: *mut jitsym, id: jitsym_id) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| {
        session::find(session as usize as u64)?.unregister(Id(id))?;
        probes::unload(id, 0, 0);
        Ok(())
    })
}

/// Unregisters all sessions' code that has any byte in [addr, addr + size). A range without code is no error. `flags`: 0 or
/// `JITSYM_RANGE_UNMAP`.
///
/// Until the next `jitsym_flush`, `jitsym_unregister` may return `JITSYM_OK` for this code, without effect.
///
/// Returns `JITSYM_ERR_FLAGS`, `JITSYM_ERR_SIZE_ZERO`, `JITSYM_ERR_ADDRESS_RANGE`; or a status of `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister_range(session: *mut jitsym, addr: u64, size: u64, flags: u32) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| {
        session::find(session as usize as u64)?.unregister_range(addr, size, input::range_flags(flags)?)?;
        probes::unload(0, addr, size);
        Ok(())
    })
}

/// Waits until everything registered before the call is in the files. `timeout_ms`: the longest wait in milliseconds; 0 means
/// 10 seconds. Call this before `_exit` and `exec`, which run no exit handlers.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_SINK_FAILED` if a sink cannot start or write (other sinks are up to date);
/// `JITSYM_ERR_TIMEOUT`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_flush(session: *mut jitsym, timeout_ms: u32) -> jitsym_status {
    blocking_boundary(|| {
        let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        session::find(session as usize as u64)?.flush(timeout)
    })
}

/// Writes everything registered before the call, for a crash handler. `timeout_ms`: the longest wait in milliseconds; 0 means 1
/// second.
///
/// The handler may have interrupted any code: the call takes no lock, allocates nothing and does not change `errno`. The
/// background thread writes, and the call waits. If that thread needs something that the interrupted thread holds, such as
/// `malloc`'s lock, the call returns `JITSYM_ERR_TIMEOUT`. After a failure, some code may be only in the spool
/// (`JITSYM_SPOOL_SHARED`).
///
/// A handler on the background thread gets `JITSYM_ERR_WRITER`, and cannot use the host's descriptors. While another thread
/// ends the process, the call returns `JITSYM_ERR_TIMEOUT` at once.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NOT_RUNNING` if there is nothing to write; `JITSYM_ERR_FORKED` if this forked child has not
/// continued its parent's sessions yet; `JITSYM_ERR_TIMEOUT`, `_WRITER`, `_SINK_FAILED`, `_INTERNAL`.
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

/// Starts sinks for all sessions of a running process. On `JITSYM_OK`, all known live code is in the files. `sinks`:
/// `JITSYM_SINK_*` bits. 0: the sinks that options and environment selected for this session (if none: map, jitdump, region).
///
/// Code is known if it was registered while a sink ran, or with `JITSYM_INIT_REMEMBER`. Code with id 0 must be registered
/// again. The files get the bytes that are now at the code's address. If only the perf map ran at the registration, lines and
/// unwind tables are known only with `JITSYM_INIT_REMEMBER`.
///
/// The sinks use this session's options, unless a running sink uses other values. Running sinks do not change. Existing files
/// are continued.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_FORBIDDEN` if the variable `JITSYM_LATE` is `off`; `JITSYM_ERR_SINK_FAILED` if only some
/// sinks can start and write; `JITSYM_ERR_TIMEOUT` after 10 seconds, or if the process exits; `JITSYM_ERR_FLAGS`, `_CONFLICT`,
/// `_NO_SINK`, `_NO_MEMORY`, `_THREAD`, `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_enable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.enable(sinks)
    })
}

/// Stops sinks for all sessions of a running process, after writing everything registered before. The files stay, and
/// `jitsym_enable` continues them. `sinks`: `JITSYM_SINK_*` bits; 0: all.
///
/// With `JITSYM_INIT_REMOVE_FILES`, the call removes the files. When the last sink stops, the background thread ends, memory
/// and spool are freed, and all ids become unknown. `JITSYM_INIT_REMEMBER` keeps thread, memory, spool and ids.
///
/// Returns `JITSYM_OK`, also if the sinks do not run; `JITSYM_ERR_SINK_FAILED` if a sink could not write everything (it is
/// stopped anyway); `JITSYM_ERR_TIMEOUT` as for `jitsym_enable`; `JITSYM_ERR_FLAGS`, `_NO_MEMORY`, `_SESSION`, `_CLOSED`,
/// `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_disable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.disable(sinks)
    })
}

/// Writes everything registered, and closes a session. The files stay. Code stays registered while another session is open. The
/// last close ends the background thread.
///
/// A forked child closes only its own copy of the session.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after 10 seconds, or `JITSYM_ERR_SINK_FAILED` (the session is closed anyway);
/// `JITSYM_ERR_SESSION`, also for NULL; `JITSYM_ERR_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_close(session: *mut jitsym) -> jitsym_status {
    blocking_boundary(|| session::close(session as usize as u64))
}

/// Copies the counters to `out`. For exact numbers, call `jitsym_flush` first.
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

/// Copies a description of the last failure of a sink or `jitsym_init`, or of this thread's last call with bad arguments, to
/// `buf`. The NUL-terminated text is cut to fit, and is empty if nothing failed. `session` may be NULL.
///
/// After a failed `jitsym_init`, pass NULL as `session`.
///
/// The text names the operation, file and system error, or the refused call's status and wrong field, index and value.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if `size` is 0; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
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
/// does not run or has no file; `JITSYM_ERR_TIMEOUT` if a region's path is not known within 10 seconds; `JITSYM_ERR_NULL`,
/// `_BUFFER`, `_SESSION`, `_CLOSED`, `_FORKED`.
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
