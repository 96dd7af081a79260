//! Computes when a sink tries to write again after a failed write.

use std::time::{Duration, Instant};

/// The time when a sink next tries to write. After the first failure, the sink waits a tenth of a second. The wait doubles with
/// each further failure, up to ten seconds.
#[derive(Debug)]
pub struct Retry {
    wait: Duration,
    at: Instant,
}

impl Retry {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(10);

    /// Returns the time of the next attempt after a failure. `before` is the attempt that has just failed, or `None` if this
    /// is the first failure.
    pub fn after(before: Option<&Retry>) -> Retry {
        let wait = before.map_or(Retry::FIRST, |before| (before.wait * 2).min(Retry::LONGEST));
        Retry { wait, at: Instant::now() + wait }
    }

    /// Makes a `Retry` whose first attempt is due immediately.
    pub fn at_once() -> Retry {
        Retry { wait: Retry::FIRST / 2, at: Instant::now() }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    /// How long to wait until the next attempt.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}
