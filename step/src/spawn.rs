//! Starting a program so that it is traced before its first instruction.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::{ptrace, Tid};

fn pipe() -> io::Result<(std::fs::File, std::fs::File)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]).into(), OwnedFd::from_raw_fd(ends[1]).into()) })
}

/// The process stands before the first instruction of the program. It has no stop to report.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    let (mut told, tell) = pipe()?;
    let (wait, mut go) = pipe()?;
    let (tell_fd, wait_fd) = (tell.as_raw_fd(), wait.as_raw_fd());
    let before_exec = move || {
        // SAFETY: system calls that are safe in a forked child, with memory of its own.
        unsafe {
            let pid = libc::getpid();
            let written = libc::write(tell_fd, (&raw const pid).cast(), size_of::<Tid>());
            let mut byte = 0u8;
            match (written, libc::read(wait_fd, (&raw mut byte).cast(), 1)) {
                (4, 1) => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::EPIPE)),
            }
        }
    };
    // SAFETY: it makes system calls alone.
    unsafe { command.pre_exec(before_exec) };
    // `Command::spawn` returns after the exec, which waits for us: by another thread, because a tracer is a thread.
    let (child, seized) = std::thread::scope(|scope| {
        let starting = scope.spawn(move || {
            let child = command.spawn();
            drop((tell, wait));
            child
        });
        let mut pid = [0; 4];
        // Without a child there is an end of the file.
        let seized = told.read_exact(&mut pid).and_then(|()| ptrace::seize(Tid::from_ne_bytes(pid)));
        let seized = seized.and_then(|()| go.write_all(&[1]));
        // So that a child that was not seized fails.
        drop(go);
        (starting.join(), seized)
    });
    let child = child.map_err(|_| io::Error::other("the thread that starts the program has panicked"))??;
    seized?;
    let pid = child.id() as Tid;
    match ptrace::wait(pid, 0)? {
        Some((_, status)) if status >> ptrace::EVENT_SHIFT == libc::PTRACE_EVENT_EXEC => Ok(child),
        status => Err(io::Error::other(format!("the program did not start: {status:?}"))),
    }
}
