//! The names of the jitdumps of a process: each library in it has a separate one.

use std::ffi::OsStr;

/// How many names there are for the dumps of a process.
pub(super) const NAMES: usize = 10;

/// A name for a dump. perf accepts only names of this form, and reads the digits as a number. So leading zeros make another name
/// for the dump of the same process (linux tools/perf/util/jitdump.c, `jit_detect`).
pub fn name_of(pid: u32, zeros: usize) -> String {
    format!("jit-{:0>zeros$}{pid}.dump", "")
}

/// Whether a name is one of those.
pub fn is_name_of(name: &OsStr, pid: u32) -> bool {
    (0..NAMES).any(|zeros| name == OsStr::new(&name_of(pid, zeros)))
}
