//! The C calls about the library itself: the texts of its statuses, and its version.

use std::ffi::{c_char, CStr};

use crate::api::error::Error;

/// A sentence in English for a status; for an unknown number a text that says so. Static, never NULL.
///
/// Any thread, and from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_status_text(status: i32) -> *const c_char {
    status_texts(status).1.as_ptr()
}

/// The name of a status, for instance "JITSYM_OK"; "JITSYM_?" for an unknown number. Static, never NULL.
///
/// Any thread, and from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_status_name(status: i32) -> *const c_char {
    status_texts(status).0.as_ptr()
}

fn status_texts(status: i32) -> (&'static CStr, &'static CStr) {
    if status == 0 {
        return (c"JITSYM_OK", c"done");
    }
    let found = Error::ALL.iter().find(|error| i64::from(**error as u32) == i64::from(status));
    let texts = found.map(|error| error.texts());
    let c_str = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
    texts.and_then(|(name, text)| Some((c_str(name)?, c_str(text)?))).unwrap_or((c"JITSYM_?", c"unknown status"))
}

/// The version of the library that is running, for instance "0.1.0". Static.
///
/// Any thread, and from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of the library that is running as a number, to be compared with `JITSYM_VERSION_NUMBER` of the header that the
/// program was compiled with: major * 1000000 + minor * 1000 + patch.
///
/// Any thread, and from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_version_number() -> u32 {
    VERSION_NUMBER
}

/// major * 1000000 + minor * 1000 + patch.
const VERSION_NUMBER: u32 = {
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
};

const fn number(digits: &str) -> u32 {
    let mut value = 0;
    let mut at = 0;
    while at < digits.len() {
        value = value * 10 + (digits.as_bytes()[at] - b'0') as u32;
        at += 1;
    }
    value
}
