//! `jitsym dump` and `jitsym stat`

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use jitsym_tool::show::{self, Disassembler, Look};
use jitsym_tool::text::Shown;

use crate::input::{self, Input, Source};
use crate::progress::Progress;
use crate::{complain, Outcome};

/// Print a block for each function: source lines and unwind rows side by side, with --disassemble also instructions
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym dump --disassemble --name fib /tmp/jit-4711.dump")]
pub struct Dump {
    /// Print this jitdump, perf map or region file (plain, gzip, zstd), standard input (-), or the files of a process (PID)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print also the instructions of each function, disassembled by objdump
    #[arg(long)]
    disassemble: bool,
    /// Print only functions with TEXT in their names
    #[arg(long, value_name = "TEXT")]
    name: Option<OsString>,
}

/// Print counts, sizes and rates of compiled code, and a chart of code addresses over time
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym stat --top 10 /tmp/jit-4711.dump")]
pub struct Stat {
    /// Examine these jitdumps, perf maps, region files (plain, gzip, zstd), standard input (-), or the files of a process (PID)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print also the N function names with the most bytes of code (default: 0)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    top: usize,
}

/// Prints a file, or the files of a process.
pub fn dump(asked: Dump, out: &mut dyn Write) -> Outcome {
    let Dump { file, disassemble, name } = asked;
    let shown = name.as_ref().map(|name| name.shown().to_string());
    let name = name.map(OsString::into_vec);
    let sources = match input::files(&file) {
        Ok(sources) => sources,
        Err(error) => {
            complain(&file, &error);
            return Outcome::Failed;
        }
    };
    let (mut outcome, mut printed) = (Outcome::Good, 0);
    for source in &sources {
        let disassembler = match disassemble.then(Disassembler::new).transpose() {
            Ok(disassembler) => disassembler,
            Err(error) => {
                complain(&source.path, &error);
                return Outcome::Failed;
            }
        };
        let one = with(source, "printing", true, |input, progress| {
            if sources.len() > 1 {
                writeln!(out, "{}:", source.path.shown())?;
            }
            let mut how = show::Dump { disassembler, name: name.clone(), progress };
            printed += show::dump(&input.bytes, &input.facts, &mut how, out)?;
            Ok(())
        });
        outcome = outcome.max(one);
    }
    match shown.filter(|_| printed == 0 && outcome == Outcome::Good) {
        Some(name) => {
            let text = format!("no code has '{name}' in its name");
            complain(&file, &io::Error::new(io::ErrorKind::NotFound, text));
            Outcome::Failed
        }
        None => outcome,
    }
}

pub fn stat(asked: &Stat, out: &mut dyn Write) -> Outcome {
    let look = Look { width: columns(), terminal: io::stdout().is_terminal() };
    let (mut outcome, mut sources) = (Outcome::Good, Vec::new());
    for word in &asked.files {
        match input::files(word) {
            Ok(files) => sources.extend(files),
            Err(error) => {
                complain(word, &error);
                outcome = Outcome::Failed;
            }
        }
    }
    for (number, source) in sources.iter().enumerate() {
        let one = with(source, "counting", false, |input, progress| {
            if number > 0 {
                writeln!(out)?;
            }
            if sources.len() > 1 {
                writeln!(out, "{}:", source.path.shown())?;
            }
            show::stat(&input.bytes, &input.facts, look, asked.top, progress, out)
        });
        outcome = outcome.max(one);
    }
    outcome
}

/// The width of the terminal, or a default width.
fn columns() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(80, |(terminal_size::Width(columns), _)| columns.into())
}

/// Reads a file and passes it to `work`, with a display of the progress.
fn with(
    source: &Source,
    what: &str,
    prints_much: bool,
    work: impl FnOnce(&Input, &mut dyn FnMut(u64)) -> io::Result<()>,
) -> Outcome {
    let result = input::read(source).and_then(|input| {
        let (what, total) = (format!("{what} {}", source.path.shown()), input.bytes.len() as u64);
        let mut progress = Progress::new(what, total, prints_much);
        work(&input, &mut |done| progress.update(done))
    });
    match result {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Good,
        Err(error) => {
            complain(&source.path, &error);
            Outcome::Failed
        }
        Ok(()) => Outcome::Good,
    }
}
