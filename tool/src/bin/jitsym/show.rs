//! `jitsym dump` and `jitsym stat`

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::terminal;
use jitsym_tool::show::{self, Disassembler, Dump, Look};

use crate::input::{self, Input};
use crate::progress::Progress;
use crate::{complain, Outcome};

/// Prints a file.
pub fn dump(path: &Path, disassemble: bool, name: Option<Vec<u8>>, out: &mut dyn Write) -> Outcome {
    let disassembler = match disassemble.then(Disassembler::new).transpose() {
        Ok(disassembler) => disassembler,
        Err(error) => {
            complain(path, &error);
            return Outcome::Failed;
        }
    };
    with(path, "printing", true, |input, progress| {
        let mut how = Dump { disassembler, name, progress };
        show::dump(&input.bytes, &input.facts, &mut how, out)
    })
}

/// Prints numbers and a picture of each file.
pub fn stat(paths: &[PathBuf], out: &mut dyn Write) -> Outcome {
    let look = Look { width: terminal::width(&io::stdout()).unwrap_or(80), terminal: io::stdout().is_terminal() };
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
