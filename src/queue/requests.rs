//! The requests of callers to the writer, such as a flush.
//!
//! Requests do not use the channel of messages, because the channel may be full while a slow disk blocks the writer.

use super::oneshot::Give;
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};

/// The requests that wait for the writer, and the writer's answers.
#[derive(Debug, Default)]
pub struct Requests {
    /// Whether a writer is running.
    pub open: bool,
    /// Number of the last request.
    pub asked: u64,
    /// Number of the last request to write all records. Requests of `Shared::wait_until_told` are not counted here, because no
    /// file has to be written for these requests.
    pub asked_to_write: u64,
    /// The time of the latest request, by the clock of the thread that made this request.
    pub asked_at: u64,
    /// For calls of `Shared::wait_until_told`: the number of the last answered request (`told`), and the error if the sinks
    /// did not get everything (`not_told`).
    pub told: u64,
    pub not_told: Option<Error>,
    /// Number of the last answered request. Everything that was published before that request has been written.
    pub answered: u64,
    /// The last answer, or the error of a writer that has ended without writing all records.
    pub result: Option<Error>,
    pub stop: Option<Stop>,
    pub change: Option<Change>,
}

/// A request to end the writer.
#[derive(Debug)]
pub struct Stop {
    /// Whether the writer ends because all sinks were disabled while sessions are open. If `off` is true, the writer frees all
    /// memory.
    pub off: bool,
    pub ack: Give<Result<()>>,
}

/// A request to start or stop sinks.
#[derive(Debug)]
pub struct Change {
    /// Sinks to start.
    pub on: Sinks,
    /// Sinks to stop.
    pub off: Sinks,
    /// The configuration after the change.
    pub config: Config,
    pub ack: Give<Result<()>>,
}
