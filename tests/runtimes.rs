//! Virtual machines that are built against the library, from Debian's sources and the glue of `examples`, under the real perf.
//!
//! Their guests say what burned from when to when.

mod cpython;
mod lua;
mod luajit;
mod moarvm;
mod recording;
