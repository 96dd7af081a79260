//! Real programs under the tracer: they print what they print without it, and end as they do without it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use jitsym_step::{find, Event, Shadow, Tid, Tracer};
use object::{Object, ObjectSymbol};

/// Compiles a program, once for all tests of this process.
fn busy() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("busy-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/busy.c");
        let mut command = Command::new("cc");
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(&source).arg("-o").arg(&program);
        assert!(command.status().expect("start the compiler").success(), "cannot compile");
        program
    })
}

/// What a program prints, and how it ends.
type Outcome = (String, ExitStatus);

fn untraced() -> Outcome {
    let output = Command::new(busy()).output().expect("run the program");
    (String::from_utf8(output.stdout).expect("text"), output.status)
}

/// The address of a function in a process that executes the program.
fn function(tracer: &Tracer, pid: Tid, name: &str) -> u64 {
    let file = std::fs::read(busy()).expect("read the program");
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
fn traced(start: impl FnOnce(&mut Tracer), mut event: impl FnMut(&mut Tracer, Event)) -> Outcome {
    stay_here();
    let mut command = Command::new(busy());
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
fn assert_same(outcome: Outcome) {
    let expected = untraced();
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
        |tracer| tracer.resume(tracer.pid()).expect("resume"),
        |tracer, event| {
            seen.push(event);
            tracer.go_on(event).expect("go on");
        },
    );
    assert_same(outcome);
    let count = |is: &dyn Fn(&Event) -> bool| seen.iter().filter(|event| is(event)).count();
    assert_eq!(count(&|event| matches!(event, Event::NewThread { .. })), 9);
    // The shell may fork, too.
    assert!(count(&|event| matches!(event, Event::Forked { shares_memory: false, .. })) >= 5);
    assert_eq!(count(&|event| matches!(event, Event::Forked { shares_memory: true, .. })), 2);
    assert_eq!(count(&|event| matches!(event, Event::Exec { .. })), 2);
    assert_eq!(count(&|event| matches!(event, Event::Exec { tid, former } if tid != former)), 1);
}

/// Each call of a function is met once, by whatever thread, in forked children as well if they are told.
#[test]
fn breakpoints() {
    let mut hits = HashMap::new();
    let mix = std::cell::Cell::new(0);
    let outcome = traced(
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
    assert_same(outcome);
    assert_eq!(hits[&mix.get()], mixes);
    assert!(mixes > 250, "{mixes}");
}

/// All instructions of all threads from `main` on.
#[test]
fn every_step() {
    let mut steps = 0u64;
    let mut shadows: HashMap<Tid, Shadow> = HashMap::new();
    let mut deepest = 0;
    let outcome = traced(
        |tracer| {
            let main = function(tracer, tracer.pid(), "main");
            tracer.set_breakpoint(tracer.pid(), main).expect("a breakpoint");
            tracer.resume(tracer.pid()).expect("resume");
        },
        |tracer, event| match event {
            Event::Breakpoint { tid, addr } => {
                tracer.remove_breakpoint(tid, addr).expect("remove it");
                let shadow = shadows.entry(tid).or_default();
                shadow.entered(tracer, tid).expect("shadow");
                tracer.step(tid).expect("step");
            }
            Event::Stepped { tid } => {
                steps += 1;
                let shadow = shadows.entry(tid).or_default();
                shadow.stepped(tracer, tid).expect("shadow");
                deepest = deepest.max(shadow.frames().len());
                tracer.step(tid).expect("step");
            }
            Event::Handler { tid, .. } => {
                shadows.entry(tid).or_default().signalled(tracer, tid).expect("shadow");
                tracer.step(tid).expect("step");
            }
            Event::Signal { tid, .. } => tracer.step(tid).expect("step"),
            Event::NewThread { tid, by } => {
                tracer.step(tid).expect("step");
                tracer.step(by).expect("step");
            }
            Event::Forked { pid, by, .. } => {
                let shadow = shadows.get(&by).cloned().unwrap_or_default();
                shadows.insert(pid, shadow);
                tracer.step(pid).expect("step");
                tracer.step(by).expect("step");
            }
            event => tracer.go_on(event).expect("go on"),
        },
    );
    assert_same(outcome);
    println!("{steps} steps, {deepest} calls at a time");
    assert!(steps > 100_000 && deepest > 5);
}
