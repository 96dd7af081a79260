//! Running other programs: what fails is an error with all that the program printed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

/// Opens a file and locks it until it is dropped. `None` if another process holds the lock, unless this one waits for it.
pub fn lock(path: &Path, waits: bool) -> Result<Option<File>> {
    let about = || format!("cannot lock {}", path.display());
    let file = File::create(path).with_context(about)?;
    let how = if waits { libc::LOCK_EX } else { libc::LOCK_EX | libc::LOCK_NB };
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
        return Ok(Some(file));
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        error => Err(error).with_context(about),
    }
}

/// A command in an environment that does not depend on who runs it.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let ours = ["JITSYM", "JITDUMP", "DEBUGINFOD", "PERF_"].iter().any(|prefix| name.starts_with(prefix));
        // cargo names directories with other builds of the library there.
        if ours || name == "LD_LIBRARY_PATH" {
            command.env_remove(&*name);
        }
    }
    command.env("LC_ALL", "C.UTF-8").env("PERF_CONFIG", "/dev/null").stdin(Stdio::null());
    command
}

/// Runs it to its end, whatever its exit status.
pub fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot start {:?}", command.get_program()))
}

/// Runs it to its end; anything but success is an error.
pub fn success(command: &mut Command) -> Result<Output> {
    let output = output(command)?;
    if !output.status.success() {
        bail!("{}", describe(command, &output));
    }
    Ok(output)
}

/// The same, with what it wrote on standard output. Names are UTF-8; what is not must not end the run.
pub fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&success(command)?.stdout).into_owned())
}

/// What a program has used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// From its start to its end, and of this the time on a processor, with that of its children.
    pub time: Duration,
    pub processor: Duration,
    /// KiB of memory at most.
    pub peak: u64,
}

/// Runs it to its end; its output goes to `out`. Anything but success is an error.
pub fn used(command: &mut Command, out: impl Into<Stdio>) -> Result<Used> {
    let begin = Instant::now();
    let child = command.stdout(out).spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and was not waited for, and both places are valid.
    while unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) } == -1 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error.into());
        }
    }
    let time = begin.elapsed();
    if status != 0 {
        bail!("{command:?}: wait status {status:#x}");
    }
    // SAFETY: zeroed, and written by the kernel.
    let usage = unsafe { usage.assume_init() };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok(Used { time, processor: of(usage.ru_utime) + of(usage.ru_stime), peak: usage.ru_maxrss as u64 })
}

/// Command, status, and the ends of all that it printed.
pub fn describe(command: &Command, output: &Output) -> String {
    let end = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let from = text.char_indices().rev().nth(3000).map_or(0, |(at, _)| at);
        text[from..].to_string()
    };
    format!("{command:?}: {}\n{}\n{}", output.status, end(&output.stdout), end(&output.stderr))
}

/// Whether there is something to read within that many milliseconds.
pub fn is_readable(file: &impl AsRawFd, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 }
}

pub use jitsym_step::now;
