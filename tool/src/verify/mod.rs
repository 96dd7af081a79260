//! `jitsym verify`: runs a program, steps through its registered code, and compares at each instruction what the tables say with
//! what calls and returns have made.
//!
//! The truth is a shadow stack ([`jitsym_step::Shadow`]), which knows of each call where it returns to and what the registers
//! were. What a jitdump says may come later than the code runs, because most producers buffer it. So what does not fit at once
//! is kept and judged at the end of the process, by the code that was there at the time.

mod code;
pub mod finding;
mod pattern;
mod process;
mod sources;
mod truth;
mod walk;

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use finding::{Coverage, Findings};
use jitsym_step::Tracer;
pub use pattern::Patterns;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    pub command: Vec<OsString>,
    /// Variables that the command gets.
    pub environment: Vec<(&'static str, &'static str)>,
    pub functions: Patterns,
    /// Calls of each function.
    pub calls: u32,
    /// No steps after this time.
    pub seconds: Option<Duration>,
    /// What the command prints goes to the standard error output.
    pub to_stderr: bool,
}

/// Runs the program. Returns what was found, how much was looked at, and how the program has ended.
pub fn verify(
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<(Findings, Coverage, Option<ExitStatus>)> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(options.environment.iter().map(|(name, value)| (name, value)));
    if options.to_stderr {
        use std::os::fd::AsFd;
        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
    }
    walk::Walk::new(Tracer::spawn(command)?, options, progress).run()
}
