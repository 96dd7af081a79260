//! Prints findings as text or as JSON.
//!
//! The text begins with what each reader finds in the file. The findings follow by rule, errors first.
//!
//! The JSON is one object with `files`. Each file has `path`, `format` ("jitdump" or "perf map"), `errors`, `warnings`,
//! `notes`, `copied`, `verdicts` and `findings`. A verdict is for one `reader`. It has a `state` for `names`, `stacks` and
//! `lines` (yes, partly, no or none), and `why`. A finding has `rule`, `severity`, `readers`, `record` and `text`. It also has
//! `offset` or `line`, unless it concerns the whole file. A file that could not be read has only `path`, `findings`, and the
//! reason, `unreadable`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::rules::ALL;
use super::verdict::{self, State, Verdict};
use super::{Finding, Kind, Place, Report, Rule, Severity, Summary};
use crate::text::{count, is_bad, printable, CYAN, GREEN, PLAIN, RED, YELLOW};

/// The value of `readers` for rules that disturb no known reader. Without `--all` or `--json`, findings of these rules are neither
/// counted nor printed.
const NOBODY: &str = "none known";

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text: the first findings of each rule.
    Text,
    /// Text: one line for each finding, notes included.
    AllText,
    /// JSON with all findings.
    Json,
}

/// The number of findings by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Errors.
    pub errors: u64,
    /// Warnings.
    pub warnings: u64,
    /// Notes.
    pub notes: u64,
}

impl Counts {
    /// Whether there are errors or warnings.
    pub fn found(&self) -> bool {
        self.errors + self.warnings > 0
    }
}

/// Writes the findings of several files.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    style: Style,
    /// Whether notes are printed.
    notes: bool,
    colour: bool,
    /// Rules that are not reported.
    allowed: &'a [&'static Rule],
    files: u64,
    /// The counts of all files.
    counts: Counts,
    /// Is called with the number of bytes checked.
    pub progress: &'a mut dyn FnMut(u64),
    /// The first error in writing.
    error: Option<io::Error>,
}

impl<'a> Printer<'a> {
    /// `allowed`: rules that are not reported.
    pub fn new(
        out: &'a mut dyn Write,
        style: Style,
        allowed: &'a [&'static Rule],
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (notes, counts) = (style == Style::AllText, Counts::default());
        Printer { out, style, notes, colour: false, allowed, files: 0, counts, progress, error: None }
    }

    /// Also prints notes that concern a reader, and uses colour.
    pub fn with(mut self, notes: bool, colour: bool) -> Self {
        (self.notes, self.colour) = (self.notes || notes, colour);
        self
    }

    /// Begins a file. `path` is printed in escaped form.
    pub fn file<'b>(&'b mut self, path: &str) -> FilePrinter<'b, 'a> {
        let path = printable(path.as_bytes()).to_string();
        if self.style == Style::Json {
            let start = if self.files == 0 { "{\"files\":[" } else { "," };
            self.print(|out| write!(out, "{start}\n{{\"path\":{},\"findings\":[", json_string(&path)));
        }
        self.files += 1;
        let (counts, summary) = (Counts::default(), Summary::default());
        FilePrinter {
            printer: self,
            path,
            counts,
            summary,
            copied: false,
            broken: BTreeMap::new(),
            lines: BTreeMap::new(),
        }
    }

    /// Ends the output. Fails if any output could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        if self.style == Style::Json {
            let start = if self.files == 0 { "{\"files\":[" } else { "" };
            self.print(|out| writeln!(out, "{start}\n]}}"));
        } else if self.files > 1 {
            let (files, counts) = (self.files, self.counts.text(self.colour));
            self.print(|out| writeln!(out, "{files} files: {counts}"));
        }
        self.print(|out| out.flush());
        self.error.map_or(Ok(()), Err)
    }

    fn print(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = write(self.out).err();
        }
    }
}

impl Counts {
    fn text(&self, colour: bool) -> String {
        let part = |number, what, code| {
            let text = count(number, what);
            if number > 0 {
                painted(&text, code, colour)
            } else {
                text
            }
        };
        let errors = part(self.errors, "error", RED);
        format!("{errors}, {}, {}", part(self.warnings, "warning", YELLOW), count(self.notes, "note"))
    }

    fn of(&mut self, severity: Severity) -> &mut u64 {
        match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
            Severity::Note => &mut self.notes,
        }
    }
}

fn painted(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("{code}{text}{PLAIN}")
    } else {
        text.into()
    }
}

/// Writes the findings of one file.
pub struct FilePrinter<'b, 'a> {
    printer: &'b mut Printer<'a>,
    path: String,
    counts: Counts,
    summary: Summary,
    copied: bool,
    /// The broken rules, and how often each was broken.
    broken: BTreeMap<&'static str, (&'static Rule, u64)>,
    /// The lines to print for each rule. They wait until all are known, because errors are printed first.
    lines: BTreeMap<&'static str, Vec<String>>,
}

impl FilePrinter<'_, '_> {
    /// Ends a file of this kind.
    pub fn finish(self, kind: Kind) -> Counts {
        let FilePrinter { printer, path, counts, summary, copied, broken, lines } = self;
        let Counts { errors, warnings, notes } = counts;
        let verdicts = verdict::verdicts(kind, summary, &broken);
        for severity in [Severity::Error, Severity::Warning, Severity::Note] {
            *printer.counts.of(severity) += *{ counts }.of(severity);
        }
        if printer.style == Style::Json {
            let verdicts: Vec<String> = verdicts.iter().map(json_verdict).collect();
            printer.print(|out| {
                let kind = json_string(kind.name());
                write!(out, "],\"format\":{kind},\"errors\":{errors},\"warnings\":{warnings},\"notes\":{notes},")?;
                write!(out, "\"copied\":{copied},\"verdicts\":[{}]}}", verdicts.join(","))
            });
            return counts;
        }
        let colour = printer.colour;
        let total = format!("{path}: {}: {}", kind.name(), counts.text(colour));
        let hidden = if notes > 0 && !printer.notes { " (--notes)" } else { "" };
        printer.print(|out| {
            writeln!(out, "{total}{hidden}")?;
            if copied {
                writeln!(out, "  it is a copy or was renamed, so name and place do not count")?;
            }
            for verdict in &verdicts {
                writeln!(out, "  {}", verdict_text(verdict, kind, colour))?;
            }
            Ok(())
        });
        let mut rules: Vec<&(&Rule, u64)> = broken.values().collect();
        // Errors before warnings, each in the order of the list.
        let place = |rule: &Rule| ALL.iter().position(|known| known.id == rule.id);
        rules.sort_by_key(|(rule, _)| (std::cmp::Reverse(rule.severity), place(rule)));
        let mut printed = false;
        for (rule, count) in rules {
            let Some(lines) = lines.get(rule.id).filter(|lines| !lines.is_empty()) else { continue };
            printed = true;
            let more = count - lines.len() as u64;
            printer.print(|out| {
                writeln!(out)?;
                for (number, line) in lines.iter().enumerate() {
                    writeln!(out, "{line}")?;
                    if number == 0 {
                        writeln!(out, "    {}", rule.text)?;
                    }
                }
                match more {
                    0 => Ok(()),
                    more => writeln!(out, "{path}: {more} more of {} (--all)", rule.id),
                }
            });
        }
        if printed {
            printer.print(|out| writeln!(out, "\n{total}"));
        }
        counts
    }

    /// Ends a file that could not be read.
    pub fn fail(self, error: &io::Error) {
        // As text, the caller prints the error.
        if self.printer.style == Style::Json {
            let text = json_string(&error.to_string());
            self.printer.print(|out| write!(out, "],\"unreadable\":{text}}}"));
        }
    }

    /// Sets whether the name and path of the file were ignored.
    pub fn copied(&mut self, copied: bool) {
        self.copied = copied;
    }

    /// The number of findings of a rule that are printed.
    fn shown(&self, rule: &Rule) -> u64 {
        match (self.printer.style, rule.severity) {
            (Style::AllText, _) => u64::MAX,
            (_, Severity::Note) if !self.printer.notes => 0,
            (_, Severity::Note) => 1,
            _ => 3,
        }
    }
}

impl Report for FilePrinter<'_, '_> {
    fn finding(&mut self, finding: Finding) {
        let rule = finding.rule;
        if self.printer.allowed.contains(&rule) || rule.readers == NOBODY && self.printer.style == Style::Text {
            return;
        }
        *self.counts.of(rule.severity) += 1;
        let (_, of_rule) = self.broken.entry(rule.id).or_insert((rule, 0));
        *of_rule += 1;
        let of_rule = *of_rule;
        if self.printer.style == Style::Json {
            let comma = if self.counts.errors + self.counts.warnings + self.counts.notes > 1 { "," } else { "" };
            self.printer.print(|out| write!(out, "{comma}\n  {}", json(&finding)));
        } else if of_rule <= self.shown(rule) {
            let Finding { rule, place, subject, text } = &finding;
            let place = match place {
                Place::File => String::new(),
                Place::Offset(offset) => format!(":{offset:#x}"),
                Place::Line(line) => format!(":{line}"),
            };
            let code = match rule.severity {
                Severity::Error => RED,
                Severity::Warning => YELLOW,
                Severity::Note => CYAN,
            };
            let severity = painted(rule.severity.name(), code, self.printer.colour);
            let colon = if subject.is_empty() { "" } else { ": " };
            let path = &self.path;
            let line = format!("{path}{place}: {severity}: {subject}{colon}{text} [{}; {}]", rule.id, rule.readers);
            self.lines.entry(rule.id).or_default().push(line);
        }
    }

    fn summary(&mut self, summary: Summary) {
        self.summary = summary;
    }

    fn progress(&mut self, done: u64) -> bool {
        (self.printer.progress)(done);
        self.printer.error.is_none()
    }
}

/// A line like `perf 6 (libunwind): names yes, stacks NO (use jitsym inject), lines yes`.
fn verdict_text(verdict: &Verdict, kind: Kind, colour: bool) -> String {
    let states = verdict.states.iter().filter_map(|(what, state)| {
        Some(match state {
            State::Yes => format!("{what} {}", painted("yes", GREEN, colour)),
            State::Partly(why) => format!("{what} {} ({why})", painted("partly", YELLOW, colour)),
            State::No(why) => format!("{what} {} ({why})", painted("NO", RED, colour)),
            State::None("") => return None,
            State::None(instead) => format!("{what} {instead}"),
        })
    });
    let states: Vec<String> = states.collect();
    match states.is_empty() {
        true if verdict.states.is_empty() => format!("{}: {}s are not read", verdict.reader, kind.name()),
        true => format!("{}: nothing to find", verdict.reader),
        false => format!("{}: {}", verdict.reader, states.join(", ")),
    }
}

fn json_verdict(verdict: &Verdict) -> String {
    let mut text = format!("{{\"reader\":{}", json_string(verdict.reader));
    for (what, state) in &verdict.states {
        let (word, why) = match state {
            State::Yes => ("yes", ""),
            State::Partly(why) => ("partly", why.as_str()),
            State::No(why) => ("no", why.as_str()),
            State::None(instead) => ("none", *instead),
        };
        text += &format!(",{}:{{\"state\":\"{word}\",\"why\":{}}}", json_string(what), json_string(why));
    }
    text + "}"
}

fn json(finding: &Finding) -> String {
    let Finding { rule, place, subject, text } = finding;
    let place = match place {
        Place::File => String::new(),
        Place::Offset(offset) => format!("\"offset\":{offset},"),
        Place::Line(line) => format!("\"line\":{line},"),
    };
    let (subject, text) = (json_string(subject), json_string(text));
    format!("{{{},{place}\"record\":{subject},\"text\":{text}}}", json_rule(rule))
}

fn json_rule(rule: &Rule) -> String {
    let readers: Vec<String> = rule.readers.split(", ").map(json_string).collect();
    let (id, severity) = (json_string(rule.id), json_string(rule.severity.name()));
    format!("\"rule\":{id},\"severity\":{severity},\"readers\":[{}]", readers.join(","))
}

/// A JSON string with its quotes.
pub(crate) fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if is_bad(c) => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Prints the list of all rules.
pub fn list_rules(out: &mut dyn Write, json: bool) -> io::Result<()> {
    for (number, rule) in ALL.iter().enumerate() {
        if json {
            let start = if number == 0 { "{\"rules\":[" } else { "," };
            let (format, text) = (json_string(rule.format.name()), json_string(rule.text));
            write!(out, "{start}\n{{{},\"format\":{format},\"text\":{text}}}", json_rule(rule))?;
        } else {
            writeln!(out, "{}: {}, {}: {}", rule.id, rule.severity.name(), rule.format.name(), rule.readers)?;
            writeln!(out, "    {}", rule.text)?;
        }
    }
    if json {
        writeln!(out, "\n]}}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_json() {
        assert_eq!(json_string("a \"b\" \\ ä"), r#""a \"b\" \\ ä""#);
        assert_eq!(json_string("\n\0\u{1f}"), r#""\n\u0000\u001f""#);
    }
}
