//! The errors that calls return, as one small `Copy` type.

use std::fmt;

use crate::sys::last_error;

macro_rules! errors {
    ($($number:literal $name:ident, $constant:literal, $text:literal;)*) => {
        /// Why a call failed. Each error has the number of its `jitsym_status` in the C header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum Error {
            $(#[doc = $text] $name = $number,)*
        }

        impl Error {
            /// All errors, in the order of their numbers.
            pub const ALL: &'static [Error] = &[$(Error::$name),*];

            /// The name of the C enumerator and a sentence about the error, both NUL-terminated for C.
            pub(crate) fn texts(self) -> (&'static str, &'static str) {
                match self {
                    $(Error::$name => (concat!($constant, "\0"), concat!($text, "\0")),)*
                }
            }
        }
    };
}

errors! {
    1 Null, "JITSYM_ERR_NULL", "a required pointer is NULL";
    2 StructSize, "JITSYM_ERR_STRUCT_SIZE", "a struct size is too small";
    3 StructTail, "JITSYM_ERR_STRUCT_TAIL", "a struct has non-zero fields that this version does not know";
    4 Flags, "JITSYM_ERR_FLAGS", "an unknown flag bit or a reserved field is set";
    5 Enum, "JITSYM_ERR_ENUM", "a number is none of its enumerators";
    6 SizeZero, "JITSYM_ERR_SIZE_ZERO", "the size is 0";
    7 AddressRange, "JITSYM_ERR_ADDRESS_RANGE", "address plus size does not fit the address space, or the address is 0";
    8 TooLarge, "JITSYM_ERR_TOO_LARGE", "the code or its record is larger than the format allows";
    9 LineOffset, "JITSYM_ERR_LINE_OFFSET", "a line table entry lies outside the code";
    10 LineFile, "JITSYM_ERR_LINE_FILE", "a line table entry has no file name";
    11 UnwindOrder, "JITSYM_ERR_UNWIND_ORDER", "unwind offsets are out of order or outside the code";
    12 UnwindRegister, "JITSYM_ERR_UNWIND_REGISTER", "an unwind description names an unknown register";
    13 UnwindFormat, "JITSYM_ERR_UNWIND_FORMAT", "an unwind description cannot be expressed";
    14 Arch, "JITSYM_ERR_ARCH", "unwind descriptions are not supported on this architecture";
    15 Session, "JITSYM_ERR_SESSION", "the session was never opened (jitsym_init opens one)";
    16 Closed, "JITSYM_ERR_CLOSED", "the session is closed";
    17 UnknownId, "JITSYM_ERR_UNKNOWN_ID", "no code with this id is registered";
    18 Timeout, "JITSYM_ERR_TIMEOUT", "the time allowed ran out";
    19 Dropped, "JITSYM_ERR_DROPPED", "the record was dropped because the writer could not keep up";
    20 NoMemory, "JITSYM_ERR_NO_MEMORY", "there is not enough memory";
    21 NoSink, "JITSYM_ERR_NO_SINK", "no sink could be started";
    22 SinkFailed, "JITSYM_ERR_SINK_FAILED", "a sink failed";
    23 Forked, "JITSYM_ERR_FORKED", "the session belongs to the parent process";
    24 Thread, "JITSYM_ERR_THREAD", "the background thread could not be started";
    25 Conflict, "JITSYM_ERR_CONFLICT", "another session of this process writes with other options";
    26 TooManySessions, "JITSYM_ERR_TOO_MANY_SESSIONS", "all session handles are in use";
    27 Path, "JITSYM_ERR_PATH", "a directory is not an absolute path or is too long";
    28 Buffer, "JITSYM_ERR_BUFFER", "the buffer is too small";
    29 NotRunning, "JITSYM_ERR_NOT_RUNNING", "the sink is not running";
    30 Busy, "JITSYM_ERR_BUSY", "the call interrupted another call of the same thread";
    31 Internal, "JITSYM_ERR_INTERNAL", "internal failure";
    32 Writer, "JITSYM_ERR_WRITER", "the call was made by the writer itself, or the writer has no thread and cannot run here";
    33 Forbidden, "JITSYM_ERR_FORBIDDEN", "the user does not allow sinks to be enabled late";
    34 Library, "JITSYM_ERR_LIBRARY", "the shared library was not found, or is another version";
    35 NotPlain, "JITSYM_ERR_NOT_PLAIN", "the memory is not private, has a file, is a heap, stack or hole, or has advice that files cannot have";
    36 Locked, "JITSYM_ERR_LOCKED", "the process has locked memory, which a file's would not be";
    37 Region, "JITSYM_ERR_REGION", "there is no region, or there is one already, or not of this kind";
    38 Alignment, "JITSYM_ERR_ALIGNMENT", "an address or size is no multiple of a page, or an alignment no power of two";
    39 Inline, "JITSYM_ERR_INLINE", "an inlined function has a bad range or parent, no name, or no call site";
    40 NotFound, "JITSYM_ERR_NOT_FOUND", "no registered code is there, or the frame has no caller";
}

impl Error {
    /// Returns this error, and notes the exact cause for `jitsym_last_error` and `JITSYM_DEBUG`. In the text, `{}` stands for a
    /// number, and `{x}` for a hexadecimal number.
    #[cold]
    pub(crate) fn because<const N: usize>(self, text: &'static str, numbers: [u64; N]) -> Error {
        const { assert!(N <= 3) };
        let mut all = [0; 3];
        all[..N].copy_from_slice(&numbers);
        last_error::note(self as u32, text, all);
        self
    }

    /// Returns this error. If `is_callers` is true, also notes the name of the code that was not registered.
    #[cold]
    pub(crate) fn of_code(self, name: &[u8]) -> Error {
        if self.is_callers() {
            last_error::note_code(self as u32, name);
        }
        self
    }

    /// The name of the C enumerator.
    pub(crate) fn name(self) -> &'static str {
        self.texts().0.trim_end_matches('\0')
    }

    /// True if the caller can correct the error, and no other report of the library explains the error better.
    pub(crate) fn is_callers(self) -> bool {
        matches!(self as u32, 1..=17 | 19 | 23 | 27 | 28 | 33 | 38 | 39)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1.trim_end_matches('\0'))
    }
}

impl std::error::Error for Error {}

/// The result of a call that may fail with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
