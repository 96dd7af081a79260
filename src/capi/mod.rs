//! The C API: pointers in, statuses out, nothing else.
//!
//! Every function is the same three steps: check what C handed over (`input`), call the Rust API, turn the result into a
//! status; all of it inside the panic boundary.

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
use boundary::{blocking_boundary, boundary, boundary_on};
use input::CodeInput;
use status::jitsym_status;
use types::*;

/// Opens a session, and with the first one starts the sinks and the background thread that writes them.
///
/// Sinks that cannot start are reported by `jitsym_get_stats` and `jitsym_last_error`; the call fails only if none could.
/// Sessions of one process share files and writer: a second session joins the first, whose options count. After the last one was
/// closed, a new session may have new options; if its directories are the same it continues the same files. If this is the first
/// call in a forked child, the child continues its parent's sessions too, all of them with these options.
///
/// Parameters:
/// - `options`: NULL for the defaults and the environment.
/// - `out`: receives the session.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_ENUM`, `_PATH` for bad options.
/// `JITSYM_ERR_CONFLICT` if an open session has other directories, another dialect, or lacks a sink that this one asks for.
/// `JITSYM_ERR_TIMEOUT` after 10 seconds, if files cannot be opened because a disk hangs, or if another thread's call to open, close or
/// enable waits for that, or an earlier close. Also `JITSYM_ERR_NO_SINK`, `JITSYM_ERR_NO_MEMORY`,
/// `JITSYM_ERR_THREAD`, `JITSYM_ERR_TOO_MANY_SESSIONS`.
///
/// Any thread; not from a signal handler. Does file I/O. Does not keep `options`.
///
/// # Safety
/// `options` is NULL or points to `struct_size` readable bytes; `out` is NULL or points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn jitsym_init(options: *const jitsym_options, out: *mut *mut jitsym) -> jitsym_status {
    blocking_boundary(|| {
        if out.is_null() {
            return Err(Error::Null);
        }
        panic_guard::silence_panics();
        // SAFETY: the caller's promise about `options`.
        let options = unsafe { input::options(options)? };
        let session = session::open(&options)?;
        // SAFETY: `out` is not NULL and by the caller's promise writable.
        unsafe { out.write(session.into_handle() as *mut jitsym) };
        Ok(())
    })
}

/// Registers code: from this moment on samples in `[addr, addr + size)` belong to `name`.
///
/// Call it when the bytes are final and before the code runs: the name holds from the time of the call. Everything is copied;
/// nothing that `code` points to is needed afterwards. Code that is registered over live code retires that code: the newest wins.
///
/// Parameters:
/// - `code`: what to register.
/// - `out_id`: receives the id for `jitsym_move` and `jitsym_unregister`; may be NULL. 0 if no sink is running and code is not
///   remembered for one.
///
/// Returns `JITSYM_OK`, also without a look at `code` if the id is 0; a status that names what is wrong with `code`;
/// `JITSYM_ERR_DROPPED` or `JITSYM_ERR_NO_MEMORY` if there was no room; `JITSYM_ERR_SESSION`, `JITSYM_ERR_CLOSED`,
/// `JITSYM_ERR_FORKED`, `JITSYM_ERR_BUSY`. With the sinks for the unwinder and for valgrind also `JITSYM_ERR_TIMEOUT`, if the library's
/// thread has told no sink of anything for a second (under valgrind: a minute), and `JITSYM_ERR_SINK_FAILED` if valgrind could not be
/// told of some code. The code is registered then and `out_id` is written, and `jitsym_flush` waits until they know of it. Where calls
/// tell the unwinder themselves, `JITSYM_ERR_TIMEOUT` says that another thread has stood still in the midst of that for 10 seconds.
/// Then nothing is registered. Nor is it with `JITSYM_ERR_SINK_FAILED` in a forked child whose sinks could not start yet ("Processes"
/// above).
///
/// Any thread, concurrently; not from a signal handler. With `code->bytes` set it takes no lock and makes no system call in
/// the steady state.
///
/// # Safety
/// `code` is NULL or points to `struct_size` readable bytes, and every pointer in it is valid for what it says.
#[no_mangle]
#[link_section = ".text.hot.jitsym"]
pub unsafe extern "C" fn jitsym_register(
    session: *mut jitsym,
    code: *const jitsym_code,
    out_id: *mut jitsym_id,
) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        if !out_id.is_null() {
            // SAFETY: not NULL, and by the caller's promise writable.
            unsafe { out_id.write(0) };
        }
        return jitsym_status::JITSYM_OK;
    }
    // SAFETY: the caller's promise is the same.
    unsafe { register(session, code, out_id) }
}

/// `jitsym_register` for a session that is not off. Apart, so that being off costs not even the saving of registers.
///
/// # Safety
/// As `jitsym_register`.
#[inline(never)]
#[link_section = ".text.hot.jitsym"]
unsafe extern "C" fn register(session: *mut jitsym, code: *const jitsym_code, out_id: *mut jitsym_id) -> jitsym_status {
    boundary_on(|thread| {
        let handle = session as usize as u64;
        let mut place = MaybeUninit::uninit();
        let tell = |id: Id| {
            if !out_id.is_null() {
                // SAFETY: not NULL, and by the caller's promise writable.
                unsafe { out_id.write(id.0) };
            }
        };
        match session::usual_local(thread, handle) {
            Some(local) => {
                // SAFETY: the caller's promise about `code`, here and below.
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

/// A registration whose name is to be put together.
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

/// A registration that is not as usual, or whose session is not the one that the thread has used last. `flags`: what is known of
/// the code's place, if that was asked. The id is told as soon as there is one: it is valid, too, where a sink does not know the code
/// yet.
#[inline(never)]
fn register_otherwise<'a>(
    handle: u64,
    code: impl FnOnce() -> Result<CodeInput<'a>>,
    mut flags: Option<u8>,
    tell: impl FnOnce(Id),
) -> Result<()> {
    let session = session::find(handle)?;
    if session.is_idle() {
        return session.still_open(Id(0)).map(tell);
    }
    let code = code()?;
    let registered = code.with_code(|code| session.register(code, flags.take()));
    // Refused before the session was asked.
    if let Some(flags) = flags {
        session::not_registered(code.addr(), code.size(), flags);
    }
    tell(registered.map_err(|error| error.of_code(code.name()))?);
    if code.more() {
        return Ok(());
    }
    session.known()
}

/// Tells that registered code now runs at another address: it keeps its id, name, lines and unwind description.
///
/// Call it after the bytes were copied and before they run there. The old place keeps its name for samples taken before.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_UNKNOWN_ID`; a status that names what is wrong with `target`; and as `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// `target` is NULL or points to `struct_size` readable bytes, and `target->bytes` is NULL or points to as many readable
/// bytes as the code has.
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
        // SAFETY: the caller's promise about `target`.
        let target = unsafe { input::move_target(target, session.code_size(Id(id))?)? };
        session.move_code(Id(id), &target)
    })
}

/// Tells that code is gone. Call it before its memory is given back or written over.
///
/// The perf map goes on naming the bytes until they are used again, because profiles are read after the fact.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_UNKNOWN_ID`, also for code that newer code was registered over; and as `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister(session: *mut jitsym, id: jitsym_id) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| session::find(session as usize as u64)?.unregister(Id(id)))
}

/// Tells that all code that starts or ends in, or covers, `[addr, addr + size)` is gone: one call for a whole code cache.
///
/// The ids of that code are unknown from the next `jitsym_flush` on at the latest; until then `jitsym_unregister` may still
/// answer `JITSYM_OK` for them, without effect. Code of all sessions is meant. A range without code is no error.
///
/// Parameters:
/// - `flags`: 0, or `JITSYM_RANGE_UNMAP`.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS`, `JITSYM_ERR_SIZE_ZERO`, `JITSYM_ERR_ADDRESS_RANGE`; and as `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister_range(session: *mut jitsym, addr: u64, size: u64, flags: u32) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| session::find(session as usize as u64)?.unregister_range(addr, size, input::range_flags(flags)?))
}

/// Waits until everything that was registered before the call is in the files, where it survives even SIGKILL.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after `timeout_ms` milliseconds (0 waits for one pass of the writer, 10 seconds at
/// most). `JITSYM_ERR_SINK_FAILED` if a sink could not start or cannot write, even now; the others are up to date.
/// `JITSYM_ERR_NO_MEMORY` if the writer has none. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_flush(session: *mut jitsym, timeout_ms: u32) -> jitsym_status {
    blocking_boundary(|| {
        let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        session::find(session as usize as u64)?.flush(timeout)
    })
}

/// Writes everything that was registered before, from a signal handler: for a host's crash handler, before it lets the process
/// end.
///
/// The handler may have interrupted anything: this library, `malloc`, another handler. The call takes no lock, allocates nothing
/// and leaves `errno` as it was; it asks the background thread and waits for its answer. If that needs something that the
/// interrupted thread holds, for instance the lock of `malloc`, the time runs out. Without `JITSYM_OK`, registered code may be in
/// the spool, if there is one, and not in the files: `jitsym recover` completes the files when the process has ended.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after `timeout_ms` milliseconds (0: one second), or at once if the process exits by
/// another thread. `JITSYM_ERR_NOT_RUNNING` if no sink is running, with nothing to be written. `JITSYM_ERR_WRITER` at once on the
/// background thread itself, where no descriptor of the host is open. `JITSYM_ERR_FORKED` in a child that has not used its
/// parent's sessions, with nothing to be written. Also `JITSYM_ERR_SINK_FAILED`, `JITSYM_ERR_INTERNAL`.
///
/// Needs no session. Any thread, concurrently, and from a signal handler, on an alternate stack too.
#[no_mangle]
pub extern "C" fn jitsym_flush_from_signal(timeout_ms: u32) -> jitsym_status {
    const DEFAULT_MS: u32 = 1000;
    let timeout = Duration::from_millis(if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms }.into());
    // No panic boundary, which keeps something in thread-local storage: there is nothing here that can panic.
    match session::flush_from_signal(timeout) {
        Ok(()) => jitsym_status::JITSYM_OK,
        Err(error) => error.into(),
    }
}

/// Starts sinks in a running process, for all sessions: they belong to the process.
///
/// When this has returned `JITSYM_OK`, all code that is live and known is in the files, and everything that is registered from
/// then on, each piece once. Code is known if it was registered while a sink ran or with `JITSYM_INIT_REMEMBER`. Other code that
/// was registered before has to be registered again (its registration returned id 0). Code that was registered while only the
/// perf map ran, without `JITSYM_INIT_REMEMBER`, comes without lines and unwind tables. The bytes are those that lie at the
/// address of the code now.
///
/// A sink that runs already is left as it is. Directories, bounds and so on are those that this session was opened with, where no
/// running sink has others. A file that was written before and is still there is continued.
///
/// Parameters:
/// - `sinks`: `JITSYM_SINK_*` bits. 0: those that this session would have started when it was opened, or if that were none,
///   all.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_FORBIDDEN` if the variable `JITSYM_LATE` is `off`.
/// `JITSYM_ERR_CONFLICT` if one of the sinks runs with another directory or dialect. `JITSYM_ERR_NO_SINK` if none of them could
/// be started. `JITSYM_ERR_SINK_FAILED` if one could not, or cannot write at present, and another runs (`jitsym_get_stats` and
/// `jitsym_last_error` say more). `JITSYM_ERR_TIMEOUT` after 10 seconds, while the work continues in the background, or if the
/// process exits. Also `JITSYM_ERR_NO_MEMORY`, `JITSYM_ERR_THREAD`, `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_enable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.enable(sinks)
    })
}

/// Stops sinks in a running process, for all sessions, also those that have asked for them. Everything that was registered before
/// is written first. The files stay (but see `JITSYM_INIT_REMOVE_FILES`), and `jitsym_enable` continues them.
///
/// Stopping the last sink ends everything that costs the process anything. The background thread, the memory for records and the
/// spool are given back, and calls return at once as in a session that has no sink. All ids end (`jitsym_enable` makes later
/// calls answer `JITSYM_ERR_UNKNOWN_ID` for them). With `JITSYM_INIT_REMEMBER` only the files are closed, and ids live on.
///
/// Parameters:
/// - `sinks`: `JITSYM_SINK_*` bits. 0: all.
///
/// Returns `JITSYM_OK`, also if they do not run; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_SINK_FAILED` if one could not
/// write everything (it is stopped all the same); `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_TIMEOUT` as `jitsym_enable`;
/// `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_disable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.disable(sinks)
    })
}

/// Closes a session: everything registered is written, and with the last session the background thread ends.
///
/// The files stay, because they are read after the recording (but see `JITSYM_INIT_REMOVE_FILES`). Code registered through this
/// session stays registered as long as another session is open. Calls on other threads that race with this one finish, or
/// return `JITSYM_ERR_CLOSED`. A forked child that has not used its parent's sessions closes its copy, and makes no files for
/// that.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` if the writer did not finish within 10 seconds (the session is closed all the
/// same); `JITSYM_ERR_SINK_FAILED`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`. NULL is no session: `JITSYM_ERR_SESSION`.
///
/// Any thread; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_close(session: *mut jitsym) -> jitsym_status {
    blocking_boundary(|| session::close(session as usize as u64))
}

/// Reads the counters.
///
/// At most `out->struct_size` bytes are written. Registrations still on their way are not counted yet: call `jitsym_flush` first
/// for exact numbers.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `JITSYM_ERR_STRUCT_SIZE`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// `out` is NULL or points to `out->struct_size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_get_stats(session: *mut jitsym, out: *mut jitsym_stats) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        // SAFETY: the caller's promise about `out`.
        unsafe { output::write_stats(out, &session.stats()) }
    })
}

/// Copies the text of the last failure to `buf`, of whichever came later. One is that of a sink, or of opening a session: what was
/// tried, on which file, and what the system said. The other one is the last call of this thread that was refused because of what
/// the caller gave: the status, and the field, index and value that are wrong. An empty text if there was none. The text is cut to
/// fit and always NUL-terminated.
///
/// `session` may be NULL, and is how to ask why `jitsym_init` failed.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if `size` is 0; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_last_error(session: *mut jitsym, buf: *mut c_char, size: usize) -> jitsym_status {
    blocking_boundary(|| {
        if !session.is_null() {
            session::find(session as usize as u64)?;
        }
        // SAFETY: the caller's promise about `buf`.
        unsafe { output::write_text(&session::last_error(), buf, size) }
    })
}

/// Copies the path of the file that a sink writes to `buf`, NUL-terminated.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_ENUM` if `sink` is not one `JITSYM_SINK_*` bit; `JITSYM_ERR_NOT_RUNNING`, and for a sink
/// without a file too; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if it does not fit (`JITSYM_DIR_MAX` + 64 bytes always do);
/// `JITSYM_ERR_TIMEOUT` if the path of a region is not known within 10 seconds; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_path(session: *mut jitsym, sink: u32, buf: *mut c_char, size: usize) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        let path = session.path(input::sink(sink)?)?;
        // SAFETY: the caller's promise about `buf`.
        unsafe { output::write_bytes(path.as_os_str().as_bytes(), buf, size) }
    })
}

/// Tells how many bytes after code of `code_size` bytes must be free for perf builds with the libunwind unwinder to unwind
/// through it: leave them free, and declare them in `jitsym_code.free_after`.
///
/// It is the size of the encoded tables, 80 to 120 bytes for most code, plus up to 7 bytes of alignment. Ask with the
/// `code_size` that will be registered, or with 0 for a number that is enough for any size. Of an `.eh_frame` section all
/// entries are counted, because which ones are for the code depends on its address.
///
/// Returns `JITSYM_OK` (with 0 in `out` for `JITSYM_UNWIND_NONE` or a NULL description); a status that names what is wrong
/// with `unwind`; `JITSYM_ERR_NULL`, `JITSYM_ERR_TOO_LARGE`.
///
/// Needs no session. Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// `unwind` is NULL or points to `struct_size` readable bytes, and every pointer in it is valid for what it says; `out` is
/// NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn jitsym_unwind_size(
    unwind: *const jitsym_unwind,
    code_size: u64,
    out: *mut u64,
) -> jitsym_status {
    boundary(|| {
        if out.is_null() {
            return Err(Error::Null);
        }
        // SAFETY: the caller's promise about `unwind`.
        let unwind = unsafe { input::unwind(unwind)? };
        let size = crate::format::unwind::room_needed(&unwind.as_unwind(), code_size)?;
        // SAFETY: not NULL, and by the caller's promise writable.
        unsafe { out.write(size) };
        Ok(())
    })
}
