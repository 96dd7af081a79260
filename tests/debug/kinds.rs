//! Breakpoints, `finish`, watchpoints and steps in each kind of memory that code can lie in (`c-tests/debug/kinds.c`). The program
//! calls its code ten times, and replaces `jit_inner` between the calls.

use super::tools::*;
use crate::support::*;

const KINDS: [&str; 7] = ["plain", "adopted", "adopted-flips", "group", "one-view", "two-views", "alloc"];
/// The stack, from inside.
const FRAMES: [&str; 6] = ["reached", "jit_inner", "jit_middle", "jit_outer", "call_through", "main"];

fn debuggee() -> Debuggee {
    let program = compile("gcc", &["c-tests/debug/kinds.c"], Link::Shared, &["-std=gnu11", "-O0"], "kinds");
    Debuggee { program, dir: scratch_dir("kinds") }
}

/// Asserts that the stack is the known one, from this function of it on.
fn assert_from(text: &str, innermost: &str, kind: &str) {
    let found = frames(text);
    let expected = FRAMES.iter().skip_while(|name| **name != innermost);
    for (at, function) in expected.enumerate() {
        let is_there = found.get(at).is_some_and(|line| has_function(line, function));
        assert!(is_there, "{kind}: frame {at} is not {function}: {text}");
    }
}

/// Asserts that each part of a session, which follows a line with this text, begins with the known stack from one function on.
fn assert_parts(text: &str, line: &str, innermost: &[&str], kind: &str) {
    let parts: Vec<&str> = text.split(line).skip(1).collect();
    assert_eq!(parts.len(), innermost.len(), "{kind}: {text}");
    innermost.iter().zip(&parts).for_each(|(function, part)| assert_from(part, function, kind));
}

#[test]
fn gdb() {
    let debuggee = debuggee();
    // A software watchpoint makes gdb step through the code. It steps one thread alone.
    let mut commands = vec!["break jit_inner", "run", "echo PART\\n", "bt"];
    commands.extend(["set scheduler-locking on", "set can-use-hw-watchpoints 0", "watch watched", "continue"]);
    commands.extend(["echo PART\\n", "bt", "delete 2", "finish", "echo PART\\n", "bt", "finish", "echo PART\\n", "bt"]);
    commands.extend(["stepi", "echo PART\\n", "bt", "set scheduler-locking off"]);
    commands.extend(["ignore 1 1000", "continue", "info breakpoints"]);
    for gdb in gdbs() {
        for kind in KINDS {
            let text = debuggee.run_in(gdb, &commands, &[kind]);
            assert_parts(&text, "PART\n", &["jit_inner", "reached", "jit_inner", "jit_middle", "jit_middle"], kind);
            assert_has(&text, &["Old value = 0", "New value = 1", "exited normally", "already hit 10 times"]);
        }
    }
}

/// Without a watchpoint, because lldb has only those of the processor, which a virtual machine may not have.
#[test]
fn lldb() {
    let debuggee = debuggee();
    let mut commands = vec!["breakpoint set -n jit_inner", "run", "bt", "breakpoint set -n reached", "continue", "bt"];
    commands.extend(["breakpoint delete 2", "finish", "bt", "finish", "bt", "thread step-inst", "bt"]);
    commands.extend(["breakpoint modify -i 1000 1", "continue", "breakpoint list"]);
    for lldb in lldbs() {
        for kind in KINDS {
            let text = debuggee.run_in(lldb, &commands, &[kind]);
            let innermost = ["jit_inner", "reached", "jit_inner", "jit_middle", "jit_middle"];
            assert_parts(&text, "(lldb) bt\n", &innermost, kind);
            // Nine of the ten calls are ignored.
            assert_has(&text, &["exited with status = 0", "ignore: 991"]);
        }
    }
}
