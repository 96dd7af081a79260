//! `jitsym verify`: steps through registered code, and compares the unwind tables with the effects of the code.
//!
//! At each instruction, the tables are compared with the true frames, which calls and returns have made. A shadow stack
//! ([`jitsym_step::Shadow`]) has the true frames. It records the return address and the caller's registers of each call.
//!
//! A jitdump may describe code only after the code has run, because most producers buffer their records. So if an observation
//! does not fit at once, it is kept. When the process ends, the observation is compared with the code that was registered at
//! the time of the observation.

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

#[derive(Clone, Debug)]
pub struct Options {
    pub command: Vec<OsString>,
    /// Variables that are added to the environment of the command.
    pub environment: Vec<(&'static str, &'static str)>,
    pub functions: Patterns,
    /// The number of calls of each function that are stepped.
    pub calls: u32,
    /// The time after which stepping ends.
    pub seconds: Option<Duration>,
    /// Whether the output of the command goes to the standard error output.
    pub to_stderr: bool,
}

/// Runs the program. Returns the findings, the amount of examined code, and the exit status of the program.
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
