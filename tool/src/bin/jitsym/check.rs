//! `jitsym check`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jitsym_tool::check::report::{Printer, Style};
use jitsym_tool::check::{self, Rule};

use crate::progress::Progress;
use crate::{complain, input, Outcome};

/// Checks files and prints what was found.
pub fn run(files: &[PathBuf], style: Style, allowed: &[&'static Rule], out: &mut dyn Write) -> Outcome {
    let mut outcome = Outcome::Good;
    let progress = std::cell::RefCell::new(None);
    let mut update = |done| {
        if let Some(progress) = &mut *progress.borrow_mut() {
            Progress::update(progress, done);
        }
    };
    let mut printer = Printer::new(out, style, allowed, &mut update);
    for path in files {
        let shown = path.display().to_string();
        let mut printed = printer.file(&shown);
        match input::read(path) {
            Ok(input) => {
                let (what, total) = (format!("checking {shown}"), input.bytes.len() as u64);
                *progress.borrow_mut() = Some(Progress::new(what, total, style != Style::Text));
                let kind = check::check(&input.bytes, &input.facts, &mut printed);
                *progress.borrow_mut() = None;
                if printed.finish(kind).found() {
                    outcome = outcome.max(Outcome::Found);
                }
            }
            Err(error) => {
                complain(path, &error);
                printed.fail(&error);
                outcome = Outcome::Failed;
            }
        }
    }
    match printer.finish() {
        // Nobody wants to read on.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => outcome,
        Err(error) => {
            complain(Path::new("output"), &error);
            Outcome::Failed
        }
        Ok(()) => outcome,
    }
}
