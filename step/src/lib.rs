//! Runs a program with all its threads and children under ptrace, instruction by instruction where that is wanted, and computes
//! the same as the program does by itself.
//!
//! A [`Tracer`] is pulled: [`Tracer::wait`] returns what has happened next, and leaves those threads stopped that the event
//! names. The caller then says of each how it goes on ([`Tracer::step`], [`Tracer::resume`]). Every other thread runs meanwhile.
//! A [`Shadow`] for each thread knows the calls that have not returned, from the instructions that were stepped.
//!
//! ```
//! # #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
//! # fn main() -> std::io::Result<()> {
//! use jitsym_step::{Event, Shadow, Tracer};
//! use std::process::Command;
//!
//! let mut tracer = Tracer::spawn(Command::new("true"))?;
//! let pid = tracer.pid();
//! // Stopped before its first instruction. The program's own first one is the entry of its ELF file.
//! let entry = tracer.entry(pid).expect("an entry");
//! tracer.set_breakpoint(pid, entry)?;
//! tracer.resume(pid)?;
//! let (mut shadow, mut steps) = (Shadow::default(), 0);
//! loop {
//!     match tracer.wait()? {
//!         // The thread stands at the address, which was not executed yet.
//!         Event::Breakpoint { tid, .. } => tracer.step(tid)?,
//!         Event::Stepped { tid } => {
//!             shadow.stepped(&mut tracer, tid)?;
//!             steps += 1;
//!             if steps < 100 { tracer.step(tid)? } else { tracer.resume(tid)? }
//!         }
//!         // The thread stands at the first instruction of the handler.
//!         Event::Handler { tid, .. } => {
//!             shadow.signalled(&mut tracer, tid)?;
//!             tracer.step(tid)?
//!         }
//!         // It is delivered when the thread goes on.
//!         Event::Signal { tid, .. } | Event::Syscall { tid, .. } | Event::Interrupted { tid } | Event::Exec { tid, .. } => tracer.resume(tid)?,
//!         // Both are stopped.
//!         Event::NewThread { tid, by } | Event::Forked { pid: tid, by, .. } => {
//!             tracer.resume(tid)?;
//!             tracer.resume(by)?;
//!         }
//!         Event::ThreadExited { .. } => {}
//!         Event::Exited { pid, status } => println!("{pid}: {status}"),
//!         Event::Done => break,
//!     }
//! }
//! # assert_eq!(steps, 100);
//! # Ok(())
//! # }
//! # #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
//! # fn main() {}
//! ```
//!
//! # What the program does not notice
//!
//! - Signals arrive as they came, with all that the kernel says of them. System calls that a stop has interrupted go on.
//! - The trap flag, by which the processor steps, is taken out of what `pushf` and `syscall` store.
//! - An instruction below a breakpoint is executed elsewhere, so that other threads do not get past the breakpoint meanwhile.
//!   Only system calls are executed in place.
//! - A forked child has no breakpoints. A child of `vfork` shares those of its parent until it executes another program.
//! - What a program reads of its own code does show breakpoints.
//!
//! Hardware breakpoints take the place of others in memory that is shared (code memory with two views), at most four at a time.
//! A thread that is waiting in a system call has them from its next stop on, because some system calls would fail if they were
//! interrupted.
//!
//! With the feature `record`, `record` makes a recording for perf that way: a sample for each instruction on each path of calls, and
//! what is to be seen of it.
//!
//! The thread that has made a `Tracer` waits for all of its children. It must start no others: std's `Child::wait` would not find
//! them. A process that has outlived the first one is traced until it ends, or until [`Tracer::let_go`].

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod displaced;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod event;
#[cfg(all(feature = "record", target_os = "linux", target_arch = "x86_64"))]
mod kernel_events;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod maps;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod ptrace;
#[cfg(all(feature = "record", target_os = "linux", target_arch = "x86_64"))]
mod recorder;
#[cfg(all(feature = "record", target_os = "linux", target_arch = "x86_64"))]
mod recording;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod resume;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod shadow;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod space;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod spawn;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stops;
#[cfg(all(feature = "record", target_os = "linux", target_arch = "x86_64"))]
mod symbols;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tracer;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use {
    event::Event,
    maps::{find, maps, Mapping},
    shadow::{Change, Frame, Kind, Shadow, KEPT, RSP},
    space::HARDWARE,
    tracer::Tracer,
};

#[cfg(all(feature = "record", target_os = "linux", target_arch = "x86_64"))]
pub use {
    recorder::{record, Held, Moment, Plan, Recorded},
    recording::Graph,
    symbols::Symbols,
};

/// A thread's number, or that of a process, which is the number of its first thread.
pub type Tid = i32;
/// The registers of a thread.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub type Registers = libc::user_regs_struct;
/// An instruction, as the crate `iced-x86` decodes it.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use iced_x86::Instruction;

/// Whether there is a tracer for this machine. Without one the crate has nothing else.
pub const SUPPORTED: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

/// Nanoseconds of `CLOCK_MONOTONIC`, by which jitdumps and recordings date what happens.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
