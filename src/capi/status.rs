//! The status enumeration of the C API and its texts.

use crate::api::error::Error;

/// The result of a call. Every function that can fail returns one of these.
///
/// `JITSYM_OK` is 0 and every failure is positive. The numbers never change their meaning. A call that does not return
/// `JITSYM_OK` has had no effect on what was registered before, and has written none of its outputs. (`JITSYM_ERR_CLOSED` from
/// a call that ran while its session was closed leaves open whether the record was still written.)
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
#[must_use]
pub enum jitsym_status {
    /// Done.
    JITSYM_OK = 0,
    /// A pointer that must not be NULL is NULL.
    JITSYM_ERR_NULL = 1,
    /// A `struct_size` (or an element size) is smaller than that of the first version of the struct.
    JITSYM_ERR_STRUCT_SIZE = 2,
    /// A struct is larger than this library knows, and the part that it does not know is not all zero; or its size is above
    /// 4096, which is taken for garbage.
    JITSYM_ERR_STRUCT_TAIL = 3,
    /// A flag bit that this library does not know is set, a reserved field is not zero, or a file mode is above 0777.
    JITSYM_ERR_FLAGS = 4,
    /// A field or argument that takes an enumerator holds a number that is none.
    JITSYM_ERR_ENUM = 5,
    /// The size of the code, or of the range, is 0.
    JITSYM_ERR_SIZE_ZERO = 6,
    /// Address plus size (plus free bytes) does not fit the address space; or the address of code is 0, where none can lie.
    JITSYM_ERR_ADDRESS_RANGE = 7,
    /// The code is larger than `JITSYM_CODE_SIZE_MAX` (2 GiB - 1), or the record exceeds the format's limit.
    JITSYM_ERR_TOO_LARGE = 8,
    /// A line table entry lies outside the code.
    JITSYM_ERR_LINE_OFFSET = 9,
    /// A line table entry has no file name, or line number 0.
    JITSYM_ERR_LINE_FILE = 10,
    /// Offsets in an unwind description lie outside the code or are not in order.
    JITSYM_ERR_UNWIND_ORDER = 11,
    /// An unwind description names a register that the architecture does not have, or counts the CFA from one that holds no
    /// address.
    JITSYM_ERR_UNWIND_REGISTER = 12,
    /// An unwind description cannot be expressed: `.eh_frame` bytes that do not parse or say nothing of the code, a stack offset
    /// that is not a multiple of 8, or two places for one register.
    JITSYM_ERR_UNWIND_FORMAT = 13,
    /// Unwind descriptions are not supported on this architecture.
    JITSYM_ERR_ARCH = 14,
    /// This session was never opened.
    JITSYM_ERR_SESSION = 15,
    /// This session is closed, or was closed while the call ran, or another thread has ended the process.
    JITSYM_ERR_CLOSED = 16,
    /// No code with this id is registered: the id was never given out, or its code was unregistered or overwritten.
    JITSYM_ERR_UNKNOWN_ID = 17,
    /// The time allowed ran out; the work goes on in the background. A call that makes, changes or ends code memory has changed
    /// nothing: another such call has taken more than 10 seconds, because its disk hangs.
    JITSYM_ERR_TIMEOUT = 18,
    /// The writer could not keep up and the record was dropped. It is counted in `jitsym_stats.dropped`.
    JITSYM_ERR_DROPPED = 19,
    /// Memory was not available, or the code is larger than `jitsym_options.max_memory` allows.
    JITSYM_ERR_NO_MEMORY = 20,
    /// No requested sink could be started; `jitsym_last_error` with a NULL session gives the reason.
    JITSYM_ERR_NO_SINK = 21,
    /// A sink failed, so that not all registered code is in its file; `jitsym_last_error` gives the reason.
    JITSYM_ERR_SINK_FAILED = 22,
    /// The session belongs to the parent process, and this process cannot continue it. It was forked with
    /// `JITSYM_INIT_FORK_ALONE`, by a raw system call, by a signal handler that interrupted this library, or while the writer was
    /// at work and did not become quiescent in time. `jitsym_init` opens a new session.
    JITSYM_ERR_FORKED = 23,
    /// The background thread could not be started.
    JITSYM_ERR_THREAD = 24,
    /// Another session of this process is open that writes to other directories, in another dialect, or not to a sink that
    /// this one asks for.
    JITSYM_ERR_CONFLICT = 25,
    /// All session handles are in use.
    JITSYM_ERR_TOO_MANY_SESSIONS = 26,
    /// A directory is not an absolute path, or too long.
    JITSYM_ERR_PATH = 27,
    /// The buffer is too small for the result.
    JITSYM_ERR_BUFFER = 28,
    /// The sink that was asked about is not running, or none is.
    JITSYM_ERR_NOT_RUNNING = 29,
    /// The call was made from a signal handler that interrupted another call of the same thread.
    JITSYM_ERR_BUSY = 30,
    /// The library failed in a way that it should not have; the process goes on, the session does nothing more.
    JITSYM_ERR_INTERNAL = 31,
    /// `jitsym_flush_from_signal` was called on the library's own thread: no thread is left that could write. Records that are
    /// not in the files are in the spool; `jitsym recover` completes the files when the process has ended.
    JITSYM_ERR_WRITER = 32,
    /// The variable `JITSYM_LATE` forbids to enable sinks at run time.
    JITSYM_ERR_FORBIDDEN = 33,
    /// From `jitsym_dl.h` alone: the shared library was not found, or is of a version with another ABI; `jitsym_last_error` with
    /// a NULL session gives the reason.
    JITSYM_ERR_LIBRARY = 34,
    /// Memory cannot be adopted as a region because not all of it is private memory without a file: it is shared, mapped from a
    /// file, a heap or a stack, or not mapped.
    JITSYM_ERR_NOT_PLAIN = 35,
    /// Memory cannot be adopted as a region because the process has locked memory (`mlock`, `mlockall`), which a region would not
    /// be.
    JITSYM_ERR_LOCKED = 36,
    /// There is no region at this address; or, for a new one, there is one already; or regions of this kind cannot do that. Or
    /// `jitsym_alloc` has handed out no memory that begins there.
    JITSYM_ERR_REGION = 37,
    /// An address or size is no multiple of the size of a page, or an alignment no power of two.
    JITSYM_ERR_ALIGNMENT = 38,
    /// An entry of `jitsym_code.inlines` has an empty range, one that is not within that of its parent (or of the code), or one
    /// that shares bytes with another entry of the same parent. Or its parent does not come before it, or it lacks a name, or the
    /// file or line of the call.
    JITSYM_ERR_INLINE = 39,
}

// Error and status have the same numbers, without a gap.
const _: () = {
    let mut index = 0;
    while index < Error::ALL.len() {
        index += 1;
        assert!(Error::ALL[index - 1] as usize == index);
    }
    assert!(index == jitsym_status::JITSYM_ERR_INLINE as usize);
};

impl From<Error> for jitsym_status {
    fn from(error: Error) -> Self {
        // SAFETY: the numbers of errors are 1 to the highest status, each of which is one.
        unsafe { std::mem::transmute::<u32, jitsym_status>(error as u32) }
    }
}
