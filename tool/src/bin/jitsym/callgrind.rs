//! `jitsym callgrind`

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jitsym_tool::callgrind::{self, Code, Summary, Texts};
use jitsym_tool::kind::Kind;
use jitsym_tool::open;
use jitsym_tool::text::Shown;

use crate::input::{self, Source};
use crate::progress::Progress;
use crate::{complain, written, Outcome};

/// Tail calls and functions in one place that are named in the summary.
const NAMED: usize = 5;

/// Name the compiled code in a recording of valgrind's callgrind
///
/// The command writes a copy of the recording with names, and with source files and lines if a jitdump has them. All costs stay
/// the same. The command finds jitdump and perf map by the PID in the recording, in JITSYM_DIR and /tmp. For lines and tail
/// calls, record with `--dump-instr=yes`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym callgrind callgrind.out.4711")]
pub struct Callgrind {
    /// Name the code in this recording (callgrind.out.PID)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Take names from this perf map, instead of searching for files by PID
    #[arg(long, value_name = "FILE", conflicts_with = "jitdump")]
    map: Option<PathBuf>,
    /// Take names and lines from this jitdump, instead of searching for files by PID
    #[arg(long, value_name = "FILE")]
    jitdump: Option<PathBuf>,
    /// Write the copy to FILE (default: callgrind.out.named.PID beside the recording)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A file that gets its final name when it is complete, and is removed otherwise.
struct Unfinished {
    path: PathBuf,
    is_whole: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the copy, and reports on it.
pub fn run(asked: &Callgrind, out: &mut dyn Write) -> Outcome {
    let mut texts = Texts::default();
    let output = asked.output.clone().unwrap_or_else(|| beside(&asked.file));
    let names = recording(&asked.file).and_then(|(_, pid)| code(asked, pid, &mut texts));
    let (code, names_of) = match names {
        Ok(names) => names,
        Err((path, error)) => {
            complain(&path, &error);
            return Outcome::Failed;
        }
    };
    match copy(&asked.file, &output, &code, &mut texts, &names_of) {
        Ok(summary) if summary.named.is_empty() => {
            let text = format!("no function has a name in {names_of}, and nothing is written");
            complain(&asked.file, &io::Error::new(io::ErrorKind::NotFound, text));
            Outcome::Found
        }
        Ok(summary) => written(tell(&output, &summary, &names_of, out)),
        Err((path, error)) => {
            complain(&path, &error);
            Outcome::Failed
        }
    }
}

/// An error with the file that it is about.
type Failure = (PathBuf, io::Error);

fn about(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    |error| (path.to_owned(), error)
}

/// Opens a recording, and reads which process it is of.
fn recording(path: &Path) -> Result<(File, Option<u32>), Failure> {
    let look = || {
        let mut start = BufReader::new(open::named(path)?);
        let pid = callgrind::pid(&mut start)?;
        let mut file = start.into_inner();
        file.rewind()?;
        Ok((file, pid))
    };
    look().map_err(about(path))
}

/// The code of the process, and the names of the files that describe it.
fn code(asked: &Callgrind, pid: Option<u32>, texts: &mut Texts) -> Result<(Code, String), Failure> {
    let given = asked.map.as_ref().map(|path| (path, Kind::PerfMap));
    let given = given.or(asked.jitdump.as_ref().map(|path| (path, Kind::Jitdump)));
    let sources = match (given, pid) {
        (Some((path, _)), _) => vec![Source::named(path)],
        (None, Some(pid)) => Source::of_process(pid).map_err(|error| {
            let text = format!("process {pid}: {error}; say where its code is with --map or --jitdump");
            (asked.file.clone(), io::Error::new(error.kind(), text))
        })?,
        (None, None) => {
            let error = io::Error::new(io::ErrorKind::NotFound, "has no pid: use --map or --jitdump");
            return Err((asked.file.clone(), error));
        }
    };
    let (mut code, mut names_of) = (Code::default(), Vec::new());
    let mut found = Vec::new();
    for source in sources {
        let path = source.path.clone();
        let input = match input::read(&source) {
            Ok(input) => input,
            Err(error) if given.is_some() => return Err((path, error)),
            // Another user may have made this file.
            Err(error) => {
                complain(&path, &error);
                continue;
            }
        };
        let kind = Kind::of(&input.bytes, &input.facts);
        if let Some((_, wanted)) = given.filter(|&(_, wanted)| wanted != kind) {
            let text = format!("is a {}, and no {}", kind.name(), wanted.name());
            return Err((path, io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        found.push((path, kind, input.bytes));
    }
    // Jitdumps come first, because they have more information.
    found.sort_by_key(|&(_, kind, _)| kind != Kind::Jitdump);
    for (path, kind, bytes) in found {
        let shown = path.shown().to_string();
        let object = texts.add(shown.as_bytes());
        match kind {
            Kind::PerfMap => code.add_map(&bytes, object, texts),
            Kind::Jitdump if code.add_jitdump(&bytes, object, texts) => {}
            Kind::Jitdump => {
                return Err((path, io::Error::new(io::ErrorKind::InvalidData, "is not a jitdump")));
            }
            Kind::Region => continue,
        }
        names_of.push(shown);
    }
    if code.is_empty() {
        let text = format!("no jitdump or perf map with code: {}", names_of.join(", "));
        return Err((asked.file.clone(), io::Error::new(io::ErrorKind::NotFound, text)));
    }
    Ok((code, names_of.join(", ")))
}

/// The path of the copy. KCachegrind opens all `callgrind.out.PID.*` together, so the pid must come last.
fn beside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default();
    let named = match name.to_str().and_then(|name| name.strip_prefix("callgrind.out.")) {
        Some(rest) => format!("callgrind.out.named.{rest}").into(),
        None => {
            let mut named = OsString::from("named.");
            named.push(name);
            named
        }
    };
    file.with_file_name(named)
}

/// Writes the copy. An existing file is replaced only if all went well and some names were found.
fn copy(from: &Path, to: &Path, code: &Code, texts: &mut Texts, names_of: &str) -> Result<Summary, Failure> {
    if fs::metadata(to).is_ok_and(|data| !data.is_file()) {
        return Err(about(to)(io::Error::new(io::ErrorKind::InvalidInput, "is not a file")));
    }
    let (file, _) = recording(from)?;
    let total = file.metadata().map_err(about(from))?.len();
    let mut name = OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let path = to.with_file_name(name);
    // The file gets the mode that callgrind uses, because the behaviour of a program may be private.
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(about(to))?;
    let mut unfinished = Unfinished { path, is_whole: false };
    let mut progress = Progress::new(format!("naming {}", from.shown()), total, false);
    let mut input = BufReader::with_capacity(1 << 18, file);
    let new = BufWriter::with_capacity(1 << 18, new);
    let result = callgrind::rewrite(&mut input, code, texts, names_of, &mut |done| progress.update(done), new);
    let (summary, _) = result.map_err(about(from))?;
    if !summary.named.is_empty() {
        fs::rename(&unfinished.path, to).map_err(about(to))?;
        unfinished.is_whole = true;
    }
    Ok(summary)
}

/// Reports on the copy: its names, and sums that cannot be separated.
fn tell(path: &Path, summary: &Summary, names_of: &str, out: &mut dyn Write) -> io::Result<()> {
    let share = |cost: u64| format!("{:.1} % of {}", cost as f64 * 100.0 / summary.total.max(1) as f64, summary.event);
    let functions = |count: usize| if count == 1 { "1 function".to_owned() } else { format!("{count} functions") };
    let (named, unnamed) = (summary.named.len(), summary.unnamed.len());
    writeln!(out, "{}: {} named by {names_of} ({})", path.shown(), functions(named), share(summary.named_cost))?;
    if unnamed > 0 {
        writeln!(out, "{} without a name there ({})", functions(unnamed), share(summary.unnamed_cost))?;
    }
    for names in summary.shared.iter().take(NAMED) {
        writeln!(out, "one address had several functions in turn, and their costs are one sum: {names}")?;
    }
    for (from, to, cost) in summary.tail_calls.iter().take(NAMED) {
        writeln!(out, "tail call: {} by {to} counts as that of {from}, which jumps to it", share(*cost))?;
    }
    for (count, what) in [(summary.shared.len(), "such addresses"), (summary.tail_calls.len(), "tail calls")] {
        if count > NAMED {
            writeln!(out, "and {} more {what}", count - NAMED)?;
        }
    }
    Ok(())
}
