//! Reads the data that another process publishes in its spool while it runs.

use std::io;
use std::path::Path;

use super::file::SpoolFile;
use super::layout::HeaderCopy;
use super::published_status::SINCE;

/// The data that a living process publishes in its spool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The pid of the process in its own pid namespace.
    pub pid: u32,
    /// Counters and other values, with their names in `jitsym_stats`.
    pub values: Vec<(String, u64)>,
    /// Text of the last failure; empty if there was none. If the process stored another text while this text was read, the
    /// result may be a mixture of both texts.
    pub failure: String,
}

impl Said {
    /// The value with this name, or 0 if the process does not publish it.
    pub fn value(&self, name: &str) -> u64 {
        self.values.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
    }
}

/// Reads and checks the data that a process publishes in its spool. The spool may contain any bytes.
pub fn read(path: &Path) -> io::Result<Said> {
    let file = SpoolFile::open_to_look(path)?;
    let other = || io::Error::new(io::ErrorKind::InvalidData, "is no spool, or one of another version of the library");
    let header = HeaderCopy::read(&file, 0).ok_or_else(other)?;
    let pid = header.pid_of_any_version(SINCE).ok_or_else(other)?;
    let (values, failure) = header.published().get().ok_or_else(other)?;
    Ok(Said { pid, values, failure })
}
