//! Runs `perf record`: what perf says is kept, what the command says goes where it would go without perf.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use super::perf::Perf;

/// How it went.
pub struct Ran {
    /// The command's, or perf's own if it has failed.
    pub status: ExitStatus,
    /// What perf has printed.
    pub said: String,
    /// Whether there is something in the file.
    pub recorded: bool,
}

/// The perf that runs, for signals; 0 for none.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Hands a signal on to perf, which ends the recording and keeps what it has.
extern "C" fn hand_on(signal: libc::c_int) {
    let pid = RUNNING.load(Ordering::Relaxed);
    if pid > 0 {
        // SAFETY: kill may be called from a signal handler, and changes no memory.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Runs perf with these arguments, and the command if there is one.
pub fn run(
    perf: &Perf,
    arguments: &[OsString],
    command: &[OsString],
    environment: &[(&str, &str)],
    data: &Path,
) -> io::Result<Ran> {
    let mut record = perf.command("record");
    record.args(arguments).stderr(Stdio::piped());
    record.envs(environment.iter().copied());
    let errors = if command.is_empty() { None } else { Some(under_perf(&mut record, command)?) };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does nothing but what may be done in one. It is not inherited by perf.
        unsafe { libc::signal(signal, hand_on as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    let mut child = record.spawn()?;
    drop(errors);
    RUNNING.store(child.id() as i32, Ordering::Relaxed);
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_end(&mut said)?;
    }
    let status = child.wait()?;
    RUNNING.store(0, Ordering::Relaxed);
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok(Ran { status, said, recorded: has_data(data) })
}

/// Makes perf run a command whose standard error output is ours, and not the pipe that perf writes to.
fn under_perf(record: &mut Command, command: &[OsString]) -> io::Result<OwnedFd> {
    // SAFETY: it makes a descriptor, which nobody else has.
    let errors = match unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 10) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: as above.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // Shells take one digit. One that is open was given to us for the command.
    // SAFETY: fcntl only answers.
    let is_free = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == -1;
    let free = (3..=9).rev().find(is_free).ok_or_else(|| io::Error::other("descriptors 3 to 9 are all in use"))?;
    let from = errors.as_raw_fd();
    // SAFETY: dup2 may be called between fork and exec.
    unsafe {
        record.pre_exec(move || match libc::dup2(from, free) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    record.args(["--", "sh", "-c"]).arg(format!("exec \"$@\" 2>&{free} {free}>&-")).arg("jitsym").args(command);
    Ok(errors)
}

/// Whether a file is a recording with events: perf writes their size at the end.
fn has_data(path: &Path) -> bool {
    // Magic, size of the header and of an attribute, place and size of the attributes, place and size of the events.
    let mut header = [0; 56];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut header, 0));
    read.is_ok() && is_recording(&header) && header[48..56] != [0; 8]
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
