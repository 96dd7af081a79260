//! Describes and parses the command line of `jitsym`. The test module `generated` makes the manual page and the shell
//! completions from this description.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    bundle, callgrind, check, clean, doctor, export, inject, record, recover, report, show, top, verify, view,
};

/// The exit codes, for `jitsym help` and the manual page.
pub const EXIT_CODES: [(u8, &str); 3] = [
    (0, "all is well"),
    (1, "`check` found errors or warnings, `verify` or `doctor` found something wrong, `recover` could not complete a file, `inject` could not use a jitdump, or `callgrind` found no name"),
    (2, "a file or process does not exist or cannot be read, or the command line is wrong"),
];

/// Record programs with JIT-compiled code, explain missing names and stacks, and check and complete jitdumps and perf maps
#[derive(Parser)]
#[command(name = "jitsym", version, arg_required_else_help = false, max_term_width = 100, after_help = exit_codes())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What is to be done.
#[derive(Subcommand)]
pub enum Command {
    Check(check::Check),
    Dump(show::Dump),
    Stat(show::Stat),
    Export(export::Export),
    Record(record::Record),
    Inject(inject::Inject),
    Verify(verify::Verify),
    Callgrind(callgrind::Callgrind),
    Doctor(doctor::Doctor),
    Top(top::Top),
    Flamegraph(view::Flamegraph),
    Report(report::Report),
    Bundle(bundle::Bundle),
    Recover(recover::Recover),
    Clean(clean::Clean),
    /// Print the version
    Version,
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for (code, meaning) in EXIT_CODES {
        text += &format!("\n  {code}  {meaning}");
    }
    text + "\n\n`jitsym help COMMAND` explains the options of a command, with an example.\n\
            With JITSYM_DEBUG=1 in a program's environment, libjitsym prints its decisions, refused calls and failures."
}

/// The request of a command line: a command, or a text to print. The error is one line, and a line that names the help text.
pub enum Asked {
    Command(Command),
    Text(String),
}

pub fn parse() -> Result<Asked, String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    match Cli::try_parse_from(&words) {
        Ok(cli) => Ok(Asked::Command(cli.command)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Asked::Text(error.to_string()))
        }
        Err(error) => Err(refusal(&error, &words)),
    }
}

/// Shortens an error of clap to two lines.
fn refusal(error: &clap::Error, words: &[OsString]) -> String {
    let rendered = error.to_string();
    let mut line = match error.kind() {
        ErrorKind::MissingSubcommand => "a command is missing".to_owned(),
        _ => String::new(),
    };
    for paragraph in rendered.split("\n\n") {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(tip) = paragraph.strip_prefix("tip: ") {
            line += &format!("; {tip}");
        } else if let Some(problem) = paragraph.strip_prefix("error: ").filter(|_| line.is_empty()) {
            line += problem;
        }
    }
    let is_command = |word: &&OsString| Cli::command().find_subcommand(word).is_some();
    match words.get(1).filter(is_command).and_then(|word| word.to_str()) {
        Some("help") | None => format!("{line}\nsee `jitsym --help`"),
        Some(command) => format!("{line}\nsee `jitsym {command} --help`"),
    }
}

/// The known word that is most similar, if any is similar.
pub fn most_like<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = known.map(|known| (strsim::jaro(word, known), known)).filter(|&(like, _)| like > 0.7);
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}
