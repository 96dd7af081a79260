//! What a command has said with `JITSYM_DEBUG`: whether it opened a session, and the first thing that went wrong.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Rank, Report};
use crate::text::printable;

/// More is not read.
const MOST: u64 = 1 << 20;

/// The lines of all processes of a command, without what each begins with.
#[derive(Clone, Debug, Default)]
pub struct Log(Vec<String>);

impl Log {
    /// A file that is not there is that of a command that said nothing.
    pub fn read(path: &Path) -> Log {
        let mut bytes = Vec::new();
        let _ = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        Log::of(&String::from_utf8_lossy(&bytes))
    }

    fn of(text: &str) -> Log {
        let said = text.lines().filter_map(|line| line.strip_prefix("jitsym ")?.split_once(": "));
        Log(said.map(|(_, line)| printable(line.as_bytes()).to_string()).collect())
    }

    fn after(&self, start: &str) -> Option<&str> {
        self.0.iter().find_map(|line| line.strip_prefix(start))
    }

    /// Why nothing was written, if nothing went wrong.
    pub fn why_nothing(&self) -> Option<&'static str> {
        if self.after("libjitsym ").is_none() {
            return Some("the program has opened no session (jitsym_init)");
        }
        self.after("at exit: 0 registered").map(|_| "the program has opened a session, and registered no code")
    }

    /// Adds the first thing that went wrong.
    pub fn tell(&self, report: &mut Report) {
        let kinds = ["refused: ", "no session: ", "failed: ", "sinks wanted: none"];
        let found =
            self.0.iter().find_map(|line| kinds.iter().find_map(|kind| Some((*kind, line.strip_prefix(kind)?))));
        let Some((kind, said)) = found else { return };
        let again = "JITSYM_DEBUG=1 COMMAND";
        match kind {
            "refused: " => {
                report.cause(format!("refused: {said}"), Rank::Told, format!("a call was refused: {said}"), again);
            }
            "no session: " => {
                report.cause(
                    format!("no session: {said}"),
                    Rank::Told,
                    format!("no session was opened: {said}"),
                    again,
                );
            }
            "failed: " if said.contains("is not adopted") => {
                report.cause(said, Rank::Told, said, "JITSYM=on JITSYM_ADOPT=0 jitsym record -- COMMAND");
            }
            "failed: " => report.cause(format!("failed: {said}"), Rank::Told, said, again),
            _ => {
                let text = "the session is off: the program or the environment asks for no sink";
                report.cause("no sink is wanted", Rank::Told, text, "JITSYM=on jitsym record -- COMMAND");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(text: &str) -> Vec<String> {
        let mut report = Report::default();
        Log::of(text).tell(&mut report);
        report.causes().iter().map(|cause| cause.text.clone()).collect()
    }

    #[test]
    fn the_first_thing_that_went_wrong() {
        let start = "jitsym 7: libjitsym 0.1.0\nother\njitsym 7: JITSYM=on\n";
        assert!(causes(start).is_empty());
        let refused = "jitsym 7: refused: JITSYM_ERR_X: lines[2].offset is 62\njitsym 7: refused: JITSYM_ERR_Y\n";
        assert_eq!(causes(&(start.to_owned() + refused)), ["a call was refused: JITSYM_ERR_X: lines[2].offset is 62"]);
        let declined = "jitsym 8: failed: memory at 0x10 is not adopted: it is shared\n";
        assert_eq!(causes(&(declined.to_owned() + refused)), ["memory at 0x10 is not adopted: it is shared"]);
        assert!(causes("jitsym 7: sinks wanted: none: the session is off; map in /tmp\n")[0].contains("no sink"));
    }

    #[test]
    fn why_nothing_was_written() {
        let of = |text| Log::of(text).why_nothing();
        assert!(of("").is_some_and(|text| text.contains("no session")));
        assert!(of("jitsym 7: libjitsym 1\njitsym 7: at exit: 0 registered, 0 moved\n")
            .is_some_and(|text| text.contains("no code")));
        assert_eq!(of("jitsym 7: libjitsym 1\njitsym 7: at exit: 10 registered, 0 moved\n"), None);
    }
}
