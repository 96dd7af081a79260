//! System calls, counted with strace between the marks that a worker makes: figures without noise.

use std::process::Command;

use crate::contenders::Kind;
use crate::rounds;
use crate::task::{Mode, Setting, Task};

/// What was counted for this library.
pub struct Syscalls {
    /// By the registering thread, for each call at a steady pace.
    pub caller: f64,
    /// By all threads, for each call at a steady pace.
    pub all: f64,
    /// Wake-ups that the registering thread paid for after a time without work.
    pub wakes: Option<usize>,
}

/// Runs workers under strace. `None` if there is no strace.
pub fn count(task: &mut Task, with_idle: bool) -> Option<Syscalls> {
    Command::new("strace").arg("-V").output().ok()?;
    task.contender = Kind::Jitsym;
    task.setting = Setting { mode: Mode::Latency, size: 512, threads: 1 };
    task.idle = false;
    let steady = trace(task);
    (task.setting.mode, task.idle) = (Mode::Rate, true);
    let wakes = with_idle.then(|| trace(task).caller_futexes);
    Some(Syscalls { caller: steady.caller as f64 / steady.calls, all: steady.all as f64 / steady.calls, wakes })
}

/// What happened between the marks.
#[derive(Default)]
struct Trace {
    calls: f64,
    caller: usize,
    caller_futexes: usize,
    all: usize,
}

fn trace(task: &Task) -> Trace {
    let path = task.dir.with_extension("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&path).arg(rounds::this_program());
    let figures = rounds::measure_with(strace, task);
    let text = std::fs::read_to_string(&path).expect("what strace has written");
    let _ = std::fs::remove_file(&path);

    let mut trace = Trace { calls: figures["marked_calls"], ..Trace::default() };
    let mut marks = 0;
    let mut caller = "";
    // Thread, space, call.
    for (thread, call) in text.lines().filter_map(|line| line.split_once(' ')) {
        let call = call.trim_start();
        if call.starts_with("getppid(") {
            (marks, caller) = (marks + 1, thread);
        } else if marks == 1 && !call.contains(" resumed>") {
            // The second half of a call that another thread's stood in the midst of is not counted.
            trace.all += 1;
            if thread == caller {
                trace.caller += 1;
                trace.caller_futexes += usize::from(call.starts_with("futex("));
            }
        }
    }
    assert_eq!(marks, 2, "marks in the trace of {:?}", task.setting);
    trace
}
