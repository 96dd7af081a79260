//! Registering makes no system call once a thread is under way: counted with strace, not timed.

mod support;

use std::process::Command;
use support::*;

#[test]
fn registering_makes_no_system_call() {
    let dir = scratch_dir("steady");
    let program = compile("gcc", &["c-tests/steady_state.c"], Link::Shared, &["-std=c11", "-O1"], "steady_state");
    let trace = dir.join("trace");
    let mut command = Command::new("strace");
    command.arg("-o").arg(&trace).arg(program).env("JITSYM_DIR", &dir);
    // Without -f only the main thread, which registers, is traced: the writer's calls are its own.
    run(&mut command);
    let trace = std::fs::read_to_string(trace).expect("trace");
    let marked: Vec<&str> = trace.lines().collect();
    // The program calls getppid before and after.
    let marks: Vec<usize> = (0..marked.len()).filter(|&line| marked[line].starts_with("getppid(")).collect();
    assert_eq!(marks.len(), 4, "{trace}");
    let between = |first: usize| &marked[marks[first] + 1..marks[first + 1]];
    assert!(between(0).is_empty(), "system calls while registering with bytes: {:#?}", between(0));
    // The control: reading at the address goes through the kernel, so this test can see what it looks for.
    assert_eq!(between(2).len(), 10, "{:#?}", between(2));
}
