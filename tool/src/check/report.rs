//! Findings as text for people and as JSON for programs.
//!
//! The JSON is one object: `files`, and in each of these `path`, `format` ("jitdump" or "perf map"), `errors`, `warnings`,
//! `notes`, and `findings`, each of which has `rule`, `severity`, `readers`, `record`, `text`, and `offset` or `line` unless it
//! is about the file as a whole. A file that could not be read has `unreadable` instead, with the reason.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::rules::ALL;
use super::{Finding, Kind, Place, Report, Rule, Severity};
use crate::text::printable;

/// Of how many findings of one rule in one file people are told, unless they ask for all.
fn shown(rule: &Rule) -> u64 {
    match rule.severity {
        Severity::Note => 1,
        _ => 3,
    }
}

/// How findings are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The first few of each rule.
    Text,
    /// One line for each.
    AllText,
    /// JSON, with everything.
    Json,
}

/// How many findings there are of each severity.
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
    /// Whether a reader is affected.
    pub fn found(&self) -> bool {
        self.errors + self.warnings > 0
    }
}

/// Writes the findings of several files.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    style: Style,
    /// Rules that are not to be reported.
    allowed: &'a [&'static Rule],
    files: u64,
    /// Told how far the file is done.
    pub progress: &'a mut dyn FnMut(u64),
    /// Something could not be written.
    error: Option<io::Error>,
}

impl<'a> Printer<'a> {
    /// `allowed`: rules that are not to be reported.
    pub fn new(
        out: &'a mut dyn Write,
        style: Style,
        allowed: &'a [&'static Rule],
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Printer { out, style, allowed, files: 0, progress, error: None }
    }

    /// Begins a file. What it is called is printed as it is.
    pub fn file<'b>(&'b mut self, path: &str) -> FilePrinter<'b, 'a> {
        let path = printable(path.as_bytes()).to_string();
        if self.style == Style::Json {
            let start = if self.files == 0 { "{\"files\":[" } else { "," };
            self.print(|out| write!(out, "{start}\n{{\"path\":{},\"findings\":[", json_string(&path)));
        }
        self.files += 1;
        FilePrinter { printer: self, path, counts: Counts::default(), of_rule: BTreeMap::new() }
    }

    /// Ends the output. Fails if any of it could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        if self.style == Style::Json {
            let start = if self.files == 0 { "{\"files\":[" } else { "" };
            self.print(|out| writeln!(out, "{start}\n]}}"));
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

/// Writes the findings of one file.
pub struct FilePrinter<'b, 'a> {
    printer: &'b mut Printer<'a>,
    path: String,
    counts: Counts,
    /// How often each rule was broken.
    of_rule: BTreeMap<&'static str, u64>,
}

impl FilePrinter<'_, '_> {
    /// Ends the file, which was of this kind.
    pub fn finish(self, kind: Kind) -> Counts {
        let FilePrinter { printer, path, counts, of_rule } = self;
        let Counts { errors, warnings, notes } = counts;
        match printer.style {
            Style::Json => printer.print(|out| {
                let kind = json_string(kind.name());
                write!(out, "],\"format\":{kind},\"errors\":{errors},\"warnings\":{warnings},\"notes\":{notes}}}")
            }),
            style => {
                for rule in ALL {
                    let more = of_rule.get(rule.id).map_or(0, |count| count.saturating_sub(shown(rule)));
                    if style == Style::Text && more > 0 {
                        printer.print(|out| writeln!(out, "{path}: {more} more of {} (--all)", rule.id));
                    }
                }
                let (errors, warnings, notes) =
                    (plural(errors, "error"), plural(warnings, "warning"), plural(notes, "note"));
                printer.print(|out| writeln!(out, "{path}: {}: {errors}, {warnings}, {notes}", kind.name()));
            }
        }
        counts
    }

    /// Ends the file, which could not be read.
    pub fn fail(self, error: &io::Error) {
        // Text goes where errors go.
        if self.printer.style == Style::Json {
            let text = json_string(&error.to_string());
            self.printer.print(|out| write!(out, "],\"unreadable\":{text}}}"));
        }
    }
}

impl Report for FilePrinter<'_, '_> {
    fn finding(&mut self, finding: Finding) {
        let rule = finding.rule;
        if self.printer.allowed.contains(&rule) {
            return;
        }
        let count = match rule.severity {
            Severity::Error => &mut self.counts.errors,
            Severity::Warning => &mut self.counts.warnings,
            Severity::Note => &mut self.counts.notes,
        };
        *count += 1;
        let of_rule = self.of_rule.entry(rule.id).or_default();
        *of_rule += 1;
        let of_rule = *of_rule;
        let path = &self.path;
        match self.printer.style {
            Style::Json => {
                let comma = if self.counts.errors + self.counts.warnings + self.counts.notes > 1 { "," } else { "" };
                self.printer.print(|out| write!(out, "{comma}\n  {}", json(&finding)));
            }
            Style::Text if of_rule > shown(rule) => {}
            _ => self.printer.print(|out| {
                let Finding { rule, place, subject, text } = &finding;
                let place = match place {
                    Place::File => String::new(),
                    Place::Offset(offset) => format!(":{offset:#x}"),
                    Place::Line(line) => format!(":{line}"),
                };
                let (severity, colon) = (rule.severity.name(), if subject.is_empty() { "" } else { ": " });
                writeln!(out, "{path}{place}: {severity}: {subject}{colon}{text} [{}; {}]", rule.id, rule.readers)?;
                if of_rule == 1 {
                    writeln!(out, "    {}", rule.text)?;
                }
                Ok(())
            }),
        }
    }

    fn progress(&mut self, done: u64) -> bool {
        (self.printer.progress)(done);
        self.printer.error.is_none()
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
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

/// A string of JSON, quotes included.
fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The list of all rules.
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
