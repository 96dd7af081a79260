//! Reports as causes the rules of `jitsym check` that a jitdump breaks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Rank, Report, FIND_OUT};
use crate::check::{self, rules, verdict, Finding, Place, Rule, Severity, Summary};
use crate::record::quoted;
use crate::text::count;

/// The findings in several files.
#[derive(Default)]
pub struct Broken {
    /// For each rule, the number of findings, the first finding, and its file.
    found: BTreeMap<&'static str, (u64, Finding, PathBuf)>,
    file: PathBuf,
    grows: bool,
    /// The number of functions with unwind tables, the number of functions with wrong unwind tables, and the position of the
    /// last wrong tables.
    with_tables: u64,
    wrong_tables: u64,
    last_wrong: Option<Place>,
}

impl Broken {
    /// Sets the file of the next findings, which may still grow.
    pub fn begin(&mut self, file: &Path, grows: bool) {
        (self.file, self.grows, self.last_wrong) = (file.to_owned(), grows, None);
    }

    /// The number of errors about this aspect, the first error of the rule that was broken most often, and its file.
    fn errors(&self, about: &str) -> Option<(u64, &Finding, &Path)> {
        let is_one = |rule: &Rule| rule.severity == Severity::Error && verdict::aspect(rule.id) == about;
        let errors: Vec<_> = self.found.values().filter(|(_, finding, _)| is_one(finding.rule)).collect();
        // Chooses the rule that was broken most often.
        let (_, first, file) = errors.iter().max_by_key(|(count, ..)| *count)?;
        Some((errors.iter().map(|(count, ..)| count).sum(), first, file))
    }

    /// Whether a rule was broken.
    pub fn has(&self, id: &str) -> bool {
        self.found.contains_key(id)
    }

    /// Whether a name hides another name.
    pub fn has_wrong_size(&self) -> bool {
        self.has(rules::LOAD_SWALLOWS.id)
    }

    /// Whether the unwind tables are wrong.
    pub fn has_wrong_stacks(&self) -> bool {
        self.errors("stacks").is_some()
    }

    /// Adds a cause for each kind of error. `is_kept` is true if the files still exist after the report.
    pub fn tell(&self, is_kept: bool, report: &mut Report) {
        let functions = count(self.with_tables.max(self.wrong_tables), "function");
        let tables = format!("unwind tables are wrong in {} of {functions} (jitsym_code.unwind)", self.wrong_tables);
        let whats = [
            ("names", Rank::Quality, "code is described wrongly"),
            ("stacks", Rank::Quality, &tables),
            ("lines", Rank::Minor, "source lines are wrong"),
        ];
        for (about, rank, what) in whats {
            let Some((errors, Finding { rule, subject, text, .. }, file)) = self.errors(about) else { continue };
            // The kinds of records are unknown to users.
            let subject = subject.trim_start_matches("UNWINDING_INFO of ").trim_start_matches("DEBUG_INFO of ");
            let subject = subject.trim_start_matches("LOAD ");
            let of = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
            let because = match rule.id {
                id if id == rules::UNWIND_FRAME_POINTER.id => {
                    ". It is described as code with a frame pointer, and makes none"
                }
                _ => "",
            };
            let swallows = **rule == rules::LOAD_SWALLOWS;
            report.cause(
                format!("{}: {} about {about}, such as {}", file.display(), count(errors, "error"), rule.id),
                rank,
                if swallows { format!("{subject} is {text}") } else { format!("{what}: {of}{text}{because}") },
                // After a change, the program is checked by a complete run.
                if is_kept && !swallows { format!("jitsym check {}", quoted(file)) } else { FIND_OUT.into() },
            );
        }
        if let Some((lines, Finding { text, .. }, _)) = self.found.get(rules::DEBUG_FILE_RELATIVE.id) {
            let tables = count(*lines, "line table");
            report.note(format!(
                "{tables} with paths that are not absolute ({text}): perf finds these sources only from there"
            ));
        }
    }
}

impl check::Report for Broken {
    fn finding(&mut self, finding: Finding) {
        if self.grows && *finding.rule == rules::TRUNCATED {
            return;
        }
        let is_of_tables = finding.rule.severity == Severity::Error && verdict::aspect(finding.rule.id) == "stacks";
        if is_of_tables && self.last_wrong.replace(finding.place) != Some(finding.place) {
            self.wrong_tables += 1;
        }
        match self.found.get_mut(finding.rule.id) {
            Some((count, ..)) => *count += 1,
            None => drop(self.found.insert(finding.rule.id, (1, finding, self.file.clone()))),
        }
    }

    fn summary(&mut self, summary: Summary) {
        self.with_tables += summary.with_tables;
    }
}
