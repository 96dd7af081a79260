//! Real programs under the tracer: they print what they print without it, and end as they do without it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};

use jitsym_step::{find, Change, Event, Frame, Kind, Shadow, Tid, Tracer, HARDWARE, KEPT};
use object::{Object, ObjectSymbol};

/// Compiles a program, once for all tests of this process.
fn compiled(name: &str) -> PathBuf {
    static DONE: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut done = DONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !done.iter().any(|it| it == name) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/guests/{name}.c"));
        let new = program.with_extension(std::process::id().to_string());
        let mut command = Command::new("cc");
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(&source).arg("-o").arg(&new);
        assert!(command.status().expect("start the compiler").success(), "cannot compile");
        // Another process may run the one that is there.
        std::fs::rename(new, &program).expect("its name");
        done.push(name.into());
    }
    program
}

/// What a program prints, and how it ends.
type Outcome = (String, ExitStatus);

fn untraced(name: &str) -> Outcome {
    let output = Command::new(compiled(name)).output().expect("run the program");
    (String::from_utf8(output.stdout).expect("text"), output.status)
}

/// The address of a function in a process that executes the program.
fn function(tracer: &Tracer, pid: Tid, name: &str) -> u64 {
    let path = format!("/proc/{pid}/exe");
    let file = std::fs::read(path).expect("read the program");
    let file = object::File::parse(&*file).expect("an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a symbol");
    tracer.entry(pid).expect("an entry") - file.entry() + symbol.address()
}

/// On one processor with what it traces, this thread steps three times as fast.
fn stay_here() {
    // SAFETY: integers.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number of this processor, a set of our own, and the calling thread.
    unsafe {
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// A run under the tracer, and what `event` has seen. It is told of each event, and has to make the threads go on.
fn traced(name: &str, start: impl FnOnce(&mut Tracer), mut event: impl FnMut(&mut Tracer, Event)) -> Outcome {
    stay_here();
    let mut command = Command::new(compiled(name));
    command.stdout(Stdio::piped());
    let mut tracer = Tracer::spawn(command).expect("start");
    let mut output = tracer.child().stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    start(&mut tracer);
    loop {
        match tracer.wait().expect("an event") {
            Event::Done => break,
            it => event(&mut tracer, it),
        }
    }
    let text = reader.join().expect("the reader").expect("text");
    (text, tracer.status().expect("its end"))
}

#[track_caller]
fn assert_same(name: &str, outcome: Outcome) {
    let expected = untraced(name);
    assert_eq!(outcome.0, expected.0);
    assert_eq!(outcome.1, expected.1);
}

/// The number behind a word in what the program prints.
fn number(text: &str, word: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {word} in {text}"))
}

#[test]
fn nothing_but_traced() {
    let mut seen = Vec::new();
    let outcome = traced(
        "busy",
        |tracer| tracer.resume(tracer.pid()).expect("resume"),
        |tracer, event| {
            seen.push(event);
            tracer.go_on(event).expect("go on");
        },
    );
    assert_same("busy", outcome);
    let count = |is: &dyn Fn(&Event) -> bool| seen.iter().filter(|event| is(event)).count();
    assert_eq!(count(&|event| matches!(event, Event::NewThread { .. })), 9);
    // The shell may fork, too.
    assert!(count(&|event| matches!(event, Event::Forked { shares_memory: false, .. })) >= 5);
    assert_eq!(count(&|event| matches!(event, Event::Forked { shares_memory: true, .. })), 2);
    assert_eq!(count(&|event| matches!(event, Event::Exec { .. })), 2);
    assert_eq!(count(&|event| matches!(event, Event::Exec { tid, former } if tid != former)), 1);
}

/// Each line that is printed is told of, and nothing but what was asked for.
#[test]
fn system_calls() {
    let mut writes = 0;
    let outcome = traced(
        "busy",
        |tracer| {
            tracer.watch_syscalls(&[libc::SYS_write]);
            tracer.resume(tracer.pid()).expect("resume");
        },
        |tracer, event| {
            if let Event::Syscall { tid, number } = event {
                assert_eq!(number, libc::SYS_write);
                let registers = tracer.registers(tid).expect("registers");
                writes += u64::from(registers.rdi == 1 && registers.rax == registers.rdx);
            }
            tracer.go_on(event).expect("go on");
        },
    );
    assert_same("busy", outcome);
    assert!(writes > 5, "{writes}");
}

/// Each call of a function is met once, by whatever thread, in forked children as well if they are told.
#[test]
fn breakpoints() {
    let mut hits = HashMap::new();
    let mix = Cell::new(0);
    let outcome = traced(
        "busy",
        |tracer| {
            let pid = tracer.pid();
            for name in ["mix", "deep"] {
                let addr = function(tracer, pid, name);
                tracer.set_breakpoint(pid, addr).expect("a breakpoint");
            }
            mix.set(function(tracer, pid, "mix"));
            tracer.resume(pid).expect("resume");
        },
        |tracer, event| {
            if let Event::Breakpoint { tid, addr } = event {
                assert_eq!(tracer.registers(tid).expect("registers").rip, addr);
                *hits.entry(addr).or_insert(0) += 1;
                let mut bytes = [0; 4];
                tracer.read(tracer.pid_of(tid).expect("a process"), addr, &mut bytes).expect("code");
                assert!(!bytes.contains(&0xcc), "{bytes:x?}");
            }
            if let Event::Forked { pid, shares_memory: false, .. } = event {
                let has = tracer.maps(pid).is_ok_and(|maps| find(&maps, mix.get()).is_some_and(|it| it.executable));
                if has && tracer.entry(pid) == tracer.entry(tracer.pid()) {
                    tracer.set_breakpoint(pid, mix.get()).expect("a breakpoint in the child");
                }
            }
            tracer.go_on(event).expect("go on");
        },
    );
    let mixes = number(&outcome.0, "mixes");
    assert_same("busy", outcome);
    assert_eq!(hits[&mix.get()], mixes);
    assert!(mixes > 250, "{mixes}");
}

/// A breakpoint at each function, from each some steps, and then on.
#[test]
fn some_steps() {
    let mut left: HashMap<Tid, u32> = HashMap::new();
    let outcome = traced(
        "busy",
        |tracer| {
            let pid = tracer.pid();
            for name in ["mix", "deep", "on_signal"] {
                let addr = function(tracer, pid, name);
                tracer.set_breakpoint(pid, addr).expect("a breakpoint");
            }
            tracer.resume(pid).expect("resume");
        },
        |tracer, event| match event {
            Event::Breakpoint { tid, .. } => {
                left.insert(tid, 30);
                tracer.step(tid).expect("step");
            }
            Event::Stepped { tid } | Event::Handler { tid, .. } | Event::Signal { tid, .. } => {
                let left = left.entry(tid).or_default();
                *left = left.saturating_sub(1);
                if *left > 0 { tracer.step(tid) } else { tracer.resume(tid) }.expect("go on");
            }
            event => tracer.go_on(event).expect("go on"),
        },
    );
    assert_same("busy", outcome);
}

/// What all threads do from `main` on, and the calls that are known meanwhile.
#[derive(Default)]
struct Walk {
    steps: u64,
    shadows: HashMap<Tid, Shadow>,
    changes: HashMap<&'static str, u64>,
    deep: u64,
}

impl Walk {
    fn stepped(&mut self, tracer: &mut Tracer, tid: Tid) {
        self.steps += 1;
        let shadow = self.shadows.entry(tid).or_default();
        let last = shadow.frames().last().copied();
        let change = shadow.stepped(tracer, tid).expect("shadow");
        let now = tracer.registers(tid).expect("registers");
        let name = match change {
            Change::None => "none",
            Change::Called => "called",
            Change::Returned => "returned",
            Change::Left => "left",
            Change::Switched => "switched",
        };
        *self.changes.entry(name).or_default() += 1;
        if let (Change::Returned, Some(Frame { kind: Kind::Call, cfa, return_address, registers, .. })) = (change, last)
        {
            assert_eq!((now.rsp, now.rip), (cfa, return_address));
            let kept = [now.rbx, now.rbp, now.r12, now.r13, now.r14, now.r15];
            assert_eq!(KEPT.map(|number| registers[usize::from(number)]), kept);
        }
        // It calls itself as often as its argument says, which is 5 at most at first.
        let deep = function_in(tracer, tid);
        if change == Change::Called && now.rip == deep {
            let frames = self.shadows[&tid].frames();
            let calls = frames.iter().rev().take_while(|frame| frame.entry == deep).count() as u64;
            assert!((1..=3).contains(&(now.rdi + calls - 1)), "{calls} calls, the last one of {}", now.rdi);
            self.deep += 1;
        }
    }
}

/// Where `deep` is.
fn function_in(tracer: &Tracer, tid: Tid) -> u64 {
    static OFFSET: OnceLock<u64> = OnceLock::new();
    let entry = tracer.entry(tracer.pid_of(tid).expect("a process")).expect("an entry");
    entry.wrapping_add(*OFFSET.get_or_init(|| function(tracer, tid, "deep").wrapping_sub(entry)))
}

/// All instructions of all threads from `main` on.
#[test]
fn every_step() {
    let mut walk = Walk::default();
    let outcome = traced(
        "busy",
        |tracer| {
            let main = function(tracer, tracer.pid(), "main");
            tracer.set_breakpoint(tracer.pid(), main).expect("a breakpoint");
            tracer.resume(tracer.pid()).expect("resume");
        },
        |tracer, event| match event {
            Event::Breakpoint { tid, addr } => {
                tracer.remove_breakpoint(tid, addr).expect("remove it");
                walk.shadows.entry(tid).or_default().entered(tracer, tid).expect("shadow");
                tracer.step(tid).expect("step");
            }
            Event::Stepped { tid } => {
                walk.stepped(tracer, tid);
                tracer.step(tid).expect("step");
            }
            Event::Handler { tid, .. } => {
                walk.shadows.entry(tid).or_default().signalled(tracer, tid).expect("shadow");
                tracer.step(tid).expect("step");
            }
            Event::Signal { tid, .. } => tracer.step(tid).expect("step"),
            Event::NewThread { tid, by } => {
                tracer.step(tid).expect("step");
                tracer.step(by).expect("step");
            }
            Event::Forked { pid, by, .. } => {
                let shadow = walk.shadows.get(&by).cloned().unwrap_or_default();
                walk.shadows.insert(pid, shadow);
                tracer.step(pid).expect("step");
                tracer.step(by).expect("step");
            }
            event => tracer.go_on(event).expect("go on"),
        },
    );
    assert_same("busy", outcome);
    println!("{} steps, {:?}, {} calls of deep", walk.steps, walk.changes, walk.deep);
    assert!(walk.steps > 50_000 && walk.deep > 300, "too little was seen");
    // longjmp out of five depths and one handler; coroutines that are entered four times, and leave as often.
    assert!(walk.changes["left"] >= 5 && walk.changes["switched"] >= 6, "{:?}", walk.changes);
}

/// In shared memory the processor's breakpoints stop all threads, and write nothing.
#[test]
fn two_views() {
    let (mut hits, mut threads) = (0, HashSet::new());
    let ready = Cell::new(0);
    let outcome = traced(
        "views",
        |tracer| {
            let pid = tracer.pid();
            ready.set(function(tracer, pid, "ready"));
            tracer.set_breakpoint(pid, ready.get()).expect("a breakpoint");
            tracer.resume(pid).expect("resume");
        },
        |tracer, event| {
            match event {
                Event::Breakpoint { tid, addr } if addr == ready.get() => {
                    let code = tracer.registers(tid).expect("registers").rdi;
                    tracer.set_breakpoint(tid, code).expect("a breakpoint");
                    // As many as there are.
                    (1..HARDWARE as u64).for_each(|at| tracer.set_breakpoint(tid, code + 100 + at).expect("one more"));
                    let full = tracer.set_breakpoint(tid, code + 200).expect_err("one too many");
                    assert_eq!(full.kind(), std::io::ErrorKind::QuotaExceeded);
                }
                Event::Breakpoint { tid, .. } => {
                    hits += 1;
                    threads.insert(tid);
                }
                _ => {}
            }
            tracer.go_on(event).expect("go on");
        },
    );
    assert_same("views", outcome);
    assert_eq!((hits, threads.len()), (40, 4));
}

/// A process that outlives the first one is not stopped when that ends, and not killed with the tracer.
#[test]
fn a_daemon() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0; (read word <&3; echo late $word) & echo soon; exit 5"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tracer = Tracer::spawn(command).expect("start");
    let (mut input, output) = (tracer.child().stdin.take().expect("a pipe"), tracer.child().stdout.take());
    // It goes on from wherever it is, over a breakpoint, too.
    let pid = tracer.pid();
    tracer.set_breakpoint(pid, tracer.entry(pid).expect("an entry")).expect("a breakpoint");
    tracer.resume(pid).expect("resume");
    assert!(matches!(tracer.wait().expect("an event"), Event::Breakpoint { .. }));
    let status = tracer.let_go().expect("let go");
    assert_eq!(status.and_then(|status| status.code()), Some(5));
    drop(tracer);
    input.write_all(b"word\n").expect("write");
    let text = std::io::read_to_string(output.expect("a pipe")).expect("text");
    assert_eq!(text, "soon\nlate word\n");
}

/// Whatever a tracer has started dies with it.
#[test]
fn dropped() {
    let mut command = Command::new("sh");
    command.args(["-c", "(read word) & wait"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tracer = Tracer::spawn(command).expect("start");
    let (input, output) = (tracer.child().stdin.take(), tracer.child().stdout.take().expect("a pipe"));
    tracer.resume(tracer.pid()).expect("resume");
    loop {
        let event = tracer.wait().expect("an event");
        tracer.go_on(event).expect("go on");
        if matches!(event, Event::Forked { .. }) {
            break;
        }
    }
    drop(tracer);
    // The output ends when nobody is left who could write.
    assert_eq!(std::io::read_to_string(output).expect("text"), "");
    drop(input);
}

#[test]
fn no_program() {
    let error = Tracer::spawn(Command::new("/nonexistent/program")).err().expect("it cannot start");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}
