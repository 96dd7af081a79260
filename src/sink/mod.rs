//! The sinks: where symbols go. Each is a folder with its file and the policy for it; byte layouts are in `format`.

pub mod again;
pub mod jitdump;
pub mod perf_map;
pub mod region;
pub mod set;

use std::io;
use std::path::Path;

/// A failure with the file and what was tried, for `jitsym_last_error`.
pub fn describe(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
