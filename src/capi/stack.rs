//! The C calls that look up registered code and walk stacks in this process. They may be called in signal handlers, so they
//! have no panic boundary, which uses thread-local storage. Nothing in these calls can panic.

use std::ffi::c_void;

use super::output::{read_struct_size, write_cut};
use super::status::jitsym_status;
use super::types::*;
use crate::api::error::{Error, Result};
use crate::session::stack;
use crate::sink::lookup;
use crate::sys::registers::{self, Registers};
use crate::sys::valgrind;

fn status_of(body: impl FnOnce() -> Result<()>) -> jitsym_status {
    match valgrind::without_races_in_handler(body) {
        Ok(()) => jitsym_status::JITSYM_OK,
        Err(error) => error.into(),
    }
}

/// Looks up the function at an address in registered code. `number`: 0 for the innermost inlined function at the address, and
/// so on, up to the function that is not inlined. The struct `out` is written, and the buffers that it names.
///
/// The call needs `JITSYM_SINK_LOOKUP`. It finds code after `jitsym_flush` or `jitsym_flush_from_signal`, without a flush usually
/// within 0.1 seconds of the registration (or move; without threads only after a flush). The end of code takes the same time. The
/// call finds the code of all sessions, also in forked children, and after the last `jitsym_close` until the sink starts again.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NOT_FOUND` if no registered code is at the address, or no function has this number;
/// `JITSYM_ERR_NULL`, `_STRUCT_SIZE`.
///
/// Any thread, concurrently, and from a signal handler. The call takes no lock, allocates nothing and makes no system call.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_lookup(pc: *const c_void, number: u32, out: *mut jitsym_function) -> jitsym_status {
    status_of(|| {
        // SAFETY: the caller promises that `out` is NULL or valid.
        let mut found = unsafe { read_struct_size(out)?.read_unaligned() };
        let pc = pc as u64;
        let function = lookup::at(pc, |code| {
            let function = code.function_at(pc, number as usize)?;
            (found.addr, found.size, found.reserved) = (code.addr(), code.size(), 0);
            (found.line, found.column, found.is_inlined) = (function.line, function.column, function.is_inlined.into());
            (found.name_length, found.file_length) = (function.name.len(), function.file.len());
            // SAFETY: the caller promises that the buffers are NULL or have room for as many bytes as `out` says.
            unsafe {
                write_cut(function.name, found.name, found.name_size);
                write_cut(function.file, found.file, found.file_size);
            }
            Some(())
        });
        function.flatten().ok_or(Error::NotFound)?;
        // SAFETY: as above.
        unsafe { out.write_unaligned(found) };
        Ok(())
    })
}

/// Stores the registers of the caller of this function. If `context` is not NULL, stores the registers of the frame that a
/// signal has interrupted. `context`: the third argument of a signal handler (`SA_SIGINFO`), a `ucontext_t`.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_ARCH` if the library cannot unwind on this processor; `JITSYM_ERR_NOT_FOUND` if the
/// caller's frame cannot be found; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`.
///
/// Any thread, concurrently, and from a signal handler.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_get_registers(context: *const c_void, out: *mut jitsym_registers) -> jitsym_status {
    let own = registers::here();
    status_of(|| {
        // SAFETY: the caller promises that `out` is NULL or valid, and that `context` is NULL or comes from the kernel.
        unsafe {
            let out = read_struct_size(out)?;
            write_registers(out, &frame_of(context, own)?);
        }
        Ok(())
    })
}

/// Changes the registers of a frame to those of the frame's caller. Uses the unwind description of registered code
/// (`JITSYM_SINK_LOOKUP`), and the unwind tables of programs and libraries. Code without either must keep a frame pointer.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_NOT_FOUND` if the frame has no caller, or if the caller cannot be found: `registers` is
/// unchanged; `JITSYM_ERR_ARCH`, `_NULL`, `_STRUCT_SIZE`.
///
/// Any thread, concurrently, and from a signal handler that has 32 KiB of stack. The call takes no lock and allocates nothing.
/// It reads memory of the stack by system calls, so a damaged stack raises no signal.
///
/// # Safety
/// Each pointer is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_step(registers: *mut jitsym_registers) -> jitsym_status {
    status_of(|| {
        // SAFETY: the caller promises that `registers` is NULL or valid.
        let given = unsafe { read_struct_size(registers)?.read_unaligned() };
        let jitsym_registers { pc, is_return, known, values, .. } = given;
        let mut frame = Registers { pc, is_return: is_return != 0, known, values };
        stack::step_in_handler(&mut frame)?;
        // SAFETY: as above.
        unsafe { write_registers(registers, &frame) };
        Ok(())
    })
}

/// Writes the stack as text to the descriptor `fd`, as far as it takes the text, a line for each function: registered code, its inlined functions, and
/// functions of programs and libraries. `context`: as for `jitsym_get_registers`; NULL for the stack of the caller.
///
/// A call of `jitsym_flush_from_signal` with 200 milliseconds comes first, so that the newest code has a name. At most 256
/// functions are written. A library's names come from its file. Functions without a name are written as a library and an offset,
/// which addr2line accepts.
///
/// Returns `JITSYM_OK`; `JITSYM_ERR_ARCH`, `_NOT_FOUND` as `jitsym_get_registers`.
///
/// Any thread, concurrently, and from a signal handler that has 32 KiB of stack. The call takes no lock, allocates nothing and
/// does not change `errno`.
///
/// # Safety
/// `context` is NULL or valid, as docs/conventions.md describes.
#[no_mangle]
pub unsafe extern "C" fn jitsym_print_stack(fd: i32, context: *const c_void) -> jitsym_status {
    let own = registers::here();
    // SAFETY: the caller's promise.
    status_of(|| unsafe { frame_of(context, own) }.map(|frame| stack::print(fd, frame)))
}

/// The frame that a signal has interrupted. If `context` is NULL, the caller of the function whose registers are `own`.
///
/// # Safety
/// `context` is NULL, or comes from the kernel.
unsafe fn frame_of(context: *const c_void, own: Option<Registers>) -> Result<Registers> {
    if !context.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { registers::of_signal(context) }.ok_or(Error::Arch);
    }
    let mut frame = own.ok_or(Error::Arch)?;
    stack::step_in_handler(&mut frame)?;
    Ok(frame)
}

/// # Safety
/// `out` is valid.
unsafe fn write_registers(out: *mut jitsym_registers, frame: &Registers) {
    let Registers { pc, is_return, known, values } = *frame;
    // SAFETY: the caller's promise.
    unsafe {
        let struct_size = (&raw const (*out).struct_size).read_unaligned();
        out.write_unaligned(jitsym_registers { struct_size, pc, is_return: is_return.into(), known, values });
    }
}
