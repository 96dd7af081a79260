//! `jitsym report`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jitsym_tool::record::perf::Perf;
use jitsym_tool::record::view::View;
use jitsym_tool::record::{children, Step, PROC};

use crate::progress::injecting;
use crate::{say, Outcome};

/// Show a recording or a bundle of `jitsym bundle` by `perf report`
///
/// A bundle is unpacked into a private directory, which is removed at the end. No file that the recording names is searched for
/// on this machine. If the jitdumps of a recording are not in it, jitsym injects them into a private copy first.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym report perf.data.tar.gz -- --sort comm,dso")]
pub struct Report {
    /// Read this recording of perf, or this bundle
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
    /// Pass these arguments to `perf report`, after `--no-children`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

pub fn run(asked: &Report) -> Outcome {
    match report(asked) {
        Ok(outcome) => outcome,
        Err(cause) => {
            say(format_args!("jitsym: {cause}"));
            Outcome::Failed
        }
    }
}

fn report(asked: &Report) -> Result<Outcome, String> {
    let perf = Perf::new(&asked.perf, Path::new(PROC))?;
    let mut ticking = injecting(|_| {});
    let view = View::open(&perf, &asked.file, &mut |step| match step {
        Step::Problem(line) => say(format_args!("jitsym: warning: {line}")),
        step => ticking(step),
    })?;
    let mut command = perf.command("report");
    command.args(view.arguments()).arg("--no-children");
    if let Some(sources) = view.sources() {
        // objdump prints source lines. It searches absolute paths below the prefix, and relative paths below the current
        // directory.
        command.arg("--prefix").arg(&sources).current_dir(sources);
    }
    let mut child = children::start(command.args(&asked.arguments)).map_err(|error| perf.cannot_start(&error))?;
    let status = children::wait(&mut child).map_err(|error| error.to_string())?;
    Ok(if status.success() { Outcome::Good } else { Outcome::Failed })
}
