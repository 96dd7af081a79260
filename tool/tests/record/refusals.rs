//! Exit statuses, and the causes of failures in one line.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{fresh_dir, serial, try_run};
use crate::{jitsym, said};

/// The command's status and output are the command's.
#[test]
fn the_command_is_left_alone() {
    let _alone = serial();
    let data = fresh_dir("status").join("perf.data");
    let mut command = jitsym(&["record", "-o"]);
    command.arg(&data).args(["--", "sh", "-c", "echo out; echo $JITSYM $JITSYM_FORK $X >&2; exit 7"]).env("X", "-x");
    let output = try_run(&mut command);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert!(said(&output).starts_with("on now -x\n"), "{}", said(&output));
    assert!(data.exists());
    let output = try_run(jitsym(&["record", "-o"]).arg(&data).args(["--", "sh", "-c", "kill -9 $$"]));
    assert_eq!(output.status.code(), Some(128 + 9), "{}", said(&output));
    assert!(data.with_extension("data.old").exists(), "the recording before stays");
}

/// One line with the cause, a status of its own, and no file.
#[test]
fn causes_are_one_line() {
    let _alone = serial();
    let dir = fresh_dir("causes");
    let data = dir.join("perf.data");
    // A system that does not permit it cannot be had without changing this one: the real words of perf 6.1.
    let denied = dir.join("denied");
    let words =
        "Error:\nAccess to performance monitoring and observability operations is limited.\nConsider adjusting \
        /proc/sys/kernel/perf_event_paranoid setting to open\naccess to performance monitoring and observability\n";
    let script =
        format!("#!/bin/sh\n[ \"$1\" = --version ] && exec perf --version\nprintf '%s' '{words}' >&2\nexit 255\n");
    std::fs::write(&denied, script).expect("script");
    std::fs::set_permissions(&denied, PermissionsExt::from_mode(0o755)).expect("executable");
    let denied = denied.display().to_string();
    let missing = dir.join("script").display().to_string();
    let nested = dir.join("nested").display().to_string();
    for (path, interpreter) in [(&missing, "/no/such/interpreter -x"), (&nested, &*missing)] {
        std::fs::write(path, format!("#! {interpreter}\n")).expect("script");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("executable");
    }
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--", &missing], 126, "needs the interpreter /no/such/interpreter, which cannot be run"),
        (&["--", &nested], 126, "needs the interpreter /no/such/interpreter, which cannot be run"),
        (&["--", "no-such-program"], 127, "there is no command no-such-program"),
        (&["--", "/etc/passwd"], 126, "may not be executed"),
        (&["--", "/etc"], 126, "is a directory"),
        (&["-p", "4194305"], 125, "there is no process 4194305"),
        (&["--perf", "no-such-perf", "--", "true"], 125, "there is no program `no-such-perf`: install perf"),
        (&["-e", "nonsense", "--", "true"], 125, "event syntax error: 'nonsense'"),
        (&["--perf", &denied, "--", "true"], 125, "/proc/sys/kernel/perf_event_paranoid is "),
    ];
    for (words, status, cause) in cases {
        let output = try_run(jitsym(&["record", "-o"]).arg(&data).args(*words));
        let text = said(&output);
        assert_eq!(output.status.code(), Some(*status), "{words:?}: {text}");
        assert!(text.contains(cause) && text.lines().count() == 1, "{words:?}: {text}");
        assert!(!data.exists(), "{words:?}");
    }
}

/// Whoever stops it keeps what there is.
#[test]
fn a_signal_ends_the_recording() {
    let _alone = serial();
    let data = fresh_dir("signal").join("perf.data");
    let mut child = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-o"])
        .arg(&data)
        .args(["--", "sh", "-c", "ulimit -t 30; echo here; while :; do :; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut here = [0; 5];
    child.stdout.as_mut().expect("output").read_exact(&mut here).expect("the command runs");
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("end");
    // perf ends the command.
    assert_eq!(output.status.code(), Some(128 + 15), "{}", said(&output));
    assert!(said(&output).contains("perf report -i"), "{}", said(&output));
    assert!(std::fs::read(&data).expect("recording").starts_with(b"PERFILE2"));
}
