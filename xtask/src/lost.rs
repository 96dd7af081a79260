//! The cells that no producer can win: which they are, why, and what to do instead.

/// Cells that are lost, whatever the library writes.
#[derive(Debug)]
pub struct Lost {
    /// Part of the reader's id, and the scenarios.
    pub reader: &'static str,
    pub scenarios: &'static [&'static str],
    pub reason: &'static str,
    pub instead: &'static str,
}

pub const LOST: &[Lost] = &[];

/// Why a cell is lost, if it is.
pub fn find(id: &str, scenario: &str) -> Option<&'static Lost> {
    LOST.iter().find(|lost| id.contains(lost.reader) && lost.scenarios.contains(&scenario))
}
