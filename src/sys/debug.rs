//! Writes debug messages for users who set `JITSYM_DEBUG`, as lines on the standard error output or at the end of a file.

use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;

use super::futex::keeping_errno;
use super::{host_fds, privileges, thread};

/// The maximum length of a line, in bytes. Longer lines are cut.
const LINE_MAX: usize = 1024;

/// The maximum size of all waiting lines together, in bytes. A pipe accepts this number of bytes in one piece.
const WAITING_MAX: usize = 4 * LINE_MAX;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
/// In the state `CHECKS`, the library checks the host's calls, and writes messages as in the state `ON`.
const CHECKS: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The path of the file to which lines are appended. `FILE` has no value if lines go to the standard error output.
static FILE: OnceBox<PathBuf> = OnceBox::new();
/// Lines that wait until a thread of the host can write them. A thread holds the lock only while it adds a line or writes the
/// waiting lines.
static WAITING: Mutex<Lines> = Mutex::new(Lines { bytes: [0; WAITING_MAX], len: 0 });

/// Whether the user wants messages. The environment is read only once. The result is always false in a program that was
/// started with more rights than its caller has.
pub fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        state => state >= ON,
    }
}

/// Whether the user also wants the library to check the host's calls. The result is false until `is_on` has been called once.
#[inline]
pub fn checks() -> bool {
    STATE.load(Ordering::Relaxed) == CHECKS
}

#[cold]
fn look() -> bool {
    let value = std::env::var_os("JITSYM_DEBUG").filter(|_| !privileges::is_started_with_more()).unwrap_or_default();
    let value = value.as_bytes();
    let (value, checks) = match value.strip_prefix(b"check") {
        Some(rest) if matches!(rest, [] | [b',', ..]) => (rest.strip_prefix(b",").unwrap_or(b"1"), true),
        _ => (value, false),
    };
    if value.starts_with(b"/") {
        let _ = FILE.set(Box::new(OsStr::from_bytes(value).into()));
    }
    let is_on = !matches!(value, b"" | b"0" | b"off");
    let state = match (is_on, checks) {
        (false, _) => OFF,
        (true, false) => ON,
        (true, true) => CHECKS,
    };
    STATE.store(state, Ordering::Relaxed);
    is_on
}

/// Writes a line if the user wants messages. This function allocates no memory, and leaves `errno` unchanged.
pub fn say(text: fmt::Arguments<'_>) {
    if !is_on() {
        return;
    }
    let mut bytes = [0; LINE_MAX];
    let bytes = put_line(&mut bytes, format_args!("jitsym {}: {text}", std::process::id()));
    keeping_errno(|| {
        thread::quietly_writing(|| match FILE.get() {
            // The file is opened for each line, because the host may close all descriptors.
            Some(path) => append(path, bytes),
            None => write_where_the_host_does(bytes),
        });
    });
}

/// Puts a line with this text at the beginning of `bytes`, and returns the line. A text that is too long is cut.
fn put_line<'a>(bytes: &'a mut [u8; LINE_MAX], text: fmt::Arguments<'_>) -> &'a [u8] {
    let mut rest = &mut bytes[..LINE_MAX - 1];
    let _ = rest.write_fmt(text);
    let len = LINE_MAX - 1 - rest.len();
    // Paths and values may contain newlines, which must not break the line.
    bytes[..len].iter_mut().filter(|byte| byte.is_ascii_control()).for_each(|byte| *byte = b'?');
    bytes[len] = b'\n';
    &bytes[..=len]
}

/// Appends a line to the file. A failure is ignored, because it cannot be reported anywhere.
fn append(path: &Path, bytes: &[u8]) {
    let mut options = OpenOptions::new();
    // With O_NONBLOCK, `open` does not wait until a FIFO has a reader.
    options.append(true).create(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let _ = options.open(path).and_then(|mut file| file.write_all(bytes));
}

/// Writes a line to the standard error output, whose descriptor is only in the host's descriptor table. If no thread that
/// shares this table can write the line now, the line waits until a thread of the host calls `write_waiting`.
fn write_where_the_host_does(bytes: &[u8]) {
    let write = || {
        write_waiting();
        write_out(bytes);
    };
    if !host_fds::try_to_run(&write) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.add(bytes);
    }
}

/// Writes the lines that wait. Must be called on a thread of the host.
pub fn write_waiting() {
    // This function does not wait for the lock: the caller may be a signal handler that has interrupted the thread that holds
    // the lock.
    let Ok(mut waiting) = WAITING.try_lock() else { return };
    let Lines { bytes, len } = &mut *waiting;
    if *len > 0 {
        thread::quietly_writing(|| write_out(&bytes[..std::mem::take(len)]));
    }
}

/// Writes one or more lines in one piece, because other threads and processes write to the same file.
fn write_out(bytes: &[u8]) {
    if has_room(libc::STDERR_FILENO) {
        // SAFETY: `ManuallyDrop` keeps the descriptor from being closed here. The host decides which file the descriptor refers
        // to.
        let mut stderr = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(libc::STDERR_FILENO) });
        let _ = stderr.write_all(bytes);
    }
}

/// Whether a line can be written without a long wait. A pipe that poll(2) reports as ready has room for a line. If a pipe
/// does not become ready within the limit, the caller drops the line, because the host may be waiting for the calling thread.
fn has_room(descriptor: libc::c_int) -> bool {
    const LONGEST_WAIT_MS: libc::c_int = 100;
    let mut asked = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the pointer refers to one structure.
    unsafe { libc::poll(&raw mut asked, 1, LONGEST_WAIT_MS) == 1 }
}

/// Lines that no thread could write yet.
struct Lines {
    bytes: [u8; WAITING_MAX],
    len: usize,
}

impl Lines {
    /// Adds a line, or drops the line if there is no room.
    fn add(&mut self, line: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + line.len()) {
            room.copy_from_slice(line);
            self.len += line.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_of_bounded_length() {
        let mut bytes = [0; LINE_MAX];
        let line = put_line(&mut bytes, format_args!("a\nb {}", "x".repeat(3000)));
        assert_eq!(line.len(), LINE_MAX);
        assert!(line.starts_with(b"a?b x") && line.ends_with(b"x\n"));
    }

    /// The next test runs this test in a separate process, in which no other code writes messages.
    #[test]
    #[ignore = "is run by another one"]
    fn says_lines_where_nobody_writes_them() {
        let separate = || assert!(crate::sys::descriptor_table::separate());
        let said = std::thread::spawn(move || {
            separate();
            (1..=2).for_each(|number| say(format_args!("line {number}")));
        });
        said.join().unwrap();
        say(format_args!("line 3"));
        std::thread::spawn(move || {
            separate();
            (0..10).for_each(|_| say(format_args!("{}", "x".repeat(600))));
        })
        .join()
        .unwrap();
        write_waiting();
        write_waiting();
    }

    #[test]
    fn a_line_waits_for_a_thread_that_can_write_it() {
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "--ignored", "--nocapture", "sys::debug::tests::says_lines_where_nobody_writes_them"]);
        let output = program.env("JITSYM_DEBUG", "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> =
            said.lines().filter_map(|line| line.strip_prefix("jitsym ")?.split_once(": ")).map(|it| it.1).collect();
        assert_eq!(lines[..3], ["line 1", "line 2", "line 3"], "{said}");
        // The buffer had no room for some of the lines, but each line in the output is complete.
        assert!((3..=6).contains(&lines[3..].len()) && lines[3..].iter().all(|line| line.len() == 600), "{said}");
    }
}
