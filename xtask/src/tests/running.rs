//! The process groups of the tests that run now. They end with the test, or with the run if somebody interrupts it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result};

pub struct Running(Arc<Mutex<Vec<u32>>>);

/// What a terminal, or a machine that has waited for too long, sends.
const INTERRUPTIONS: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

impl Running {
    /// From now on a thread waits for signals that are to end the run. `last` is called before it ends.
    pub fn until_interrupted(last: impl FnOnce() + Send + 'static) -> Result<Self> {
        let groups = Arc::new(Mutex::new(Vec::new()));
        let signals = interruptions();
        // SAFETY: a set that is initialised; the threads that follow inherit the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
        let theirs = Running(Arc::clone(&groups));
        std::thread::Builder::new().spawn(move || {
            let mut signal = 0;
            // SAFETY: a set that is initialised, and a number that is written.
            unsafe { libc::sigwait(&signals, &mut signal) };
            let groups = theirs.groups();
            groups.iter().for_each(|&group| kill_group(group));
            last();
            std::process::exit(128 + signal);
        })?;
        Ok(Running(groups))
    }

    /// Starts a test in a group of its own.
    pub fn start(&self, command: &mut Command) -> Result<Child> {
        let signals = interruptions();
        let begin = move || {
            // `nohup` has one ignored, and a shell without job control those of what runs in its background.
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: a system call, between fork and exec.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            // SAFETY: the same, with a set that is initialised.
            match unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: it makes nothing but system calls.
        unsafe { command.process_group(0).pre_exec(begin) };
        // Nobody looks at the list between the start and the note.
        let mut groups = self.groups();
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        groups.push(child.id());
        Ok(child)
    }

    /// Ends what a test has started and left. The test itself has not been waited for, so its number is still its own.
    pub fn end(&self, group: u32) {
        kill_group(group);
        self.groups().retain(|&other| other != group);
    }

    fn groups(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn kill_group(group: u32) {
    // SAFETY: a system call with two numbers.
    unsafe { libc::kill(-(group as libc::pid_t), libc::SIGKILL) };
}

fn interruptions() -> libc::sigset_t {
    // SAFETY: a set of integers, which `sigemptyset` initialises.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in INTERRUPTIONS {
            libc::sigaddset(&mut signals, signal);
        }
        signals
    }
}
