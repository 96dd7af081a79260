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
use crate::sys::valgrind;
use boundary::{blocking_boundary, boundary, boundary_on};
use input::CodeInput;
use status::jitsym_status;
use types::*;

/// Opens a session, and with the first one starts the sinks and the background thread that writes them. `options` may be
/// NULL: the defaults and the environment decide. It succeeds if one sink starts: `jitsym_get_stats` and
/// `jitsym_last_error` report those that did not.
///
/// Sessions of one process share files and writer. A second session joins the first, whose options count: with other
/// directories, another dialect, or a sink that the first lacks, the call returns `JITSYM_ERR_CONFLICT`. After the last
/// session was closed, a new one may have new options. If its directories are the same, it continues the same files. If
/// this is the first call in a forked child, the child continues its parent's sessions too, all of them with these
/// options.
///
/// `JITSYM_ERR_TIMEOUT`: files cannot be opened because a disk hangs, or another thread's call to open, close or enable
/// waits for that, or an earlier close does.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_ENUM`, `_PATH` for bad options;
/// `JITSYM_ERR_CONFLICT`, `_TIMEOUT` (10 seconds), `_NO_SINK`, `_NO_MEMORY`, `_THREAD`, `_TOO_MANY_SESSIONS`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
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

/// Registers code: from now on samples in [addr, addr + size) belong to `name`. Call it when the bytes are final and
/// before the code runs. Nothing that `code` points to is needed afterwards. Code that is registered over live code ends
/// that code. `out_id` may be NULL; it receives 0 if no sink runs and code is not remembered for one.
///
/// The name holds from the time of the call. With id 0 the call returns `JITSYM_OK` without a look at `code`.
///
/// With the sinks for the unwinder and for valgrind, `JITSYM_ERR_TIMEOUT` says that the library's thread has told no sink
/// of anything for a second (under valgrind: a minute), and `JITSYM_ERR_SINK_FAILED` that valgrind could not be told of
/// some code. In both cases the code is registered and `out_id` is written, and `jitsym_flush` waits until the sinks know
/// of it.
///
/// Where calls tell the unwinder themselves, `JITSYM_ERR_TIMEOUT` says that another thread has stood still in the midst
/// of that for 10 seconds. Then nothing is registered. Nothing is registered either with `JITSYM_ERR_SINK_FAILED` in a
/// forked child whose sinks could not start yet (docs/conventions.md, "Fork").
///
/// Returns `JITSYM_OK`; a status that names what is wrong with `code`; `JITSYM_ERR_DROPPED` or `_NO_MEMORY` if there was
/// no room; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`; for some sinks `JITSYM_ERR_TIMEOUT` and `_SINK_FAILED`.
///
/// Any thread, concurrently; not from a signal handler. With `code->bytes` set it takes no lock and makes no system call
/// in the steady state.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
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
    valgrind::without_races(|| {
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
    })
}

/// Tells that code now runs at another address. It keeps its id, name, lines and unwind description. Call it after the
/// bytes were copied and before they run there.
///
/// The old place keeps its name for samples taken before. `target->bytes` has as many readable bytes as the code has.
///
/// Returns `JITSYM_ERR_UNKNOWN_ID`; a status that names what is wrong with `target`; or as `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
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
/// Returns `JITSYM_ERR_UNKNOWN_ID`, also for code that newer code was registered over; or as `jitsym_register`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_unregister(session: *mut jitsym, id: jitsym_id) -> jitsym_status {
    if session::is_off(session as usize as u64) {
        return jitsym_status::JITSYM_OK;
    }
    boundary(|| session::find(session as usize as u64)?.unregister(Id(id)))
}

/// Tells that all code that starts or ends in, or covers, [addr, addr + size) is gone: one call for a whole code cache. A
/// range without code is no error.
///
/// Code of all sessions is meant. The ids of that code are unknown from the next `jitsym_flush` on at the latest. Until
/// then `jitsym_unregister` may still answer `JITSYM_OK` for them, without effect.
///
/// `flags`: 0, or `JITSYM_RANGE_UNMAP`.
///
/// Returns `JITSYM_ERR_FLAGS`, `JITSYM_ERR_SIZE_ZERO`, `JITSYM_ERR_ADDRESS_RANGE`; or as `jitsym_register`.
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
/// `timeout_ms` is in milliseconds; 0 waits for one pass of the writer, 10 seconds at most.
///
/// `JITSYM_ERR_SINK_FAILED` is also for a sink that could not start, and cannot even now.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT`; `JITSYM_ERR_SINK_FAILED` if a sink cannot write (the others are up to
/// date); `JITSYM_ERR_NO_MEMORY` if the writer has none; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_flush(session: *mut jitsym, timeout_ms: u32) -> jitsym_status {
    blocking_boundary(|| {
        let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        session::find(session as usize as u64)?.flush(timeout)
    })
}

/// Writes everything that was registered before: for a host's crash handler. `timeout_ms` is in milliseconds; 0: one
/// second. Needs no session.
///
/// The handler may have interrupted anything: this library, `malloc`, another handler. The call takes no lock, allocates
/// nothing and leaves `errno` as it was. It asks the background thread and waits for its answer. If that needs something
/// that the interrupted thread holds, for instance the lock of `malloc`, the time runs out. Without `JITSYM_OK`,
/// registered code may be in the spool, if there is one, and not in the files: `jitsym recover` completes the files when
/// the process has ended.
///
/// `JITSYM_ERR_TIMEOUT` comes at once if the process exits by another thread. `JITSYM_ERR_NOT_RUNNING`: no sink is
/// running. `JITSYM_ERR_FORKED`: this child has not used its parent's sessions. `JITSYM_ERR_WRITER` comes at once on the
/// background thread itself, where no descriptor of the host is open.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT`; `JITSYM_ERR_NOT_RUNNING` or `_FORKED` with nothing to be written;
/// `JITSYM_ERR_WRITER`, `_SINK_FAILED`, `_INTERNAL`.
///
/// Any thread, concurrently, and from a signal handler, on an alternate stack too.
#[no_mangle]
pub extern "C" fn jitsym_flush_from_signal(timeout_ms: u32) -> jitsym_status {
    const DEFAULT_MS: u32 = 1000;
    let timeout = Duration::from_millis(if timeout_ms == 0 { DEFAULT_MS } else { timeout_ms }.into());
    // No panic boundary, which keeps something in thread-local storage: there is nothing here that can panic.
    match valgrind::without_races_in_handler(|| session::flush_from_signal(timeout)) {
        Ok(()) => jitsym_status::JITSYM_OK,
        Err(error) => error.into(),
    }
}

/// Starts sinks in a running process, for all sessions: they belong to the process. When it has returned `JITSYM_OK`, all
/// live code that is known is in the files. `sinks`: `JITSYM_SINK_*` bits; 0: those that this session would have started
/// when it was opened, or all if there were none.
///
/// Everything that is registered from then on is in the files too, each piece once. Code is known if it was registered
/// while a sink ran or with `JITSYM_INIT_REMEMBER`. Other code that was registered before has to be registered again (its
/// registration returned id 0). Code that was registered while only the perf map ran, without `JITSYM_INIT_REMEMBER`,
/// comes without lines and unwind tables. The bytes are those that lie at the address of the code now.
///
/// A sink that runs already is left as it is. Directories, bounds and so on are those that this session was opened with,
/// where no running sink has others. A file that was written before and is still there is continued.
///
/// `JITSYM_ERR_CONFLICT`: one of the sinks runs with another directory or dialect. `JITSYM_ERR_NO_SINK`: none of them
/// could be started. `JITSYM_ERR_SINK_FAILED`: one could not start, or cannot write at present, and another runs;
/// `jitsym_get_stats` and `jitsym_last_error` say more. `JITSYM_ERR_TIMEOUT`: the work continues in the background, or
/// the process exits.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_FORBIDDEN` if the variable `JITSYM_LATE` is `off`;
/// `JITSYM_ERR_CONFLICT`, `_NO_SINK`, `_SINK_FAILED`, `_TIMEOUT` (10 seconds), `_NO_MEMORY`, `_THREAD`, `_SESSION`,
/// `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler. Does file I/O.
#[no_mangle]
pub extern "C" fn jitsym_enable(session: *mut jitsym, sinks: u32) -> jitsym_status {
    blocking_boundary(|| {
        let sinks = input::sinks(sinks)?;
        session::find(session as usize as u64)?.enable(sinks)
    })
}

/// Stops sinks in a running process, for all sessions, also those that have asked for them. Everything that was
/// registered before is written first. The files stay, and `jitsym_enable` continues them. `sinks`: `JITSYM_SINK_*` bits;
/// 0: all.
///
/// With `JITSYM_INIT_REMOVE_FILES` the files do not stay. Stopping the last sink ends everything that costs the process
/// anything. The background thread, the memory for records and the spool are given back, and calls return at once as in a
/// session that has no sink. All ids end (`jitsym_enable` makes later calls answer `JITSYM_ERR_UNKNOWN_ID` for them).
/// With `JITSYM_INIT_REMEMBER` only the files are closed, and ids live on.
///
/// Returns `JITSYM_OK`, also if they do not run; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_SINK_FAILED` if one could
/// not write everything (it is stopped all the same); `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_TIMEOUT` as `jitsym_enable`;
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

/// Closes a session: everything registered is written, and with the last session the background thread ends. The files
/// stay, because they are read after the recording. Code stays registered as long as another session is open.
///
/// With `JITSYM_INIT_REMOVE_FILES` the files do not stay. Calls on other threads that race with this one finish, or
/// return `JITSYM_ERR_CLOSED`. A forked child that has not used its parent's sessions closes its copy, and makes no files
/// for that.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after 10 seconds, and `JITSYM_ERR_SINK_FAILED` (the session is closed all
/// the same); `JITSYM_ERR_SESSION`, also for NULL; `JITSYM_ERR_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_close(session: *mut jitsym) -> jitsym_status {
    blocking_boundary(|| session::close(session as usize as u64))
}

/// Reads the counters into `out`, at most `out->struct_size` bytes. Call `jitsym_flush` before for exact numbers.
///
/// Registrations still on their way are not counted yet.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
#[no_mangle]
pub unsafe extern "C" fn jitsym_get_stats(session: *mut jitsym, out: *mut jitsym_stats) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        // SAFETY: the caller's promise about `out`.
        unsafe { output::write_stats(out, &session.stats()) }
    })
}

/// Copies the text of the last failure to `buf`: of a sink, of `jitsym_init`, or of this thread's last call with bad
/// arguments. Cut to fit, NUL-terminated; empty if nothing failed. `session` may be NULL, as after a failed
/// `jitsym_init`.
///
/// Of two failures the text is that of the later one. For a sink, or for opening a session, it says what was tried, on
/// which file, and what the system said. For a refused call it says the status, and the field, index and value that are
/// wrong.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if `size` is 0; `JITSYM_ERR_SESSION`, `_CLOSED`,
/// `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
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

/// Copies the path of the file that a sink writes to `buf`, NUL-terminated: `JITSYM_DIR_MAX` + 64 bytes are always
/// enough.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_ENUM` if `sink` is not one `JITSYM_SINK_*` bit; `JITSYM_ERR_NOT_RUNNING`, also for a
/// sink without a file; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if it does not fit; `JITSYM_ERR_TIMEOUT` if the path of a
/// region is not known within 10 seconds; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
#[no_mangle]
pub unsafe extern "C" fn jitsym_path(session: *mut jitsym, sink: u32, buf: *mut c_char, size: usize) -> jitsym_status {
    blocking_boundary(|| {
        let session = session::find(session as usize as u64)?;
        let path = session.path(input::sink(sink)?)?;
        // SAFETY: the caller's promise about `buf`.
        unsafe { output::write_bytes(path.as_os_str().as_bytes(), buf, size) }
    })
}

/// Tells how many bytes after code of `code_size` bytes must be free for perf builds with libunwind to unwind through it.
/// Leave them free, and declare them in `jitsym_code.free_after`. Needs no session.
///
/// It is the size of the encoded tables, 80 to 120 bytes for most code, plus up to 7 bytes of alignment. Ask with the
/// `code_size` that will be registered, or with 0 for a number that is enough for any size. Of an `.eh_frame` section all
/// entries are counted, because which ones are for the code depends on its address. For `JITSYM_UNWIND_NONE` and a NULL
/// description it is 0.
///
/// Returns `JITSYM_OK`; a status that names what is wrong with `unwind`; `JITSYM_ERR_NULL`, `_TOO_LARGE`.
///
/// Any thread, concurrently; not from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md has it.
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
