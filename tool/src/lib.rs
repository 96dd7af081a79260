//! What the program `jitsym` is made of: [`check`] finds what readers of a jitdump or perf map would choke on, [`show`] prints
//! such files. The tests of the library use the checker too.

// Files come from anywhere: nothing in one may make the program give up.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

#[allow(missing_docs)]
pub mod callgrind;
pub mod check;
pub mod injected;
pub mod kind;
pub mod open;
pub mod private;
pub mod region;
// Only for the program.
#[allow(missing_docs)]
pub mod doctor;
#[allow(missing_docs)]
pub mod record;
pub mod show;
mod tables;
pub mod text;
#[allow(missing_docs)]
pub mod top;
#[allow(missing_docs)]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod verify;
