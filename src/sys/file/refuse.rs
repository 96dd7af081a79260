//! Makes the error that tells why a file is refused.

use std::io;

pub(super) fn refuse(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}
