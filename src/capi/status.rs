//! The status enumeration of the C API.

use crate::api::error::Error;

/// The result of a call.
///
/// Failures are positive numbers. The number of a status never changes. Every function that returns a status can return
/// `JITSYM_ERR_INTERNAL`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
#[must_use]
pub enum jitsym_status {
    /// Done.
    JITSYM_OK = 0,
    /// A required pointer is NULL.
    JITSYM_ERR_NULL = 1,
    /// A `struct_size`, or the size of an element, is smaller than in version 0.1.
    JITSYM_ERR_STRUCT_SIZE = 2,
    /// A struct has nonzero bytes after the known fields, or exceeds 4096 bytes.
    JITSYM_ERR_STRUCT_TAIL = 3,
    /// An unknown flag bit, a nonzero reserved field, or a file mode above 0777.
    JITSYM_ERR_FLAGS = 4,
    /// An enum has an unknown value.
    JITSYM_ERR_ENUM = 5,
    /// The size of the code or range is 0.
    JITSYM_ERR_SIZE_ZERO = 6,
    /// Address plus size exceeds the address space, or the address of code is 0.
    JITSYM_ERR_ADDRESS_RANGE = 7,
    /// A size or alignment exceeds the limit of the function or record.
    JITSYM_ERR_TOO_LARGE = 8,
    /// A line table row has an offset outside the code.
    JITSYM_ERR_LINE_OFFSET = 9,
    /// A line table row has no file name.
    JITSYM_ERR_LINE_FILE = 10,
    /// Unwind offsets lie outside the code or are not in order.
    JITSYM_ERR_UNWIND_ORDER = 11,
    /// An unwind description names an unsuitable register.
    ///
    /// The architecture lacks the register, or the CFA is computed from a register that holds no address.
    JITSYM_ERR_UNWIND_REGISTER = 12,
    /// An unwind description cannot be converted into unwind tables.
    ///
    /// The `.eh_frame` section cannot be parsed or does not describe the code, a stack offset is no multiple of 8, or a
    /// register is saved at two offsets.
    JITSYM_ERR_UNWIND_FORMAT = 13,
    /// Unwind descriptions are not supported on this architecture.
    JITSYM_ERR_ARCH = 14,
    /// This session was never opened.
    JITSYM_ERR_SESSION = 15,
    /// The session is closed, or another thread is ending the process.
    ///
    /// If the session was closed during the call, the record may have been written.
    JITSYM_ERR_CLOSED = 16,
    /// No code with this id is registered now.
    JITSYM_ERR_UNKNOWN_ID = 17,
    /// The wait was too long. The operation continues in the background.
    ///
    /// A call of `jitsym_region.h` with this status has no effect: a disk has blocked another such call for over 10 seconds.
    JITSYM_ERR_TIMEOUT = 18,
    /// The writer could not keep up, and the record was dropped.
    JITSYM_ERR_DROPPED = 19,
    /// Memory is short, or `jitsym_options.max_memory` is too small.
    ///
    /// Code memory also cannot be made if 768 regions exist, or if no address space is free near the requested address.
    JITSYM_ERR_NO_MEMORY = 20,
    /// No requested sink could start. `jitsym_last_error(NULL, ...)` gives the reason.
    JITSYM_ERR_NO_SINK = 21,
    /// A sink failed and lacks some code. `jitsym_last_error` gives the reason.
    JITSYM_ERR_SINK_FAILED = 22,
    /// This forked child cannot continue its parent's session.
    ///
    /// [docs/conventions.md](conventions.md#fork) has the reasons.
    JITSYM_ERR_FORKED = 23,
    /// The background thread could not start.
    JITSYM_ERR_THREAD = 24,
    /// A running sink has another directory or dialect than requested.
    JITSYM_ERR_CONFLICT = 25,
    /// All session handles are in use.
    JITSYM_ERR_TOO_MANY_SESSIONS = 26,
    /// A directory's path is too long or not absolute.
    JITSYM_ERR_PATH = 27,
    /// The buffer is too small for the result.
    JITSYM_ERR_BUFFER = 28,
    /// The requested sink does not run, or no sink runs.
    JITSYM_ERR_NOT_RUNNING = 29,
    /// The calling signal handler has interrupted another call of its thread.
    JITSYM_ERR_BUSY = 30,
    /// A bug in the library. The session does nothing from now on.
    JITSYM_ERR_INTERNAL = 31,
    /// The call came from the writer, or from a signal handler that may have interrupted the writer.
    ///
    /// `jitsym_flush_from_signal` also returns this status [without threads](conventions.md#without-threads).
    JITSYM_ERR_WRITER = 32,
    /// The variable JITSYM_LATE forbids enabling sinks at run time.
    JITSYM_ERR_FORBIDDEN = 33,
    /// The shared library is missing or has another ABI (only with `jitsym_dl.h`).
    ///
    /// `jitsym_last_error` with a NULL session gives the reason.
    JITSYM_ERR_LIBRARY = 34,
    /// The memory cannot be adopted: a part is shared or belongs to a file.
    ///
    /// Memory with a heap, a stack, an unmapped part, or [attributes](regions.md#locks-advice-and-keys) that a mapping of a
    /// file cannot have, is refused too.
    JITSYM_ERR_NOT_PLAIN = 35,
    /// No memory is adopted while the process has locked memory (`mlock`, `mlockall`).
    JITSYM_ERR_LOCKED = 36,
    /// No region or `jitsym_alloc` memory is at the address. For `jitsym_region_adopt`: the address is already in a region.
    ///
    /// This status also means that this kind of region does not support the call.
    JITSYM_ERR_REGION = 37,
    /// A value is no multiple of the page size, or an alignment is no power of two.
    JITSYM_ERR_ALIGNMENT = 38,
    /// An entry of `jitsym_code.inlines` is invalid.
    ///
    /// The name, call file or call line is missing, or the range or parent breaks a rule of `jitsym_inline`.
    JITSYM_ERR_INLINE = 39,
    /// No registered code is at the address, or a frame has no caller.
    JITSYM_ERR_NOT_FOUND = 40,
}

// `Error` and `jitsym_status` have the same numbers, and no number is left out.
const _: () = {
    let mut index = 0;
    while index < Error::ALL.len() {
        index += 1;
        assert!(Error::ALL[index - 1] as usize == index);
    }
    assert!(index == jitsym_status::JITSYM_ERR_NOT_FOUND as usize);
};

impl From<Error> for jitsym_status {
    fn from(error: Error) -> Self {
        // SAFETY: the numbers of errors are 1 to the highest status, and each of these numbers is a status.
        unsafe { std::mem::transmute::<u32, jitsym_status>(error as u32) }
    }
}
