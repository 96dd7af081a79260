//! `jitsym doctor` on broken set-ups, all of which are made here: its last lines name the cause. docs/doctor.md has them too;
//! `JITSYM_BLESS=1` writes them there.

#[path = "doctor/masks.rs"]
mod masks;
#[path = "doctor/mistakes.rs"]
mod mistakes;
#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "doctor/published.rs"]
mod published;
#[path = "doctor/set_ups.rs"]
mod set_ups;
#[path = "../../tests/support/mod.rs"]
mod support;
mod toy;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use masks::{last_lines, masked};
use mistakes::{mistakes, of_mistakes, MISTAKES};
use set_ups::*;
use support::*;
use toy::{broken, toy};

fn doctor(words: &[&str]) -> Command {
    let config = scratch_dir("config").join("perfconfig");
    let text = format!("[buildid]\n\tdir = {}\n", scratch_dir("buildid").display());
    std::fs::write(&config, text).expect("settings of perf");
    let mut command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    command.env("PERF_CONFIG", config).arg("doctor").args(words);
    command
}

/// Records the toy with such a mistake, and looks at the recording.
fn of_command(program: &Path, dir: &Path, environment: &[(&str, &str)]) -> Output {
    let mut command = doctor(&["--"]);
    command.arg(program).arg(root().join("examples/hello.toy")).arg("0.3").env("JITSYM_DIR", dir);
    try_run(command.envs(environment.iter().copied()))
}

const DOCUMENT: &str = "docs/doctor.md";
const BEGIN: &str = "<!-- The set-ups are written by tool/tests/doctor.rs. -->\n";
const MISTAKES_BEGIN: &str = "<!-- The rest is written by tool/tests/doctor.rs. -->\n";

/// Each set-up has its cause in the last lines, and these are in the document.
#[test]
fn last_lines_name_the_cause() {
    if is_root("mount file systems and start a container") {
        in_the_document(BEGIN, "\n## Programs that make a mistake\n", &sections(SET_UPS));
    }
}

/// The same for programs that make a mistake.
#[test]
fn last_lines_name_the_mistake() {
    if is_root("mount a file system") {
        in_the_document(MISTAKES_BEGIN, "", &sections(MISTAKES));
    }
}

/// The last line: the command, and whether the program has to be changed before.
fn is_to_type(line: &str) -> bool {
    line.strip_prefix("change the program, then ").unwrap_or(line).starts_with("type:  ")
}

/// Makes set-ups. Each has a section of the document.
fn sections(set_ups: &[SetUp]) -> String {
    let mut sections = String::new();
    for set_up in set_ups {
        let dir = fresh_dir(set_up.heading.replace(' ', "-"));
        let output = (set_up.make)(&dir);
        let text = stdout(&output);
        let last = last_lines(&text, &dir);
        // What concerns debuggers alone is a note.
        let is_note = last.starts_with("nothing is wrong for perf\nnote:  ");
        assert_eq!(
            output.status.code(),
            Some(i32::from(!is_note)),
            "{}: {text}{}",
            set_up.heading,
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(last.lines().count() <= 3, "{}: {text}", set_up.heading);
        let cause = last.lines().nth(usize::from(is_note)).unwrap_or_default();
        let (line, cause_there) = (set_up.heading, set_up.cause.replace(" perf_event", "perf_event"));
        assert!((is_note || cause.starts_with("cause: ")) && cause.contains(&cause_there), "{line}: {text}");
        assert!(last.lines().last().is_some_and(is_to_type), "{line}: {text}");
        let _ = write!(
            sections,
            "\n## {}\n\n{}\nSymptom: {}.\n\n<!-- test: not run, compared -->\n```text\n{last}\n```\n",
            set_up.heading, set_up.done, set_up.without
        );
    }
    sections
}

/// What is between two texts of the document, or after one, is what the program says.
fn in_the_document(begin: &str, end: &str, said: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let path = root().join(DOCUMENT);
    let text = std::fs::read_to_string(&path).expect("document");
    let (start, rest) = text.split_once(begin).expect("its beginning");
    let at = if end.is_empty() { rest.len() } else { rest.find(end).expect("its end") };
    if std::env::var_os("JITSYM_BLESS").is_some() {
        std::fs::write(&path, format!("{start}{begin}{said}{}", &rest[at..])).expect("write the document");
    } else {
        assert!(rest[..at] == *said, "{DOCUMENT} is not what the program says (JITSYM_BLESS=1 writes it):\n{said}");
    }
}

const SESSION: &str = "<!-- tool/tests/doctor.rs writes the session and the set-ups below. \"compared\": it runs them, and compares the text. -->\n";

/// A session with a program that is set up rightly, screen by screen. What differs between machines and runs is masked.
#[test]
fn a_session() {
    if !is_root("record everything, as the document says") {
        return;
    }
    let dir = fresh_dir("session");
    let jitsym = |words: &[&str]| {
        let mut command = doctor(&[]);
        let environment: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
        environment.into_iter().for_each(|(name, value)| _ = value.map(|value| command.env(name, value)));
        command.current_dir(&dir).args(words);
        command
    };
    let shown = |output: &Output| masked(&(stdout(output) + &String::from_utf8_lossy(&output.stderr)), &dir);
    let mut screens = String::new();
    let mut screen = |words: &str, text: &str| {
        _ = write!(screens, "\n<!-- test: not run, compared -->\n```text\n$ {words}\n{text}```\n")
    };
    screen("jitsym doctor", &shown(&run(&mut jitsym(&["doctor"]))));
    let mut record = jitsym(&["record", "-e", "cpu-clock", "--"]);
    let output = run(record.arg(toy()).arg(root().join("examples/hello.toy")).arg("1"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let pid = said.split_once("/tmp/jit-").and_then(|(_, rest)| rest.split_once(".dump")).expect("its jitdump").0;
    let _files = TmpFiles(pid.parse().expect("a number"));
    screen("jitsym record -e cpu-clock -- toy_jit hello.toy 1", &masked(&said, &dir));
    screen("jitsym doctor perf.data", &shown(&run(&mut jitsym(&["doctor", "perf.data"]))));
    screen("jitsym check /tmp/jit-N.dump", &shown(&run(&mut jitsym(&["check", &format!("/tmp/jit-{pid}.dump")]))));
    let process = of_process(toy_that_has_code(&dir), "jit-");
    screen("jitsym doctor N", &shown(&process));
    in_the_document(SESSION, "\n## Set-ups that are broken\n", &screens);
}

/// Whatever is made for a command that is recorded lies where nobody else can put anything, and goes.
#[test]
fn a_command_is_looked_at_in_private() {
    let (dir, temporary) = (fresh_dir("files"), fresh_dir("temporary"));
    let mut command = doctor(&["--", "sh", "-euc", "stat -c 'mode %a %n' \"${JITSYM_DEBUG%/*}\"; exec \"$@\"", "sh"]);
    command.arg(toy()).arg(root().join("examples/hello.toy")).arg("0.3").env("JITSYM_DIR", &dir);
    let text = stdout(&try_run(command.env("TMPDIR", &temporary)));
    assert!(text.contains(&format!("mode 700 {}/jitsym-doctor-", temporary.display())), "{text}");
    assert!(text.contains("have samples: put in, with files in"), "{text}");
    assert_eq!(std::fs::read_dir(&temporary).expect("directory").count(), 0, "{text}");
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).expect("directory").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let of_program = names(&dir);
    assert!(
        !of_program.iter().any(|name| name.starts_with("jitted-") || name.starts_with("jitcode-")),
        "{of_program:?}"
    );
}

/// Where nothing is wrong it says so, of a machine, a process, a recording and a command.
#[test]
fn nothing_is_wrong() {
    let dir = fresh_dir("good");
    let good_in = |output: &Output, limit: &str| {
        let text = stdout(output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let (_, last) = text.rsplit_once("\n\nnothing is wrong").expect("a verdict");
        assert!(last.starts_with(limit) && last.contains("\ntype:  ") && last.lines().count() == 2, "{text}");
        text
    };
    let good = |output: &Output| good_in(output, "\n");
    // Nobody has looked at the memory of the process.
    let limit = " in the recording; it does not show whether bytes and addresses are right: `jitsym ";
    let good_recording = |output: &Output| good_in(output, limit);
    good(&try_run(&mut doctor(&[])));
    let process = of_process(toy_that_has_code(&dir), "jit-");
    assert!(good(&process).contains("where perf finds it"), "{}", stdout(&process));
    let text = good_recording(&of_recording(&inject(&record(&dir, DWARF, &[]))));
    assert!(text.contains("have whole stacks") && text.contains("(100 %)"), "{text}");
    assert!(text.contains("jitsym inject has put objects in"), "{text}");
    // Objects that lie somewhere else, as those of a container: perf has them in its cache.
    let data = perf_inject(&record(&dir, DWARF, &[]));
    objects(&data, "/jitted-").iter().for_each(|path| std::fs::remove_file(path).expect("remove an object"));
    let text = good_recording(&of_recording(&data));
    assert!(text.contains("objects of perf inject not there") && text.contains("(100 %)"), "{text}");
    // Code in regions needs no clock.
    let text = good_recording(&of_mistakes(&dir, &["--call-graph", "dwarf"], &[("JITSYM_ADOPT", "1")]));
    assert!(text.contains("nothing needs it here") && text.contains("have whole stacks (100 %)"), "{text}");
    let mut command = doctor(&["--"]);
    command.arg(perf::program()).args(["scenario=stacks", "layout=gap", "seconds=0.2"]);
    let text = good(&try_run(command.arg(format!("dir={}", dir.display()))));
    assert!(text.contains("have samples: put in, with files in"), "{text}");
}

/// A process tells why its memory is not adopted, and one that opens no session is told how to find out.
#[test]
fn processes_that_write_nothing() {
    let dir = fresh_dir("nothing");
    let child = process_with(shared(), ADOPTING, &dir);
    let pid = child.id();
    // Until it has registered something, which it says with the first pass of its writer.
    wait_until("what is not adopted", || stdout(&try_run(&mut doctor(&[&pid.to_string()]))).contains("not adopted"));
    let text = stdout(&of_process(child, "libjitsym.so"));
    assert!(text.contains("\ncause: memory at 0x") && text.contains("is not adopted: it is shared"), "{text}");
    assert!(!text.contains("has opened no session"), "{text}");
    let never = broken("never", "jitsym_init(NULL, &session)", "JITSYM_OK");
    let text = stdout(&of_process(process_with(&never, &[("JITSYM", "on")], &dir), "libjitsym.so"));
    let (_, last) = text.split_once("\ncause: ").expect("a cause");
    assert!(last.contains("has opened no session (jitsym_init)") && !last.contains("without JITSYM=on"), "{text}");
    let never = never.display().to_string();
    let quoted = if never.contains(' ') { format!("'{never}'") } else { never };
    assert!(last.contains(&format!("type:  jitsym doctor -- {quoted}")), "{text}");
}

/// The memory of a process tells whether its code is where and what it says.
#[test]
fn a_process_with_a_mistake() {
    for (mistake, cause) in [
        ("address", "2 of 2 functions lie 64 bytes lower than registered (jitsym_code.addr), such as halve"),
        (
            "bytes",
            "the bytes of 2 of 2 functions, such as halve, are not those in memory (jitsym_code.bytes): registered 90 90 90 90 90 90 \
             90, in memory 48 89 f8 48 d1 e8 c3",
        ),
    ] {
        let dir = fresh_dir(mistake);
        let mut child = perf::command(mistakes());
        let mut child =
            child.args([mistake, "600000"]).env("JITSYM", "on").env("JITSYM_DIR", &dir).spawn().expect("start it");
        let mut text = String::new();
        wait_until(cause, || {
            text = stdout(&try_run(&mut doctor(&[&child.id().to_string()])));
            text.contains(cause)
        });
        child.kill().expect("end it");
        child.wait().expect("wait");
        let last = text.lines().rev().nth(1).unwrap_or_default();
        assert!(last.starts_with("cause: ") && last.contains(cause), "{text}");
    }
}

/// Dialects of the map that some readers refuse, and a reader that has to be asked.
#[test]
fn other_readers_of_maps() {
    let dir = fresh_dir("maps");
    let other = dir.join("perforator");
    std::fs::copy("/bin/sleep", &other).expect("a program of that name");
    let mut other = perf::command(other).arg("600").spawn().expect("start it");
    let mut child = perf::command("sleep").arg("600").spawn().expect("start");
    let _files = TmpFiles(child.id());
    let map = format!("/tmp/perf-{}.map", child.id());
    std::fs::write(map, "0x00007f0000001000 0x40 java/lang/Object::hashCode\n").expect("a map as JDK 25 writes it");
    let text = stdout(&try_run(&mut doctor(&[&child.id().to_string()])));
    for process in [&mut child, &mut other] {
        process.kill().expect("end it");
        process.wait().expect("wait");
    }
    assert!(
        text.contains(".map has addresses with 0x: perf reads them; ddprof and blazesym refuse the lines"),
        "{text}"
    );
    assert!(text.contains("only with __PERFORATOR_ENABLE_PERFMAP=1 in its environment"), "{text}");
}

/// What a jitdump says of the machine and of its sources; and the same for programs.
#[test]
fn what_costs_other_readers() {
    let dir = fresh_dir("others");
    let data = dir.join("perf.data");
    std::fs::copy(root().join("examples/hello.toy"), dir.join("hello.toy")).expect("a program of the toy's");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999", "-k", "1", "--call-graph", "dwarf", "-o"]).arg(&data).arg("--");
    let relative = broken("relative", "realpath(argv[1], NULL)", "strdup(argv[1])");
    run(record
        .arg(relative)
        .args(["hello.toy", "0.2"])
        .current_dir(&dir)
        .env("JITSYM", "jitdump")
        .env("JITSYM_DIR", &dir));
    let data = inject(&data);
    let dump = std::fs::read_dir(&dir).expect("directory").flatten().map(|entry| entry.path());
    let dump = dump.into_iter().find(|path| path.extension().is_some_and(|end| end == "dump")).expect("a jitdump");
    let mut bytes = std::fs::read(&dump).expect("jitdump");
    bytes[12..16].copy_from_slice(&2u32.to_ne_bytes());
    std::fs::write(&dump, bytes).expect("write it");
    let text = stdout(&of_recording(&data));
    assert!(text.contains("line tables with paths that are not absolute"), "{text}");
    assert!(text.contains("has the number of another machine (2; this one is"), "{text}");
    let json = stdout(&try_run(doctor(&["--json"]).arg(&data)));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .any(|it| it.as_str().is_some_and(|it| it.contains("(2;"))));
    assert_eq!(json["parts"][1]["title"], format!("recording {}", data.display()));
    let wrong = |line: &&serde_json::Value| line["mark"] == "wrong";
    assert!(json["parts"][1]["lines"].as_array().expect("lines").iter().any(|line| wrong(&line)), "{json}");
    assert_eq!(json["shares"]["compiled"], json["shares"]["named"], "{json}");
    assert!(json["type"].as_str().is_some_and(|text| text.starts_with("jitsym ")), "{json}");
}

/// Some samples are too few to praise or to blame.
#[test]
fn too_few_samples() {
    let dir = fresh_dir("few");
    let data = inject(&record_toy(&dir, &["-k", "1", "-g", "-F", "3"], &[("JITSYM", "jitdump")]));
    let text = stdout(&of_recording(&data));
    assert!(text.contains("too few samples to tell") || text.contains("no sample is in compiled code"), "{text}");
    assert!(!text.contains(" %)"), "{text}");
}

/// What is not there is an error; a file of another kind is told what it is.
#[test]
fn other_things() {
    let output = try_run(&mut doctor(&["4194305"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no process 4194305"));
    let output = try_run(&mut doctor(&["no-such-file"]));
    assert_eq!(output.status.code(), Some(2));
    let output = try_run(doctor(&[]).arg(root().join("Cargo.toml")));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no recording of perf") && text.contains("\n    jitsym check "), "{text}");
}
