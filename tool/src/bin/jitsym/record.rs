//! `jitsym record`

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use jitsym_tool::doctor::log::Log;
use jitsym_tool::doctor::recording::{self, Run};
use jitsym_tool::doctor::{json, machine, Mark, Rank, Report};
use jitsym_tool::private::PrivateDir;
use jitsym_tool::record::perf::Perf;
use jitsym_tool::record::plan::{Options, Stacks as How, Target};
use jitsym_tool::record::stacks::Stacks;
use jitsym_tool::record::{self, command_line, Made, PROC};
use jitsym_tool::text::Safe;

use crate::progress::{injecting, reading};
use crate::{bundle, view};

/// Record a program or a running process with perf, so that compiled code has names, stacks and lines
///
/// At the end, jitsym prints how many samples in compiled code have names and whole stacks, and why names or stacks are
/// missing. The exit status is that of the recorded command (0 with --pid), 126 or 127 if this command cannot be run, or 125 if
/// perf cannot record.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym record --top --flamegraph hot.svg -- ./vm script")]
pub struct Record {
    /// Record this running process and its descendants, instead of a command
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Stop recording the process of --pid after S seconds, such as 0.5 (above 0; default: when the process ends)
    #[arg(long, value_name = "S", requires = "pid", value_parser = seconds)]
    seconds: Option<f64>,
    /// Write the recording to FILE, and rename an existing FILE to FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,
    /// Take N samples per second (at least 1)
    #[arg(short = 'F', long, value_name = "N", default_value_t = 499, value_parser = clap::value_parser!(u32).range(1..))]
    frequency: u32,
    /// Find stacks by unwind tables (dwarf) or frame pointers (fp), or record no stacks (none); dwarf,BYTES copies BYTES of
    /// stack per sample, 8 to 65528 in steps of 8 (dwarf alone: 8192) (default: dwarf, or fp for a runtime whose code keeps
    /// frame pointers)
    #[arg(short = 'g', long = "call-graph", value_name = "HOW")]
    stacks: Option<How>,
    /// Sample this event, written as for `perf record -e` (default: cycles, or cpu-clock if the processor has no counters)
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Set JITSYM_ADOPT=1, unless the variable is set: code memory becomes a mapping of ELF files, which every profiler reads.
    /// Use this only if one compiler, in one thread at a time, writes code
    #[arg(long, conflicts_with = "pid")]
    adopt: bool,
    /// Set no variables and arguments that make runtimes (Node.js, Deno, Python, wasmtime, Erlang, PHP, Java, .NET, MoarVM,
    /// Julia, Mono) write jitdumps or perf maps
    #[arg(long, conflicts_with = "pid")]
    no_runtime_setup: bool,
    /// Print the 10 hottest functions, each with its 3 most frequent callers
    #[arg(long)]
    top: bool,
    /// Write a flame graph of the recording to FILE.svg
    #[arg(long, value_name = "FILE.svg")]
    flamegraph: Option<PathBuf>,
    /// Make a bundle of the recording, as `jitsym bundle` does
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,
    /// Print JSON as `jitsym doctor --json` does, with "recording" and "status" added; the recorded command prints to standard
    /// error
    #[arg(long, conflicts_with = "top")]
    json: bool,
    /// Run this program instead of the perf in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: PathBuf,
    /// Run and record this command with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| "a number of seconds above 0".into())
}

fn say(line: &str) {
    crate::say(format_args!("jitsym: {line}"));
}

/// Records, prints what was asked for, and suggests commands for the recording.
pub fn run(args: Record) -> ExitCode {
    let target = match args.pid {
        Some(pid) => Target::Process(pid, args.seconds),
        None if args.command.is_empty() => {
            say("what is to be recorded? A command, `jitsym record -- COMMAND`, or a process, `jitsym record -p PID`");
            return ExitCode::from(2);
        }
        None => Target::Command(args.command),
    };
    let perf = match Perf::new(&args.perf, Path::new(PROC)) {
        Ok(perf) => perf,
        Err(cause) => {
            say(&cause);
            return ExitCode::from(125);
        }
    };
    let mut report = Report::default();
    let mut variables = machine::Variables::default();
    if let Target::Command(command) = &target {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        report.command = Some(command_line::shown(words.iter().map(AsRef::as_ref)));
        report.part("command");
        variables = machine::for_command(&mut report);
        // Problems known before the run are reported before it.
        let before = report.causes().into_iter().filter(|cause| cause.rank < Rank::Minor);
        before.for_each(|cause| say(&format!("warning: {}", cause.text)));
    }
    // The log takes the library's messages, unless the user wants to read them.
    let says = std::env::var_os("JITSYM_DEBUG").is_some_and(|value| !value.is_empty());
    let is_command = matches!(target, Target::Command(_));
    let work = (is_command && !says).then(|| PrivateDir::new(&std::env::temp_dir(), "jitsym-record-").ok()).flatten();
    let options = Options {
        out: args.output,
        frequency: args.frequency,
        event: args.event,
        stacks: args.stacks,
        sets_up: !args.no_runtime_setup,
        adopt: args.adopt,
        to_stderr: args.json,
        log: work.as_ref().map(|work| work.path().join("log")),
        target,
    };
    let made = match record::record(&perf, &options, &mut injecting(say)) {
        Ok(made) => made,
        Err(failure) => {
            say(&failure.cause);
            return ExitCode::from(failure.status);
        }
    };
    let log = options.log.as_ref().map(|path| Log::of_run(path, options.adopt));
    let mut stacks = Stacks::new(args.flamegraph.is_some());
    let known = Run { variables, log: log.as_ref(), seen: Some(&made.seen), is_own: is_command, is_passing: false };
    let looked = reading(|count| {
        let mut each = |sample: &_| {
            stacks.add(sample);
            count(sample);
        };
        recording::look(&perf, &options.out, known, &mut each, &mut report)
    });
    let shown =
        looked.and_then(|()| show(&stacks, &options.out, args.top, args.flamegraph.as_deref())).and_then(|()| {
            let Some(path) = &args.bundle else { return Ok(()) };
            let made = bundle::bundle(&perf, &options.out, path, true)?;
            let mut text = Vec::new();
            let _ = bundle::tell(path, &made, &mut text);
            String::from_utf8_lossy(&text).lines().for_each(say);
            Ok(())
        });
    if let Err(cause) = shown {
        say(&cause);
        return ExitCode::from(125);
    }
    let printed = if args.json {
        print_json(&report, &options.out, &made)
    } else {
        print(&report, &options.out);
        Ok(())
    };
    if made.is_set_up && made.status != 0 {
        say(&format!("the command has failed: {}", record::WITHOUT_SETUP));
    }
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(&format!("output: {error}"));
            ExitCode::from(125)
        }
        _ => ExitCode::from(made.status),
    }
}

/// Prints the shares, and the commands that show the recording. Also prints the cause if something is wrong.
fn print(report: &Report, data: &Path) {
    if let Some(shares) = report.shares.filter(|shares| shares.compiled > 0) {
        for (mark, line) in [Some(shares.names()), shares.stacks()].into_iter().flatten() {
            say(&if mark == Mark::Good { line } else { format!("warning: {line}") });
        }
    }
    say("look at it with");
    record::next_steps(data).iter().for_each(|step| crate::say(format_args!("    {step}")));
    if !report.causes().is_empty() {
        report.last_lines().iter().for_each(crate::say);
    }
}

fn print_json(report: &Report, data: &Path, made: &Made) -> io::Result<()> {
    let path = json::string(&data.display().to_string());
    let more = format!("\"recording\":{path},\"status\":{},\n", made.status);
    json::write(report, &more, &mut io::stdout().lock())
}

/// Prints the hottest functions, and writes the flame graph.
fn show(stacks: &Stacks, data: &Path, top: bool, flamegraph: Option<&Path>) -> Result<(), String> {
    if top {
        match stacks.top(&mut Safe(io::stdout().lock())) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(format!("output: {error}")),
            _ => {}
        }
    }
    flamegraph.map_or(Ok(()), |path| view::draw(stacks, data, path))
}
