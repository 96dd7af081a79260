//! The program itself: exit status, options, JSON, pipes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jitsym_tool::check::report::Style;
use serde_json::Value;

use crate::build::{before_load, debug, dump, plain, Load, Unwinding, PID};
use crate::corpus::check_text;
use crate::support::{scratch_dir, stdout, try_run};

fn jitsym(arguments: &[&str]) -> Output {
    try_run(Command::new(env!("CARGO_BIN_EXE_jitsym")).args(arguments))
}

fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch_dir("program").join(name);
    std::fs::write(&path, bytes).expect("write the file");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A file with one error and one note, in the right place.
struct InTmp(PathBuf);

impl InTmp {
    /// There can be no process with this number.
    fn new(bytes: &[u8]) -> InTmp {
        let path = PathBuf::from(format!("/tmp/jit-{}.dump", u32::MAX - std::process::id()));
        std::fs::write(&path, bytes).expect("write the file");
        InTmp(path)
    }
}

impl Drop for InTmp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const GOLDEN: &str = "\
FILE:0x28: error: CLOSE: the next record is at 0x38 [close-not-last; perf, samply, ddprof, parca]
    Behind a JIT_CODE_CLOSE nothing is read, and samply forgets all code.
FILE:0x38: note: DEBUG_INFO: it has 53 bytes [record-unaligned; none known]
    The size of the record is not a multiple of 8; no reader that is known wants it to be.
FILE:0x38: warning: DEBUG_INFO of \"fib_int\": the last entry is for 0x7f0000001004, the code ends at 0x7f0000001008 [debug-no-end; perf]
    perf ends the table at its last entry, which so covers nothing; one at the end of the code has to follow.
FILE:0xb5: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
    perf names its objects by the code index: with one used twice, both pieces of code show the later name.
FILE:0xf6: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
FILE:0x137: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
FILE: note: 6 of 6 pieces of code have no tables [unwind-missing; perf, CodSpeed]
    Call stacks go through code without unwind tables only by frame pointers.
FILE: 5 more of record-unaligned (--all)
FILE: 2 more of index-reused (--all)
FILE: jitdump: 6 errors, 1 warning, 7 notes
";

fn golden_file() -> Vec<u8> {
    let close = crate::build::record(3, crate::build::TIME, &[]);
    let lines = debug(&[(4, 1, b"/a.c".as_slice())][..]);
    let again = |number: u64| {
        let addr = crate::build::ADDR + 0x100 * number;
        Load { addr, name: b"_\0".to_vec(), code: vec![0x90; 7], ..Load::default() }.bytes()
    };
    dump(&[close, lines, Load::default().bytes(), (1..6).flat_map(again).collect()])
}

#[test]
fn golden_text() {
    let printed = String::from_utf8(check_text(&golden_file(), Style::Text)).expect("text");
    assert_eq!(printed, GOLDEN, "{printed}");
    // All of them, each with a line.
    let all = String::from_utf8(check_text(&golden_file(), Style::AllText)).expect("text");
    assert_eq!(all.matches("[index-reused;").count(), 5, "{all}");
    assert!(!all.contains("more of"));
}

#[test]
fn exit_status() {
    let file = InTmp::new(&plain());
    let path = text(&file.0);
    // The number in the name is not that of the header.
    let output = jitsym(&["check", path]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("[dump-name-pid;") && !stdout(&output).contains("dump-name;"));
    let output = jitsym(&["check", "--allow", "dump-name-pid", path]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{}", stdout(&output));
    // Notes alone are nothing to worry about.
    std::fs::write(&file.0, before_load(&[Unwinding::default().bytes()])).expect("write the file");
    let output = jitsym(&["check", "--allow=dump-dir,dump-name-pid", path]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(stdout(&output).contains("0 errors, 0 warnings, 1 note"), "{}", stdout(&output));

    // The others are checked all the same.
    let output = jitsym(&["check", "/nonexistent", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("/nonexistent: "));
    assert!(stdout(&output).contains("jitdump: 1 error"), "{}", stdout(&output));
    let dir = scratch_dir("program");
    for words in [
        &["check"][..],
        &["check", "--no-such-option", path],
        &["check", "--allow", "no-such-rule", path],
        &["check", text(&dir)],
        &["check", "/dev/zero"],
        &["dump", "/nonexistent"],
        &["dump"],
        &["dump", path, path],
        &["stat"],
        &["nonsense"],
        &[],
    ] {
        let output = jitsym(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stdout(&output));
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
    for words in [["help"], ["--help"], ["version"], ["--version"]] {
        assert_eq!(jitsym(&words).status.code(), Some(0));
    }
}

/// What people see and what programs read is the same.
#[test]
fn json() {
    let path = write("odd \"name\".dump", &golden_file());
    let map = write("perf-1.map", b"1000 8 f\n1000 8 a\x01\"\\\xff\n");
    let output = jitsym(&["check", "--json", text(&path), text(&map), "/nonexistent"]);
    assert_eq!(output.status.code(), Some(2));
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stdout(&output)));
    let files = value["files"].as_array().expect("files");
    assert_eq!(files.len(), 3);
    assert_eq!((files[0]["path"].as_str(), files[0]["format"].as_str()), (path.to_str(), Some("jitdump")));
    let findings = files[0]["findings"].as_array().expect("findings");
    let reused = findings.iter().filter(|found| found["rule"] == "index-reused");
    assert_eq!(reused.clone().count(), 5, "all of them");
    let first = reused.clone().next().expect("one");
    assert_eq!(first["severity"], "error");
    assert_eq!(first["readers"], serde_json::json!(["perf"]));
    assert_eq!(first["offset"], 0xb5);
    assert_eq!(first["record"], "LOAD \"_\"");
    assert_eq!(first["text"], "code_index 1 is that of the record at 0x6d");
    let serious = |severity: &str| findings.iter().filter(|found| found["severity"] == severity).count();
    assert_eq!(files[0]["errors"], serious("error"));
    assert_eq!(files[0]["warnings"], serious("warning"));
    assert_eq!(files[0]["notes"], serious("note"));
    let lines: Vec<&Value> =
        files[1]["findings"].as_array().expect("findings").iter().map(|found| &found["line"]).collect();
    assert!(lines.contains(&&Value::from(2)), "{lines:?}");
    assert!(files[2]["unreadable"].is_string() && files[2]["format"].is_null());

    let rules: Value = serde_json::from_slice(&jitsym(&["check", "--rules", "--json"]).stdout).expect("JSON");
    let rules = rules["rules"].as_array().expect("rules");
    assert_eq!(rules.len(), jitsym_tool::check::rules::ALL.len());
    assert!(rules
        .iter()
        .all(|rule| rule["rule"].is_string() && rule["text"].is_string() && rule["readers"].is_array()));
    let listed = stdout(&jitsym(&["check", "--rules"]));
    assert!(rules.iter().all(|rule| listed.contains(rule["rule"].as_str().expect("name"))), "{listed}");
}

/// A reader that goes away is no failure, and nothing is said of it.
#[test]
fn broken_pipe() {
    // More than a pipe holds.
    let many: Vec<u8> =
        (1..20_000).flat_map(|index| Load { index, code: vec![0x90; 7], ..Load::default() }.bytes()).collect();
    let path = write("many.dump", &dump(&[many]));
    for words in [&["check", "--all"][..], &["check", "--json"], &["dump"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
        let mut child =
            command.args(words).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("wait");
        assert!(output.stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.code().is_some_and(|code| code < 2), "{words:?}: {}", output.status);
    }
}

/// Counts and sizes that are not true cost no memory.
#[test]
fn memory_is_in_proportion() {
    let all = u64::MAX;
    let liars = [
        crate::build::debug_with(crate::build::ADDR, all, &[(0, 1, b"/a.c".as_slice())][..]),
        Unwinding { size: Some(all), hdr_size: Some(all), mapped_size: all, ..Unwinding::default() }.bytes(),
        Load { size: Some(all), ..Load::default() }.bytes(),
    ];
    let loads = (1..50_000).flat_map(|index| Load { index, addr: index << 12, ..Load::default() }.bytes()).collect();
    let path = write("liars.dump", &dump(&[liars.concat(), loads]));
    let map: String = (1..200_000).map(|line| format!("{:x} 8 name\n", line << 4)).collect();
    let map = write("perf-2.map", map.as_bytes());
    for command in ["check", "dump", "stat"] {
        for path in [&path, &map] {
            let mut shell = Command::new("sh");
            // In KiB; the program itself needs some thousands.
            let script = "ulimit -v 60000; exec \"$0\" \"$1\" \"$2\"";
            shell.args(["-c", script, env!("CARGO_BIN_EXE_jitsym"), command, text(path)]);
            let output = try_run(&mut shell);
            let (code, errors) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
            assert!(code.is_some_and(|code| code < 2) && errors.is_empty(), "{command} {}: {errors}", path.display());
        }
    }
}

#[test]
fn pipes_are_read() {
    let path = write("piped.dump", &plain());
    for command in ["check", "dump", "stat"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "cat \"$1\" | \"$0\" \"$2\" /dev/stdin", env!("CARGO_BIN_EXE_jitsym"), text(&path), command]);
        let output = try_run(&mut shell);
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), &b""[..]),
            "{command}: {}",
            stdout(&output)
        );
        assert!(stdout(&output).contains("jitdump"), "{command}: {}", stdout(&output));
    }
}

/// The instructions are those of the code, at its address; other code is left out.
#[cfg(target_arch = "x86_64")]
#[test]
fn disassembly() {
    // mov eax, 42; ret
    let other = Load { name: b"other\0".to_vec(), index: 2, addr: crate::build::ADDR + 0x100, ..Load::default() };
    let code = Load { code: b"\xb8\x2a\0\0\0\xc3".to_vec(), ..Load::default() };
    let path = write("code.dump", &dump(&[code.bytes(), Unwinding::default().bytes(), other.bytes()]));
    let output = jitsym(&["dump", "--disassemble", "--name", "fib", text(&path)]);
    let printed = stdout(&output);
    assert!(output.status.success() && output.stderr.is_empty(), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], format!("jitdump of process {PID}, machine 62 (x86-64), time by CLOCK_MONOTONIC"));
    assert!(lines[1].ends_with(" fib_int"), "{printed}");
    assert!(lines[2].contains("7f0000001000:") && lines[2].contains("$0x2a,%eax"), "{printed}");
    assert!(lines[3].contains("7f0000001005:") && lines[3].contains("ret"), "{printed}");
    assert_eq!(lines.len(), 4, "{printed}");
}
