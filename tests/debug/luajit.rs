//! LuaJIT as Debian has it, with `bindings/luajit`, in gdb and lldb.

use std::process::Command;

use super::tools::*;
use crate::support::*;

const STEPS: usize = 20;

/// The line of the program with this comment.
fn line(comment: &str) -> String {
    let source = std::fs::read_to_string(root().join("tests/luajit/visits.lua")).expect("program");
    let number = source.lines().position(|line| line.ends_with(comment)).expect("the line");
    format!("visits.lua:{}", number + 1)
}

/// In which the library is called by a trace.
fn in_luajit(debugger: &Debugger, commands: &[&str]) -> String {
    let library = scratch_dir("luajit").join("stop.so");
    let mut cc = Command::new("gcc");
    cc.current_dir(root()).args(["-g", "-O1", "-fPIC", "-shared", "c-tests/debug/stop.c", "-o"]);
    run(cc.arg(&library));
    let mut command = debugger.commands(commands);
    command.env("LUA_PATH", format!("{};;", root().join("bindings/luajit/?.lua").display()));
    command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"));
    debugger.start(&mut command).arg("luajit").arg("-ljitsym").arg(root().join("tests/luajit/visits.lua")).arg(library);
    debugger.said(&mut command)
}

/// From within the trace to `main`. In the trace the line is that of the call.
fn assert_trace(stack: &str, at: Option<&str>) {
    let trace = format!("TRACE_1 {}", line("-- the trace's name"));
    let lines = frames(stack);
    let number = lines.iter().position(|line| line.contains(&trace)).unwrap_or_else(|| panic!("no {trace}: {stack}"));
    assert!(lines[number + 1..].iter().any(|line| has_function(line, "main")), "{stack}");
    assert!(at.is_none_or(|at| lines[number].contains(at)), "{at:?} in {}: {stack}", lines[number]);
}

#[test]
fn traces_in_gdb() {
    // The end of `visit` leads back into the trace.
    let mut commands = vec!["break reached", "run", "bt", "frame 1", "finish"];
    commands.extend(std::iter::repeat_n(["stepi", "echo STEP\\n", "bt"], STEPS).flatten());
    for gdb in gdbs() {
        let text = in_luajit(gdb, &commands);
        let mut steps = text.split("STEP\n");
        let stopped = steps.next().unwrap_or_default();
        assert_trace(stopped, Some(&line("-- inlined")));
        assert_eq!(steps.map(|step| assert_trace(step, None)).count(), STEPS, "{text}");
    }
}

#[test]
fn traces_in_lldb() {
    for lldb in lldbs() {
        let text = in_luajit(lldb, &["breakpoint set -n reached", "run", "bt"]);
        assert_trace(&text, Some(&line("-- inlined")));
    }
}
