//! Waits for what comes in the end. What a wait allows is counted in turns of a millisecond and the time until the machine lets this
//! thread run again, so that a busy machine makes it longer: see c-tests/support/wait.h.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// After so many turns something hangs: ten minutes on a machine that has nothing else to do.
const TURNS: u32 = 600_000;

/// Waits until it is so. `what` is for the message.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(comes(&mut is_so), "never came: {what}");
}

fn comes(is_so: &mut dyn FnMut() -> bool) -> bool {
    for _ in 0..TURNS {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Runs a command that ends by itself, whatever it answers; one that hangs is killed and fails the test.
pub fn run_to_its_end(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let pid = child.id() as libc::pid_t;
    let output = std::thread::spawn(move || child.wait_with_output());
    if !comes(&mut || output.is_finished()) {
        // SAFETY: kill touches no memory; the process is there until its thread has waited for it.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("{command:?} does not end");
    }
    output.join().expect("thread").expect("output")
}
