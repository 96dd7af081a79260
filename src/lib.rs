//! libjitsym makes JIT-compiled code visible to perf and every other Linux profiler.
//!
//! A runtime says where it has put code, what it is called, how to unwind it and which source lines it came from; a
//! background thread writes that to a perf map, a jitdump, and the ELF files of code regions. The C interface is
//! `include/jitsym.h`; this crate's Rust interface is the same thing with slices:
//!
//! ```
//! use jitsym::{Bytes, Code, Options, Session};
//!
//! # let dir = std::env::temp_dir().join(format!("jitsym-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! # let options = Options { map_dir: Some(dir.clone()), jitdump_dir: Some(dir.clone()), ..Options::default() };
//! # /*
//! let options = Options::default();
//! # */
//! let session = Session::open(&options)?;
//! let code = [0xc3_u8]; // Where a real runtime has executable memory.
//! let addr = code.as_ptr() as u64;
//! let id = session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(addr, 1, "nothing") })?;
//! session.unregister(id)?;
//! session.close()?;
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), jitsym::Error>(())
//! ```
//!
//! # Errors
//! A call that fails has no effect, and says why with one [`Error`]. What goes wrong later, in the background, is counted and
//! can be read back; it never reaches the host as a panic, a signal, or output.
//!
//! # Threads
//! Everything may be called from any thread at any time. Registering takes no lock; with [`Bytes::Here`] it makes no system
//! call either, once a thread has its first chunk of memory.
//!
//! # Fork, signals, unloading
//! A forked child goes on with its parent's sessions, in files of its own ([`Fork`]). No function may be called from a signal
//! handler but [`flush_from_signal`]. The writer thread takes no signals but those of its own faults. The shared library is never
//! unloaded.
//!
//! # Where to find what
//! `capi` is the C layer. [`Session`] checks and forwards to `producer`, which lays records down in the calling thread's
//! `chunk` by way of its `lane`; `writer` merges them, keeps the `registry`, and feeds the `sink`s. `format` has the byte
//! layouts, `sys` the operating system. The program `jitsym` is the crate in `tool/`, and no part of the C libraries.

// The library runs in somebody else's process: nothing in it may give up.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

mod apart;
mod autoload;
pub mod capi;
mod chunk;
mod clean;
mod code;
mod config;
mod control;
mod engine;
mod error;
mod fork;
#[doc(hidden)]
pub mod format;
mod gate;
mod handover;
mod ids;
mod lane;
mod pool;
mod process;
mod producer;
mod region;
mod registry;
mod session;
mod sink;
mod slot;
mod spool;
mod standstill;
mod status;
#[doc(hidden)]
pub mod sys;
mod unwind;
mod urgent;
mod writer;

pub use clean::{clean, Cleaned};
pub use code::{
    Bytes, Code, FramePointer, Inline, Line, LineTable, Lines, MoveTarget, SavedRegister, Unwind, UnwindRow,
};
pub use config::{clean_dirs, spool_dir, Fork, Options, Sinks};
pub use error::{Error, Result};
pub use format::perf_map::Dialect;
pub use region::{CodeRegion, RegionOptions};
pub use session::{flush_from_signal, last_error, Session};
pub use spool::recover::{recover, Report};
pub use status::{SpoolState, Stats};
pub use unwind::room_needed as unwind_size;

#[cfg(jitsym_loom)]
pub use writer::models;

/// The name of one registration. Never used again within a process; 0 stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64);

/// major * 1000000 + minor * 1000 + patch.
pub(crate) const VERSION_NUMBER: u32 = {
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
};

const fn number(digits: &str) -> u32 {
    let mut value = 0;
    let mut at = 0;
    while at < digits.len() {
        value = value * 10 + (digits.as_bytes()[at] - b'0') as u32;
        at += 1;
    }
    value
}
