//! The parts of the program `jitsym`.
//!
//! [`check`] finds defects that readers of jitdumps and perf maps cannot handle, and [`show`] prints the files. The library's
//! tests use the checker too.

// Files may come from any source, so nothing in a file may make the program panic.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

#[allow(missing_docs)]
pub mod bundle;
#[allow(missing_docs)]
pub mod callgrind;
pub mod check;
#[allow(missing_docs)]
pub mod inject;
pub mod injected;
pub mod kind;
pub mod objects;
pub mod open;
#[allow(missing_docs)]
pub mod perf_data;
pub mod private;
pub mod region;
// Used only by the program.
#[allow(missing_docs)]
pub mod doctor;
#[allow(missing_docs)]
pub mod record;
pub mod show;
mod spans;
mod tables;
pub mod text;
#[allow(missing_docs)]
pub mod top;
#[allow(missing_docs)]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod verify;
