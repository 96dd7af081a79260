//! Why a file is not taken.

use std::io;

pub(super) fn refuse(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}
