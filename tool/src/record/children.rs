//! Runs perf programs, one at a time. A signal that would end this program ends perf instead, so the recording is kept.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

/// The pid of the running program, or 0.
static RUNNING: AtomicI32 = AtomicI32::new(0);
/// The last signal, or 0.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// The signal that is sent to perf. perf ends a recording only on SIGINT and SIGTERM.
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

/// Makes signals end perf from now on. This program ends by itself once it has kept the recording.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does only what a signal handler may do. Programs that are run do not inherit it.
        unsafe {
            let before = libc::signal(signal, hand_on as extern "C" fn(libc::c_int) as libc::sighandler_t);
            // `nohup`, or a shell for background jobs, has set this.
            if before == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// The signal that has arrived since the last call.
pub fn asked() -> Option<i32> {
    Some(ASKED.swap(0, Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Whether a signal has arrived since the last call of [`asked`].
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst) != 0
}

/// Starts a program. The caller must wait for its end before it starts another program.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let child = command.spawn()?;
    RUNNING.store(child.id() as i32, Ordering::SeqCst);
    let signal = ASKED.load(Ordering::SeqCst);
    if signal != 0 {
        // The signal arrived before the program could receive it.
        // SAFETY: a system call; the process is a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, for_perf(signal)) };
    }
    Ok(child)
}

/// Whether the program has ended. With `WNOHANG` among the options, the function returns at once, otherwise when the program
/// has ended. The pid is not reused until the program is waited for, so a signal that is sent after this call reaches no
/// other process.
fn look(child: &Child, options: libc::c_int) -> bool {
    // SAFETY: the struct has no invalid bit patterns, and the call writes nothing but this struct.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT | options) != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        info.si_pid() != 0
    }
}

/// Whether a program has ended. The program was not waited for yet.
pub fn has_ended(child: &Child) -> bool {
    look(child, libc::WNOHANG)
}

/// Waits until the program has ended.
pub fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    look(child, 0);
    RUNNING.store(0, Ordering::SeqCst);
    child.wait()
}

/// Starts a program whose output is read by [`read`].
pub fn start_piped(command: &mut Command) -> io::Result<Child> {
    start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// Passes the output of a program to `body`, and waits until the program has ended. Returns its exit status, its standard error
/// output, and the result of `body`.
pub fn read<T>(child: &mut Child, body: impl FnOnce(&mut dyn Read) -> T) -> io::Result<(ExitStatus, Vec<u8>, T)> {
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        })
    });
    // The pipe is closed when `body` returns, which ends a program that continues to print.
    let answer = match child.stdout.take() {
        Some(mut pipe) => body(&mut pipe),
        None => body(&mut io::empty()),
    };
    let status = wait(child)?;
    let said = errors.and_then(|thread| thread.join().ok()).transpose()?.unwrap_or_default();
    Ok((status, said, answer))
}

/// Runs a program to its end.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let mut stdout = Vec::new();
    let (status, stderr, read) = read(&mut start_piped(command)?, |pipe| pipe.read_to_end(&mut stdout))?;
    read?;
    Ok(Output { status, stdout, stderr })
}
