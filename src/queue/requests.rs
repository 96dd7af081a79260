//! The requests of callers to the writer. They do not use the channel of messages, which may be full while the writer hangs in a
//! slow disk.

use super::oneshot::Give;
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::sys::thread;

/// See the module's description.
#[derive(Debug, Default)]
pub struct Requests {
    /// A writer is running.
    pub open: bool,
    /// Number of the last request.
    pub asked: u64,
    /// Number of the last one to write everything. The others are from calls that wait for sinks without such files.
    pub asked_to_write: u64,
    /// When the latest of these requests was made, by the clock of the thread that made it.
    pub asked_at: u64,
    /// Number of the last request of which the sinks know that calls wait for, and why they do not know of everything.
    pub told: u64,
    pub not_told: Option<Error>,
    /// Number of the last request that is answered: everything is written.
    pub answered: u64,
    /// The last answer, or the error of a writer that has ended with records unwritten.
    pub result: Option<Error>,
    /// The writer is to end.
    pub stop: Option<Stop>,
    /// Sinks are to be started or stopped.
    pub change: Option<Change>,
    /// The thread by which the process exits. That may end the writer at any moment, so that it writes only what this thread
    /// asks it for and waits for.
    pub exiting: Option<u32>,
}

impl Requests {
    /// Whether the process exits by another thread than the calling one. Then there is no time left for what this one wants: the
    /// exit does not wait for it.
    pub fn exit_is_elsewhere(&self) -> bool {
        self.exiting.is_some_and(|exiting| exiting != thread::id())
    }
}

/// The writer is to end.
#[derive(Debug)]
pub struct Stop {
    /// All sinks have been disabled while sessions are open: everything is given back.
    pub off: bool,
    /// Gets the answer.
    pub ack: Give<Result<()>>,
}

/// A change of the sinks that is asked for.
#[derive(Debug)]
pub struct Change {
    /// Sinks that are to run from now on.
    pub on: Sinks,
    /// Sinks that are not.
    pub off: Sinks,
    /// How it is to be afterwards.
    pub config: Config,
    /// Gets the answer.
    pub ack: Give<Result<()>>,
}
