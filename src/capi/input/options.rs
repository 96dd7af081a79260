//! Reads `jitsym_options` and sets of sinks from C.

use std::ffi::{c_char, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::{check_flags, read, size_of_struct, Plain};
use crate::api::error::{Error, Result};
use crate::api::limits::DIR_MAX;
use crate::api::options::{Dialect, Fork, Options, Sinks};
use crate::capi::types::*;
use crate::sink::{self, KINDS};

// SAFETY: every field is an integer or a raw pointer.
unsafe impl Plain for jitsym_options {
    const FIRST_SIZE: usize = std::mem::offset_of!(jitsym_options, map_max);
    const TOO_SMALL: &'static str = size_of_struct!("jitsym_options", "JITSYM_OPTIONS");
}

/// Reads a `jitsym_options`. Returns the defaults for NULL.
///
/// # Safety
/// `from` fulfils the conditions of `read`. Each string in the struct is NULL or ends with a NUL.
pub unsafe fn options(from: *const jitsym_options) -> Result<Options> {
    if from.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    // The bits 8 and 16 were flags earlier, and are refused now.
    check_flags(raw.flags, (2 * jitsym_init_flag::JITSYM_INIT_NO_THREADS as u32 - 1) & !(8 | 16))?;
    check_flags(raw.sinks, sink::every().0)?;
    check_flags(raw.file_mode, 0o777)?;
    check_flags(raw.reserved, 0)?;
    let map_dialect = match raw.map_dialect {
        0 => Dialect::Perf,
        1 => Dialect::Simpleperf,
        other => return Err(Error::Enum.because("map_dialect is {}", [other.into()])),
    };
    let has = |flag: jitsym_init_flag| raw.flags & flag as u32 != 0;
    Ok(Options {
        sinks: (raw.sinks != 0).then_some(Sinks(raw.sinks)),
        env_wins: has(jitsym_init_flag::JITSYM_INIT_ENV_WINS),
        off_by_default: has(jitsym_init_flag::JITSYM_INIT_OFF_BY_DEFAULT),
        no_unwind: has(jitsym_init_flag::JITSYM_INIT_NO_UNWIND),
        drop_when_full: has(jitsym_init_flag::JITSYM_INIT_DROP_WHEN_FULL),
        no_spool: has(jitsym_init_flag::JITSYM_INIT_NO_SPOOL),
        no_threads: has(jitsym_init_flag::JITSYM_INIT_NO_THREADS),
        recover: has(jitsym_init_flag::JITSYM_INIT_RECOVER),
        fork: match (has(jitsym_init_flag::JITSYM_INIT_FORK_NOW), has(jitsym_init_flag::JITSYM_INIT_FORK_ALONE)) {
            (true, true) => return Err(Error::Flags),
            (true, false) => Some(Fork::AtOnce),
            (false, true) => Some(Fork::Alone),
            (false, false) => None,
        },
        remove_files: has(jitsym_init_flag::JITSYM_INIT_REMOVE_FILES),
        remember: has(jitsym_init_flag::JITSYM_INIT_REMEMBER),
        adopt: has(jitsym_init_flag::JITSYM_INIT_ADOPT),
        bridge: has(jitsym_init_flag::JITSYM_INIT_BRIDGE),
        map_max: (raw.map_max != 0).then_some(raw.map_max),
        jitdump_max: (raw.jitdump_max != 0).then_some(raw.jitdump_max),
        // SAFETY: the caller's promise.
        map_dir: unsafe { path(raw.map_dir) },
        // SAFETY: the caller's promise.
        jitdump_dir: unsafe { path(raw.jitdump_dir) },
        map_dialect,
        file_mode: (raw.file_mode != 0).then_some(raw.file_mode),
        max_memory: (raw.max_memory != 0).then_some(raw.max_memory),
        max_wait: (raw.max_wait_ms != 0).then(|| Duration::from_millis(raw.max_wait_ms.into())),
        // SAFETY: the caller's promise.
        spool_dir: unsafe { path(raw.spool_dir) },
    })
}

/// # Safety
/// `text` is NULL or ends with a NUL.
unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller's promise.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())?;
    // The text may have any length. `DIR_MAX` + 1 bytes are enough to show that the text is too long.
    let part = text.get(..DIR_MAX + 1).unwrap_or(text);
    Some(PathBuf::from(OsStr::from_bytes(part)))
}

/// Returns the sink with this bit. Refuses a value that is not the bit of a single sink.
pub fn sink(bit: u32) -> Result<Sinks> {
    KINDS.iter().map(|kind| kind.bit).find(|known| known.0 == bit).ok_or(Error::Enum)
}

/// Returns a set of sinks, or `None` if `bits` is 0.
pub fn sinks(bits: u32) -> Result<Option<Sinks>> {
    check_flags(bits, sink::every().0)?;
    Ok((bits != 0).then_some(Sinks(bits)))
}
