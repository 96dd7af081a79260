//! The two functions of a collector for Intel's JIT profiling API.
//!
//! A runtime that uses this API loads the library that the variable `INTEL_JIT_PROFILER64` names, looks up `Initialize` and
//! `NotifyEvent`, and calls them through pointers. The names, numbers and structs are from jitprofiling.h in Intel's ittapi,
//! version 2026. The file jitprofiling.c in ittapi 2026 shows how a runtime finds the functions.

#![allow(non_snake_case, reason = "names of the API")]

use std::ffi::{c_char, c_uint, c_void, CStr};
use std::ptr;

use crate::api::error::Result;
use crate::session::collector::{self, Method, Row};
use crate::session::process::guarded;
use crate::session::refused;
use crate::sys::{panic_guard, thread};

const SHUTDOWN: c_uint = 2;
const LOAD: c_uint = 13;
const UNLOAD: c_uint = 14;
const UPDATE: c_uint = 15;
const INLINE_LOAD: c_uint = 16;
const UPDATE_V2: c_uint = 17;
const LOAD_V2: c_uint = 21;
const LOAD_V3: c_uint = 22;

/// The first fields of every struct that describes a method. `iJIT_Method_Inline_Load` has the number of the parent
/// method between `id` and `name`. The other structs have padding in place of this number.
#[repr(C)]
#[derive(Clone, Copy)]
struct MethodStart {
    id: c_uint,
    parent: c_uint,
    name: *const c_char,
    addr: u64,
    size: c_uint,
    row_count: c_uint,
    rows: *const Row,
}

/// `iJIT_Method_Load`. An unused field and the field for the class precede the field for the source.
#[repr(C)]
struct MethodLoad {
    start: MethodStart,
    class_id: c_uint,
    class: *const c_char,
    source: *const c_char,
}

/// The common fields of `iJIT_Method_Load_V2`, `_V3` and `iJIT_Method_Inline_Load`.
#[repr(C)]
struct MethodLoadV2 {
    start: MethodStart,
    class: *const c_char,
    source: *const c_char,
}

/// `iJIT_Method_Update`.
#[repr(C)]
struct MethodUpdate {
    addr: u64,
    size: c_uint,
}

/// Starts the collector. Each runtime in the process calls this function once, before any other call.
///
/// `Initialize` and `NotifyEvent` are not in the header, because no program calls them by name. In the static library
/// both functions are hidden.
#[cfg_attr(feature = "reserve", no_mangle)]
pub extern "C" fn Initialize() -> c_uint {
    panic_guard::silence_panics();
    thread::uncancelled(|| answer(collector::start))
}

/// Receives an event from a runtime.
///
/// Each runtime in a process numbers its methods from 1. Therefore `notify` also gets the return address of the call, which
/// identifies the runtime.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
#[cfg_attr(feature = "reserve", no_mangle)]
#[unsafe(naked)]
pub extern "C" fn NotifyEvent(event: c_uint, data: *const c_void) -> c_uint {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym notify);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x2, x30", "b {}", sym notify);
    #[cfg(target_arch = "riscv64")]
    std::arch::naked_asm!("mv a2, ra", "tail {}", sym notify);
}

/// `NotifyEvent` for architectures on which the library cannot distinguish runtimes.
///
/// # Safety
/// `data` points to the struct that belongs to the event.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
#[cfg_attr(feature = "reserve", no_mangle)]
pub unsafe extern "C" fn NotifyEvent(event: c_uint, data: *const c_void) -> c_uint {
    // SAFETY: the caller's promise.
    unsafe { notify(event, data, 0) }
}

/// # Safety
/// `data` points to the struct that belongs to the event.
unsafe extern "C" fn notify(event: c_uint, data: *const c_void, caller: u64) -> c_uint {
    thread::quietly(|| {
        answer(|| {
            if event == SHUTDOWN {
                return collector::flush();
            }
            if data.is_null() {
                return Ok(false);
            }
            // SAFETY: here and below, `data` points to the event's struct, as the caller promises. Only fields of this
            // struct are read.
            unsafe {
                match event {
                    LOAD | LOAD_V2 | LOAD_V3 | INLINE_LOAD => {
                        let source = match event {
                            LOAD => &raw const (*data.cast::<MethodLoad>()).source,
                            _ => &raw const (*data.cast::<MethodLoadV2>()).source,
                        };
                        with_method(data.cast(), source, |parent, method| match event {
                            INLINE_LOAD => collector::inline(parent, method),
                            _ => collector::load(caller, method),
                        })
                    }
                    // Some runtimes pass a pointer to the method's number instead of a struct.
                    UNLOAD => collector::unload(caller, data.cast::<c_uint>().read_unaligned()),
                    UPDATE => {
                        let start = data.cast::<MethodStart>().read_unaligned();
                        collector::update(start.addr, start.size)
                    }
                    UPDATE_V2 => {
                        let update = data.cast::<MethodUpdate>();
                        let (addr, size) = (&raw const (*update).addr, &raw const (*update).size);
                        collector::update(addr.read_unaligned(), size.read_unaligned())
                    }
                    _ => Ok(false),
                }
            }
        })
    })
}

/// Runs the body of `Initialize` or `NotifyEvent`. Returns the function's result: 1 if sampling is on (`Initialize`),
/// or if the event is accepted (`NotifyEvent`).
fn answer(body: impl FnOnce() -> Result<bool>) -> c_uint {
    // `body` may have stored the reason for its error. The stored reason is valid only until the guard ends, so `refused` is
    // called inside the guard.
    guarded(|| body().inspect_err(|&error| refused(error))).unwrap_or(false).into()
}

/// Calls `body` with two arguments: the number of the parent method, and the method that the struct describes.
///
/// # Safety
/// `start` and `source` point into one struct, and all pointers in this struct are valid for the call.
unsafe fn with_method<T>(
    start: *const MethodStart,
    source: *const *const c_char,
    body: impl FnOnce(u32, &Method<'_>) -> T,
) -> T {
    // SAFETY: here and below, the pointers are valid, as the caller promises.
    let (start, source) = unsafe { (start.read_unaligned(), source.read_unaligned()) };
    let text = |text: *const c_char| match text.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { CStr::from_ptr(text) }.to_bytes()).filter(|text| !text.is_empty()),
    };
    let rows = match start.row_count as usize {
        count if start.rows.is_null() || !start.rows.is_aligned() || count == 0 => &[][..],
        // SAFETY: as above.
        count => unsafe { &*ptr::slice_from_raw_parts(start.rows, count) },
    };
    let (name, file) = (text(start.name), text(source));
    body(start.parent, &Method { id: start.id, name, addr: start.addr, size: start.size, rows, file })
}
