//! The program `jitsym` records programs, and examines and completes the files that JIT compilers write for profilers.

// All output goes through `Safe`, because another user may have chosen names and paths.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod bundle;
mod callgrind;
mod check;
mod clean;
mod doctor;
mod export;
#[cfg(test)]
mod generated;
mod inject;
mod input;
mod origin;
mod process;
mod progress;
mod record;
mod recover;
mod report;
mod show;
mod top;
mod verify;
mod view;

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use jitsym_tool::text::{Safe, Shown};

use args::{Asked, Command};

/// The exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The command has succeeded, and has found no fault.
    Good = 0,
    /// The command has found a fault, or could not use or complete a file. The manual page lists the cases.
    Found = 1,
    /// A file could not be read, or the command line is wrong.
    Failed = 2,
}

fn main() -> ExitCode {
    let asked = match args::parse() {
        Ok(asked) => asked,
        Err(text) => {
            say(format_args!("jitsym: {text}"));
            return ExitCode::from(Outcome::Failed as u8);
        }
    };
    let mut out = BufWriter::with_capacity(64 * 1024, Safe(io::stdout().lock()));
    let outcome = match asked {
        Asked::Text(text) => written(out.write_all(text.as_bytes())),
        Asked::Command(Command::Version) => written(writeln!(out, "jitsym {}", env!("CARGO_PKG_VERSION"))),
        Asked::Command(Command::Check(asked)) => check::run(&asked, &mut out),
        Asked::Command(Command::Dump(asked)) => show::dump(asked, &mut out),
        Asked::Command(Command::Stat(asked)) => show::stat(&asked, &mut out),
        Asked::Command(Command::Callgrind(asked)) => callgrind::run(&asked, &mut out),
        Asked::Command(Command::Clean(asked)) => clean::clean(asked, &mut out),
        Asked::Command(Command::Doctor(asked)) => doctor::run(&asked, &mut out),
        Asked::Command(Command::Export(asked)) => export::run(&asked, &mut out),
        Asked::Command(Command::Inject(asked)) => inject::run(&asked, &mut out),
        Asked::Command(Command::Record(asked)) => {
            drop(out);
            return record::run(asked);
        }
        Asked::Command(Command::Flamegraph(asked)) => view::flamegraph(&asked),
        Asked::Command(Command::Report(asked)) => report::run(&asked),
        Asked::Command(Command::Bundle(asked)) => bundle::run(&asked, &mut out),
        Asked::Command(Command::Top(asked)) => top::run(&asked, &mut out),
        Asked::Command(Command::Verify(asked)) => verify::run(asked, &mut out),
        Asked::Command(Command::Recover(asked)) => recover::recover(asked, &mut out),
    };
    ExitCode::from(outcome.max(written(out.flush())) as u8)
}

/// Prints lines to the standard error output, by one write.
fn say(lines: impl Display) {
    let mut text = Safe(Vec::new());
    let _ = writeln!(text, "{lines}");
    // An error is ignored, because there is nowhere to report it.
    let _ = io::stderr().write_all(&text.0);
}

/// Prints the error of a file.
fn complain(path: &Path, error: &io::Error) {
    say(format_args!("{}: {error}", path.shown()));
}

/// Returns the outcome of writing, and prints an error. A pipe that the reader has closed, as `head` does, is no failure.
fn written(result: io::Result<()>) -> Outcome {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("output: {error}"));
            Outcome::Failed
        }
        _ => Outcome::Good,
    }
}
