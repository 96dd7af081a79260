//! Plain types of the interface: the arguments and results of calls.

pub mod code;
pub mod error;
pub mod limits;
pub mod options;

/// Identifies one registration. A process never uses an id twice. No id is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);
