//! `jitsym record`: runs `perf record` with the right options, injects jitdumps if necessary, and reports the results.

pub mod children;
pub mod command_line;
pub mod contents;
mod data;
pub mod dumps;
mod linked;
pub mod perf;
pub mod plan;
mod probe;
mod resolve;
pub mod run;
mod runtimes;
pub mod script;
mod setup;
pub mod stacks;
pub mod view;
pub mod watch;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use contents::Contents;
use perf::Perf;
use plan::{Options, Target};
pub use run::{is_recording, unfinished};

use crate::inject;
use crate::private::PrivateDir;
use crate::text::Shown;

/// The reason why no recording was made: exit status and cause.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub cause: String,
}

impl Failure {
    /// A failure because perf or the system has refused a request.
    fn of(cause: impl ToString) -> Failure {
        Failure { status: 125, cause: cause.to_string() }
    }

    /// A failure because a signal has ended the recording.
    fn by(signal: i32, cause: &str) -> Failure {
        Failure { status: 128 + signal as u8, cause: cause.into() }
    }
}

/// The directory of the kernel's process files.
pub const PROC: &str = "/proc";

/// The recording that was made.
#[derive(Debug)]
pub struct Made {
    /// The command's exit status.
    pub status: u8,
    /// The results of comparing memory with the jitdumps.
    pub seen: watch::Seen,
    /// Whether variables or arguments were set for the runtime of the command.
    pub is_set_up: bool,
}

/// The message if a command that was set up, or its recording, has failed.
pub const WITHOUT_SETUP: &str = "--no-runtime-setup records without what was set for the runtime";

/// The progress of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A line to print.
    Line(&'a str),
    /// A line to print about missing data.
    Problem(&'a str),
    /// The progress of the injection: the work done, and all of its work.
    Injecting(u64, u64),
    /// The injection has ended.
    Injected,
}

const NOTHING: &str = "stopped before anything was recorded";

/// Makes a recording, and reports the progress to `tell`.
pub fn record(perf: &Perf, options: &Options, tell: &mut dyn FnMut(Step<'_>)) -> Result<Made, Failure> {
    let mut setup = setup::Setup::default();
    record_with(perf, options, &mut setup, tell).map_err(|failure| match setup.is_set {
        true => Failure { cause: format!("{}\njitsym: {WITHOUT_SETUP}", failure.cause), ..failure },
        false => failure,
    })
}

fn record_with(
    perf: &Perf,
    options: &Options,
    setup: &mut setup::Setup,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Made, Failure> {
    children::catch_signals();
    let mut say = |line: &str| tell(Step::Line(line));
    let version = perf.version().map_err(Failure::of)?;
    let event = plan::event(options, Path::new("/sys"));
    let (pids, command, environment) = match &options.target {
        Target::Command(command) => {
            if let Some((status, cause)) = command.first().and_then(|word| plan::refusal(word)) {
                return Err(Failure { status, cause });
            }
            let env = |name: &str| std::env::var_os(name);
            let environment = plan::environment(options.adopt, &env);
            if options.sets_up {
                *setup = setup::of(command, &env).unwrap_or_default();
                if let Some(signal) = children::asked() {
                    return Err(Failure::by(signal, NOTHING));
                }
            }
            setup.line.iter().for_each(|line| say(line));
            (BTreeSet::new(), setup.command.take().unwrap_or_else(|| command.clone()), environment)
        }
        Target::Process(pid, seconds) => {
            if !Path::new(PROC).join(pid.to_string()).exists() {
                return Err(Failure { status: 125, cause: format!("there is no process {pid}") });
            }
            let pids = plan::family(*pid, Path::new(PROC));
            let until =
                seconds.map_or("until it ends (Ctrl-C stops earlier)".into(), |seconds| format!("for {seconds} s"));
            say(&format!("recording process {}, {until}", named(*pid, pids.len() - 1)));
            let sleep = seconds.map(|seconds| ["sleep".into(), OsString::from(seconds.to_string())]);
            (pids, sleep.into_iter().flatten().collect(), Vec::new())
        }
    };
    plan::check_place(&options.out).map_err(Failure::of)?;
    let out = options.out.shown();
    let mut work = PrivateDir::beside(&options.out).map_err(|error| Failure::of(format!("{out}: {error}")))?;
    let raw = work.path().join("perf.data");
    let stacks = options.stacks.or(setup.stacks).unwrap_or(plan::STACKS);
    let arguments = plan::arguments(options, stacks, &event, &raw, &pids);
    let cannot_start = |error| Failure::of(perf.cannot_start(&error));
    let is_command = matches!(options.target, Target::Command(_));
    if is_command {
        let tried = run::try_out(perf, &arguments, &raw).map_err(cannot_start)?;
        let _ = fs::remove_file(&raw);
        if let Some(signal) = children::asked() {
            return Err(Failure::by(signal, NOTHING));
        }
        if !tried.recorded {
            return Err(Failure::of(perf.failure(tried.status, &tried.said)));
        }
    }
    let start = Instant::now();
    let log = options.log.as_ref().map(|path| ("JITSYM_DEBUG", path.as_os_str()));
    let of_runtime = setup.variables.iter().map(|(name, value)| (*name, value.as_os_str()));
    let variables = environment.iter().map(|&(name, value)| (name, value.as_ref())).chain(log).chain(of_runtime);
    let how = run::How { is_quiet: is_command, to_stderr: options.to_stderr, pids: &pids };
    let ran = run::run(perf, &arguments, &command, variables, &raw, how).map_err(cannot_start)?;
    let seconds = start.elapsed().as_secs_f64();
    // A signal that has arrived before this check was meant to end the recording.
    match children::asked() {
        _ if ran.recorded => {}
        Some(signal) => return Err(Failure::by(signal, NOTHING)),
        None => return Err(Failure::of(perf.failure(ran.status, &ran.said))),
    }
    let set: Vec<String> = environment.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let set = if set.is_empty() { String::new() } else { format!(", with{}", set.concat()) };
    let head = |samples: u64| {
        format!(
            "{samples} samples in {seconds:.1} s by perf {version} ({event}, {} a second, {}){set}",
            options.frequency,
            match stacks {
                plan::Stacks::Dwarf(size) => format!("stacks by unwind tables from {size} bytes"),
                plan::Stacks::FramePointers => "stacks by frame pointers".into(),
                plan::Stacks::None => "no stacks".into(),
            }
        )
    };
    // Even after a failure of the next steps, the recording of perf exists.
    if let Err(error) = put(&raw, &options.out) {
        work.keep();
        return Err(Failure::of(format!("{out}: {error}; the recording is {}", raw.shown())));
    }
    let read = Contents::read(perf, &options.out).map(|contents| {
        tell(Step::Line(&head(contents.samples)));
        let out = &options.out;
        let users = ran.seen.users.iter().copied().collect();
        let injection =
            inject::Options { input: out.clone(), output: out.clone(), users, replaces: true, ..Default::default() };
        dumps::put_in(&injection, &contents, tell);
    });
    match (read, children::asked()) {
        (_, Some(signal)) => {
            Err(Failure::by(signal, &format!("stopped: {out} is as perf has recorded it, perhaps without names")))
        }
        (Err(cause), None) => Err(Failure::of(format!("{cause}; {out} is as perf has recorded it"))),
        // It is not a failure if a user stops the recording of a process.
        (Ok(()), None) => {
            let status = if is_command { run::exit_code(ran.status) } else { 0 };
            Ok(Made { status, seen: ran.seen, is_set_up: setup.is_set })
        }
    }
}

/// The name of a process with its children: `7` or `7 and its 3 children`.
fn named(pid: u32, children: usize) -> String {
    match children {
        0 => pid.to_string(),
        1 => format!("{pid} and its child"),
        _ => format!("{pid} and its {children} children"),
    }
}

/// Moves the recording to its final name. An existing recording is renamed to `.old`, as by perf.
fn put(made: &Path, out: &Path) -> io::Result<()> {
    // Another file may have been created there in the meantime.
    plan::check_place(out).map_err(io::Error::other)?;
    if out.exists() {
        fs::rename(out, plan::beside(out, ".old"))?;
    }
    fs::rename(made, out)
}

/// Commands that the user can type next.
pub fn next_steps(data: &Path) -> [String; 2] {
    let shown = quoted(data);
    [format!("perf report -i {shown} --no-children"), format!("jitsym doctor {shown}")]
}

/// A path, quoted for a shell.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_a_shell() {
        assert_eq!(quoted(Path::new("a/b-1.data")), "a/b-1.data");
        assert_eq!(quoted(Path::new("a b's")), "'a b'\\''s'");
    }
}
