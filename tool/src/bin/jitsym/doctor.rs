//! `jitsym doctor`

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use jitsym_tool::doctor::log::Log;
use jitsym_tool::doctor::recording::Run;
use jitsym_tool::doctor::{debuggers, json, machine, process, recording, Rank, Report};
use jitsym_tool::private::PrivateDir;
use jitsym_tool::record::perf::Perf;
use jitsym_tool::record::plan::{Options, Target};
use jitsym_tool::record::{self, command_line, view, PROC};

use crate::process::pid_of;
use crate::progress::{injecting, reading};
use crate::{written, Outcome};
use jitsym_tool::text::Shown;

/// Print the state of the machine and of a process or recording, why names or stacks are missing, and the command to type next
///
/// The exit status is 1 if something is wrong.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  jitsym doctor perf.data\n\nWith JITSYM_DEBUG=1 in a program's environment, libjitsym prints its decisions and refused calls to standard error."
)]
pub struct Doctor {
    /// Examine the process with this PID, or this recording of perf (default: only the machine)
    #[arg(value_name = "PID|FILE", conflicts_with = "command")]
    what: Option<PathBuf>,
    /// Record this command with its arguments, and examine the recording
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
    /// Print JSON instead of text: an object with "causes" and "type" (the next command); the recorded command prints to
    /// standard error
    #[arg(long)]
    json: bool,
    /// Read settings of the kernel below this directory
    #[arg(long, value_name = "DIR", default_value = PROC, hide = true)]
    proc: PathBuf,
}

/// Examines what was asked for, and prints the report.
pub fn run(asked: &Doctor, out: &mut dyn Write) -> Outcome {
    let mut report = Report::default();
    report.usual = Some("jitsym record -- COMMAND".into());
    let (perf, variables) = machine::look(&asked.perf, &asked.proc, &mut report);
    let known = Run { variables, ..Run::default() };
    let looked = match (&asked.what, asked.command.is_empty()) {
        (Some(what), _) => look(what, perf.as_ref(), known, &mut report),
        (None, false) => run_command(&asked.command, perf.as_ref(), known, asked.json, &mut report),
        (None, true) => Ok(()),
    };
    if let Err(text) = looked {
        let _ = out.flush();
        crate::say(format_args!("jitsym: {text}"));
        return Outcome::Failed;
    }
    let found = if report.causes().is_empty() { Outcome::Good } else { Outcome::Found };
    found.max(written(if asked.json { json::write(&report, "", out) } else { report.print(out) }))
}

fn look(what: &Path, perf: Option<&Perf>, known: Run<'_>, report: &mut Report) -> Result<(), String> {
    if let Some(pid) = pid_of(what) {
        return process::look(pid, Path::new(PROC), report);
    }
    view::check(what)?;
    // A missing perf was reported as the cause, and the recording cannot be read without perf.
    perf.map_or(Ok(()), |perf| reading(|each| recording::look(perf, what, known, each, report)))
}

/// Records a command, and examines the recording.
fn run_command(
    command: &[OsString],
    perf: Option<&Perf>,
    known: Run<'_>,
    json: bool,
    report: &mut Report,
) -> Result<(), String> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    report.command = Some(command_line::shown(words.iter().map(AsRef::as_ref)));
    let Some(perf) = perf else { return Ok(()) };
    let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-doctor-");
    let dir = dir.map_err(|error| format!("{}: {error}", std::env::temp_dir().shown()))?;
    let (data, log) = (dir.path().join("perf.data"), dir.path().join("log"));
    let options = Options {
        out: data.clone(),
        frequency: 499,
        event: None,
        stacks: None,
        sets_up: false,
        adopt: false,
        to_stderr: json,
        log: Some(log.clone()),
        target: Target::Command(command.to_vec()),
    };
    let mut said = Vec::new();
    let recorded = record::record(perf, &options, &mut injecting(|line| said.push(line.to_owned())));
    let looked = recorded.map_err(|failure| failure.cause).and_then(|made| {
        let status = made.status;
        report.part(format!("command {}", command.join(OsStr::new(" ")).shown()));
        said.iter().for_each(|line| report.note(line.clone()));
        if status != 0 {
            let text = format!("the command itself ended with {status}");
            report.cause(format!("it ended with {status}"), Rank::Minor, text, "COMMAND");
        }
        let told = Log::of_run(&log, options.adopt);
        if std::env::var_os("JITSYM_DEBUG").is_some_and(|value| !value.is_empty()) {
            // The user has asked for the messages too.
            crate::say(told.text());
        }
        debuggers::look_at_program(&command[0], report);
        let run = Run { log: Some(&told), seen: Some(&made.seen), is_own: true, is_passing: true, ..known };
        reading(|each| recording::look(perf, &data, run, each, report))
    });
    report.usual = Some("jitsym record -- COMMAND".into());
    looked
}
