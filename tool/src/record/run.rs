//! Runs `perf record`: what perf says is kept, what the command says goes where it would go without perf.
//!
//! perf and the command have one standard error output. A shell between the two could give them different ones, but perf 6.1 would
//! find no unwind tables in half of the recordings: it keeps the mappings that the process had before it executed the command, and
//! counts the C library's tables from the lower one of its two mappings (linux tools/perf/util/unwind-libunwind-local.c).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use super::perf::Perf;
use super::watch::{Seen, Watch};
use super::{children, data, plan, PROC};
use crate::open;

/// How it went.
pub struct Ran {
    /// The command's, or perf's own if it has failed.
    pub status: ExitStatus,
    /// What perf has printed.
    pub said: String,
    /// Whether there is something in the file.
    pub recorded: bool,
    /// What was seen in the memory of the processes.
    pub seen: Seen,
}

/// Finds out whether perf can record a command with these arguments.
pub fn try_out(perf: &Perf, arguments: &[OsString], data: &Path) -> io::Result<Ran> {
    let output = children::output(perf.command("record").args(arguments).args(["--", "true"]))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Ran { status: output.status, said, recorded: has_data(data), seen: Seen::default() })
}

/// Whose output goes where.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    /// The standard error output is the command's, and perf says nothing.
    pub is_quiet: bool,
    /// What the command prints goes to the standard error output.
    pub to_stderr: bool,
    /// The processes that are recorded, if there is no command.
    pub pids: &'a BTreeSet<u32>,
}

/// Runs perf with these arguments, and the command if there is one, and watches what is recorded.
pub fn run<'e>(
    perf: &Perf,
    arguments: &[OsString],
    command: &[OsString],
    environment: impl Iterator<Item = (&'static str, &'e OsStr)>,
    file: &Path,
    how: How,
) -> io::Result<Ran> {
    let mut record = perf.command("record");
    record.args(arguments).envs(environment);
    if how.to_stderr {
        record.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
    }
    if how.is_quiet {
        record.arg("--quiet");
    } else {
        record.stderr(Stdio::piped());
    }
    if !command.is_empty() {
        record.arg("--").args(command);
    }
    let mut child = children::start(&mut record)?;
    let (parents, own) = (how.pids.clone(), child.id());
    let watch = Watch::start(move || {
        let all = parents.iter().copied().chain([own]).flat_map(|pid| plan::family(pid, Path::new(PROC)));
        all.filter(|&pid| pid != own).collect()
    });
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_end(&mut said)?;
    }
    let status = children::wait(&mut child)?;
    let seen = watch.end();
    let said = String::from_utf8_lossy(&said).into_owned();
    // A terminal that goes ends all of its programs at once, and perf without a chance to complete its file.
    let recorded = has_data(file) || status.signal().is_some() && data::complete(file).unwrap_or(false);
    Ok(Ran { status, said, recorded, seen })
}

/// Whether a file is a recording with events: perf writes their size at the end.
fn has_data(path: &Path) -> bool {
    // Magic, size of the header and of an attribute, place and size of the attributes, place and size of the events.
    let mut header = [0; 56];
    let read = open::named(path).and_then(|file| file.read_exact_at(&mut header, 0));
    read.is_ok() && is_recording(&header) && header[48..56] != [0; 8]
}

/// Why a recording is not complete, if it is not: the program that wrote it has been stopped. perf inject writes everything but the
/// size of the header at the end, perf record the size of the events.
pub fn unfinished(path: &Path) -> Option<&'static str> {
    let mut header = [0; 56];
    open::named(path).and_then(|file| file.read_exact_at(&mut header, 0)).ok()?;
    match (header[24..40] == [0; 16], header[48..56] == [0; 8]) {
        (true, true) => Some("perf inject"),
        (false, true) => Some("perf record"),
        (_, false) => None,
    }
}

/// Whether bytes begin as a recording does.
pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PERFILE2") || bytes.starts_with(b"2ELIFREP")
}

/// The status that a shell gives.
pub fn exit_code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    u8::try_from(status.code().or(signal).unwrap_or(1)).unwrap_or(1)
}
