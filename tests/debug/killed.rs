//! A debugger is killed with SIGKILL, and its breakpoint stays in the function that tells debuggers of code. The program goes on,
//! whoever traces it next.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::tools::*;
use crate::support::*;

/// The program (`c-tests/debug/goes_on.c`).
struct Program {
    child: Child,
    to: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
    count: usize,
}

impl Program {
    /// With the static library, because lldb 14 looks for the list only in the executable.
    fn start(test: &str) -> Program {
        let path = compile("gcc", &["c-tests/debug/goes_on.c"], Link::Static, &["-std=gnu11", "-O1"], test);
        let mut command = Command::new(path);
        command.arg(scratch_dir(test)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("program");
        let mut said = BufReader::new(child.stdout.take().expect("output")).lines();
        assert_eq!(said.next().expect("a line").expect("text"), "waiting");
        Program { to: child.stdin.take(), child, said, count: 0 }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Has it register a function, and returns its name.
    fn ask(&mut self) -> String {
        self.to.as_mut().expect("its input").write_all(b"\n").expect("it lives");
        self.count += 1;
        format!("late_{}", self.count - 1)
    }

    fn goes_on(&mut self, when: &str) {
        let name = self.ask();
        let answer = self.said.next().and_then(Result::ok);
        assert_eq!(answer.as_deref(), Some(&*name), "{when}: {:?}", self.child.wait());
    }

    /// What the kernel says of its first thread.
    fn status(&self, what: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("status");
        status.lines().find_map(|line| line.strip_prefix(what)).expect("a line").trim().to_owned()
    }

    fn tracer(&self) -> u32 {
        self.status("TracerPid:").parse().expect("number")
    }

    fn is_stopped(&self) -> bool {
        self.status("State:").starts_with('t')
    }

    /// A debugger attaches, and is killed when it has heard of a function.
    fn leave_breakpoint(&mut self) {
        let mut gdb = Attached::new(&gdbs()[0], self, &["continue"]);
        self.goes_on("with gdb");
        // It may still be about to hear of something. Whoever kills a debugger then ends the program by SIGTRAP.
        std::thread::sleep(Duration::from_secs(1));
        assert_ne!(self.tracer(), 0);
        gdb.child.kill().expect("kill");
        gdb.child.wait().expect("its end");
        wait_until("nobody traces it", || self.tracer() == 0);
        self.goes_on("without gdb");
    }

    fn ends_well(mut self) {
        drop(self.to.take());
        assert_eq!(self.said.next().expect("a line").expect("text"), "ok");
        assert!(self.child.wait().expect("its end").success());
    }
}

/// Also where a test fails.
impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A debugger that has the program go on.
struct Attached {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Attached {
    fn new(debugger: &Debugger, program: &Program, commands: &[&str]) -> Attached {
        let mut command = debugger.commands(commands);
        command.args(["-p", &program.pid()]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("debugger");
        let said = BufReader::new(child.stdout.take().expect("output"));
        // What it prints comes late. Its breakpoints are there when it has the program go on.
        wait_until("it has stopped the program", || program.is_stopped());
        wait_until("the program goes on", || !program.is_stopped());
        Attached { child, said }
    }

    /// What it prints until it ends.
    fn rest(mut self) -> String {
        let mut text = String::new();
        self.said.read_to_string(&mut text).expect("text");
        self.child.wait().expect("its end");
        text
    }
}

#[test]
fn nobody_or_strace_comes() {
    let mut program = Program::start("killed-strace");
    program.leave_breakpoint();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &program.pid()]);
    let mut strace = strace.spawn().expect("strace");
    wait_until("strace traces it", || program.tracer() == strace.id());
    program.goes_on("with strace");
    program.goes_on("with strace, again");
    strace.kill().expect("kill");
    strace.wait().expect("its end");
    program.goes_on("without strace");
    program.ends_well();
}

/// It takes the breakpoint for a part of the program, and still hears of code.
#[test]
fn another_debugger_comes() {
    let with_gdb = gdbs().iter().map(|gdb| (gdb, "break reached", "info symbol", " in section .text of "));
    let with_lldb =
        lldbs().iter().map(|lldb| (lldb, "breakpoint set -n reached", "image lookup -s", "1 symbols match"));
    for (debugger, stop, symbol, in_object) in with_gdb.chain(with_lldb) {
        let mut program = Program::start("killed-another");
        program.leave_breakpoint();
        let name = format!("late_{}", program.count);
        let another = Attached::new(debugger, &program, &[stop, "continue", &format!("{symbol} {name}"), "detach"]);
        assert_eq!(program.ask(), name);
        let text = another.rest();
        assert!(program.said.next().is_some_and(|line| line.is_ok_and(|line| line == name)), "it has ended: {text}");
        assert!(!text.contains("SIGTRAP") && !text.contains("SIGSEGV") && text.contains(in_object), "{text}");
        program.goes_on("without the other debugger");
        program.ends_well();
    }
}
