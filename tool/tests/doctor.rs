//! `jitsym doctor` on broken set-ups, all of which are made here: its last lines name the cause. docs/doctor.md has them too;
//! `JITSYM_BLESS=1` writes them there.

#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "doctor/published.rs"]
mod published;
#[path = "../../tests/support/mod.rs"]
mod support;
mod toy;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Mutex, OnceLock};

use support::*;
use toy::{broken, no_size, toy};

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

/// A broken set-up: its heading in the document, what is done, what a user meets without `jitsym doctor`, and the cause.
struct SetUp {
    heading: &'static str,
    done: &'static str,
    without: &'static str,
    make: fn(&Path) -> Output,
    cause: &'static str,
}

const SET_UPS: &[SetUp] = &[
    SetUp {
        heading: "No perf",
        done: "There is no program of that name.",
        without: "`perf: command not found`",
        make: |_| try_run(&mut doctor(&["--perf", "no-such-perf"])),
        cause: "there is no program `no-such-perf`",
    },
    SetUp {
        heading: "No permission",
        done: "A user looks at a machine that lets only root record.",
        without: "perf's own advice, which names the setting",
        make: paranoid,
        cause: "perf_event_paranoid is 4",
    },
    SetUp {
        heading: "Turned off",
        done: "`JITSYM=off` is in the environment.",
        without: "addresses, and no word",
        make: |dir| try_run(doctor(&[]).env("JITSYM", "off").env("JITSYM_DIR", dir)),
        cause: "JITSYM=off turns everything off",
    },
    SetUp {
        heading: "A mistyped word",
        done: "The process was started with `JITSYM=jitdmp`.",
        without: "addresses, and no word",
        make: |dir| of_process(toy_with(&[("JITSYM", "jitdmp")], dir), "libjitsym.so"),
        cause: "did you mean jitdump?",
    },
    SetUp {
        heading: "A process without the library",
        done: "The process is `sleep`.",
        without: "addresses, and no word",
        make: |_| of_process(perf::command("sleep").arg("600").spawn().expect("start"), "/sleep"),
        cause: "has no libjitsym",
    },
    SetUp {
        heading: "noexec",
        done: "The directory of the files is mounted noexec.",
        without: "names, stacks that end at compiled code, and no word",
        make: |dir| in_mount(dir, "noexec", "JITSYM_DIR"),
        cause: "is mounted noexec",
    },
    SetUp {
        heading: "No room in /dev/shm",
        done: "The file system is full. Only what a killed program leaves is at stake.",
        without: "no word, and code is missing after a `kill -9`",
        make: |dir| in_mount(dir, "size=4k", "JITSYM_SPOOL_DIR"),
        cause: "has no room",
    },
    SetUp {
        heading: "In a container",
        done: "The process is number 1 in another pid namespace.",
        without: "addresses with perf 7, and no word",
        make: container,
        cause: "in a pid namespace of its own",
    },
    SetUp {
        heading: "A jitdump without its mark",
        done: "A runtime has its jitdump open, and has ended the mapping by which perf finds it.",
        without: "`perf inject` is content, and nothing has changed",
        make: unmapped,
        cause: "no executable mapping, by which perf finds it",
    },
    SetUp {
        heading: "Another clock",
        done: "It was recorded by `perf record --call-graph dwarf`.",
        without: "`jitted code must be sampled with perf record -k 1`, from `perf inject`",
        make: |dir| of_recording(&record(dir, &["--call-graph", "dwarf"], &[])),
        cause: "recorded without -k 1",
    },
    SetUp {
        heading: "Not injected",
        done: "It was recorded by `perf record -k 1 --call-graph dwarf`, and nothing was done after that.",
        without: "stacks that end at compiled code, and no word",
        make: |dir| of_recording(&record(dir, DWARF, &[])),
        cause: "perf inject --jit has not been run",
    },
    SetUp {
        heading: "The jitdump is gone",
        done: "The program was run with `JITSYM_REMOVE=1`.",
        without: "`perf inject` ends with an error and no word",
        make: |dir| of_recording(&record(dir, DWARF, &[("JITSYM_REMOVE", "1")])),
        cause: "was removed before perf inject has read it",
    },
    SetUp {
        heading: "Nothing was written",
        done: "It was recorded with `JITSYM=off`, which the recording does not tell.",
        without: "addresses, and no word",
        make: |dir| of_recording(&record_toy(dir, &["-k", "1"], &[("JITSYM", "off")])),
        cause: "has named no code",
    },
    SetUp {
        heading: "A call that is refused",
        done: "The program sets no `struct_size`, and looks at no status. `jitsym doctor -- COMMAND` records it.",
        without: "addresses, and no word",
        make: |dir| of_command(&no_size(), dir, &[]),
        cause: "jitsym_code.struct_size is 0: set it to sizeof(jitsym_code), or use JITSYM_CODE()",
    },
    SetUp {
        heading: "A session that was never opened",
        done: "The program does not call `jitsym_init`. `jitsym doctor -- COMMAND` records it.",
        without: "addresses, and no word",
        make: |dir| of_command(&broken("no_session", "jitsym_init(NULL, &session)", "JITSYM_OK"), dir, &[]),
        cause: "the session was never opened",
    },
    SetUp {
        heading: "Memory that is not adopted",
        done: "It has `JITSYM=region JITSYM_ADOPT=1`, and its code is in shared memory. `jitsym doctor -- COMMAND` records it.",
        without: "addresses, and no word",
        make: |dir| of_command(shared(), dir, ADOPTING),
        cause: "is not adopted: it is shared",
    },
    SetUp {
        heading: "A variable that a script sets",
        done: "The program is started by a script that sets `JITSYM=off`. `jitsym doctor -- COMMAND` records it.",
        without: "addresses, and no word",
        make: |dir| {
            let script = dir.join("service");
            let text = format!("#!/bin/sh\nexport JITSYM=off\nexec {} \"$@\"\n", toy().display());
            std::fs::write(&script, text).expect("script");
            run(perf::command("chmod").arg("+x").arg(&script));
            of_command(&script, dir, &[])
        },
        cause: "JITSYM=off. It was started with JITSYM=on, so the program itself sets that, or a script that starts it",
    },
    SetUp {
        heading: "A directory that is missing",
        done: "`JITSYM_DIR` names it. `jitsym doctor -- COMMAND` records the program.",
        without: "addresses, and no word",
        make: |dir| of_command(toy(), &dir.join("missing"), &[]),
        cause: "there is no such directory",
    },
    SetUp {
        heading: "The recording before perf inject",
        done: "`perf inject` was run into `jit.data`, and the user looks at `perf.data`.",
        without: "addresses, and no word",
        make: |dir| {
            let data = record(dir, DWARF, &[]);
            inject(&data);
            of_recording(&data)
        },
        cause: "perf inject was run into ",
    },
    SetUp {
        heading: "perf inject that has failed",
        done: "It was recorded without `-k 1`, and the user looks at the file that `perf inject` has left.",
        without: "`incompatible file format (rerun with -v to learn more)`, from perf",
        make: |dir| {
            let data = record(dir, &["-g"], &[]);
            let injected = dir.join("jit.data");
            try_run(perf::perf("inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected));
            of_recording(&injected)
        },
        cause: "perf inject has not finished this file",
    },
    SetUp {
        heading: "Objects of another run",
        done: "`perf inject` was run again on another recording, and has replaced an object of the first one.",
        without: "names and lines that may be wrong, and no word",
        make: |dir| of_recording(&replaced(dir, true)),
        cause: "are those of another run of perf inject",
    },
    SetUp {
        heading: "Objects removed",
        done: "Somebody has tidied up.",
        without: "names as long as perf's cache in `~/.debug` has the objects, then addresses, and no word",
        make: |dir| of_recording(&replaced(dir, false)),
        cause: "that perf inject has made were removed",
    },
    SetUp {
        heading: "Frame pointers that are not there",
        done: "It was recorded with `-g`, and neither the compiled code nor the program has frame pointers.",
        without: "callers that are missing or absurd, and no word",
        make: |dir| of_recording(&inject(&record(dir, &["-k", "1", "-g"], &[]))),
        cause: "recorded by frame pointers, and some code has none",
    },
    SetUp {
        heading: "No unwind description",
        done: "The program registers its code without `jitsym_code.unwind`.",
        without: "stacks that end at compiled code, and no word",
        make: |dir| of_recording(&inject(&record(dir, DWARF, &[("JITSYM_UNWIND", "0")]))),
        cause: "the program describes no frames (jitsym_code.unwind)",
    },
];

/// The toy with its code in shared memory.
fn shared() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| broken("shared", "MAP_PRIVATE | MAP_ANONYMOUS", "MAP_SHARED | MAP_ANONYMOUS"))
}

const ADOPTING: &[(&str, &str)] = &[("JITSYM", "region"), ("JITSYM_ADOPT", "1")];

const DWARF: &[&str] = &["-k", "1", "--call-graph", "dwarf"];

/// A fake of the kernel's files, because the real setting is the machine's.
fn paranoid(dir: &Path) -> Output {
    std::fs::create_dir_all(dir.join("sys/kernel")).expect("directory");
    std::fs::create_dir_all(dir.join("self")).expect("directory");
    std::fs::write(dir.join("sys/kernel/perf_event_paranoid"), "4\n").expect("setting");
    std::fs::write(dir.join("self/status"), "Name:\tjitsym\nCapEff:\t0000000000000000\n").expect("status");
    try_run(doctor(&["--proc"]).arg(dir))
}

fn toy_with(environment: &[(&str, &str)], dir: &Path) -> Child {
    process_with(toy(), environment, dir)
}

fn process_with(program: &Path, environment: &[(&str, &str)], dir: &Path) -> Child {
    let mut command = perf::command(program);
    command.arg(root().join("examples/hello.toy")).arg("600").env("JITSYM_DIR", dir);
    command.envs(environment.iter().copied()).spawn().expect("start the toy")
}

/// Starts the toy with all sinks, and waits until its map names something.
fn toy_that_has_code(dir: &Path) -> Child {
    let child = toy_with(&[("JITSYM", "on")], dir);
    let map = dir.join(format!("perf-{}.map", child.id()));
    wait_until("a map of the toy", || std::fs::metadata(&map).is_ok_and(|map| map.len() > 0));
    child
}

/// Looks at a process when a file is mapped in it, and ends it.
fn of_process(mut child: Child, mapped: &str) -> Output {
    let pid = child.id();
    wait_until(mapped, || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains(mapped));
    let output = try_run(&mut doctor(&[&pid.to_string()]));
    child.kill().expect("end it");
    child.wait().expect("wait");
    output
}

/// In a mount namespace, with a file system like that on the directory.
fn in_mount(dir: &Path, option: &str, variable: &str) -> Output {
    let command = doctor(&[]);
    let script = format!(
        "mount -t tmpfs -o {option} none \"$1\"; head -c 8k /dev/zero >\"$1\"/x 2>/dev/null || :; exec \"$2\" doctor"
    );
    let mut unshare = perf::command("unshare");
    unshare.args(["--mount", "sh", "-euc", &script, "sh"]).arg(dir).arg(command.get_program()).env(variable, dir);
    try_run(&mut unshare)
}

fn container(dir: &Path) -> Output {
    // The first process of a pid namespace, with the files where they are.
    let mut unshare = perf::command("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]).arg(toy()).arg(root().join("examples/hello.toy")).arg("600");
    let mut unshare = unshare.env("JITSYM_DIR", dir).spawn().expect("start unshare");
    let children = format!("/proc/{0}/task/{0}/children", unshare.id());
    let mut pid = String::new();
    wait_until("files in the container", || {
        pid = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        !pid.is_empty() && dir.join("jit-1.dump").exists() && dir.join("perf-1.map").exists()
    });
    let output = try_run(&mut doctor(&[&pid]));
    unshare.kill().expect("end it");
    unshare.wait().expect("wait");
    output
}

fn unmapped(dir: &Path) -> Output {
    let mut shell = perf::command("sh");
    shell.args(["-c", "exec 3>\"$0\"; exec sleep 600"]).arg(dir.join("jit-77.dump"));
    let child = shell.spawn().expect("start");
    of_process(child, "/sleep")
}

/// Records the ground-truth program, whose C part has no frame pointers.
fn record(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data).arg("--").arg(perf::program());
    record.args(["scenario=stacks", "layout=gap", "seconds=0.2"]).arg(format!("dir={}", dir.display()));
    run(record.envs(environment.iter().copied()));
    data
}

/// Records the toy.
fn record_toy(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data).arg(toy());
    record.arg(root().join("examples/hello.toy")).arg("0.3").env("JITSYM_DIR", dir);
    run(record.envs(environment.iter().copied()));
    data
}

fn inject(data: &Path) -> PathBuf {
    let injected = data.with_file_name("jit.data");
    run(perf::perf("inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected));
    injected
}

/// An injected recording one of whose objects is another one, or all of them gone.
fn replaced(dir: &Path, by_another: bool) -> PathBuf {
    let data = inject(&record(dir, DWARF, &[]));
    let list = stdout(&run(perf::perf("buildid-list").arg("-i").arg(&data)));
    let paths = list.lines().filter_map(|line| line.split_once(' ')).map(|(_, path)| path);
    let objects: Vec<&str> = paths.filter(|path| path.contains("/jitted-")).collect();
    assert!(objects.len() > 1, "{list}");
    if by_another {
        std::fs::copy(objects[0], objects[1]).expect("replace an object");
    } else {
        objects.iter().for_each(|path| std::fs::remove_file(path).expect("remove an object"));
    }
    data
}

fn of_recording(data: &Path) -> Output {
    try_run(doctor(&[]).arg(data))
}

/// The lines after the last empty one, without what differs between two runs.
fn last_lines(text: &str, dir: &Path) -> String {
    let (_, last) = text.trim_end().rsplit_once("\n\n").expect("an empty line");
    let mut plain = String::new();
    for line in last.lines() {
        // The real command is a program of the test's, with its arguments.
        let line =
            [" -- /", "JITSYM_DEBUG=1 /"].iter().fold(line.to_owned(), |line, start| match line.split_once(start) {
                Some((before, rest)) => {
                    let (_, name) = rest.split(' ').next().unwrap_or_default().rsplit_once('/').unwrap_or_default();
                    format!("{before}{} {name} ...", start.trim_end_matches('/').trim_end())
                }
                None => line,
            });
        let line = line.replace(&dir.display().to_string(), "DIR");
        // Which function it is depends on the samples.
        let line = line.split_once("end at ").map_or(line.clone(), |(start, _)| format!("{start}end at FUNCTION"));
        let line = line.split_once("memory at 0x").map_or(line.clone(), |(start, rest)| {
            format!("{start}memory at ADDRESS{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        });
        let mut number = String::new();
        for c in line.chars().chain(['\n']) {
            if c.is_ascii_digit() {
                number.push(c);
            } else {
                // Numbers of processes and objects.
                plain += if number.len() > 2 { "N" } else { &number };
                number.clear();
                plain.push(c);
            }
        }
    }
    // The directory of the jitdump is the test's.
    plain.trim_end().to_owned()
}

const DOCUMENT: &str = "docs/doctor.md";
const BEGIN: &str = "<!-- The rest is written by tool/tests/doctor.rs. -->\n";

/// Each set-up has its cause in the last lines, and these are in the document.
#[test]
fn last_lines_name_the_cause() {
    if !is_root("mount file systems and start a container") {
        return;
    }
    assert!(SET_UPS.len() >= 12);
    let mut sections = String::new();
    for (number, set_up) in SET_UPS.iter().enumerate() {
        let dir = fresh_dir(format!("set-up-{number}"));
        let output = (set_up.make)(&dir);
        let text = stdout(&output);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}: {text}{}",
            set_up.heading,
            String::from_utf8_lossy(&output.stderr)
        );
        let last = last_lines(&text, &dir);
        let cause = last.lines().next().unwrap_or_default();
        let (line, cause_there) = (set_up.heading, set_up.cause.replace(" perf_event", "perf_event"));
        assert!(cause.starts_with("cause: ") && cause.contains(&cause_there), "{line}: {text}");
        assert!(last.lines().last().is_some_and(|line| line.starts_with("type:  ")), "{line}: {text}");
        let _ = write!(
            sections,
            "\n## {}\n\n{}\nWithout `jitsym doctor`: {}.\n\n<!-- test: not run, tool/tests/doctor.rs makes the set-up and compares this -->\n```text\n{last}\n```\n",
            set_up.heading, set_up.done, set_up.without
        );
    }
    in_the_document(BEGIN, "", &sections);
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

const SESSION: &str = "<!-- The session is written by tool/tests/doctor.rs. -->\n";

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
        _ = write!(
            screens,
            "\n<!-- test: not run, tool/tests/doctor.rs does, and compares this -->\n```text\n$ {words}\n{text}```\n"
        )
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

/// Directories of `jitsym record` have names at random.
fn without_random_names(text: &str) -> String {
    let mut parts = text.split("/tmp/jitted-");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked += "/tmp/jitted-";
        match part.split_once('/') {
            Some((name, rest)) if name.len() > 7 && name.as_bytes()[name.len() - 7] == b'-' => {
                masked += &format!("{}XXXXXX/{rest}", &name[..name.len() - 6]);
            }
            _ => masked += part,
        }
    }
    masked
}

/// A screen without what differs between machines and runs.
fn masked(text: &str, dir: &Path) -> String {
    let text = without_random_names(&text.replace(&dir.display().to_string(), "DIR"));
    let mut masked = String::new();
    for line in text.lines() {
        let line = match line.trim_start().split_once(' ') {
            Some(("ok", rest)) if rest.trim_start().starts_with("perf ") && rest.contains("goes through stacks") => {
                "  ok     perf N (PATH): HOW IT goes through stacks".into()
            }
            Some(("ok", rest)) if rest.trim_start().starts_with("counters: ") => "  ok     counters: ...".into(),
            _ => line.replace("perf_event_paranoid is 2", "perf_event_paranoid is N"),
        };
        // Numbers, but not those of perf's versions in a verdict.
        let keeps = line.starts_with("  perf ");
        let mut number = String::new();
        for c in line.chars().chain(['\n']) {
            if !keeps && (c.is_ascii_digit() || c == '.' && !number.is_empty()) {
                number.push(c);
            } else {
                if !number.is_empty() {
                    masked += if number.ends_with('.') { "N." } else { "N" };
                    number.clear();
                }
                masked.push(c);
            }
        }
    }
    ["KiB", "MiB", "TiB"].iter().fold(masked, |text, unit| text.replace(&format!("N {unit}"), "N GiB"))
}

/// Whatever is made for a command that is recorded lies where nobody else can put anything, and goes.
#[test]
fn a_command_is_looked_at_in_private() {
    let (dir, temporary) = (fresh_dir("files"), fresh_dir("temporary"));
    let mut command = doctor(&["--", "sh", "-euc", "stat -c 'mode %a %n' \"${JITSYM_DEBUG%/*}\"; exec \"$@\"", "sh"]);
    command.arg(toy()).arg(root().join("examples/hello.toy")).arg("0.3").env("JITSYM_DIR", &dir);
    let text = stdout(&try_run(command.env("TMPDIR", &temporary)));
    assert!(text.contains(&format!("mode 700 {}/jitsym-doctor-", temporary.display())), "{text}");
    assert!(text.contains("perf inject --jit has put that in"), "{text}");
    assert_eq!(std::fs::read_dir(&temporary).expect("directory").count(), 0, "{text}");
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).expect("directory").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let pid = names(&dir).iter().find_map(|name| Some(name.strip_prefix("jit-")?.strip_suffix(".dump")?.to_owned()));
    let objects = format!("jitted-{}-", pid.expect("a jitdump"));
    assert!(!names(Path::new("/tmp")).iter().any(|name| name.starts_with(&objects)), "{text}");
}

/// Where nothing is wrong it says so, of a machine, a process, a recording and a command.
#[test]
fn nothing_is_wrong() {
    let dir = fresh_dir("good");
    let good = |output: &Output| {
        let text = stdout(output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("\n\nnothing is wrong\ntype:  "), "{text}");
        text
    };
    good(&try_run(&mut doctor(&[])));
    let process = of_process(toy_that_has_code(&dir), "jit-");
    assert!(good(&process).contains("where perf finds it"), "{}", stdout(&process));
    let text = good(&of_recording(&inject(&record(&dir, DWARF, &[]))));
    assert!(text.contains("have whole stacks") && text.contains("(100 %)"), "{text}");
    let mut command = doctor(&["--"]);
    command.arg(perf::program()).args(["scenario=stacks", "layout=gap", "seconds=0.2"]);
    let text = good(&try_run(command.arg(format!("dir={}", dir.display()))));
    assert!(text.contains("perf inject --jit has put that in"), "{text}");
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
