//! `jitsym inject`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jitsym_tool::inject::{inject, usual, Given, Options, Problem, Summary};
use jitsym_tool::record::children;
use jitsym_tool::text::{count, printable, Shown};

use crate::progress::Progress;
use crate::{complain, written, Outcome};

/// The most dumps that are reported one by one.
const TOLD: usize = 5;

/// Put the code of jitdumps and regions into a recording of perf
///
/// The command does what `perf inject --jit` does: it writes a copy of the recording in which perf finds names, source lines
/// and unwind tables of compiled code. The command makes few files instead of one for each function. It uses the jitdumps of
/// all processes, and skips those that cannot be used. The recording must be made with `perf record -k 1`.
///
/// Code in regions gets such files too. perf finds the code in regions without them, but perf 7 loses stacks where memory is used
/// again, and perf 6 loses some of them. The files of the regions are found by their paths in the recording. For a recording
/// without jitdumps, `-k 1` is not needed.
///
/// A jitdump is found by its path in the recording, and must be the file that the process had mapped. If the recording does not
/// tell which file that was, a file of a user other than root, the recording's user, the process's user and the user of the
/// command is used only if `--dump` names it. The recording is not changed. The exit status is 1 if no jitdump can be used.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym inject -i perf.data && perf report -i jit.data --no-children")]
pub struct Inject {
    /// Read this recording
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    input: PathBuf,
    /// Write the new recording to FILE (default: jit.data beside perf.data, or NAME.jit.data beside NAME.data)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the objects that the new recording refers to into DIR (default: FILE.objects beside the new recording)
    #[arg(long, value_name = "DIR")]
    objects: Option<PathBuf>,
    /// Use this jitdump, of the process with this PID or of the process whose pid the jitdump has. Can be repeated
    #[arg(long, value_name = "[PID=]FILE", value_parser = dump)]
    dump: Vec<(Option<u32>, PathBuf)>,
    /// Search for jitdumps and files of regions in DIR before their recorded paths. Can be repeated
    #[arg(long, value_name = "DIR")]
    search: Vec<PathBuf>,
}

fn dump(word: &str) -> Result<(Option<u32>, PathBuf), String> {
    let split = word.split_once('=').and_then(|(pid, path)| Some((pid.parse().ok()?, path)));
    let (pid, path) = split.map_or((None, word), |(pid, path)| (Some(pid), path));
    if path.is_empty() {
        return Err("the name of a file is missing".into());
    }
    Ok((pid, path.into()))
}

/// Writes the new recording, and reports on it.
pub fn run(asked: &Inject, out: &mut dyn Write) -> Outcome {
    let options = Options {
        input: asked.input.clone(),
        output: asked.output.clone().unwrap_or_else(|| usual(&asked.input)),
        objects: asked.objects.clone(),
        given: Given { dumps: asked.dump.clone(), search: asked.search.clone() },
        ..Options::default()
    };
    let mut progress = Progress::new(format!("injecting into {}", asked.input.shown()), 0, false);
    children::catch_signals();
    let result = inject(&options, &mut |done, total| {
        progress.update_of(done, total);
        match children::asked() {
            Some(signal) => Err(io::Error::new(io::ErrorKind::Interrupted, format!("stopped by signal {signal}"))),
            None => Ok(()),
        }
    });
    drop(progress);
    match result {
        Ok(summary) => {
            let is_good = summary.problems.is_empty() || summary.good() > 0;
            let found = if is_good { Outcome::Good } else { Outcome::Found };
            found.max(written(tell(&options.output, &summary, out)))
        }
        Err((path, error)) => {
            complain(&path, &error);
            Outcome::Failed
        }
    }
}

fn tell(output: &Path, summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let output = output.shown();
    match &summary.dir {
        Some(dir) if summary.regions > 0 => {
            let jitdumps = match summary.good() {
                0 => String::new(),
                good => format!("{} and ", count(good, "jitdump")),
            };
            let regions = count(summary.regions, "file");
            let used = count(summary.used + summary.used_in_regions, "function");
            let processes = count(summary.processes, "process");
            let objects = count(summary.objects, "object");
            writeln!(
                out,
                "{output}: {used} of {jitdumps}{regions} of regions in samples of {processes}; {objects} in {}",
                dir.shown()
            )?;
        }
        Some(dir) if summary.uses_all => writeln!(
            out,
            "{output}: {} of {} of {}, because perf finds the samples in AUX data when it reads the recording; {} in {}",
            summary.used,
            count(summary.pieces, "function"),
            count(summary.processes, "process"),
            count(summary.objects, "object"),
            dir.shown()
        )?,
        Some(dir) => writeln!(
            out,
            "{output}: {}, {} of them in samples of {}; {} in {}",
            count(summary.pieces, "function"),
            summary.used,
            count(summary.processes, "process"),
            count(summary.objects, "object"),
            dir.shown()
        )?,
        None if summary.regions > 0 => {
            writeln!(out, "{output}: a copy, because no sample is in code of the jitdumps and regions")?;
        }
        None if summary.dumps == 0 => {
            writeln!(out, "{output}: a copy, because no process of the recording has a jitdump")?
        }
        None if summary.good() == 0 => {
            writeln!(out, "{output}: a copy, because no jitdump of the recording can be used")?
        }
        None => {
            let functions = count(summary.pieces, "function");
            writeln!(out, "{output}: a copy, because no sample is in one of the {functions} of the jitdumps")?;
        }
    }
    if summary.left_out > 0 {
        let uses = count(summary.left_out, "use");
        writeln!(
            out,
            "{uses} of code without a name: addresses were used again so often that there would be too many objects"
        )?;
    }
    for Problem { pid, path, why } in summary.problems.iter().take(TOLD) {
        let (path, why) = (printable(path.as_bytes()), printable(why.as_bytes()));
        match pid {
            0 => writeln!(out, "{path} {why}")?,
            _ => writeln!(out, "process {pid}: {path} {why}")?,
        }
    }
    if summary.problems.len() > TOLD {
        writeln!(out, "and {} more", summary.problems.len() - TOLD)?;
    }
    Ok(())
}
