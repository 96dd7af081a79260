//! Makes the error for a file that the library refuses to use.

use std::io;

pub(super) fn refuse(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}
