//! The program itself: exit status, options, JSON, pipes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jitsym_tool::check::report::Style;
use serde_json::Value;

use crate::build::{debug, dump, plain, Header, Load, Unwinding, PID};
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

/// The time of the records of a file that is just being written.
fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes nothing but this struct.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

const GOLDEN: &str = "\
FILE: jitdump: 6 errors, 1 warning, 1 note (--notes)
  perf 6 (libunwind): names partly (close-not-last, index-reused), stacks by frame pointers, lines partly (debug-no-end)
  perf 7 (libdw): names partly (close-not-last, index-reused), stacks by frame pointers, lines partly (debug-no-end)
  samply: names partly (close-not-last), stacks by frame pointers, lines yes
  blazesym, bpftrace: jitdumps are not read

FILE:0x28: error: CLOSE: the next record is at 0x38 [close-not-last; perf, samply, ddprof, parca]
    Behind a JIT_CODE_CLOSE nothing is read, and samply forgets all code.

FILE:0xb5: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
    perf names its objects by the code index: with one used twice, both pieces of code show the later name.
FILE:0xf6: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
FILE:0x137: error: LOAD \"_\": code_index 1 is that of the record at 0x6d [index-reused; perf]
FILE: 2 more of index-reused (--all)

FILE:0x38: warning: DEBUG_INFO of \"fib_int\": the last entry is for 0x7f0000001004, the code ends at 0x7f0000001008 [debug-no-end; perf]
    perf ends the table at its last entry, which so covers nothing; one at the end of the code has to follow.

FILE: jitdump: 6 errors, 1 warning, 1 note
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
    let printed = String::from_utf8(check_text(&golden_file(), Style::Text, false)).expect("text");
    assert_eq!(printed, GOLDEN, "{printed}");
    let with_notes = |style, notes| String::from_utf8(check_text(&golden_file(), style, notes)).expect("text");
    // Notes that concern a reader only if they are asked for, and others only with everything.
    let notes = with_notes(Style::Text, true);
    assert!(notes.contains("note: 6 of 6 pieces") && !notes.contains("[record-unaligned;"), "{notes}");
    assert!(!GOLDEN.contains(": note:") && with_notes(Style::AllText, false).contains("[record-unaligned;"));
    // All of them, each with a line.
    let all = String::from_utf8(check_text(&golden_file(), Style::AllText, false)).expect("text");
    assert_eq!(all.matches("[index-reused;").count(), 5, "{all}");
    assert!(!all.contains("more of"));
}

#[test]
fn exit_status() {
    // Made by somebody who writes it now.
    let time = now();
    let load = Load { time, ..Load::default() }.bytes();
    let header = Header { time, ..Header::default() };
    let file = InTmp::new(&crate::build::file(header, std::slice::from_ref(&load)));
    let path = text(&file.0);
    // The number in the name is not that of the header.
    let output = jitsym(&["check", path]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("[dump-name-pid;") && !stdout(&output).contains("dump-name;"));
    let output = jitsym(&["check", "--allow", "dump-name-pid", path]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{}", stdout(&output));
    // Notes alone are nothing to worry about.
    std::fs::write(&file.0, crate::build::file(header, &[Unwinding::default().bytes(), load])).expect("write the file");
    let output = jitsym(&["check", "--allow=dump-dir,dump-name-pid,time-backwards", path]);
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
    assert!(lines[1].starts_with("fib_int: 0x7f0000001000+0x6 "), "{printed}");
    assert!(lines[2].contains("+0x0") && lines[2].contains("$0x2a,%eax"), "{printed}");
    assert!(lines[3].contains("+0x5") && lines[3].contains("ret"), "{printed}");
    assert_eq!(lines.len(), 4, "{printed}");

    // Side by side with line and unwind row of the same place.
    let lines = debug(&[(0, 10, b"/a.c".as_slice()), (5, 11, b"/a.c")][..]);
    let path = write("both.dump", &dump(&[lines, Unwinding::of_size(6).bytes(), code.bytes()]));
    let printed = stdout(&jitsym(&["dump", "--disassemble", text(&path)]));
    let row = |offset: &str| {
        let line = printed.lines().find(|line| line.trim_start().starts_with(offset));
        line.unwrap_or_else(|| panic!("{printed}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("+0x0"), "+0x0 /a.c:10 CFA rsp+16 rbx=same RA=[CFA-8] mov $0x2a,%eax");
    assert_eq!(row("+0x5"), "+0x5 :11 ret");
}

/// One line says what is wrong, with the word that may have been meant, and a second where to read on.
#[test]
fn mistyped_words() {
    for (words, problem, help) in [
        (&["chek", "x"][..], "'chek'; a similar subcommand exists: 'check'", "jitsym --help"),
        (&["check", "--al", "x"], "'--al' found; a similar argument exists: '--all'", "jitsym check --help"),
        (&["check", "--allow", "dump-dir,dump-nam", "x"], "a similar one exists: 'dump-name'", "jitsym check --help"),
        (
            &["check", "--allow", "zzz", "x"],
            "there is no such rule (`jitsym check --rules` lists them)",
            "jitsym check --help",
        ),
        (&["clean", "--dry-rn"], "a similar argument exists: '--dry-run'", "jitsym clean --help"),
        (&["recover", "me"], "it is no pid", "jitsym recover --help"),
        (&[], "a command is missing", "jitsym --help"),
    ] {
        let output = jitsym(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((output.status.code(), lines.len()), (Some(2), 2), "{words:?}: {said}");
        assert!(lines[0].starts_with("jitsym: ") && lines[0].contains(problem), "{words:?}: {said}");
        assert_eq!(lines[1], format!("see `{help}`"), "{words:?}");
    }
    // What it leads to is there, and in it what the exit codes mean.
    let help = stdout(&jitsym(&["--help"]));
    assert!(["  0  ", "  1  ", "  2  "].iter().all(|code| help.contains(code)), "{help}");
}

#[test]
fn not_found_is_an_error() {
    let path = write("named.dump", &plain());
    for (words, problem) in [
        (&["dump", "--name", "nosuch", text(&path)][..], "no code has 'nosuch' in its name"),
        // No process has such a number.
        (&["recover", "99999999"], "there is no such process"),
        (&["check", "99999999"], "no process that has left one"),
    ] {
        let output = jitsym(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(problem), "{words:?}: {said}");
    }
    assert!(jitsym(&["dump", "--name", "fib", text(&path)]).status.success());
}

/// Compressed or by way of standard input, it is the same file.
#[test]
fn compressed_files_and_standard_input() {
    let path = write("packed.dump", &golden_file());
    let plain = stdout(&jitsym(&["dump", text(&path)]));
    let shell = |script: &str| {
        let mut shell = Command::new("sh");
        stdout(&try_run(shell.args(["-c", script, env!("CARGO_BIN_EXE_jitsym"), text(&path)])))
    };
    assert!(plain.contains("fib_int"));
    assert_eq!(shell("\"$0\" dump - <\"$1\""), plain);
    for program in ["gzip", "zstd"] {
        let script = format!("{program} -c \"$1\" | \"$0\" dump -");
        assert_eq!(shell(&script), plain, "{program}");
        // Two in one file, as one after the other.
        let script = format!("{{ head -c 100 \"$1\" | {program} -c; tail -c +101 \"$1\" | {program} -c; }} >\"$1.packed\"; \"$0\" dump \"$1.packed\"");
        assert_eq!(shell(&script), plain, "{program}, twice");
    }
    // One that is cut.
    let cut = write("cut.gz", b"\x1f\x8b\x08\0\0");
    let output = jitsym(&["stat", text(&cut)]);
    assert!(output.status.code() == Some(2) && output.stderr.starts_with(text(&cut).as_bytes()));
}

/// Instead of an error for each line of them.
#[test]
fn other_files_are_called_what_they_are() {
    for (name, bytes, what) in [
        ("perf.data", &b"PERFILE2\x68\0\0\0"[..], "is a recording of perf"),
        ("spool", b"jitspool\0\0\0\0", "is a spool of libjitsym"),
        ("notes.txt", b"what a day\nand so on\n", "is text"),
        ("noise", b"\x01\x02\0\x04", "is data of an unknown kind"),
        ("half.so", b"\x7fELF\x02\x01", "is no whole ELF file"),
    ] {
        let path = write(name, bytes);
        for command in ["check", "dump", "stat"] {
            let output = jitsym(&[command, text(&path)]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.code() == Some(2) && said.contains(what) && said.lines().count() == 1,
                "{command}: {said}"
            );
        }
    }
}

/// Name and place of a copy are not held against it.
#[test]
fn copies_and_renamed_files() {
    let file = InTmp::new(&plain());
    let copy = write("my.dump", &plain());
    assert!(!stdout(&jitsym(&["check", "--all", text(&copy)])).contains("[dump-"), "a copy of one in /tmp");
    drop(file);
    assert!(
        stdout(&jitsym(&["check", text(&copy)])).contains("it is a copy or was renamed"),
        "no runtime calls it that"
    );
    // Of another machine, to all appearances: written at once, and of a time that this one has not seen yet.
    let name = write("jit-elsewhere.dump", &dump(&[Load { time: 1 << 58, ..Load::default() }.bytes()]));
    assert!(!stdout(&jitsym(&["check", "--all", text(&name)])).contains("[dump-"), "of another machine");
    let map = write("perf-x.map", b"1000 8 fib_int\n");
    assert!(stdout(&jitsym(&["check", text(&map)])).contains("[map-name;"), "nothing is known of it");
    // As `cp -p`, `tar` and `mv` leave it.
    let mut touch = Command::new("touch");
    assert!(try_run(touch.args(["-d", "1 hour ago"]).arg(&map)).status.success());
    let printed = stdout(&jitsym(&["check", "--all", text(&map)]));
    assert!(!printed.contains("[map-"), "{printed}");
}

/// The files of a process, by its number.
#[test]
fn files_of_a_process() {
    let mut child = Command::new("sleep").arg("600").spawn().expect("start");
    let map = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
    std::fs::write(&map, b"1000 8 fib_int\n").expect("write the map");
    let pid = child.id().to_string();
    let outputs = ["check", "dump", "stat"].map(|command| jitsym(&[command, &pid]));
    let _ = child.kill();
    let _ = child.wait();
    std::fs::remove_file(&map).expect("remove the map");
    for output in outputs {
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).contains("fib_int") || stdout(&output).contains("perf map"), "{output:?}");
    }
}

/// Functions, lines and unwind rows of an ELF file, which a compiler has made here.
#[cfg(target_arch = "x86_64")]
#[test]
fn elf_files() {
    let source = write("region.c", b"int other(int n);\nint fib_int(int n) {\n  return other(n) + n;\n}\n");
    let library = source.with_file_name("jit-4711-2.3.so");
    let mut cc = Command::new("gcc");
    cc.args(["-g", "-gdwarf-4", "-O1", "-shared", "-fPIC", "-nostartfiles", "-o"]).arg(&library).arg(&source);
    assert!(try_run(&mut cc).status.success());
    let printed = stdout(&jitsym(&["dump", "--name", "fib_int", text(&library)]));
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("region 2 of process 4711, generation 3, machine 62 (x86-64)"), "{printed}");
    assert!(lines[1].starts_with("fib_int: 0x"), "{printed}");
    assert!(
        lines[2].contains("+0x0") && lines[2].contains("/region.c:2") && lines[2].contains("CFA rsp+8"),
        "{printed}"
    );
    assert!(printed.contains("CFA rsp+16"), "{printed}");
    let printed = stdout(&jitsym(&["stat", "--top", "100", text(&library)]));
    assert!(printed.contains(".eh_frame") && printed.lines().any(|line| line.ends_with("  fib_int")), "{printed}");
    let output = jitsym(&["check", text(&library)]);
    assert!(output.status.success() && stdout(&output).contains("region: 0 errors"), "{output:?}");
    // As one cuts it.
    let bytes = std::fs::read(&library).expect("library");
    let half = write("jit-4711-9.so", &bytes[..bytes.len() / 2]);
    assert_eq!(jitsym(&["check", text(&half)]).status.code(), Some(1));
}

#[test]
fn largest_names() {
    let other = Load {
        name: b"larger\0".to_vec(),
        code: vec![0x90; 65],
        index: 2,
        addr: crate::build::ADDR + 0x100,
        ..Load::default()
    };
    let path = write("top.dump", &dump(&[Load::default().bytes(), other.bytes()]));
    let printed = stdout(&jitsym(&["stat", "--top", "1", text(&path)]));
    assert!(printed.contains("65 bytes in      1 piece   larger") && !printed.contains("fib_int"), "{printed}");
}

/// What each reader makes of a file, for people and for programs.
#[test]
fn verdicts() {
    let verdicts = |name: &str, file: &[u8]| {
        let path = write(name, file);
        let printed = stdout(&jitsym(&["check", text(&path)]));
        let value: Value = serde_json::from_slice(&jitsym(&["check", "--json", text(&path)]).stdout).expect("JSON");
        (printed, value["files"][0]["verdicts"].clone())
    };
    let lines = debug(&[(0, 1, b"/a.c".as_slice()), (8, 1, b"/a.c")][..]);
    let not_mapped = Unwinding { mapped_size: 0, ..Unwinding::default() };
    let mapped = Unwinding { mapped_size: 4096, ..Unwinding::default() };
    let (printed, json) = verdicts("own.dump", &dump(&[lines.clone(), not_mapped.bytes(), Load::default().bytes()]));
    assert!(
        printed.contains("\n  perf 6 (libunwind): names yes, stacks NO (use jitsym inject), lines yes\n"),
        "{printed}"
    );
    assert!(printed.contains("\n  perf 7 (libdw): names yes, stacks yes, lines yes\n"), "{printed}");
    assert!(printed.contains("\n  samply: names yes, stacks by frame pointers, lines yes\n"), "{printed}");
    assert!(printed.contains("\n  blazesym, bpftrace: jitdumps are not read\n"), "{printed}");
    assert_eq!(json[0]["reader"], "perf 6 (libunwind)");
    assert_eq!(json[0]["stacks"], serde_json::json!({ "state": "no", "why": "use jitsym inject" }));
    assert_eq!((&json[1]["stacks"]["state"], &json[1]["names"]["state"]), (&Value::from("yes"), &Value::from("yes")));
    let (printed, _) = verdicts("mapped.dump", &dump(&[mapped.bytes(), Load::default().bytes()]));
    assert!(printed.contains("perf 6 (libunwind): names yes, stacks yes\n"), "{printed}");
    // What costs everything, and what costs some of it.
    let version = Header { version: 2, ..Header::default() };
    let (printed, _) = verdicts("version.dump", &crate::build::file(version, &[lines, Load::default().bytes()]));
    assert!(
        printed
            .contains("perf 7 (libdw): names NO (header-version), stacks by frame pointers, lines NO (header-version)"),
        "{printed}"
    );
    assert!(printed.contains("samply: names yes"), "{printed}");
    let (printed, json) = verdicts("other.map", b"1000 8 aa\n2000 8 name\n");
    assert!(
        printed.contains("perf 6 (libunwind): names partly (map-name-short), stacks by frame pointers\n"),
        "{printed}"
    );
    assert!(printed.contains("blazesym, bpftrace: names yes"), "{printed}");
    assert_eq!(json[3]["lines"]["state"], "none");
}

/// On a terminal, or where somebody wants it so; and not where somebody does not.
#[test]
fn colour() {
    let path = write("colour.dump", &golden_file());
    let printed = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").envs(variables.iter().copied());
        stdout(&try_run(command.arg("check").arg(&path)))
    };
    assert!(!printed(&[]).contains('\x1b'));
    let forced = printed(&[("CLICOLOR_FORCE", "1")]);
    assert!(forced.contains("\x1b[1;31merror\x1b[0m: CLOSE") && forced.contains("\x1b[33mwarning\x1b[0m"), "{forced}");
    assert!(!printed(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\x1b'));
}
