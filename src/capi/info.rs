//! The C calls that change nothing: `jitsym_wanted`, the texts of statuses, and the version.

use std::ffi::{c_char, CStr};

use super::types::{jitsym, jitsym_want};
use crate::api::error::Error;
use crate::api::options::Wanted;
use crate::session;
use crate::sys::valgrind;

/// Reports which information is useful now, for all sessions: `JITSYM_WANT_*` bits. 0: registering is useless. Call this before
/// each registration, because `jitsym_enable` and `jitsym_disable` change the result.
///
/// The result is 0 if the session is NULL, closed or never opened, or if this forked child cannot continue the session. A
/// forked child that can continue the session gets its parent's result until the child makes another call. The call does not
/// change `errno` or the text of `jitsym_last_error`.
///
/// Any thread, concurrently, and from a signal handler. The call takes no lock and makes no system call.
#[no_mangle]
pub extern "C" fn jitsym_wanted(session: *mut jitsym) -> u32 {
    let Wanted { code, lines, unwind, adopt, region } =
        valgrind::without_races_in_handler(|| session::wanted(session as usize as u64));
    let bit = |is_wanted: bool, bit: jitsym_want| if is_wanted { bit as u32 } else { 0 };
    bit(code, jitsym_want::JITSYM_WANT_CODE)
        | bit(lines, jitsym_want::JITSYM_WANT_LINES)
        | bit(unwind, jitsym_want::JITSYM_WANT_UNWIND)
        | bit(adopt, jitsym_want::JITSYM_WANT_ADOPT)
        | bit(region, jitsym_want::JITSYM_WANT_REGION)
}

/// An English sentence for any status, known or unknown. The string is static, never NULL.
///
/// Any thread, concurrently, and from a signal handler.
#[no_mangle]
pub extern "C" fn jitsym_status_text(status: i32) -> *const c_char {
    status_texts(status).1.as_ptr()
}

/// The name of a status, such as "JITSYM_OK", or "JITSYM_?" if unknown. The string is static, never NULL.
///
/// Any thread, concurrently, and from a signal handler.
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

/// The version of the running library: major * 1000000 + minor * 1000 + patch. `JITSYM_VERSION_NUMBER` is the header's version.
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
