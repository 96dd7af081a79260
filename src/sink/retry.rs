//! When a sink that has failed tries again.

use std::time::{Duration, Instant};

/// When to try again what has failed: after a tenth of a second, and later and later up to ten seconds.
#[derive(Debug)]
pub struct Retry {
    wait: Duration,
    at: Instant,
}

impl Retry {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(10);

    /// Something has failed for the first time, or another time.
    pub fn after(before: Option<&Retry>) -> Retry {
        let wait = before.map_or(Retry::FIRST, |before| (before.wait * 2).min(Retry::LONGEST));
        Retry { wait, at: Instant::now() + wait }
    }

    /// The first attempt may be made at once.
    pub fn at_once() -> Retry {
        Retry { wait: Retry::FIRST / 2, at: Instant::now() }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    /// How long there is to wait.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}
