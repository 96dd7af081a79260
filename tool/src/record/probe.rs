//! Tests whether a runtime starts with the settings that are made for it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jitsym::sys::process;

use super::children;
use super::perf::find_program;
use super::resolve::Resolved;
use super::runtimes::Runtime;
use super::setup::Setup;
use crate::private::PrivateDir;

/// The maximum time of the test. A slower runtime is not set up.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two checks of the runtime.
const PAUSE: Duration = Duration::from_millis(5);

/// Whether the runtime starts with this setup. The runtime writes its files into a directory that is removed.
pub fn starts(runtime: &Runtime, found: &Resolved, setup: &Setup) -> bool {
    let Some((program, words)) = program(runtime, found) else { return true };
    let Ok(dir) = PrivateDir::new(&std::env::temp_dir(), "jitsym-probe-") else { return false };
    // A directory that `env` sets is unknown at this point. A variable that `env` sets is known.
    let mut command = Command::new(absolute(program));
    command.current_dir(dir.path()).args(words.into_iter().map(|word| absolute(word.into())));
    for (name, value) in runtime.asked_with {
        match *value {
            "" => command.env_remove(name),
            value => command.env(name, value),
        };
    }
    command.envs(setup.variables.iter().map(|(name, value)| (*name, value)));
    // perf's agent of Java writes to this directory.
    command.env("JITDUMPDIR", dir.path());
    ends_well(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// The absolute path of an existing file. Links are not resolved, because Python finds its environment by them.
fn absolute(word: PathBuf) -> PathBuf {
    let path = word.components().nth(1).filter(|_| word.exists()).and_then(|_| std::path::absolute(&word).ok());
    path.unwrap_or(word)
}

/// The program that is tested, and its arguments. `None` if no test is necessary.
fn program(runtime: &Runtime, found: &Resolved) -> Option<(PathBuf, Vec<OsString>)> {
    let (first, rest) = runtime.probe.split_first()?;
    if runtime.programs.contains(first) {
        let path = find_program(first.as_ref())?;
        return Some((path, rest.iter().map(OsString::from).collect()));
    }
    // The word of a script follows its interpreter.
    let words = found.words.get(found.at..)?;
    let name = |word: &OsString| Path::new(word).file_name()?.to_str().map(|name| runtime.is_named(name).is_some());
    let last = words.iter().position(|word| name(word) == Some(true)).unwrap_or(0);
    let more = runtime.arguments().iter().chain(runtime.probe).map(OsString::from);
    Some((find_program(words.first()?)?, words[1..].iter().take(last).cloned().chain(more).collect()))
}

/// Whether a program ends in time and without an error. All programs that it has started are also ended.
fn ends_well(command: &mut Command) -> bool {
    let Ok(mut child) = command.process_group(0).spawn() else { return false };
    let start = Instant::now();
    while !children::has_ended(&child) && start.elapsed() < PATIENCE && !children::is_asked() {
        std::thread::sleep(PAUSE);
    }
    // SAFETY: `kill` takes no pointer. The child is not waited for yet, so this number is still the id of the child's process
    // group.
    let _ = unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    let status = child.wait();
    remove_files(child.id());
    status.is_ok_and(|status| status.success())
}

/// Removes the files that a runtime writes to `/tmp` for perf.
fn remove_files(pid: u32) {
    for path in [format!("/tmp/perf-{pid}.map"), format!("/tmp/jit-{pid}.dump")] {
        if fs::symlink_metadata(&path).is_ok_and(|data| data.is_file() && data.uid() == process::user()) {
            // A file that cannot be removed stays, as it does after a run of the runtime without this program.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether perf's agent of Java can make its jitdump. The agent needs a directory below this directory, in which files can be
/// mapped executable.
pub fn has_place_for_agent(env: &dyn Fn(&str) -> Option<OsString>) -> bool {
    let base = ["JITDUMPDIR", "HOME"].iter().find_map(|name| env(name)).unwrap_or_else(|| ".".into());
    let dir = Path::new(&base);
    // The agent makes `.debug` and `jit` if they are missing.
    let dirs = [dir.join(".debug/jit"), dir.join(".debug"), dir.to_owned()];
    let Some(dir) = dirs.into_iter().find(|dir| dir.is_dir()) else { return false };
    let Ok(place) = PrivateDir::new(&dir, ".jitsym-probe-") else { return false };
    is_executable(place.path())
}

/// Whether a file in this directory can be mapped executable.
fn is_executable(dir: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let path = dir.join("probe");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(path);
    let Ok(file) = file.and_then(|file| file.set_len(1).map(|()| file)) else { return false };
    let (null, len) = (std::ptr::null_mut(), 1);
    let prot = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the mapping is new, and nobody uses it before it is removed.
    unsafe {
        let mapped = libc::mmap(null, len, prot, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        mapped != libc::MAP_FAILED && libc::munmap(mapped, len) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_end() {
        let sh = |script: &str| ends_well(Command::new("sh").args(["-c", script]));
        assert!(sh("true") && !sh("exit 9") && !sh("kill -9 $$"));
        assert!(!ends_well(&mut Command::new("/nowhere")));
    }

    #[test]
    fn a_place_for_the_agent() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-agent-").unwrap();
        let env = |home: &str| {
            let home = OsString::from(home);
            move |name: &str| (name == "HOME").then(|| home.clone())
        };
        assert!(has_place_for_agent(&env(&dir.path().display().to_string())));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!has_place_for_agent(&env("/proc")) && !has_place_for_agent(&env("/nowhere")));
    }
}
