//! Plain types of the interface: what a runtime says, and what it is answered.

pub mod code;
pub mod error;
pub mod limits;
pub mod options;

/// The name of one registration. Never used again within a process; 0 stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);
