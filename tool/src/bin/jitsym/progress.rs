//! Shows the progress of long work on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use jitsym_tool::record::script::Sample;
use jitsym_tool::record::Step;
use jitsym_tool::text::printable;

/// The progress of shorter work is not shown.
const AFTER: Duration = Duration::from_millis(500);
/// The width of the bar in characters.
const BAR: usize = 24;
const EVERY: Duration = Duration::from_millis(100);

/// A line with a bar on the standard error output. The line appears after a delay, and is removed at the end.
pub struct Progress {
    what: String,
    total: u64,
    /// When to draw next. `None` without a terminal.
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// A bar for the work `what` on `total` bytes. If `prints_much` and the output goes to a terminal, no bar is shown,
    /// because the output itself shows the progress.
    pub fn new(what: String, total: u64, prints_much: bool) -> Self {
        let shows = io::stderr().is_terminal() && !(prints_much && io::stdout().is_terminal());
        let next = shows.then(|| Instant::now() + AFTER);
        Progress { what, total, next, shown: false }
    }

    /// Shows that `done` of `total` is done. The total may have changed.
    pub fn update_of(&mut self, done: u64, total: u64) {
        self.total = total;
        self.update(done);
    }

    /// Shows that `done` of the total is done.
    pub fn update(&mut self, done: u64) {
        let total = self.total;
        self.draw(|| bar(done, total));
    }

    /// Shows that `done` of an unknown total is done.
    fn count(&mut self, done: u64) {
        self.draw(|| done.to_string());
    }

    fn draw(&mut self, start: impl FnOnce() -> String) {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.next = Some(Instant::now() + EVERY);
            self.shown = true;
            let _ = write!(io::stderr(), "\r\x1b[K{} {}", start(), printable(self.what.as_bytes()));
        }
    }
}

/// Shows the number of samples that `body` has read.
pub fn reading<T>(body: impl FnOnce(&mut dyn FnMut(&Sample)) -> T) -> T {
    let (mut progress, mut samples) = (Progress::new("samples read".into(), 0, false), 0);
    body(&mut |_| {
        samples += 1;
        progress.count(samples);
    })
}

/// Shows the progress of the injection. Lines are passed on.
pub fn injecting<'a>(mut say: impl FnMut(&str) + 'a) -> impl FnMut(Step<'_>) + 'a {
    let mut progress = None;
    move |step| match step {
        Step::Line(line) | Step::Problem(line) => say(line),
        Step::Injecting(done, total) => {
            let new = || Progress::new("injecting jitdumps".into(), total, false);
            progress.get_or_insert_with(new).update_of(done, total);
        }
        Step::Injected => drop(progress.take()),
    }
}

/// The bar as text.
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

    /// Nothing is shown without a terminal, as in tests.
    #[test]
    fn nothing_without_a_terminal() {
        let mut progress = Progress::new("checking".into(), 10, false);
        progress.update(5);
        assert_eq!(progress.next.is_some(), io::stderr().is_terminal());
        assert!(!progress.shown);
    }
}
