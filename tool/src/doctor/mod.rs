//! `jitsym doctor`: checks the machine, a process or a recording, and prints the command to type next.

mod broken;
pub mod debuggers;
mod dumps;
mod inherited;
mod injected;
pub mod json;
pub mod log;
pub mod machine;
pub mod process;
pub mod producers;
mod published;
pub mod recording;
pub mod shares;
mod stacks;
mod strays;
pub mod words;

use std::io::{self, Write};

use shares::Shares;

/// The mark of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Good,
    Note,
    /// Data is lost.
    Bad,
}

/// A reason for a problem, and the one command that helps. A more important cause hides the causes that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub rank: Rank,
    pub text: String,
    pub next: String,
    /// Whether the program must be changed before the next command is typed.
    pub changes: bool,
}

/// The subject of a cause, in the order of importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// perf or the permission to use it is missing, so nothing can be recorded.
    Perf,
    /// A variable disables everything, or names an unusable directory.
    Environment,
    /// The library is missing, or writes nothing.
    Off,
    /// Files cannot be made or found.
    Files,
    /// The program, or a script that starts it, sets a variable.
    Overridden,
    /// The library itself has reported a problem.
    Told,
    /// The recording cannot be used.
    Recording,
    /// Nothing was written.
    Nothing,
    /// Names or stacks are missing.
    Quality,
    /// Data other than names and stacks may be lost.
    Minor,
}

/// The placeholder for the examined command in commands to type.
const COMMAND: &str = "COMMAND";
/// The command to type if nothing is wrong.
const RECORD: &str = "jitsym record -- COMMAND";
/// The command that provides more information than a recording.
const FIND_OUT: &str = if cfg!(target_arch = "x86_64") { "jitsym verify -- COMMAND" } else { "JITSYM_DEBUG=1 COMMAND" };
/// The command that examines a command.
const LOOK: &str = "jitsym doctor -- COMMAND";
/// The command that shows whether bytes and addresses are right.
const PROVE: &str = if cfg!(target_arch = "x86_64") { FIND_OUT } else { LOOK };

/// The lines and causes that were found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Vec<(Option<Mark>, String)>,
    causes: Vec<Cause>,
    /// The shares of a recording.
    pub shares: Option<Shares>,
    /// Notes for the last lines, printed if nothing is wrong.
    asides: Vec<String>,
    /// The sentence to print if nothing is wrong, when this conclusion is limited.
    pub nothing: Option<String>,
    /// The command to type if nothing is wrong.
    pub usual: Option<String>,
    /// The examined command, which replaces `COMMAND`.
    pub command: Option<String>,
}

impl Report {
    /// Begins a part of the report.
    pub fn part(&mut self, title: impl Into<String>) {
        self.lines.push((None, title.into()));
    }

    pub fn good(&mut self, text: impl Into<String>) {
        self.lines.push((Some(Mark::Good), text.into()));
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.lines.push((Some(Mark::Note), text.into()));
    }

    pub fn bad(&mut self, text: impl Into<String>) {
        self.lines.push((Some(Mark::Bad), text.into()));
    }

    /// Adds a line and the cause that it reports.
    pub fn cause(&mut self, line: impl Into<String>, rank: Rank, text: impl Into<String>, next: impl Into<String>) {
        self.bad(line);
        self.because(rank, text, next);
    }

    /// Adds a cause whose line was added before.
    pub fn because(&mut self, rank: Rank, text: impl Into<String>, next: impl Into<String>) {
        self.causes.push(Cause { rank, text: text.into(), next: next.into(), changes: false });
    }

    /// Notes that the program must be changed before the next command of the last cause is typed.
    pub fn is_to_change(&mut self) {
        self.causes.last_mut().into_iter().for_each(|cause| cause.changes = true);
    }

    /// Adds a note for the last lines.
    pub fn aside(&mut self, text: impl Into<String>) {
        self.asides.push(text.into());
    }

    /// Whether there is a cause of this rank.
    pub fn has(&self, rank: Rank) -> bool {
        self.causes.iter().any(|cause| cause.rank == rank)
    }

    /// The causes, the most important first, without causes that follow from other causes.
    pub fn causes(&self) -> Vec<&Cause> {
        let mut causes: Vec<&Cause> = self.causes.iter().collect();
        causes.sort_by_key(|cause| cause.rank);
        causes.dedup_by(|a, b| a.text == b.text);
        // Reported failures, and missing names and stacks, follow from more important causes.
        let first = causes.first().map_or(Rank::Minor, |first| first.rank);
        let follows = |rank| match rank {
            Rank::Told => first < Rank::Overridden,
            Rank::Nothing | Rank::Quality => first < rank,
            _ => false,
        };
        causes.retain(|cause| !follows(cause.rank));
        causes
    }

    /// Prints the whole report: the parts, then the causes, then the command to type.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for (mark, text) in &self.lines {
            match mark {
                None => writeln!(out, "{text}")?,
                Some(Mark::Good) => writeln!(out, "  ok     {text}")?,
                Some(Mark::Note) => writeln!(out, "  note   {text}")?,
                Some(Mark::Bad) => writeln!(out, "  WRONG  {text}")?,
            }
        }
        writeln!(out)?;
        if self.causes.is_empty() {
            let usual = if self.asides.is_empty() { "nothing is wrong" } else { "nothing is wrong for perf" };
            writeln!(out, "{}", self.nothing.as_deref().map_or(usual.into(), |text| self.with_command(text)))?;
        }
        self.last_lines().iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// At most three lines: the cause, the notes, and the command to type.
    pub fn last_lines(&self) -> Vec<String> {
        let causes = self.causes();
        let mut lines: Vec<String> = causes.first().map(|cause| format!("cause: {}", cause.text)).into_iter().collect();
        let others = causes.iter().skip(1).map(|cause| format!("also:  {}", cause.text));
        let others: Vec<String> = others.chain(self.asides.iter().map(|text| format!("note:  {text}"))).collect();
        match &others[..] {
            [] => {}
            [one] => lines.push(one.clone()),
            [one, more @ ..] => lines.push(format!("{one} (and {} more)", more.len())),
        }
        let before = if causes.first().is_some_and(|cause| cause.changes) { "change the program, then " } else { "" };
        lines.extend(self.next().map(|next| format!("{before}type:  {next}")));
        lines
    }

    /// The command to type next.
    pub fn next(&self) -> Option<String> {
        let next = self.causes().first().map(|cause| cause.next.clone()).or(self.usual.clone())?;
        Some(self.with_command(&next))
    }

    fn with_command(&self, text: &str) -> String {
        text.replace(COMMAND, self.command.as_deref().unwrap_or(COMMAND))
    }
}

/// A size in a readable unit.
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.checked_ilog2().unwrap_or(0) as usize / 10).min(units.len() - 1);
    format!("{} {}", bytes >> (10 * unit), units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_the_one_to_deal_with() {
        let mut report = Report { usual: Some("jitsym record".into()), ..Report::default() };
        let print = |report: &Report| {
            let mut text = Vec::new();
            report.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        report.part("machine");
        report.good("perf");
        assert_eq!(print(&report), "machine\n  ok     perf\n\nnothing is wrong\ntype:  jitsym record\n");
        report.cause("stacks", Rank::Quality, "no stacks", "b");
        report.cause("off", Rank::Off, "it is off", "jitsym -- COMMAND");
        report.cause("nothing", Rank::Nothing, "nothing was written", "b");
        report.cause("off", Rank::Off, "it is off", "jitsym -- COMMAND");
        let ends_with = |report: &Report, end: &str| assert!(print(report).ends_with(end), "{}", print(report));
        ends_with(&report, "\ncause: it is off\ntype:  jitsym -- COMMAND\n");
        report.command = Some("vm x".into());
        ends_with(&report, "\ncause: it is off\ntype:  jitsym -- vm x\n");
        report.because(Rank::Perf, "x", "b COMMAND");
        report.is_to_change();
        ends_with(&report, "\nalso:  it is off\nchange the program, then type:  b vm x\n");
        assert_eq!((size(0), size(5000), size(3 << 30)), ("0 bytes".into(), "4 KiB".into(), "3 GiB".into()));
    }
}
