//! What a tracer is told.

use std::process::ExitStatus;

use crate::Tid;

/// What has happened. The threads that are named are stopped, except those that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instruction was executed: [`crate::Tracer::executed`]. The thread may stand at a breakpoint now, of which it is not
    /// told again.
    Stepped {
        /// The thread.
        tid: Tid,
    },
    /// A thread stands at a breakpoint.
    Breakpoint {
        /// The thread.
        tid: Tid,
        /// Where it stands.
        addr: u64,
    },
    /// A thread that was to be stepped has entered the handler of a signal instead. It stands at the first instruction.
    Handler {
        /// The thread.
        tid: Tid,
        /// The signal.
        signo: i32,
    },
    /// A thread gets a signal when it goes on.
    Signal {
        /// The thread.
        tid: Tid,
        /// The signal.
        signo: i32,
    },
    /// A thread that ran has ended a system call of those that [`crate::Tracer::watch_syscalls`] names.
    Syscall {
        /// The thread.
        tid: Tid,
        /// The number of the system call.
        number: i64,
    },
    /// What [`crate::Tracer::interrupt`] has asked for.
    Interrupted {
        /// The thread.
        tid: Tid,
    },
    /// A process has a thread more.
    NewThread {
        /// The new thread, before its first instruction.
        tid: Tid,
        /// Who has made it, in the system call.
        by: Tid,
    },
    /// There is a process more.
    Forked {
        /// Its first thread, before the first instruction.
        pid: Tid,
        /// Who has made it, in the system call. It may have died since.
        by: Tid,
        /// Whether it has the memory of that process (`vfork`, `posix_spawn`), and not a copy.
        shares_memory: bool,
    },
    /// A process executes another program. Its breakpoints and other threads are gone.
    Exec {
        /// Its only thread, before the first instruction.
        tid: Tid,
        /// The number that this thread had before.
        former: Tid,
    },
    /// A thread has ended that was not the first one of its process.
    ThreadExited {
        /// The thread.
        tid: Tid,
        /// Its process.
        pid: Tid,
    },
    /// A process has ended.
    Exited {
        /// The process.
        pid: Tid,
        /// How.
        status: ExitStatus,
    },
    /// No process is left.
    Done,
}
