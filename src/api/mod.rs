//! Plain types of the interface: the input of a runtime, and the answers to it.

pub mod code;
pub mod error;
pub mod limits;
pub mod options;

/// Identifies one registration. An id is never used again within a process. 0 is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);
