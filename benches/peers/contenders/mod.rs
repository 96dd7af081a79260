//! Who is compared. The peers but wasmtime are written here after descriptions of how they write; no code of theirs is used.

mod bare;
mod buffered;
mod bulk;
mod channel;
mod crossed;
mod map_lines;
mod memcpy;
mod ours;
mod stdio;
mod wasmtime;

pub use bare::Bare;
pub use buffered::Llvm;
pub use bulk::Bulk;
pub use channel::Channel;
pub use crossed::Crossed;
pub use map_lines::{LuaJit, MoarVm};
pub use memcpy::Memcpy;
pub use ours::Jitsym;
pub use stdio::{CPython, V8};
pub use wasmtime::Wasmtime;

use crate::files::Files;
use crate::task::Task;

/// A way to register functions.
pub trait Contender: Sized + Sync {
    /// Opens its files and starts what it has in the background.
    fn open(task: &Task) -> Self;

    /// A thread's way in: each call registers one function. Made in the thread that calls it.
    fn caller(&self, thread: usize) -> impl FnMut();

    /// Waits until everything registered so far is written, so that a warm-up is not counted with what follows. Only for those
    /// that write in the background.
    fn drain(&self) {}

    /// Bytes of memory in use for records on their way, if it can say.
    fn memory(&self) -> u64 {
        0
    }

    /// Writes what is left and closes the files. `calls` is how often its callers were called.
    fn close(self, calls: usize) -> Files;
}

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Memcpy,
    Bare,
    Crossed,
    Jitsym,
    CPython,
    V8,
    Llvm,
    Wasmtime,
    LuaJit,
    MoarVm,
    Channel,
    Bulk,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Memcpy,
        Kind::Bare,
        Kind::Crossed,
        Kind::Jitsym,
        Kind::CPython,
        Kind::V8,
        Kind::Llvm,
        Kind::Wasmtime,
        Kind::LuaJit,
        Kind::MoarVm,
        Kind::Channel,
        Kind::Bulk,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Memcpy => "memcpy",
            Kind::Bare => "bare",
            Kind::Crossed => "crossed",
            Kind::Jitsym => "jitsym",
            Kind::CPython => "cpython",
            Kind::V8 => "v8",
            Kind::Llvm => "llvm",
            Kind::Wasmtime => "wasmtime",
            Kind::LuaJit => "luajit",
            Kind::MoarVm => "moarvm",
            Kind::Channel => "channel",
            Kind::Bulk => "bulk",
        }
    }

    pub fn parse(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == word)
    }
}
