//! Virtual machines that are built against the library, from Debian's sources and the glue of `examples`, under the real perf.
//!
//! Their guests say what burned from when to when.

#[path = "support/cfi.rs"]
mod cfi;
#[path = "runtimes/luajit.rs"]
mod luajit;
#[path = "runtimes/moarvm.rs"]
mod moarvm;
#[path = "support/perf.rs"]
mod perf;
#[path = "runtimes/recording.rs"]
mod recording;
mod support;
