//! Rules of `jitsym check` that a jitdump breaks, as causes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::process::count;
use super::{Rank, Report, FIND_OUT};
use crate::check::{self, rules, verdict, Finding, Rule, Severity};
use crate::record::quoted;

/// What is found in several files.
#[derive(Default)]
pub struct Broken {
    /// By rule: how often, the first finding, and the file that it is in.
    found: BTreeMap<&'static str, (u64, Finding, PathBuf)>,
    file: PathBuf,
    grows: bool,
}

impl Broken {
    /// What comes is in this file, which may grow.
    pub fn begin(&mut self, file: &Path, grows: bool) {
        (self.file, self.grows) = (file.to_owned(), grows);
    }

    /// How many errors about this there are, the first one, and its file.
    fn errors(&self, about: &str) -> Option<(u64, &Finding, &Path)> {
        let is_one = |rule: &Rule| rule.severity == Severity::Error && verdict::aspect(rule.id) == about;
        let errors: Vec<_> = self.found.values().filter(|(_, finding, _)| is_one(finding.rule)).collect();
        // The rule that was broken most often.
        let (_, first, file) = errors.iter().max_by_key(|(count, ..)| *count)?;
        Some((errors.iter().map(|(count, ..)| count).sum(), first, file))
    }

    /// Whether a rule was broken.
    pub fn has(&self, id: &str) -> bool {
        self.found.contains_key(id)
    }

    /// Whether the unwind tables are wrong.
    pub fn has_wrong_stacks(&self) -> bool {
        self.errors("stacks").is_some()
    }

    /// Adds what they cost. `is_kept`: the files are there when all is told.
    pub fn tell(&self, is_kept: bool, report: &mut Report) {
        let whats = [
            ("names", Rank::Quality, "code is described wrongly"),
            ("stacks", Rank::Quality, "unwind tables are wrong (jitsym_code.unwind)"),
            ("lines", Rank::Minor, "source lines are wrong"),
        ];
        for (about, rank, what) in whats {
            let Some((errors, Finding { rule, subject, text, .. }, file)) = self.errors(about) else { continue };
            // The record's kind is not the user's word.
            let subject = subject.trim_start_matches("UNWINDING_INFO of ").trim_start_matches("DEBUG_INFO of ");
            let subject = subject.trim_start_matches("LOAD ");
            let of = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
            let because = match rule.id {
                id if id == rules::LOAD_SWALLOWS.id => ": its size is too large, and hides the other's name",
                id if id == rules::UNWIND_FRAME_POINTER.id => {
                    ". It is described as code with a frame pointer, and makes none"
                }
                _ => "",
            };
            report.cause(
                format!("{}: {} about {about}, such as {}", file.display(), count(errors as usize, "error"), rule.id),
                rank,
                format!("{what}: {of}{text}{because}"),
                if is_kept { format!("jitsym check {}", quoted(file)) } else { FIND_OUT.into() },
            );
        }
        if let Some((lines, Finding { text, .. }, _)) = self.found.get(rules::DEBUG_FILE_RELATIVE.id) {
            let tables = count(*lines as usize, "line table");
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
        match self.found.get_mut(finding.rule.id) {
            Some((count, ..)) => *count += 1,
            None => drop(self.found.insert(finding.rule.id, (1, finding, self.file.clone()))),
        }
    }
}
