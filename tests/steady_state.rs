//! What registering costs beside time, counted by tools and not timed: no system call and no allocation once a thread
//! is under way, few system calls of the writer, and no life in it while there is nothing to do. (For instructions see
//! `tests/cost.rs`.)
//!
//! None of it depends on how fast the machine is or what else it does: the programs in `c-tests/cost/` mark the stretches
//! that count, and leave out those in which they were held up so long that the writer had reason to go to sleep.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::*;

/// Compiles a program of `c-tests/cost/` for one test: they run at the same time, and none may write what another one runs.
fn program(source: &str, test: &str) -> PathBuf {
    compile("gcc", &[&format!("c-tests/cost/{source}.c")], Link::Shared, &["-std=gnu11", "-O1"], test)
}

/// Runs a program, behind a tool or alone, with a directory for its files, which are removed.
fn run_checked(tool: &[&str], program: &Path, argument: &str) {
    let dir = scratch_dir(format!("{}-{argument}", program.file_name().expect("name").to_string_lossy()));
    let mut command = Command::new("timeout");
    let output = run(command.args(["-k", "5", "1200"]).args(tool).arg(program).arg(&dir).arg(argument));
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, &[]);
    std::fs::remove_dir_all(&dir).expect("remove the files");
}

/// A system call: its thread, and strace's line for it.
type Call = (u32, String);

/// Runs a program under strace and returns the system calls of all its threads, in the order in which they began.
fn traced(program: &Path, argument: &str) -> Vec<Call> {
    let name = program.file_name().expect("name").to_string_lossy();
    let trace = scratch_dir("traces").join(format!("{name}-{argument}"));
    run_checked(&["strace", "-f", "-o", trace.to_str().expect("path")], program, argument);
    let text = std::fs::read(&trace).expect("trace");
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().map(|line| {
        let (thread, call) = line.split_once(' ').expect("thread and call");
        (thread.parse().expect("thread"), call.trim_start().to_owned())
    });
    // "<... resumed>" is the end of a call that began before; "---" is a signal, "+++" the end of a thread.
    calls.filter(|(_, call)| !["<...", "---", "+++"].iter().any(|mark| call.starts_with(mark))).collect()
}

fn is(call: &str, name: &str) -> bool {
    call.strip_prefix(name).is_some_and(|rest| rest.starts_with('('))
}

/// The system calls between two marks.
type Stretch<'a> = Vec<&'a str>;

/// The stretches of each thread that count: its calls from one getppid to the next. A stretch that ends with getsid
/// does not count. Threads without any are left out.
fn stretches(calls: &[Call]) -> Vec<Vec<Stretch<'_>>> {
    let mut threads: BTreeMap<u32, (Vec<Stretch<'_>>, Option<Stretch<'_>>)> = BTreeMap::new();
    for (thread, call) in calls {
        let (done, open) = threads.entry(*thread).or_default();
        *open = match (open.take(), is(call, "getppid"), is(call, "getsid")) {
            (None, true, _) => Some(Vec::new()),
            (Some(stretch), true, _) => {
                done.push(stretch);
                None
            }
            (Some(mut stretch), _, false) => {
                stretch.push(call.as_str());
                Some(stretch)
            }
            _ => None,
        };
    }
    threads.into_values().map(|(done, _)| done).filter(|done| !done.is_empty()).collect()
}

#[test]
fn registering_makes_no_system_call() {
    let program = program("steady_state", "steady_state");
    for threads in [1, 4] {
        let calls = traced(&program, &threads.to_string());
        let stretches = stretches(&calls);
        assert_eq!(stretches.len(), threads);
        for thread in &stretches {
            let (by_address, with_bytes) = thread.split_last().expect("stretches");
            assert_eq!(with_bytes.len(), 20);
            for stretch in with_bytes {
                assert!(stretch.is_empty(), "system calls while registering with bytes: {stretch:#?}");
            }
            // The control: reading at the address goes through the kernel, so this test can see what it looks for.
            assert_eq!(by_address.iter().filter(|call| is(call, "process_vm_readv")).count(), 10, "{by_address:#?}");
        }
    }
}

#[test]
fn registering_allocates_nothing() {
    run_checked(&[], &program("allocations", "allocations"), "full");
}

/// As many as `c-tests/cost/writer_calls.c` makes.
const REGISTRATIONS: f64 = 50_000.0;

/// System calls per registration, of all threads, at 100,000 registrations a second, each of 512 bytes.
fn calls_per_registration(program: &Path, mode: &str) -> f64 {
    let calls = traced(program, mode);
    let main = calls.first().expect("calls").0;
    let marks: Vec<usize> = (0..calls.len()).filter(|&at| is(&calls[at].1, "getppid")).collect();
    assert_eq!(marks.len(), 2);
    // Its own pauses are none of the library's business.
    let pause = |(thread, call): &&Call| *thread == main && (is(call, "poll") || is(call, "ppoll"));
    let within = &calls[marks[0] + 1..marks[1]];
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, call) in within.iter().filter(|call| !pause(call)) {
        *names.entry(call.split('(').next().unwrap_or_default()).or_default() += 1;
    }
    let per_registration = names.values().sum::<usize>() as f64 / REGISTRATIONS;
    println!("{mode}: {per_registration} {names:?}");
    per_registration
}

/// The writer makes a pass a millisecond at most, in which it writes to both files and sleeps: three or four calls. So
/// at 100 registrations a millisecond, which the program keeps to on average however it is held up, 0.05 are never
/// reached on any machine, unless a pass comes to cost more or passes come more often.
#[test]
fn few_system_calls_in_all() {
    let program = program("writer_calls", "busy");
    let steady = calls_per_registration(&program, "cycle");
    assert!(steady <= 0.05, "{steady} system calls a registration");
    // Where the amount of live code grows the C library asks for memory, page by page on this thread; for few records.
    let growing = calls_per_registration(&program, "grow");
    assert!(growing <= 0.05, "{growing} system calls a registration");
    // The control: one call each is seen.
    let by_address = calls_per_registration(&program, "by-address");
    assert!(by_address >= 1.0, "{by_address} system calls a registration");
}

/// The program sees to it that the writer sleeps, and that nothing wakes it while there is nothing to do.
#[test]
fn nothing_happens_while_idle() {
    let calls = traced(&program("writer_calls", "idle"), "idle");
    let stretches = stretches(&calls);
    assert_eq!(stretches.iter().map(Vec::len).collect::<Vec<_>>(), [2], "one thread that registers, two idle periods");
    for stretch in &stretches[0] {
        // The first of a hundred registrations wakes the writer, and the others know that.
        assert!(stretch.len() == 1 && is(stretch[0], "futex"), "system calls after an idle period: {stretch:#?}");
    }
}
