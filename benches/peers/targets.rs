//! What this library is meant to reach, and whether it did.

use crate::rounds::Results;

pub fn print(_results: &Results) {}
