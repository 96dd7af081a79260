//! The command-line program: says what is wrong with jitdumps and perf maps, prints them, completes the files of processes
//! that were killed, and removes those of processes that are dead.

mod args;
mod check;
mod clean;
mod input;
mod progress;
mod recover;
mod show;
mod terminal;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use args::Command;
use jitsym_tool::check::report::list_rules;

/// What the exit status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// All is well.
    Good = 0,
    /// Something was found.
    Found = 1,
    /// A file could not be read, or the command line makes no sense.
    Failed = 2,
}

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(text) => {
            eprintln!("jitsym: {text}\n\n{}", args::USAGE.trim_end());
            return ExitCode::from(Outcome::Failed as u8);
        }
    };
    let mut out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let outcome = match command {
        Command::Help => written(out.write_all(args::USAGE.as_bytes())),
        Command::Version => written(writeln!(out, "jitsym {}", env!("CARGO_PKG_VERSION"))),
        Command::Rules { json } => written(list_rules(&mut out, json)),
        Command::Check { files, style, allowed } => check::run(&files, style, &allowed, &mut out),
        Command::Dump { file, disassemble, name } => show::dump(&file, disassemble, name, &mut out),
        Command::Stat { files } => show::stat(&files, &mut out),
        Command::Clean { dirs, dry_run } => clean::clean(dirs, dry_run, &mut out),
        Command::Recover { dir, pids } => {
            drop(out);
            return match recover::recover(&dir, &pids) {
                Ok(()) => ExitCode::SUCCESS,
                Err(text) => {
                    eprintln!("{text}");
                    ExitCode::FAILURE
                }
            };
        }
    };
    ExitCode::from(outcome.max(written(out.flush())) as u8)
}

/// Says what is wrong with a file.
fn complain(path: &Path, error: &io::Error) {
    eprintln!("{}: {error}", path.display());
}

/// The outcome of writing: a reader that goes away, as `head` does, is no failure.
fn written(result: io::Result<()>) -> Outcome {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("output: {error}");
            Outcome::Failed
        }
        _ => Outcome::Good,
    }
}
