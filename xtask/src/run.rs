//! Running other programs: what fails is an error with all that the program printed.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{bail, Context, Result};

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

/// Runs it to its end without its output. Returns the KiB of memory that it took at most; anything but success is an error.
pub fn peak(command: &mut Command) -> Result<u64> {
    let child =
        command.stdout(Stdio::null()).spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and was not waited for, and both places are valid.
    while unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) } == -1 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error.into());
        }
    }
    if status != 0 {
        bail!("{command:?}: wait status {status:#x}");
    }
    // SAFETY: zeroed, and written by the kernel.
    Ok(unsafe { usage.assume_init() }.ru_maxrss as u64)
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
