//! `jitsym check`

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use jitsym_tool::check::report::{list_rules, Printer, Style};
use jitsym_tool::check::{self, rules, Rule};

use crate::progress::Progress;
use crate::{args, complain, input, written, Outcome};
use jitsym_tool::text::Shown;

/// Find problems in jitdumps and perf maps that make profilers fail, stop reading silently, or attribute samples wrongly
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym check --allow dump-dir,map-dir dumps/*.dump")]
pub struct Check {
    /// Check these jitdumps, perf maps, region files (plain, gzip, zstd), standard input (-), or the files of a process (PID)
    #[arg(value_name = "FILE", required_unless_present = "rules")]
    files: Vec<PathBuf>,
    /// Print all findings, including all notes (default: the first 3 findings of each rule, and no notes)
    #[arg(long)]
    all: bool,
    /// Print also the first note of each rule: an oddity that harms no profiler except those that the note names
    #[arg(long)]
    notes: bool,
    /// Print JSON instead of text: an object with "files", each of which has "findings" and "verdicts"
    #[arg(long)]
    json: bool,
    /// Ignore this rule; separate several rules by commas
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = rule)]
    allow: Vec<&'static Rule>,
    /// List all rules with the profilers that each rule concerns, and check no files
    #[arg(long, conflicts_with_all = ["files", "all", "notes", "allow"])]
    rules: bool,
}

fn rule(id: &str) -> Result<&'static Rule, String> {
    rules::find(id).ok_or_else(|| match args::most_like(id, rules::ALL.iter().map(|rule| rule.id)) {
        Some(like) => format!("there is no such rule; a similar one exists: '{like}'"),
        None => "there is no such rule (`jitsym check --rules` lists them)".into(),
    })
}

/// Whether to use colour: on a capable terminal, unless variables say otherwise (no-color.org, bixense.com/clicolors).
fn has_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("NO_COLOR") {
        return false;
    }
    let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0");
    forced || (io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"))
}

/// Checks files and prints what was found.
pub fn run(asked: &Check, out: &mut dyn Write) -> Outcome {
    let Check { files, all, notes, json, allow: allowed, rules } = asked;
    if *rules {
        return written(list_rules(out, *json));
    }
    let style = match (json, all) {
        (true, _) => Style::Json,
        (false, true) => Style::AllText,
        (false, false) => Style::Text,
    };
    let mut outcome = Outcome::Good;
    let progress = std::cell::RefCell::new(None);
    let mut update = |done| {
        if let Some(progress) = &mut *progress.borrow_mut() {
            Progress::update(progress, done);
        }
    };
    let mut printer = Printer::new(out, style, allowed, &mut update).with(*notes, style != Style::Json && has_colour());
    let mut paths = Vec::new();
    for word in files {
        match input::files(word) {
            Ok(files) => paths.extend(files.into_iter().map(Ok)),
            Err(error) => paths.push(Err((word.clone(), error))),
        }
    }
    for found in paths {
        let (path, read) = match found {
            Ok(source) => (source.path.clone(), input::read(&source)),
            Err((word, error)) => (word, Err(error)),
        };
        let shown = path.shown().to_string();
        let mut printed = printer.file(&shown);
        match read {
            Ok(input) => {
                let (what, total) = (format!("checking {shown}"), input.bytes.len() as u64);
                *progress.borrow_mut() = Some(Progress::new(what, total, style != Style::Text));
                printed.copied(input.facts.copied);
                let kind = check::check(&input.bytes, &input.facts, &mut printed);
                *progress.borrow_mut() = None;
                if printed.finish(kind).found() {
                    outcome = outcome.max(Outcome::Found);
                }
            }
            Err(error) => {
                complain(&path, &error);
                printed.fail(&error);
                outcome = Outcome::Failed;
            }
        }
    }
    match printer.finish() {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => outcome,
        Err(error) => {
            complain(Path::new("output"), &error);
            Outcome::Failed
        }
        Ok(()) => outcome,
    }
}
