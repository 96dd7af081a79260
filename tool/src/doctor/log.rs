//! Reads the messages of a command under `JITSYM_DEBUG`, to determine whether it opened a session, and the first problem.

use std::io::Read;
use std::path::Path;

use super::{Rank, Report, LOOK};
use crate::open;
use crate::record::plan;
use crate::text::printable;

/// The maximum number of bytes of messages that are read.
const MOST: u64 = 1 << 20;

/// The variables that decide whether a recording contains compiled code.
const DECIDE: [&str; 3] = ["JITSYM", "JITSYM_ADOPT", "JITSYM_REMOVE"];

/// The messages of all processes of a command, without the prefix of each line.
#[derive(Clone, Debug, Default)]
pub struct Log {
    text: String,
    lines: Vec<String>,
    /// The values of `DECIDE` in the environment of the command.
    given: Vec<(&'static str, String)>,
}

impl Log {
    /// Reads the messages. If the file does not exist, the command has printed no messages.
    fn read(path: &Path, given: Vec<(&'static str, String)>) -> Log {
        let mut bytes = Vec::new();
        let _ = open::named(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        Log { given, ..Log::of(&String::from_utf8_lossy(&bytes)) }
    }

    /// The messages that a command has written to a file. The command's environment was that of this program, with the
    /// additions of `jitsym record`.
    pub fn of_run(path: &Path, adopt: bool) -> Log {
        let env = |name: &str| std::env::var_os(name);
        let added = plan::environment(adopt, &env);
        let given = |name: &'static str| {
            let added = added.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            let value = added.or_else(|| Some(env(name)?.to_string_lossy().into_owned()))?;
            Some((name, value)).filter(|(_, value)| !value.is_empty())
        };
        Log::read(path, DECIDE.into_iter().filter_map(given).collect())
    }

    /// All messages, but only the first message about adopted memory.
    pub fn text(&self) -> String {
        let is_adopted = |line: &&str| line.contains(": memory [") && line.contains(" is adopted; ");
        let adopted = self.text.lines().filter(is_adopted).count();
        let mut lines: Vec<String> = Vec::new();
        for line in self.text.lines() {
            if !is_adopted(&line) {
                lines.push(line.to_owned());
            } else if !lines.iter().any(|line| is_adopted(&&**line)) {
                let more = if adopted > 1 { format!(" (and {} more)", adopted - 1) } else { String::new() };
                lines.push(line.to_owned() + &more);
            }
        }
        lines.join("\n")
    }

    fn of(text: &str) -> Log {
        let said = text.lines().filter_map(|line| line.strip_prefix("jitsym ")?.split_once(": "));
        let lines = said.map(|(_, line)| printable(line.as_bytes()).to_string()).collect();
        Log { text: text.trim_end().into(), lines, given: Vec::new() }
    }

    /// A sentence about a variable whose value in the process differs from its value in the environment of the command.
    fn overridden(&self) -> Option<String> {
        DECIDE.iter().find_map(|&name| {
            let said = self.lines.iter().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))?;
            let given = self.given.iter().find(|(given, _)| *given == name);
            let given = given.map(|(_, value)| format!("{name}={value}"));
            // A message about a doubtful value follows the value and a colon.
            let is_given = |given: &String| said.strip_prefix(&**given).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "));
            if given.as_ref().is_some_and(is_given) {
                return None;
            }
            let given = given.map_or_else(|| format!("without {name}"), |given| format!("with {given}"));
            let stop = if said.ends_with('?') { "" } else { "." };
            Some(format!(
                "{said}{stop} It was started {given}, so the program itself sets that, or a script that starts it. Change it there"
            ))
        })
    }

    fn after(&self, start: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(start))
    }

    /// The number of refused calls in the last process that reported any.
    fn refused(&self) -> u64 {
        let summaries =
            self.lines.iter().rev().filter_map(|line| line.strip_prefix("at exit: ")?.split_once(" refused"));
        let mut numbers = summaries.filter_map(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        numbers.find(|&number| number > 0).unwrap_or(0)
    }

    /// The reason why nothing was written, if there was no error.
    pub fn why_nothing(&self) -> Option<&'static str> {
        if self.after("libjitsym ").is_none() {
            return Some("the program has opened no session (jitsym_init)");
        }
        let end = self.after("at exit: ")?;
        if end.starts_with("0 registered") {
            return Some("the program has opened a session, and registered no code");
        }
        let put_off = end.split(" put off").next().filter(|before| before.len() < end.len());
        put_off.filter(|before| end.contains("; 0 regions ") && !before.ends_with(" 0")).map(|_| {
            "no memory was adopted: none was executable when the library was called (docs/regions.md says when it looks again). \
             Without JITSYM=region a jitdump has the code"
        })
    }

    /// The reason why a perf map is useless, if nothing else was written.
    pub fn map_elsewhere(&self) -> Option<String> {
        let dir = self.after("sinks wanted: map; map in ")?.split_once(", jitdump in ")?.0;
        (dir != "/tmp").then(|| format!("the perf map is in {dir}, and perf looks for maps in /tmp alone"))
    }

    /// Compares the variables of the process with those in the environment of the command. If they differ, and this may
    /// explain a problem, adds the difference as a cause.
    pub fn explain(&self, report: &mut Report) {
        let can_be_why = |rank| matches!(rank, Rank::Told | Rank::Recording | Rank::Nothing);
        if report.causes().iter().any(|cause| can_be_why(cause.rank)) {
            if let Some(text) = self.overridden() {
                report.because(Rank::Overridden, text, "JITSYM_DEBUG=1 COMMAND");
            }
        }
    }

    /// Adds the first problem in the messages.
    pub fn tell(&self, report: &mut Report) {
        let kinds = ["refused: ", "no session: ", "failed: ", "sinks wanted: none"];
        let found =
            self.lines.iter().find_map(|line| kinds.iter().find_map(|kind| Some((*kind, line.strip_prefix(kind)?))));
        let Some((kind, said)) = found else { return };
        let again = "JITSYM_DEBUG=1 COMMAND";
        match kind {
            "refused: " => {
                let calls = match self.refused() {
                    0 | 1 => "a call was refused".to_owned(),
                    several => format!("{several} calls were refused, the first one"),
                };
                report.cause(format!("refused: {said}"), Rank::Told, format!("{calls}: {said}"), LOOK);
                report.is_to_change();
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
                let is_unknown = self.after("JITSYM=").is_some_and(|rest| rest.contains("there is no sink"));
                let (line, text) = if is_unknown {
                    ("no known sink is named", "the session is off: the program or the environment names no known sink")
                } else {
                    ("no sink is asked for", "the session is off: the program or the environment asks for no sink")
                };
                report.cause(line, Rank::Told, text, "JITSYM=on jitsym record -- COMMAND");
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
        let told = |calls: &str| vec![format!("{calls}: JITSYM_ERR_X: lines[2].offset is 62")];
        assert_eq!(causes(&(start.to_owned() + refused)), told("a call was refused"));
        let summary = "jitsym 7: at exit: 4 registered, 0 moved, 3 refused, 1 dropped\njitsym 8: at exit: 0 registered, 0 refused\n";
        assert_eq!(causes(&(refused.to_owned() + summary)), told("3 calls were refused, the first one"));
        let declined = "jitsym 8: failed: memory at 0x10 is not adopted: it is shared\n";
        assert_eq!(causes(&(declined.to_owned() + refused)), ["memory at 0x10 is not adopted: it is shared"]);
        assert!(causes("jitsym 7: sinks wanted: none: the session is off; map in /tmp\n")[0].contains("no sink"));
    }

    #[test]
    fn adopted_memory_is_one_line() {
        let adopted =
            |start: u32| format!("jitsym 7: memory [{start:#x}, 0x9000) is adopted; its file is /tmp/jit-7-0.so\n");
        let text = format!("a\n{}b\n{}{}", adopted(1), adopted(2), adopted(3));
        let first = adopted(1);
        assert_eq!(Log::of(&text).text(), format!("a\n{} (and 2 more)\nb", first.trim_end()));
        assert_eq!(Log::of(&first).text(), first.trim_end());
    }

    #[test]
    fn what_the_process_had_instead() {
        let causes = |text: &str, given: &[(&'static str, &str)]| {
            let given = given.iter().map(|&(name, value)| (name, value.to_owned())).collect();
            let mut report = Report::default();
            let log = Log { given, ..Log::of(text) };
            log.tell(&mut report);
            log.explain(&mut report);
            report.causes().first().map(|cause| cause.text.clone()).unwrap_or_default()
        };
        let off = "jitsym 7: JITSYM=off\njitsym 7: JITSYM_REMOVE=1\njitsym 7: sinks wanted: none\n";
        let right = "jitsym 7: JITSYM=map\njitsym 7: sinks wanted: map\n";
        assert_eq!(causes(right, &[("JITSYM", "on")]), "");
        assert!(
            causes(off, &[("JITSYM", "on")]).starts_with("JITSYM=off. It was started with JITSYM=on, so the program")
        );
        assert!(
            causes(off, &[("JITSYM", "off")]).starts_with("JITSYM_REMOVE=1. It was started without JITSYM_REMOVE, so")
        );
        assert!(causes(off, &[("JITSYM", "off"), ("JITSYM_REMOVE", "1")]).starts_with("the session is off"));
        let wrong =
            "jitsym 7: JITSYM=jitdmp: there is no sink `jitdmp`; did you mean jitdump?\njitsym 7: sinks wanted: none\n";
        assert!(causes(wrong, &[("JITSYM", "on")]).contains("did you mean jitdump? It was started with JITSYM=on, so"));
        assert!(causes(wrong, &[("JITSYM", "jitdmp")]).ends_with("names no known sink"));
    }

    #[test]
    fn why_nothing_was_written() {
        let of = |text: &str| -> Option<&'static str> { Log::of(text).why_nothing() };
        assert!(of("").is_some_and(|text| text.contains("no session")));
        assert!(of("jitsym 7: libjitsym 1\njitsym 7: at exit: 0 registered, 0 moved\n")
            .is_some_and(|text| text.contains("no code")));
        assert_eq!(of("jitsym 7: libjitsym 1\njitsym 7: at exit: 10 registered, 0 moved\n"), None);
        let regions = |text| of(&format!("jitsym 7: libjitsym 1\njitsym 7: at exit: 4 registered; {text}; 0 errors\n"));
        assert!(regions("0 regions with 0 registrations, 0 refused, 4 put off")
            .is_some_and(|text| text.contains("executable")));
        let map = |dir: &str| {
            Log::of(&format!("jitsym 7: sinks wanted: map; map in {dir}, jitdump in /x; adopts")).map_elsewhere()
        };
        assert!(map("/tmp").is_none() && map("/home/me").is_some_and(|text| text.contains("is in /home/me,")));
        assert_eq!(regions("0 regions with 0 registrations, 0 refused, 0 put off"), None);
        assert_eq!(regions("1 regions with 2 registrations, 0 refused, 4 put off"), None);
    }
}
