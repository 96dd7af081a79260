//! However a process ends, its files come to hold all that it has registered: at once where the library gets to run, and after
//! `jitsym recover` where it does not.
//!
//! `c-tests/ends/ends.c` goes the ways, and holds the files against what the process has noted of itself. (It goes most of those
//! in which the library gets to run a second time by itself, also under valgrind and the sanitizers: `tests/c_tests.rs`.)

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::durability::recover::{recover, Report};
use crate::support::{artifacts, checker, compile, fresh_dir, run, stdout, wait_until, Link};

/// What there is for the library to do, and for a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Exit handlers run: nothing is left.
    AtExit,
    /// A crash handler calls the library: what other threads registered later is left.
    InHandler,
    /// Nobody calls the library: something is left.
    None,
}

const SOURCES: &[&str] = &["-x", "c", "c-tests/ends/ends.c", "-x", "c++", "c-tests/ends/throw.cc", "-x", "none"];

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("g++", SOURCES, Link::Shared, &["-O1", "-DENDS_CXX"], "ends"))
}

/// Runs a command to its end. Its pid, and how it ended.
fn go(command: &mut Command) -> (u32, ExitStatus) {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("start the program");
    let mut status = None;
    wait_until("the end of the program", || {
        status = child.try_wait().expect("wait for the program");
        status.is_some()
    });
    (child.id(), status.expect("it has ended"))
}

/// A directory for files and one for spools, both empty.
fn fresh_dirs(name: &str) -> (PathBuf, PathBuf) {
    (fresh_dir(name), fresh_dir(format!("{name}-spools")))
}

/// Has the files of a dead process completed, and checks that they hold what it noted, that readers like them, and that there is
/// nothing left to do.
fn complete_and_check(name: &str, dir: &Path, spools: &Path, pid: u32, work: Work) {
    let left = std::fs::read_dir(spools).expect("spools").count();
    assert!(work != Work::AtExit || left == 0, "{name}: {left} spools are left");
    let output = recover(spools, &[pid]);
    let records: u64 = Report::parse(&output).iter().map(|report| report.records).sum();
    // Where nothing is left to be done, there is nothing by which the program would know of the process.
    assert!(output.status.success() || left == 0 && output.status.code() == Some(2), "{name}: {output:?}");
    assert!(work != Work::None || records > 0, "{name}: there was nothing to recover");
    println!("{name}: {records} records completed");
    assert_eq!(Report::parse(&recover(spools, &[pid])), [], "{name}: recovered twice");
    let checked = run(Command::new(program()).arg(dir).arg("check").arg(pid.to_string()));
    assert_eq!(stdout(&checked), "ok\n", "{name}");
    assert_eq!(checker::assert_all_sound(dir, &[]), 2, "{name}: files");
    for dir in [dir, spools] {
        std::fs::remove_dir_all(dir).expect("remove the scratch directory");
    }
}

fn ends(way: &str, signal: Option<i32>, work: Work) {
    ends_with(program(), way, signal, work);
}

fn ends_with(program: &Path, way: &str, signal: Option<i32>, work: Work) {
    let (dir, spools) = fresh_dirs(way);
    let end = if work == Work::None { "end-unwritten" } else { "end" };
    let (pid, status) = go(Command::new(program).arg(&dir).args([end, way]));
    assert_eq!((status.code(), status.signal()), (signal.map_or(Some(0), |_| None), signal), "{way}");
    complete_and_check(way, &dir, &spools, pid, work);
}

#[test]
fn by_exit() {
    for way in [
        "return",
        "exit",
        "quick_exit",
        "exit_in_handler",
        "exit_in_destructor",
        "exit_alone_in_destructor",
        "exit_twice",
        "exit_often",
        "exit_in_two_ways",
        "exit_overtaken",
        "exit_beside_flush",
        "exit_beside_close",
        "short_threads",
        "cancelled",
        "first_thread_ends",
        "all_threads_end",
    ] {
        // What happens when a session is just not open takes some luck to meet.
        for _ in 0..if way == "exit_beside_close" { 12 } else { 1 } {
            ends(way, None, Work::AtExit);
        }
    }
}

/// The exit handler of the static library runs before the destructors of its program, which register and flush.
#[test]
fn by_exit_before_destructors() {
    let program = compile("g++", SOURCES, Link::Static, &["-O1", "-DENDS_CXX"], "ends_static");
    for way in ["exit_in_destructor", "exit_alone_in_destructor"] {
        ends_with(&program, way, None, Work::AtExit);
    }
}

#[test]
fn with_a_crash_handler() {
    for (way, signal) in [
        ("segfault_handled", libc::SIGSEGV),
        ("abort_handled", libc::SIGABRT),
        ("sigterm_handled", libc::SIGTERM),
        ("throw_handled", libc::SIGABRT),
        ("heap_handled", libc::SIGABRT),
        ("writer_aborts", libc::SIGABRT),
        ("writer_faults", libc::SIGABRT),
    ] {
        ends(way, Some(signal), Work::InHandler);
    }
}

#[test]
fn without_a_word() {
    for (way, signal) in [
        ("_exit", None),
        ("short_threads_at_once", None),
        ("abort", Some(libc::SIGABRT)),
        ("segfault", Some(libc::SIGSEGV)),
        ("throw", Some(libc::SIGABRT)),
        ("sigterm", Some(libc::SIGTERM)),
        ("sigkill", Some(libc::SIGKILL)),
    ] {
        ends(way, signal, Work::None);
    }
}

/// A process whose first thread has ended looks dead, and is not: a recovery leaves it alone.
#[test]
fn not_yet() {
    let name = "first_thread_ends_early";
    let (dir, spools) = fresh_dirs(name);
    let mut command = Command::new(program());
    let mut child = command.arg(&dir).args(["end", name]).stdin(Stdio::null()).spawn().expect("start the program");
    let pid = child.id();
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    wait_until("the end of the first thread", || stat().contains(") Z "));
    std::thread::sleep(Duration::from_millis(200));
    let reports = Report::parse(&recover(&spools, &[pid]));
    child.kill().and_then(|()| child.wait()).expect("kill the program");
    assert_eq!(reports, [], "taken for dead");
    complete_and_check(name, &dir, &spools, pid, Work::InHandler);
}

/// A plugin is unloaded with its session open: the library stays, whether it is linked into the plugin or beside it.
#[test]
fn with_a_plugin_unloaded() {
    let host = compile("gcc", &["c-tests/ends/host.c"], Link::None, &["-O1"], "ends_host");
    for link in [Link::Shared, Link::Static] {
        let name = format!("plugin-{link:?}");
        let plugin = compile("gcc", &["c-tests/ends/ends.c"], link, &["-O1", "-shared", "-fPIC"], &name);
        let (dir, spools) = fresh_dirs(&name);
        let (pid, status) = go(Command::new(&host).arg(&dir).arg(plugin));
        assert!(status.success(), "{name}: {status}");
        complete_and_check(&name, &dir, &spools, pid, Work::AtExit);
    }
}

/// The last thread ends where no thread can be started, on which the process would exit: it exits on one of the library's.
#[test]
fn without_any_more_threads() {
    let program = compile("gcc", &["c-tests/ends/no_threads.c"], Link::Shared, &["-O1"], "ends_no_threads");
    let (dir, spools) = fresh_dirs("no-threads");
    assert_eq!(stdout(&run(Command::new(program).arg(&dir))), "ok\n");
    checker::assert_all_sound(&dir, &[]);
    for dir in [dir, spools] {
        std::fs::remove_dir_all(dir).expect("remove the scratch directory");
    }
}

/// What the call from a signal handler comes to is all that it calls: no allocator, no lock, no thread-local storage but errno, no
/// panic.
#[test]
#[cfg(target_arch = "x86_64")]
fn signal_entry_calls_nothing_else() {
    let library = artifacts().shared_dir.join("libjitsym.so");
    let text = stdout(&run(Command::new("objdump").args(["-d", "--no-show-raw-insn", "-C"]).arg(library)));
    let body = |name: &str| -> Vec<String> {
        let start = format!("<{name}>:");
        let lines = text.lines().skip_while(|line| !line.ends_with(&start)).skip(1);
        lines.take_while(|line| !line.is_empty()).map(String::from).collect()
    };
    let mut callees: Vec<String> = vec!["jitsym_flush_from_signal".into()];
    let mut seen = 0;
    while let Some(name) = callees.get(seen).cloned() {
        seen += 1;
        let lines = body(&name);
        assert!(!lines.is_empty(), "{name} is not in the library");
        for line in &lines {
            let Some((_, call)) = line.split_once("call ").or_else(|| line.split_once("jmp ")) else { continue };
            let Some((_, target)) = call.split_once('<') else {
                panic!("{name} calls what cannot be told: {line}");
            };
            let target = target.rsplit_once('>').map_or(target, |(target, _)| target);
            println!("{name}: {target}");
            let inside = target.starts_with(&format!("{name}+"));
            let known =
                ["syscall@", "clock_gettime@", "__errno_location@"].iter().any(|known| target.starts_with(known));
            if !inside && !known && !callees.iter().any(|callee| callee == target) {
                callees.push(target.into());
            }
        }
    }
}
