//! How far long work is, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use jitsym_tool::text::printable;

/// Shorter work goes without.
const AFTER: Duration = Duration::from_millis(500);
/// Characters of the bar.
const BAR: usize = 24;
const EVERY: Duration = Duration::from_millis(100);

/// A bar in one line on the standard error output, which comes late and goes at the end.
pub struct Progress {
    what: String,
    total: u64,
    /// When to show it; never if there is no terminal.
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// `what` is done to `total` bytes. Nothing is shown if as much is printed meanwhile that it shows where the work is.
    pub fn new(what: String, total: u64, prints_much: bool) -> Self {
        let shows = io::stderr().is_terminal() && !(prints_much && io::stdout().is_terminal());
        let next = shows.then(|| Instant::now() + AFTER);
        Progress { what, total, next, shown: false }
    }

    /// So much is done of what has become so much.
    pub fn update_of(&mut self, done: u64, total: u64) {
        self.total = total;
        self.update(done);
    }

    /// So much is done.
    pub fn update(&mut self, done: u64) {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.next = Some(Instant::now() + EVERY);
            self.shown = true;
            let _ = write!(io::stderr(), "\r\x1b[K{} {}", bar(done, self.total), printable(self.what.as_bytes()));
        }
    }
}

/// So much of all, drawn.
fn bar(done: u64, total: u64) -> String {
    let percent = (u128::from(done.min(total)) * 100 / u128::from(total.max(1))) as usize;
    let bar = "#".repeat(percent * BAR / 100);
    format!("[{bar:BAR$}] {percent:3} %")
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!(bar(0, 0), format!("[{}]   0 %", " ".repeat(BAR)));
        assert_eq!(bar(1, 2), format!("[{}{}]  50 %", "#".repeat(BAR / 2), " ".repeat(BAR / 2)));
        assert_eq!(bar(u64::MAX, 7), format!("[{}] 100 %", "#".repeat(BAR)));
    }

    /// Where no terminal is, as in tests, nothing is ever shown.
    #[test]
    fn nothing_without_a_terminal() {
        let mut progress = Progress::new("checking".into(), 10, false);
        progress.update(5);
        assert_eq!(progress.next.is_some(), io::stderr().is_terminal());
        assert!(!progress.shown);
    }
}
