//! `jitsym verify`: steps through registered code, and compares its tables with the effects of the code.
//!
//! At each instruction, the tables are compared with the frames that calls and returns have made.
//!
//! The true frames are those of a shadow stack ([`jitsym_step::Shadow`]), which records the return address and the caller's
//! registers for each call. A jitdump may describe code only after the code has run, because most producers buffer their
//! records. So an observation that does not match at once is kept until the process ends. Then it is compared with the code
//! that was there at the time of the observation.

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

/// The options of a run.
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
