//! What registering costs beside time, counted by tools and not timed: no system call and no allocation once a thread
//! is under way, few system calls of the writer, and no life in it while there is nothing to do. And what it takes to start
//! the library and to end it. (For instructions see `tests/cost.rs`.)
//!
//! None of it depends on how fast the machine is or what else it does: the programs in `c-tests/cost/` mark the stretches
//! that count, and leave out those in which they were held up so long that the writer had reason to go to sleep.

use crate::support::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program of `c-tests/cost/` for one test: they run at the same time, and none may write what another one runs.
fn program(source: &str, test: &str) -> PathBuf {
    compile("gcc", &[&format!("c-tests/cost/{source}.c")], Link::Shared, &["-std=gnu11", "-O1"], test)
}

/// Runs a program, behind a tool or alone, with a directory for its files, which are removed.
fn run_checked(tool: &[&str], program: &Path, argument: &str) {
    assert_eq!(output_of(tool, program, argument), "ok\n");
}

/// The same for a program that prints more.
fn output_of(tool: &[&str], program: &Path, argument: &str) -> String {
    let dir = scratch_dir(format!("{}-{argument}", program.file_name().expect("name").to_string_lossy()));
    let mut command = Command::new("env");
    let output = run(command.args(tool).arg(program).arg(&dir).arg(argument));
    assert!(stdout(&output).ends_with("ok\n"), "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, &[]);
    std::fs::remove_dir_all(&dir).expect("remove the files");
    stdout(&output)
}

/// A system call: its thread, and strace's line for it.
type Call = (u32, String);

/// Runs a program under strace and returns what that prints of each thread.
fn trace(options: &[&str], program: &Path, argument: &str) -> Vec<Call> {
    let name = program.file_name().expect("name").to_string_lossy();
    let trace = scratch_dir("traces").join(format!("{name}-{argument}"));
    let strace = [&["strace", "-f", "-o", trace.to_str().expect("path")], options].concat();
    output_of(&strace, program, argument);
    let text = std::fs::read(&trace).expect("trace");
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().map(|line| {
        let (thread, call) = line.split_once(' ').expect("thread and call");
        (thread.parse().expect("thread"), call.trim_start().to_owned())
    });
    calls.collect()
}

/// The system calls of all threads of a program, in the order in which they began.
fn traced(program: &Path, argument: &str) -> Vec<Call> {
    let mut calls = trace(&[], program, argument);
    // "<... resumed>" is the end of a call that began before; "---" is a signal, "+++" the end of a thread.
    calls.retain(|(_, call)| !["<...", "---", "+++"].iter().any(|mark| call.starts_with(mark)));
    calls
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
            assert_eq!(with_bytes.len(), 40);
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
const REGISTRATIONS: f64 = 10_000.0;

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
    // One that reads the tables of the code back from the file.
    let moving = calls_per_registration(&program, "move");
    assert!(moving <= 1.1, "{moving} system calls a move");
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

/// A number that a program has printed as `NAME=NUMBER`.
fn said(output: &str, name: &str) -> u64 {
    let value = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{name} in {output}")).parse().expect("a number")
}

/// A program that registers ten functions pays little for the library: page faults, KiB of memory, threads, and system calls of all
/// threads in `jitsym_init` and `jitsym_close`.
#[test]
fn starting_and_ending_cost_little() {
    let program = program("start_and_end", "start_and_end");
    let output = output_of(&[], &program, "ten");
    let (faults, memory) = (said(&output, "faults"), said(&output, "memory"));
    let calls = traced(&program, "ten");
    let marks: Vec<usize> = (0..calls.len()).filter(|&at| is(&calls[at].1, "getppid")).collect();
    let [start, started, end, ended] = marks[..] else { panic!("{marks:?}") };
    // How often threads wait for each other is up to the machine's load.
    let count = |part: &[Call]| part.iter().filter(|(_, call)| !call.contains("futex")).count();
    let (init, close) = (count(&calls[start..started]), count(&calls[end..ended]));
    println!("{output}{init} system calls to start, {close} to end");
    assert!(faults <= 120 && memory <= 400 && init <= 140 && close <= 40, "{output}{init} {close}");
    assert_eq!(said(&output, "threads"), 2);
}

/// With several threads the kernel takes some 10 ms to get ready for barriers. `jitsym_init` does not wait for that: it returns though
/// the call is held up for longer.
#[test]
fn starting_beside_threads_waits_for_no_barrier() {
    let delay = ["-e", "inject=membarrier:delay_enter=2000000"];
    let lines = trace(&delay, &program("start_and_end", "start_beside"), "beside");
    let marks: Vec<usize> = (0..lines.len()).filter(|&at| is(&lines[at].1, "getppid")).collect();
    let &[_, started] = &marks[..] else { panic!("{marks:?}") };
    // The control: the writer does ask for it.
    let asked = lines.iter().position(|(_, call)| call.contains("REGISTER_PRIVATE_EXPEDITED")).expect("a barrier");
    let (writer, call) = &lines[asked];
    let is_end = |(thread, call): &Call| thread == writer && call.contains("membarrier resumed");
    let ready = if call.contains("unfinished") { lines.iter().position(is_end).expect("its end") } else { asked };
    assert!(ready > started, "ready with line {ready}, started with {started}: {lines:#?}");
}

/// Nor does the end of a program that is short-lived: it does not ask for barriers (the test above is the control).
/// On a busy machine a program may live longer, so one of ten has to end early.
#[test]
fn a_short_life_beside_threads_waits_for_no_barrier() {
    let strace = ["strace", "-f", "-o", "/dev/null", "-e", "inject=membarrier:delay_enter=2000000"];
    let program = program("start_and_end", "start_short");
    assert!((0..10).any(|_| said(&output_of(&strace, &program, "short"), "lived_for") < 2000), "all had to wait");
}

/// Memory for records, in KiB: what a thread holds that has registered something once, what a busy process does, and an idle one.
#[test]
fn idle_threads_and_processes_hold_little() {
    let output = output_of(&[], &program("start_and_end", "workers"), "workers");
    println!("{output}");
    let said = |name| said(&output, name);
    // The control: it was more before.
    assert!(said("held_by_each") <= 24 && said("held_when_busy") >= 2048 && said("held_when_idle") <= 512, "{output}");
}
