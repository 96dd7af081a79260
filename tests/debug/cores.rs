//! Core files, those of the kernel and those that gdb writes, in gdb and lldb.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tools::*;
use crate::support::*;

/// What a core file has of the program, in every debugger.
fn assert_core(debuggee: &Debuggee, core: &Path) {
    for gdb in gdbs() {
        let mut command =
            gdb.commands(&["bt", "info symbol jit_inner", "frame function jit_inner", "list", "disassemble"]);
        let text = gdb.said(command.arg(&debuggee.program).arg(core));
        assert_stack(&text, 0, "");
        assert_has(
            &text,
            &["jit_inner in section .text", "31\ttoy line 31", "Dump of assembler code for function jit_inner:"],
        );
    }
    for lldb in lldbs() {
        let mut command = lldb.commands(&["bt", "image lookup -s jit_inner"]);
        let text = lldb.said(command.arg("-c").arg(core).arg(&debuggee.program));
        assert_stack(&text, 0, "");
        assert_has(&text, &["`jit_inner at chain.toy:30"]);
    }
}

/// Of a process that lives.
#[test]
fn core_files() {
    let debuggee = Debuggee::new("core");
    let core = debuggee.dir.join("core");
    let waiting = debuggee.waiting(&["wait", "100"]);
    gdbs()[0].attached(&waiting, &[&format!("gcore {}", core.display())]);
    drop(waiting);
    assert_core(&debuggee, &core);
}

/// Why the kernel gives no core file to a test; `None` where it does. Only a pattern without a directory is one of this process alone.
fn why_none(pattern: &str, limit: &str) -> Option<String> {
    if pattern.starts_with('|') || pattern.contains('/') || pattern.is_empty() {
        Some(format!("the kernel's pattern of core files is {pattern:?}"))
    } else if limit == "0" {
        Some("the hard limit of core files is 0".into())
    } else {
        None
    }
}

/// Of a process that has crashed.
#[test]
fn after_a_crash() {
    let debuggee = Debuggee::new("crash");
    assert_core(&debuggee, &core_of(&debuggee, "crash"));
}

/// Nothing has been flushed when the process crashes, right after it has registered code, except by its crash handler.
#[test]
fn after_a_crash_at_once() {
    let debuggee = Debuggee::new("crash-at-once");
    let core = core_of(&debuggee, "crash-at-once");
    for gdb in gdbs() {
        assert_stack(&gdb.said(gdb.commands(&["bt"]).arg(&debuggee.program).arg(&core)), 0, "");
    }
}

/// The kernel's pattern is left as it is.
fn core_of(debuggee: &Debuggee, what: &str) -> PathBuf {
    let dir = fresh_dir(format!("{what}-core"));
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("the kernel's pattern");
    let limit = stdout(&run(Command::new("sh").args(["-c", "ulimit -H -c"])));
    match why_none(pattern.trim_end(), limit.trim_end()) {
        None => by_kernel(debuggee, &dir, what),
        Some(reason) => {
            println!("gdb writes the core file: {reason}");
            by_gdb(debuggee, &dir)
        }
    }
}

fn by_kernel(debuggee: &Debuggee, dir: &Path, what: &str) -> PathBuf {
    let mut crash = Command::new("sh");
    crash.current_dir(dir).args(["-c", "ulimit -S -c \"$(ulimit -H -c)\" && exec \"$@\"", "sh"]);
    crash.arg(&debuggee.program).arg(&debuggee.dir).args([what, "100"]);
    let output = try_run(&mut crash);
    let status = output.status;
    assert!(status.signal() == Some(libc::SIGSEGV) && status.core_dumped(), "{}", describe(&crash, &output));
    // Its name may have the process id in it, and whatever the pattern says.
    let files: Vec<_> = std::fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").path()).collect();
    let [core] = &files[..] else { panic!("one core file, not {files:?}") };
    core.clone()
}

fn by_gdb(debuggee: &Debuggee, dir: &Path) -> PathBuf {
    let core = dir.join("core");
    let text = debuggee.run_in(&gdbs()[0], &["run", &format!("gcore {}", core.display())], &["crash", "100"]);
    assert_has(&text, &["SIGSEGV"]);
    core
}

/// Which patterns are taken for what.
#[test]
fn patterns_of_core_files() {
    for (pattern, limit, is_had) in [
        ("core", "unlimited", true),
        ("core.%e.%p", "2048", true),
        ("core", "0", false),
        ("", "unlimited", false),
        ("/var/crash/core.%p", "unlimited", false),
        ("|/usr/lib/systemd/systemd-coredump %P", "unlimited", false),
    ] {
        assert_eq!(why_none(pattern, limit).is_none(), is_had, "{pattern} {limit}");
    }
}

/// The same crash where the kernel does not write the file.
#[test]
fn after_a_crash_by_gdb() {
    let debuggee = Debuggee::new("crash-gdb");
    let core = by_gdb(&debuggee, &fresh_dir("crash-gdb-core"));
    let text = gdbs()[0].said(gdbs()[0].commands(&["bt"]).arg(&debuggee.program).arg(&core));
    assert_stack(&text, 0, "");
}
