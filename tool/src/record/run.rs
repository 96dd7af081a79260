//! Runs `perf record`, keeps perf's messages, and passes the command's output to where it would be without perf.
//!
//! perf and the command share one standard error output. A shell between them could separate their outputs, but then perf 6.1
//! would find no unwind tables in half of the recordings. perf 6.1 keeps the mappings that the process had before it executed
//! the command, and uses the lower of two mappings of the C library as the base of the library's tables (linux
//! tools/perf/util/unwind-libunwind-local.c).

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

/// The result of a run.
pub struct Ran {
    /// The exit status of the command, or of perf if perf has failed.
    pub status: ExitStatus,
    /// The messages of perf.
    pub said: String,
    /// Whether the file contains events.
    pub recorded: bool,
    /// The results of comparing memory with the jitdumps.
    pub seen: Seen,
}

/// Tests whether perf can record a command with these arguments.
pub fn try_out(perf: &Perf, arguments: &[OsString], data: &Path) -> io::Result<Ran> {
    let output = children::output(perf.command("record").args(arguments).args(["--", "true"]))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Ran { status: output.status, said, recorded: has_data(data), seen: Seen::default() })
}

/// The destinations of the output of perf and of the command.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    /// Whether perf prints nothing, so that only the command uses the standard error output.
    pub is_quiet: bool,
    /// Whether the output of the command goes to the standard error output.
    pub to_stderr: bool,
    /// The recorded processes, if there is no command.
    pub pids: &'a BTreeSet<u32>,
}

/// Runs perf with these arguments, and with the command if there is one. Watches the recorded processes.
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
    // When a terminal is closed, all its programs end at once, and perf cannot complete its file.
    let recorded = has_data(file) || status.signal().is_some() && data::complete(file).unwrap_or(false);
    Ok(Ran { status, said, recorded, seen })
}

/// Whether a file is a recording with events. perf writes the size of the events last.
fn has_data(path: &Path) -> bool {
    // The header has a magic number, the sizes of the header and of an attribute, offset and size of the attributes, and
    // offset and size of the events.
    let mut header = [0; 56];
    let read = open::named(path).and_then(|file| file.read_exact_at(&mut header, 0));
    read.is_ok() && is_recording(&header) && header[48..56] != [0; 8]
}

/// The program that was stopped before it had completed the recording, if there was one. When `perf inject` ends, it writes
/// all of the header except the header's size. When `perf record` ends, it writes the size of the events.
pub fn unfinished(path: &Path) -> Option<&'static str> {
    let mut header = [0; 56];
    open::named(path).and_then(|file| file.read_exact_at(&mut header, 0)).ok()?;
    match (header[24..40] == [0; 16], header[48..56] == [0; 8]) {
        (true, true) => Some("perf inject"),
        (false, true) => Some("perf record"),
        (_, false) => None,
    }
}

pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PERFILE2") || bytes.starts_with(b"2ELIFREP")
}

/// The exit status that a shell would report.
pub fn exit_code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    u8::try_from(status.code().or(signal).unwrap_or(1)).unwrap_or(1)
}
