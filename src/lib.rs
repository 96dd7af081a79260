//! libjitsym makes JIT-compiled code visible to perf and every other Linux profiler.
//!
//! A runtime reports the address, the name, the unwind description and the source lines of its code. A background thread writes
//! these facts to a perf map, a jitdump, and the ELF files of code regions. The library also reports the code to gdb, lldb, the
//! unwinder and valgrind, and serves lookups by crash handlers. The C interface is `include/jitsym.h`, `jitsym_region.h` and
//! `jitsym_control.h`. The Rust interface of this crate offers the calls of the C interface, with slices in place of pointers and lengths:
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
//! let code = [0xc3_u8]; // A real runtime has executable memory here.
//! let addr = code.as_ptr() as u64;
//! let id = session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(addr, 1, "nothing") })?;
//! session.unregister(id)?;
//! session.close()?;
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), jitsym::Error>(())
//! ```
//!
//! # Errors
//! A call that fails returns an [`Error`]. A failed call has an effect only if the documentation of the call names this effect.
//! The background thread may fail after a call has returned. Such a failure is counted, and [`last_error`] returns its text. No
//! failure causes a panic, a signal or output in the host.
//!
//! # Threads
//! Any thread may call any function at any time. A registration takes a lock only if it waits for a sink. With [`Bytes::Here`],
//! a registration makes no system call, once the thread has its first chunk of memory.
//!
//! # Fork, signals, unloading
//! A forked child continues its parent's sessions, with its own files ([`Fork`]). A signal handler may call only
//! [`flush_from_signal`] and [`Session::wanted`]. The writer thread takes no signals except those that its own faults raise.
//! The shared library is never unloaded.
//!
//! # Where to find what
//! Each folder of `src` has one task, and the imports between folders form no cycle. `capi` is the C layer.
//! [`session`](Session) opens and closes sessions, and writes the records of calls into the calling thread's chunk.
//! `code_alloc` cuts regions into pieces. `writer` merges the records and feeds each `sink`. `queue` has the data structures
//! that `session` and `writer` share. `registry` records which code is live at which address. `format` has the byte layouts,
//! `api` has the plain types, and `sys` calls the operating system. The program `jitsym` is the crate in `tool/`, and not part
//! of the C libraries.

// The library runs in the host's process, and must never end this process by a panic.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

mod api;
pub mod capi;
mod code_alloc;
#[doc(hidden)]
pub mod format;
mod queue;
mod registry;
mod session;
mod sink;
#[doc(hidden)]
pub mod sys;
mod writer;

pub use api::code::{
    Bytes, Code, FixedFrame, FramePointer, Inline, Line, LineTable, Lines, MoveTarget, SavedRegister, SigningKey,
    Unwind, UnwindRow,
};
pub use api::error::{Error, Result};
pub use api::limits::CODE_GAP_SIZE;
pub use api::options::{Dialect, Fork, Options, Sinks, Wanted};
pub use api::Id;
#[doc(hidden)]
pub use queue::spool::read_living::{read as read_spool, Said};
pub use queue::status::{SpoolState, Stats};
pub use session::{clean_dirs, flush_from_signal, last_error, spool_dir, Session};
#[doc(hidden)]
pub use session::{doubt, sink_words, turns_off};
pub use sink::region::{CodeRegion, RegionOptions};
pub use writer::recover::clean::{clean, Cleaned};
pub use writer::recover::{recover, Report};

#[cfg(jitsym_loom)]
pub use writer::models;
