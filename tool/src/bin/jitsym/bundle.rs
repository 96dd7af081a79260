//! `jitsym bundle`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jitsym_tool::bundle::{make, Summary};
use jitsym_tool::record::perf::Perf;
use jitsym_tool::record::plan::beside;
use jitsym_tool::record::{Step, PROC};
use jitsym_tool::text::{count, printable, Shown};

use crate::progress::injecting;
use crate::{say, written, Outcome};

/// Make one file of a recording, to look at it on another machine
///
/// The file has the recording, the compiled code in it with its source files, and the symbols of all programs, libraries and
/// kernel functions in samples. It has no copies of stacks, no registers, and no command line: perf resolves the stacks before.
/// `jitsym report`, `jitsym top` and `jitsym flamegraph` read the file. It is a tar archive with a README, so that perf reads it
/// without jitsym too.
///
/// The names of the source files are printed. Files that only some users may read are left out if the user is root, and hidden
/// files are always left out.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym bundle perf.data && scp perf.data.tar.gz laptop:")]
pub struct Bundle {
    /// Read this recording of perf
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,
    /// Write the bundle to this file (default: FILE.tar.gz)
    #[arg(short, long, value_name = "OUT.tar.gz")]
    output: Option<PathBuf>,
    /// Leave out the source files
    #[arg(long)]
    no_sources: bool,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
}

pub fn run(asked: &Bundle, out: &mut dyn Write) -> Outcome {
    let path = asked.output.clone().unwrap_or_else(|| beside(&asked.file, ".tar.gz"));
    let made =
        Perf::new(&asked.perf, Path::new(PROC)).and_then(|perf| bundle(&perf, &asked.file, &path, !asked.no_sources));
    match made {
        Ok(summary) => written(tell(&path, &summary, out)),
        Err(cause) => {
            say(format_args!("jitsym: {cause}"));
            Outcome::Failed
        }
    }
}

/// Makes a bundle, and warns about jitdumps that cannot be used.
pub fn bundle(perf: &Perf, data: &Path, out: &Path, has_sources: bool) -> Result<Summary, String> {
    let mut ticking = injecting(|_| {});
    make(perf, data, out, has_sources, &mut |step| match step {
        Step::Problem(line) => say(format_args!("jitsym: warning: {line}")),
        step => ticking(step),
    })
}

/// Says what is in a bundle.
pub fn tell(path: &Path, summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {}, {} of compiled code, symbols of {}, {}; {} KiB",
        path.shown(),
        count(summary.samples, "sample"),
        count(summary.objects as u64, "object"),
        count(summary.tables as u64, "program or library file"),
        count(summary.sources.len() as u64, "source file"),
        summary.bytes.div_ceil(1024)
    )?;
    for source in &summary.sources {
        writeln!(out, "source file: {}", printable(source.as_bytes()))?;
    }
    if summary.left_out > 0 {
        writeln!(
            out,
            "{} left out: the path is too long, or the bundle too large",
            count(summary.left_out as u64, "file")
        )?;
    }
    Ok(())
}
