//! The programs that are run: perf, one at a time. A signal that is to end this program ends perf, and what was recorded is kept.

use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

/// The program that runs; 0 for none.
static RUNNING: AtomicI32 = AtomicI32::new(0);
/// The last signal; 0 for none.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// perf ends a recording on these two, and on no other signal.
fn for_perf(signal: i32) -> i32 {
    if signal == libc::SIGINT {
        libc::SIGINT
    } else {
        libc::SIGTERM
    }
}

extern "C" fn hand_on(signal: libc::c_int) {
    ASKED.store(signal, Ordering::SeqCst);
    let pid = RUNNING.load(Ordering::SeqCst);
    if pid > 0 {
        // SAFETY: kill may be called from a signal handler, and changes no memory.
        unsafe { libc::kill(pid, for_perf(signal)) };
    }
}

/// From now on signals end perf, and this program by itself when it has kept what there is.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does nothing but what may be done in one. It is not inherited by programs that are run.
        unsafe {
            let before = libc::signal(signal, hand_on as extern "C" fn(libc::c_int) as libc::sighandler_t);
            // As `nohup` wants it, or a shell of what runs in its background.
            if before == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// The signal that has come since this was asked last.
pub fn asked() -> Option<i32> {
    Some(ASKED.swap(0, Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Starts a program. One has to be waited for before the next one.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let child = command.spawn()?;
    RUNNING.store(child.id() as i32, Ordering::SeqCst);
    let signal = ASKED.load(Ordering::SeqCst);
    if signal != 0 {
        // It came before there was anybody to hand it on to.
        // SAFETY: a system call; the process is a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, for_perf(signal)) };
    }
    Ok(child)
}

/// Waits until it has ended.
pub fn wait(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    // Its number is its own until it is waited for: so a signal that comes now reaches nobody else.
    // SAFETY: the call writes nothing but this struct.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT) != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    RUNNING.store(0, Ordering::SeqCst);
    child.wait()
}

/// Runs a program to its end.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut pipe, &mut bytes).map(|_| bytes)
        })
    });
    let mut stdout = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |mut pipe| io::Read::read_to_end(&mut pipe, &mut stdout));
    let status = wait(&mut child)?;
    read?;
    let stderr = errors.and_then(|thread| thread.join().ok()).transpose()?.unwrap_or_default();
    Ok(Output { status, stdout, stderr })
}
