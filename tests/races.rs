//! Data races inside the library itself: its Rust code is built for ThreadSanitizer, helgrind and drd, and linked with programs
//! of `c-tests/`; and its protocols are run by loom (`tests/models/`), which tries every order of events. Each tool has to find a
//! mistake that is put in for it.
//!
//! The standard library is not instrumented, so the library's locks are POSIX ones for these tools (`src/sys/sync`).

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::instrumented::{thread_options, SAME_ADDRESSES, THREAD, VALGRIND};
use crate::support::{describe, fresh_dir, root, run, scratch_dir, stdout, try_run};

/// helgrind and drd take an access that is atomic for any other, and the order that it gives for none. So they are not shown what
/// rests on such order (`locks` in the program), and accesses that are atomic are left out. Nor do they like that a condition
/// variable is signalled when the lock has just been given back, which POSIX allows.
const VALGRIND_SUPPRESSIONS: &str = "
{
   helgrind: an atomic access
   Helgrind:Race
   fun:*atomic_*
}
{
   drd: an atomic access
   drd:ConflictingAccess
   fun:*atomic_*
}
{
   helgrind: signalled without the lock
   Helgrind:Misc
   obj:*vgpreload_helgrind*
   fun:*Condvar*notify_all*
}
{
   drd: signalled without the lock
   drd:CondRaceErr
   fun:pthread_cond_broadcast*
   fun:*Condvar*notify_all*
}
";

/// Runs a program behind `tool` with a directory of its own. That the files in it are right other tests see to.
fn try_program(tool: &[&str], program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> (Command, Output) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let dir = fresh_dir(format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new("env");
    command.args(tool).arg(program).arg(&dir).args(arguments);
    command.env("TSAN_OPTIONS", thread_options());
    command.envs(environment.iter().copied());
    let output = try_run(&mut command);
    std::fs::remove_dir_all(&dir).expect("remove the scratch directory");
    (command, output)
}

fn check(tool: &[&str], program: &Path, arguments: &[&str]) {
    let (command, output) = try_program(tool, program, arguments, &[]);
    let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
    assert!(clean, "{}", describe(&command, &output));
}

/// `FILE:LINE` of the one line with this text.
fn place(file: &str, text: &str) -> String {
    let source = std::fs::read_to_string(root().join(file)).expect("source");
    let mut lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
    let (_, line) = lines.next().unwrap_or_else(|| panic!("{file} has no line with {text}"));
    assert!(lines.next().is_none(), "{file} has several lines with {text}");
    format!("{file}:{line}")
}

fn thread_sanitizer(source: &str, arguments: &[&str]) {
    check(SAME_ADDRESSES, &THREAD.program("gcc", &[&format!("c-tests/{source}.c")]), arguments);
}

#[test]
fn thread_sanitizer_races() {
    thread_sanitizer("races/races", &["light"]);
}

#[test]
fn thread_sanitizer_threads() {
    thread_sanitizer("calls/threads", &["light"]);
}

#[test]
fn thread_sanitizer_stable() {
    thread_sanitizer("calls/stable", &["light"]);
}

#[test]
fn thread_sanitizer_host() {
    thread_sanitizer("host/host", &["light"]);
}

/// What of the order between threads ThreadSanitizer would miss.
#[test]
fn thread_sanitizer_finds_a_weak_order() {
    let program = THREAD.program("gcc", &["c-tests/races/races.c"]);
    for (file, text) in [
        // A record is published before it is laid down.
        ("src/queue/chunk.rs", "committed.store(self.events, Ordering::Release)"),
        // A chunk comes back before the writer has read it.
        ("src/queue/pool.rs", "self.top.fetch_update("),
    ] {
        let weak = place(file, text);
        // Which threads meet is chance, so that a run now and then shows nothing, and many do on a single processor.
        let is_found = (0..400).any(|_| {
            let (_, output) = try_program(SAME_ADDRESSES, &program, &["registering"], &[("JITSYM_WEAKEN", &weak)]);
            let report = String::from_utf8_lossy(&output.stderr);
            !output.status.success() && report.contains("WARNING: ThreadSanitizer: data race")
        });
        assert!(is_found, "ThreadSanitizer does not find what is wrong at {weak}");
    }
}

fn valgrind(tool: &'static str, program: &Path, mode: &str, environment: &[(&str, &str)]) -> (Command, Output) {
    let suppressions = scratch_dir("suppressions").join(tool);
    std::fs::write(&suppressions, VALGRIND_SUPPRESSIONS).expect("write the suppressions");
    let suppressions = format!("--suppressions={}", suppressions.display());
    let tool = format!("--tool={tool}");
    let valgrind = ["valgrind", "-q", &tool, &suppressions, "--fair-sched=yes", "--error-exitcode=9"];
    try_program(&valgrind, program, &[mode], environment)
}

/// What locks protect: sessions, flush, close, the start and the end of the writer, forks. And that the tools see it if they do
/// not: what goes from thread to thread without a lock.
#[test]
#[ignore = "slow"]
fn helgrind_and_drd() {
    let program = VALGRIND.program("gcc", &["c-tests/races/races.c"]);
    for tool in ["helgrind", "drd"] {
        let (command, output) = valgrind(tool, &program, "locks", &[]);
        let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
        assert!(clean, "{}", describe(&command, &output));
        let (command, output) = valgrind(tool, &program, "light", &[]);
        assert!(!output.status.success(), "{tool} finds nothing\n{}", describe(&command, &output));
    }
}

/// The models hold, and fail if the order is taken away from an access that they depend on.
#[test]
fn models() {
    let dir = root().join("target/models");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "--quiet", "--locked", "--release", "--package", "jitsym-models"]);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    run(cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "8").arg("--target-dir").arg(&dir));
    let output = run(Command::new(dir.join("release/jitsym-models")).env("RUST_BACKTRACE", "0"));
    println!("{}", stdout(&output));
}

/// The same with more events, for as long as there is time: `cargo xtask test races::`.
#[test]
#[ignore = "takes minutes"]
fn more_of_it() {
    for source in ["races/races", "calls/threads"] {
        thread_sanitizer(source, &[]);
    }
    models();
    let program = root().join("target/models/release/jitsym-models");
    for model in ["publish", "take_back", "pool", "sleep", "flush", "close", "fork", "halt"] {
        let output = run(Command::new(&program).arg(model).env("JITSYM_SWITCHES", "2"));
        println!("{}", stdout(&output));
    }
    // Which places in the source the models depend on, one by one.
    println!("{}", stdout(&run(Command::new(&program).arg("sweep").env("JITSYM_SWITCHES", "1"))));
}
