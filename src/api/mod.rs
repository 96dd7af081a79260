//! Plain types of the interface: the arguments and results of calls.

pub mod code;
pub mod error;
pub mod limits;
pub mod options;

/// Identifies one registration. A process never uses an id twice. Id 0 means that nothing was registered, because no sink runs
/// and no code is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);
