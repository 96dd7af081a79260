//! What the library says where its user asks for it (`JITSYM_DEBUG`), and that it says nothing otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::support::*;

fn compiled(link: Link, name: &str) -> PathBuf {
    compile("gcc", &["c-tests/calls/debug_output.c", "-lpthread"], link, &["-O1"], name)
}

/// The program with the shared library.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled(Link::Shared, "debug-output"))
}

/// Runs the program, which sets some variables itself.
fn run_with(program: &Path, test: &str, debug: &str, variables: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg(scratch_dir(format!("debug-output-{test}"))).args(variables);
    let output = run(command.env("JITSYM_DEBUG", debug));
    assert!(stdout(&output).ends_with("ok\n"), "{output:?}");
    output
}

/// The lines, without what each begins with.
fn lines(said: &str) -> Vec<&str> {
    said.lines()
        .map(|line| line.strip_prefix("jitsym ").and_then(|line| line.split_once(": ")).expect(line).1)
        .collect()
}

fn count(lines: &[&str], wanted: &str) -> usize {
    lines.iter().filter(|line| line.contains(wanted)).count()
}

#[test]
fn nothing_is_said_without_being_asked() {
    for value in ["", "0", "off"] {
        assert_eq!(run_with(program(), "off", value, &[]).stderr, b"", "{value}");
    }
    let mut command = Command::new(program());
    let output = run(command.arg(scratch_dir("debug-output-unset")).env_remove("JITSYM_DEBUG"));
    assert_eq!(output.stderr, b"");
}

#[test]
fn decisions_and_first_refusals() {
    let variables = ["JITSYM=jitdmp", "JITSYM_JITDUMP_MAX=lots", "JITSYM_DUMP_DIR=/tmp"];
    for program in [program(), &compiled(Link::Static, "debug-output-static")] {
        let output = run_with(program, "on", "1", &variables);
        let said = String::from_utf8(output.stderr).expect("text");
        let lines = lines(&said);
        for once in [
            concat!("libjitsym ", env!("CARGO_PKG_VERSION")),
            "JITSYM=jitdmp: there is no sink `jitdmp`; did you mean jitdump?",
            "JITSYM_JITDUMP_MAX=lots: is no number of bytes, as 64M is, and ignored",
            "JITSYM_DUMP_DIR=/tmp: this version knows no such variable",
            "sinks wanted: map jitdump; map in /",
            "sink map: /",
            "sink jitdump: /",
            "refused: JITSYM_ERR_SESSION: the session was never opened (jitsym_init opens one)",
            "refused: JITSYM_ERR_LINE_OFFSET: lines[3].offset is 50, the code has 12 bytes",
            "refused: JITSYM_ERR_STRUCT_SIZE: jitsym_code.struct_size is 0: set it to sizeof(jitsym_code), or use JITSYM_CODE()",
            "refused: JITSYM_ERR_UNKNOWN_ID: the id 0x4d",
            "at exit: 1 registered, 0 moved, 0 unregistered, 6 refused, 0 dropped",
        ] {
            assert_eq!(count(&lines, once), 1, "{once}: {said}");
        }
    }
}

/// Regions alone are written, and the code lies in none. Or memory is to be adopted, and the same user's list has no regions.
#[test]
fn settings_without_effect() {
    let said = |variables: &[&str]| {
        String::from_utf8(run_with(program(), "settings", "1", &[variables, &["SINKS="]].concat()).stderr)
            .expect("text")
    };
    let alone = said(&["JITSYM=region"]);
    assert_eq!(
        count(&lines(&alone), "failed: registrations in no file: 1; their code lies in no region"),
        1,
        "{alone}"
    );
    let with_map = said(&["JITSYM=region,map", "JITSYM_ADOPT=1"]);
    assert_eq!(count(&lines(&with_map), "lies in no region"), 0, "{with_map}");
    assert_eq!(count(&lines(&with_map), "adopts memory: yes;"), 1, "{with_map}");
    let map = said(&["JITSYM=map", "JITSYM_ADOPT=1"]);
    assert_eq!(count(&lines(&map), "adopts memory: no, because region is not among the sinks;"), 1, "{map}");
}

/// Each mistake is one finding, the first twenty of each kind are said, and calls that are right are none.
#[test]
fn checked_calls() {
    let program = compile("gcc", &["c-tests/calls/debug_check.c"], Link::Shared, &["-O1"], "debug-check");
    let said = |debug: &str| {
        let mut command = Command::new(&program);
        let output = run(command.arg(scratch_dir("debug-check-files")).env("JITSYM_DEBUG", debug));
        assert_eq!(stdout(&output), "ok\n");
        String::from_utf8(output.stderr).expect("text")
    };
    let text = said("check");
    let findings: Vec<&str> = lines(&text).into_iter().filter_map(|line| line.strip_prefix("check: ")).collect();
    let only = |name: &str| match findings.iter().filter(|line| line.contains(name)).collect::<Vec<_>>()[..] {
        [finding] => *finding,
        _ => panic!("one finding for {name}: {text}"),
    };
    assert_eq!(only("`good"), only("`bad_replaced`"));
    for (name, expected) in [
        ("bad_flushed", "(64 bytes): 10 bytes differ from jitsym_code.bytes, the first at +0: given f30f1efa554889e5, in memory 0102030405060708;"),
        ("bad_ended", "(64 bytes): 1 bytes differ from jitsym_code.bytes, the first at +0: given f30f1efa554889e5, in memory f20f1efa554889e5;"),
        ("bad_moved", "(64 bytes): 9 bytes differ from jitsym_code.bytes"),
        ("bad_replaced", "(64 bytes), which is registered; unregister code before"),
        ("bad_unmapped", "cannot be read when the code ends; unregister code before"),
        ("bad_at_exit", "(64 bytes): 64 bytes differ"),
    ] {
        assert!(only(&format!("`{name}`")).contains(expected), "{name}: {text}");
    }
    // One of the twenty is another one's. Which ones of the 26 are over is said in the end.
    assert_eq!(count(&findings, "ends `again`"), 19, "{text}");
    assert_eq!(count(&findings, "more of each kind: 6 that end other code, 0 with other bytes, 0 without memory"), 1);
    assert_eq!(findings.len(), 5 + 20 + 1, "{text}");

    assert_eq!(said("1").matches("check:").count(), 0);
    let file = fresh_dir("debug-check-log").join("log");
    assert_eq!(said(&format!("check,{}", file.display())), "");
    assert_eq!(std::fs::read_to_string(&file).expect("the file").matches("check: ").count(), findings.len());
}

#[test]
fn to_a_file() {
    let file = fresh_dir("debug-output-log").join("log");
    let output = run_with(program(), "file", file.to_str().expect("path"), &[]);
    assert_eq!(output.stderr, b"");
    let said = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(count(&lines(&said), "refused: JITSYM_ERR_LINE_OFFSET"), 1, "{said}");
}

/// Where the reader of a pipe has gone, the host goes on, and hears no signal.
#[test]
fn a_reader_that_has_gone() {
    let mut command = Command::new(program());
    command.arg(scratch_dir("debug-output-pipe")).env("JITSYM_DEBUG", "1");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.stderr(writer).stdout(Stdio::piped()).spawn().and_then(|child| child.wait_with_output());
    let output = output.expect("the program");
    assert!(output.status.success() && stdout(&output).ends_with("ok\n"), "{output:?}");
}

/// The background thread, which has a descriptor table of its own, is heard as well.
#[test]
fn a_sink_that_fails() {
    let dir = scratch_dir("debug-output-fails");
    // What is no file cannot be written.
    let mut command = Command::new("sh");
    let script = "mkdir \"$2/perf-$$.map\" && exec \"$1\" \"$2\"";
    command.args(["-c", script, "sh"]).arg(program()).arg(&dir).env("JITSYM_DEBUG", "1");
    let output = try_run(&mut command);
    let said = String::from_utf8(output.stderr).expect("text");
    let said = said.lines().filter(|line| line.starts_with("jitsym ")).collect::<Vec<_>>().join("\n");
    let lines = lines(&said);
    assert_eq!(count(&lines, "sinks that failed: map"), 1, "{said}");
    assert!(lines.iter().any(|line| line.contains("cannot") && line.contains(".map")), "{said}");
}
