//! `jitsym dump` and `jitsym stat`

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use jitsym_tool::show::{self, Disassembler, Look};

use crate::input::{self, Input};
use crate::progress::Progress;
use crate::{complain, Outcome};

/// Prints a jitdump with its line and unwind tables, or a perf map
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym dump --disassemble --name fib /tmp/jit-4711.dump")]
pub struct Dump {
    /// A jitdump or perf map
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The instructions too, by objdump
    #[arg(long)]
    disassemble: bool,
    /// Only code with that in its name
    #[arg(long, value_name = "TEXT")]
    name: Option<OsString>,
}

/// Prints numbers, sizes and rates, and a picture of the addresses over time
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym stat /tmp/jit-4711.dump")]
pub struct Stat {
    /// Jitdumps and perf maps
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Prints a file.
pub fn dump(asked: Dump, out: &mut dyn Write) -> Outcome {
    let Dump { file, disassemble, name } = asked;
    let (path, name) = (&*file, name.map(OsString::into_vec));
    let disassembler = match disassemble.then(Disassembler::new).transpose() {
        Ok(disassembler) => disassembler,
        Err(error) => {
            complain(path, &error);
            return Outcome::Failed;
        }
    };
    with(path, "printing", true, |input, progress| {
        let mut how = show::Dump { disassembler, name, progress };
        show::dump(&input.bytes, &input.facts, &mut how, out)
    })
}

/// Prints numbers and a picture of each file.
pub fn stat(asked: &Stat, out: &mut dyn Write) -> Outcome {
    let paths = &asked.files;
    let look = Look { width: columns(), terminal: io::stdout().is_terminal() };
    let mut outcome = Outcome::Good;
    for (number, path) in paths.iter().enumerate() {
        let one = with(path, "counting", false, |input, progress| {
            if number > 0 {
                writeln!(out)?;
            }
            if paths.len() > 1 {
                writeln!(out, "{}:", path.display())?;
            }
            show::stat(&input.bytes, &input.facts, look, progress, out)
        });
        outcome = outcome.max(one);
    }
    outcome
}

/// The width of the terminal that is written to, or the usual one.
fn columns() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(80, |(terminal_size::Width(columns), _)| columns.into())
}

/// Does something with a file and shows how far it is.
fn with(
    path: &Path,
    what: &str,
    prints_much: bool,
    work: impl FnOnce(&Input, &mut dyn FnMut(u64)) -> io::Result<()>,
) -> Outcome {
    let result = input::read(path).and_then(|input| {
        let (what, total) = (format!("{what} {}", path.display()), input.bytes.len() as u64);
        let mut progress = Progress::new(what, total, prints_much);
        work(&input, &mut |done| progress.update(done))
    });
    match result {
        // Nobody wants to read on.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Good,
        Err(error) => {
            complain(path, &error);
            Outcome::Failed
        }
        Ok(()) => Outcome::Good,
    }
}
