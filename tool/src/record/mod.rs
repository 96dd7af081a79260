//! `jitsym record`: calls `perf record` rightly, works jitdumps in where that is needed, and says what it has done.

pub mod command_line;
pub mod contents;
pub mod perf;
pub mod plan;
pub mod run;
pub mod script;
pub mod stacks;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Instant, SystemTime};

use contents::{dump_of, Contents, Dump};
use perf::Perf;
use plan::{Options, Target};
pub use run::{is_recording, unfinished};
use stacks::Stacks;

/// A recording that was not made: the status to end with, and why.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub cause: String,
}

impl Failure {
    /// What perf itself, or the system, refuses.
    fn of(cause: impl ToString) -> Failure {
        Failure { status: 125, cause: cause.to_string() }
    }
}

/// Where the kernel's files are.
pub const PROC: &str = "/proc";

/// Makes a recording, and says in lines what was done. Returns the command's exit status.
pub fn record(perf: &Perf, options: &Options, say: &mut dyn FnMut(&str)) -> Result<u8, Failure> {
    let version = perf.version().map_err(Failure::of)?;
    let event = plan::event(options, Path::new("/sys"));
    let (pids, command, environment) = match &options.target {
        Target::Command(command) => {
            if let Some((status, cause)) = command.first().and_then(|word| plan::refusal(word)) {
                return Err(Failure { status, cause });
            }
            let environment = plan::environment(options.adopt, &|name| std::env::var_os(name));
            if let Some(value) = std::env::var_os("JITSYM").filter(|value| jitsym::turns_off(value)) {
                say(&format!("JITSYM={} is in the environment, and turns everything off", value.display()));
                jitsym::doubt("JITSYM".as_ref(), &value).inspect(|doubt| say(doubt));
            }
            (BTreeSet::new(), command.clone(), environment)
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
    let raw = plan::beside(&options.out, ".raw");
    let _ = fs::remove_file(&raw);
    let arguments = plan::arguments(options, &event, &raw, &pids);
    let cannot_start = |error| Failure::of(perf.cannot_start(&error));
    let is_command = matches!(options.target, Target::Command(_));
    if is_command {
        let tried = run::try_out(perf, &arguments, &raw).map_err(cannot_start)?;
        let _ = fs::remove_file(&raw);
        if !tried.recorded {
            return Err(Failure::of(perf.cause(&tried.said)));
        }
    }
    let (start, started) = (Instant::now(), SystemTime::now());
    let log = options.log.as_ref().map(|path| ("JITSYM_DEBUG", path.as_os_str()));
    let variables = environment.iter().map(|&(name, value)| (name, value.as_ref())).chain(log);
    let ran = run::run(perf, &arguments, &command, variables, &raw, is_command).map_err(cannot_start)?;
    let seconds = start.elapsed().as_secs_f64();
    if !ran.recorded {
        let _ = fs::remove_file(&raw);
        return Err(Failure::of(perf.cause(&ran.said)));
    }
    let contents = Contents::read(perf, &raw).map_err(Failure::of)?;
    let set: Vec<String> = environment.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let set = if set.is_empty() { String::new() } else { format!(", with{}", set.concat()) };
    say(&format!(
        "{} samples in {seconds:.1} s by perf {version} ({event}, {} a second, {}){set}",
        contents.samples,
        options.frequency,
        match options.stacks {
            plan::Stacks::Dwarf(size) => format!("stacks by unwind tables from {size} bytes"),
            plan::Stacks::FramePointers => "stacks by frame pointers".into(),
            plan::Stacks::None => "no stacks".into(),
        }
    ));
    let whose = Recorded { contents: &contents, since: is_command.then_some(started) };
    keep(perf, options, &raw, whose, say).map_err(Failure::of)?;
    // Whoever stops the recording of a process has got what they wanted.
    Ok(if is_command { run::exit_code(ran.status) } else { 0 })
}

/// `7` or `7 and its 3 children`.
fn named(pid: u32, children: usize) -> String {
    match children {
        0 => pid.to_string(),
        1 => format!("{pid} and its child"),
        _ => format!("{pid} and its {children} children"),
    }
}

/// Processes that are told of one by one.
const TOLD: usize = 6;

/// Works the jitdumps in if there are any, and puts the recording where it is wanted.
fn keep(
    perf: &Perf,
    options: &Options,
    raw: &Path,
    recorded: Recorded<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let contents = recorded.contents;
    let out = &options.out;
    let mut problem = None;
    let mut needed = false;
    let mut lines = Vec::new();
    for (&pid, process) in contents.with_jit() {
        for path in &process.dumps {
            match dump_of(pid, path) {
                Dump::Here { codes: 0, .. } => lines.push(format!("process {pid}: no code in {path}")),
                Dump::Here { codes, .. } => {
                    needed = true;
                    let pieces = if codes == 1 { "piece" } else { "pieces" };
                    lines.push(format!("process {pid}: {codes} {pieces} of code in {path}"));
                }
                Dump::Gone => problem = Some(format!("{path} of process {pid} is gone")),
                Dump::Unreadable(error) => problem = Some(format!("{path} of process {pid}: {error}")),
            }
        }
        if !process.regions.is_empty() {
            let count = process.regions.len();
            let files = if count == 1 { "file" } else { "files" };
            lines.push(format!("process {pid}: {count} {files} of regions, which perf reads as they are"));
        }
    }
    let more = lines.len().saturating_sub(TOLD);
    lines.iter().take(TOLD).for_each(|line| say(line));
    if more > 0 {
        say(&format!("and {more} more"));
    }
    let injected = plan::beside(out, ".injected");
    let mut made = raw.to_owned();
    if needed {
        let mut inject = perf.command("inject");
        inject.arg("--jit").arg("-i").arg(raw).arg("-o").arg(&injected);
        match perf.output(&mut inject) {
            Ok(_) => {
                let done = Contents::read(perf, &injected)?.is_injected();
                say(if done { "perf inject --jit has put that in" } else { "perf inject --jit has put nothing in" });
                // Without it everything but the command that was recorded is there.
                let _ = command_line::carry_over(raw, &injected);
                made.clone_from(&injected);
            }
            Err(cause) => {
                let _ = fs::remove_file(&injected);
                say(&format!("perf inject --jit has failed: {}", problem.unwrap_or(cause)));
            }
        }
    } else if let Some(problem) = problem {
        say(&format!("there is nothing to put in: {problem}"));
    } else if contents.with_jit().next().is_none() {
        say("no process had compiled code in memory: is it the right one, and did it run for long enough?");
    } else if !contents.with_jit().any(|(_, process)| !process.regions.is_empty()) {
        say(without_names(recorded));
    }
    put(&made, out).map_err(|error| format!("{}: {error}", out.display()))?;
    if made != raw {
        let _ = fs::remove_file(raw);
    }
    Ok(())
}

/// What is known of the processes that were recorded.
#[derive(Clone, Copy)]
struct Recorded<'a> {
    contents: &'a Contents,
    /// When a command was started. Files that are older are those of processes that had its numbers before.
    since: Option<SystemTime>,
}

/// What is said of compiled code that nothing tells of.
pub const WITHOUT_NAMES: &str =
    "there is compiled code, and nothing that names it: `jitsym doctor -- COMMAND` says why";

/// There is compiled code, and neither a jitdump nor a region tells of it.
fn without_names(recorded: Recorded<'_>) -> &'static str {
    let is_of_this = |map: fs::Metadata| {
        map.len() > 0 && recorded.since.is_none_or(|since| map.modified().is_ok_and(|written| written >= since))
    };
    let has_map = |pid: u32| {
        [format!("/tmp/perf-{pid}.map"), format!("{PROC}/{pid}/root/tmp/perf-{pid}.map")]
            .iter()
            .any(|path| fs::metadata(path).is_ok_and(is_of_this))
    };
    if recorded.contents.with_jit().any(|(&pid, _)| has_map(pid)) {
        return "names are in a perf map, and no jitdump has code: no whole stacks without frame pointers";
    }
    WITHOUT_NAMES
}

/// Gives a recording its name. One that was there stays as `.old`, as with perf.
fn put(made: &Path, out: &Path) -> io::Result<()> {
    if out.exists() {
        fs::rename(out, plan::beside(out, ".old"))?;
    }
    fs::rename(made, out)
}

/// Adds up the samples of a recording. This goes through all stacks, which takes perf longest.
pub fn add_up(perf: &Perf, data: &Path, stacks: &mut Stacks) -> Result<(), String> {
    let mut command = perf.command("script");
    command.arg("-i").arg(data).args(["--no-inline", "-F", script::FIELDS]);
    contents::with_output(perf, &mut command, |output| script::samples(output, &mut |sample| stacks.add(sample)))
}

/// What can be typed next.
pub fn next_steps(data: &Path) -> [String; 2] {
    let shown = quoted(data);
    [format!("perf report -i {shown} --no-children"), format!("jitsym doctor {shown}")]
}

/// A path as a shell takes it.
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
