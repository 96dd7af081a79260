//! Runs tests, several at a time, each in a process group of its own.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::private::Private;
use super::running::Running;
use super::Built;

/// A test that is to be run.
pub struct Job {
    /// `SUITE::TEST`
    pub name: String,
    pub command: Command,
}

/// How a test has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    /// Something that it needs is not there, for example the rights of root.
    Skipped(String),
    Failed(String),
}

/// A test that has been run.
pub struct Ended {
    pub name: String,
    pub end: End,
    pub took: Duration,
    /// The time that processors worked for it and for what it has started.
    pub busy: Duration,
    /// What it has printed.
    pub output: PathBuf,
}

/// A test that runs for so long is ended: it hangs. The longest ones take a tenth of that on two quiet processors.
const HANGS: Duration = Duration::from_secs(30 * 60);

/// Begins the line of a test that cannot be run here; the reason follows.
const SKIPPED: &str = "skipped: ";

/// Refuses to run beside another run, because that would lose its files and programs. Held until dropped.
pub fn alone(scratch: &Path) -> Result<File> {
    std::fs::create_dir_all(scratch.parent().context("no directory")?)?;
    let lock = scratch.with_extension("lock");
    match crate::run::lock(&lock, false)? {
        Some(file) => Ok(file),
        None => bail!("another `cargo xtask test` runs in this checkout: it holds {}", lock.display()),
    }
}

/// Runs the tests, `at_once` at a time, in their order; and `beside` them something that most of them wait for.
pub fn run(
    jobs: Vec<Job>,
    at_once: usize,
    built: &Built,
    scratch: &Path,
    beside: impl FnOnce() + Send,
) -> Result<Vec<Ended>> {
    if scratch.exists() {
        std::fs::remove_dir_all(scratch)?;
    }
    std::fs::create_dir_all(scratch.join("output"))?;
    let all = jobs.len();
    let private = Arc::new(Private::new(scratch)?);
    let waiting = Mutex::new(jobs.into_iter().enumerate());
    let theirs = Arc::clone(&private);
    let running = Running::until_interrupted(move || theirs.remove())?;
    let (sender, receiver) = channel();
    let mut ended = Vec::new();
    let outcome = std::thread::scope(|scope| -> Result<()> {
        scope.spawn(beside);
        for _ in 0..at_once {
            let (sender, waiting, private, running) = (sender.clone(), &waiting, &private, &running);
            scope.spawn(move || loop {
                let Some((number, job)) = waiting.lock().ok().and_then(|mut jobs| jobs.next()) else { return };
                if sender.send(run_one(number, job, built, private, running, scratch)).is_err() {
                    return;
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(Duration::from_secs(60)) {
                Ok(test) => {
                    let test: Ended = test?;
                    super::report::line(ended.len() + 1, all, &test);
                    ended.push(test);
                }
                Err(RecvTimeoutError::Timeout) => println!("[{}/{all}] ...", ended.len()),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    });
    private.remove();
    outcome.map(|()| ended)
}

fn run_one(
    number: usize,
    mut job: Job,
    built: &Built,
    private: &Private,
    running: &Running,
    scratch: &Path,
) -> Result<Ended> {
    let output = scratch.join("output").join(job.name.replace("::", "-"));
    let file = File::create(&output).with_context(|| format!("{}", output.display()))?;
    job.command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    // What the tests use is there: see tests/support/mod.rs.
    let dir = scratch.join(number.to_string());
    std::fs::create_dir(&dir)?;
    job.command.env("JITSYM_TEST_DIR", &dir).env("JITSYM_TEST_TIER", built.tier.name());
    job.command.env("JITSYM_TEST_RUN", &built.run).env("JITSYM_TEST_TOOL", &built.tool);
    job.command.env("JITSYM_TEST_XTASK", std::env::current_exe()?);
    let _rooms = private.rooms(&mut job.command)?;
    let begun = Instant::now();
    let child = running.start(&mut job.command)?;
    let ended = has_ended(child.id())?;
    let took = begun.elapsed();
    running.end(child.id());
    let (status, busy) = wait(child.id())?;
    let end = if !ended {
        End::Failed(format!("did not end within {} minutes", HANGS.as_secs() / 60))
    } else if !status.success() {
        End::Failed(status.to_string())
    } else {
        skipped(&output)?.map_or(End::Passed, End::Skipped)
    };
    // The files of a test that has failed may tell why.
    if !matches!(end, End::Failed(_)) {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(Ended { name: job.name, end, took, busy, output })
}

/// Waits until a child has ended, for which nobody has waited yet. False: it hangs.
fn has_ended(child: u32) -> Result<bool> {
    // SAFETY: a system call with two numbers.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, child as libc::pid_t, 0) };
    if number < 0 {
        return Err(std::io::Error::last_os_error()).context("pidfd_open");
    }
    // SAFETY: a new descriptor, which is nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(number as libc::c_int) };
    Ok(crate::run::is_readable(&file, HANGS.as_millis() as i32))
}

/// Waits for a child, and returns what processors did for it too.
fn wait(child: u32) -> Result<(ExitStatus, Duration)> {
    // SAFETY: integers.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    // SAFETY: both are written.
    if unsafe { libc::wait4(child as libc::pid_t, &mut status, 0, &mut usage) } < 0 {
        return Err(std::io::Error::last_os_error()).context("wait4");
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)))
}

fn skipped(output: &Path) -> Result<Option<String>> {
    let text = std::fs::read(output)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().find_map(|line| line.strip_prefix(SKIPPED)).map(str::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Tier;

    /// Runs shell scripts as tests, and returns how they end.
    fn ends(name: &str, scripts: &[&str]) -> Vec<End> {
        let scratch = crate::program::root().join(format!("target/{name}-{}", std::process::id()));
        let job = |(number, script): (usize, &&str)| {
            let mut command = Command::new("sh");
            command.args(["-euc", script]).current_dir(crate::program::root());
            Job { name: format!("script::{number}"), command }
        };
        let jobs = scripts.iter().enumerate().map(job).collect();
        let built = Built { binaries: Vec::new(), tool: "tool".into(), tier: Tier::Gate, run: "run".into() };
        let mut ended = run(jobs, 2, &built, &scratch, || ()).unwrap();
        ended.sort_by(|one, other| one.name.cmp(&other.name));
        std::fs::remove_dir_all(scratch).unwrap();
        ended.into_iter().map(|test| test.end).collect()
    }

    #[test]
    fn one_run_at_a_time() {
        let scratch = crate::program::root().join(format!("target/alone-{}", std::process::id()));
        let first = alone(&scratch).unwrap();
        let refused = alone(&scratch).unwrap_err().to_string();
        assert!(refused.starts_with("another `cargo xtask test` runs in this checkout"), "{refused}");
        drop(first);
        drop(alone(&scratch).unwrap());
        std::fs::remove_file(scratch.with_extension("lock")).unwrap();
    }

    #[test]
    fn ends_are_told_apart() {
        let ends = ends("ends", &["echo fine", "echo 'skipped: no such machine'", "exit 3", "kill -9 $$"]);
        assert_eq!(ends[..2], [End::Passed, End::Skipped("no such machine".into())]);
        assert!(matches!(&ends[2], End::Failed(status) if status.contains('3')), "{ends:?}");
        assert!(matches!(&ends[3], End::Failed(status) if status.contains('9')), "{ends:?}");
    }

    /// Neither files nor processes of a test are there when it has ended, and it has seen no files of another.
    #[test]
    fn nothing_is_left() {
        // SAFETY: a system call.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: needs root to mount directories");
            return;
        }
        let name = format!("jitsym-left-{}", std::process::id());
        let note = crate::program::root().join("target").join(&name);
        let leaves = format!(
            "! ls /tmp/{name} /dev/shm/{name}; touch /tmp/{name} /dev/shm/{name}; sleep 1000 & echo $! >{}",
            note.display()
        );
        assert_eq!(ends("left", &[&leaves]), [End::Passed]);
        let sleeper = std::fs::read_to_string(&note).unwrap();
        std::fs::remove_file(&note).unwrap();
        for place in ["/tmp", "/dev/shm"] {
            assert!(!Path::new(place).join(&name).exists(), "a file is left in {place}");
        }
        // The signal has been sent; the process ends when it gets a processor.
        let lives = |state: String| state.contains("(sleep)") && !state.contains(") Z");
        while std::fs::read_to_string(format!("/proc/{}/stat", sleeper.trim())).is_ok_and(lives) {
            std::thread::yield_now();
        }
    }
}
