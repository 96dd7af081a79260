//! Shows a recording: prints the hottest functions, and draws the flame graph.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jitsym_tool::private::PrivateDir;
use jitsym_tool::record::perf::Perf;
use jitsym_tool::record::plan::beside;
use jitsym_tool::record::stacks::{percent, Stacks};
use jitsym_tool::record::view::{self, View};
use jitsym_tool::record::{quoted, Step, PROC};
use jitsym_tool::text::Shown;

use crate::progress::{injecting, reading};
use crate::Outcome;

/// Draw the functions of a recording as a flame graph, with compiled code in green
///
/// FILE is a recording of perf. If the jitdumps that it names are not in the recording, jitsym injects them into a private copy
/// first, and removes the copy.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym flamegraph perf.data -o hot.svg")]
pub struct Flamegraph {
    /// Read this recording of perf
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the picture to this file (default: FILE.svg)
    #[arg(short, long, value_name = "OUT.svg")]
    output: Option<PathBuf>,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
}

fn say(line: &str) {
    crate::say(format_args!("jitsym: {line}"));
}

pub fn flamegraph(asked: &Flamegraph) -> Outcome {
    let out = asked.output.clone().unwrap_or_else(|| beside(&asked.file, ".svg"));
    let drawn = read(&asked.perf, &asked.file, true).and_then(|stacks| draw(&stacks, &asked.file, &out));
    drawn.map_or_else(|cause| failed(&cause), |()| Outcome::Good)
}

/// Prints the hottest functions of a recording.
pub fn top(data: &Path, perf: &Path, out: &mut dyn Write) -> Outcome {
    let stacks = match read(perf, data, false) {
        Ok(stacks) if stacks.counts().0 == 0 => return failed(&format!("{}: no sample", data.shown())),
        Ok(stacks) => stacks,
        Err(cause) => return failed(&cause),
    };
    crate::written(stacks.top(out))
}

fn failed(cause: &str) -> Outcome {
    say(cause);
    Outcome::Failed
}

/// Adds up the samples of a recording. Warns if some compiled code has no name.
fn read(perf: &Path, data: &Path, fold: bool) -> Result<Stacks, String> {
    view::check(data)?;
    let perf = Perf::new(perf, Path::new(PROC))?;
    let mut ticking = injecting(|_| {});
    // Nothing is left of the copy, so only problems are of interest.
    let view = View::open(&perf, data, &mut |step| match step {
        Step::Problem(line) => say(&format!("warning: {line}")),
        step => ticking(step),
    })?;
    let (mut stacks, mut compiled, mut named) = (Stacks::new(fold), 0, 0);
    reading(|count| {
        view.samples(&mut |sample| {
            if let Some(frame) = sample.compiled() {
                compiled += 1;
                named += u64::from(frame.symbol.is_some());
            }
            stacks.add(sample);
            count(sample);
        })
    })?;
    // A few samples may be in the stubs of the runtime.
    if percent(named, compiled) < 99.0 && compiled > 0 {
        say(&format!(
            "warning: {named} of {compiled} samples in compiled code have names; `jitsym doctor {}` says why",
            quoted(data)
        ));
    }
    Ok(stacks)
}

/// Writes the flame graph, and prints the path of its file.
pub fn draw(stacks: &Stacks, data: &Path, path: &Path) -> Result<(), String> {
    let (samples, _) = stacks.counts();
    if samples == 0 {
        return Err(format!("{}: no sample, no flame graph", path.shown()));
    }
    let write = || {
        let (work, target) = place_for(path)?;
        let mut file = BufWriter::new(File::create(&target)?);
        stacks.flamegraph(&data.shown().to_string(), &mut file)?;
        file.flush()?;
        work.map_or(Ok(()), |_work| fs::rename(target, path))
    };
    write().map_err(|error: io::Error| format!("{}: {error}", path.shown()))?;
    say(&format!("the flame graph is {} (compiled code is green)", path.shown()));
    Ok(())
}

/// Where to write a file first: in a private directory, unless the path is not a regular file. So a link of another user is not
/// followed.
fn place_for(path: &Path) -> io::Result<(Option<PrivateDir>, PathBuf)> {
    match fs::metadata(path) {
        // The path is a terminal, a pipe or a device.
        Ok(data) if !data.is_file() => Ok((None, path.to_owned())),
        _ => PrivateDir::beside(path).map(|work| {
            let target = work.path().join("new");
            (Some(work), target)
        }),
    }
}
