//! `jitsym callgrind`: recordings of real programs by three versions of callgrind, made-up ones, and damaged ones. Each is read before
//! and after by a reader that shares nothing with the program's.

// Not all of what it makes is needed here.
#[allow(dead_code)]
#[path = "check/build.rs"]
mod build;
#[path = "callgrind/plain.rs"]
mod plain;
#[cfg(target_arch = "x86_64")]
#[path = "callgrind/raku.rs"]
mod raku;
#[path = "callgrind/random.rs"]
mod random;
#[cfg(target_arch = "x86_64")]
#[path = "callgrind/real.rs"]
mod real;
#[path = "check/random.rs"]
mod rng;
#[path = "../../tests/support/mod.rs"]
mod support;
