//! Plain types of the interface: the arguments and results of calls.

pub mod code;
pub mod error;
pub mod limits;
pub mod options;

/// Identifies one registration. An id is never used again within a process. 0 does not identify a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);
