//! Programs that make a mistake, and programs that are run in a wrong way.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::set_ups::{inject, of_recording, SetUp, DWARF};
use crate::support::*;
use crate::{doctor, perf};

pub const MISTAKES: &[SetUp] = &[
    SetUp {
        heading: "A wrong description",
        done: "The program describes a CFA that is 8 bytes too high (`cfa_offset`).",
        without: "callers are missing or absurd",
        make: |dir| mistaken("cfa", dir),
        cause: "unwind tables are wrong in 2 of 2 functions (jitsym_code.unwind): \"FUNCTION\": at +0x23, ret: the row has the CFA at rsp+16, which is 8 too high: it is rsp+8; earlier rows may be wrong too",
    },
    SetUp {
        heading: "Frame pointers that are claimed",
        done: "The program says that its code has a frame pointer, but the code sets up no frame pointer.",
        without: "callers are missing",
        make: |dir| mistaken("frame-pointer", dir),
        cause: "It is described as code with a frame pointer, and makes none",
    },
    SetUp {
        heading: "Registered late",
        done: "The program calls its code, and registers the code later.",
        without: "no names, or stacks end at compiled code",
        // In /tmp, where perf finds the map, which names the code before it was registered too.
        make: |_| mistaken("late", Path::new("/tmp")),
        cause: "code ran before it was registered: FUNCTION up to",
    },
    SetUp {
        heading: "Another address",
        done: "The program gives an address that is 64 bytes too high.",
        without: "no names",
        make: |dir| mistaken("address", dir),
        cause: "2 of 2 functions lie 64 bytes lower than registered (jitsym_code.addr), such as FUNCTION",
    },
    SetUp {
        heading: "Another size",
        done: "The program registers a function with the size of two functions. The second function is already registered.",
        without: "both functions have one name",
        make: |dir| mistaken("size", dir),
        cause: "registered with a size of 0x34, but \"FUNCTION\" begins at +0x10: give \"FUNCTION\" at most 0x10 (jitsym_code.size)",
    },
    SetUp {
        heading: "Other bytes",
        done: "The program registers bytes that differ from the code in memory (`jitsym_code.bytes`).",
        without: "`perf annotate` shows wrong instructions",
        make: |dir| mistaken("bytes", dir),
        cause: "the bytes of 2 of 2 functions, such as FUNCTION, are not those in memory (jitsym_code.bytes): registered 90 90 ",
    },
    SetUp {
        heading: "A full directory",
        done: "The file system of the library's directory is full.",
        without: "no names",
        make: full,
        cause: "is full: free some room, or set JITSYM_DIR to another directory",
    },
    SetUp {
        heading: "Only a perf map",
        done: "`JITSYM=map` is in the environment.",
        without: "stacks end at compiled code",
        make: |_| {
            let mut command = mistakes_under_doctor("none", 150);
            let output = try_run(command.env("JITSYM", "map"));
            tidy(&output);
            output
        },
        cause: "only a perf map names the code",
    },
    SetUp {
        heading: "New code of a forked child",
        done: "`JITSYM=map` is in the environment. A forked child registers other code in memory that its parent has mapped.",
        without: "the child's code has the names of the parent's code",
        make: |_| {
            let output = try_run(mistakes_under_doctor("fork", 150).env("JITSYM", "map"));
            let pids = stdout(&output);
            let pids = pids.lines().filter_map(|line| line.strip_prefix("process ")?.parse().ok());
            assert_eq!(pids.map(TmpFiles).count(), 2, "{}", stdout(&output));
            output
        },
        cause: "a forked child has registered FUNCTION_of_child where its parent has FUNCTION, and perf shows the parent's name: for memory that was mapped before the fork",
    },
    SetUp {
        heading: "Files of regions removed",
        done: "The program was run with `JITSYM_ADOPT=1 JITSYM_REMOVE=1`.",
        without: "no names",
        make: |dir| of_mistakes(dir, DWARF, &[("JITSYM_ADOPT", "1"), ("JITSYM_REMOVE", "1")]),
        cause: "files of regions were removed before perf has read them",
    },
    SetUp {
        heading: "Counter values for times",
        done: "`JITDUMP_USE_ARCH_TIMESTAMP=1` is in the environment.",
        without: "`perf inject` prints `jitted code must be sampled with perf record -k 1`, although `-k 1` was used",
        make: |dir| of_mistakes(dir, DWARF, &[("JITDUMP_USE_ARCH_TIMESTAMP", "1")]),
        cause: "has counter values for times (JITDUMP_USE_ARCH_TIMESTAMP=1)",
    },
    SetUp {
        heading: "A directory that takes no files",
        done: "`JITSYM_DIR=/proc` is in the environment.",
        without: "no names",
        make: |_| try_run(doctor(&[]).env("JITSYM_DIR", "/proc")),
        cause: "/proc is a file system of the kernel's own",
    },
    SetUp {
        heading: "Memory that no map is read for",
        done: "`JITSYM=map` is in the environment, and the code is in the kind of memory that .NET uses for code.",
        without: "no names",
        make: |_| {
            let output = try_run(mistakes_under_doctor("memfd", 150).env("JITSYM", "map"));
            tidy(&output);
            output
        },
        cause: "DOTNET_EnableWriteXorExecute=0 makes plain memory of it",
    },
    SetUp {
        heading: "Another address, in a recording",
        done: "The program gives an address that is 64 bytes too high. The recording does not show whether the code was registered.",
        without: "no names",
        make: |dir| {
            let data = dir.join("perf.data");
            let mut record = perf::perf("record");
            record.args(["-e", "cpu-clock", "-F", "999"]).args(DWARF).arg("-o").arg(&data).arg("--").arg(mistakes());
            run(record.arg("address").env("JITSYM", "jitdump").env("JITSYM_DIR", dir));
            of_recording(&inject(&data))
        },
        cause: "code runs that no registration covers",
    },
    SetUp {
        heading: "A program without symbols",
        done: "The library is linked statically, and the program is stripped. perf still shows all names.",
        without: "gdb shows `??` for compiled code",
        make: |dir| {
            let program = dir.join("stripped");
            let built = compile("gcc", &["tool/tests/doctor/mistakes.c"], Link::Static, &["-O1"], "mistakes_static");
            run(perf::command("strip").arg("-o").arg(&program).arg(built));
            try_run(doctor(&["--"]).arg(program).arg("none").env("JITSYM_DIR", dir))
        },
        cause: "libjitsym is linked in statically, and `strip` has removed the symbols",
    },
];

/// The program of README.md with a mistake.
pub fn mistakes() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["tool/tests/doctor/mistakes.c"], Link::Shared, &["-O1"], "mistakes"))
}

pub fn mistakes_under_doctor(mistake: &str, milliseconds: u32) -> Command {
    let mut command = doctor(&["--"]);
    command.arg(mistakes()).args([mistake, &milliseconds.to_string()]);
    command
}

/// What doctor says of it. It runs for longer where the memory of the program was not looked at twice.
pub fn mistaken(mistake: &str, dir: &Path) -> Output {
    until_enough(1, |pace| {
        let output = try_run(mistakes_under_doctor(mistake, 250 * pace).env("JITSYM_DIR", dir));
        if dir == Path::new("/tmp") {
            tidy(&output);
        }
        let found = output.status.code() == Some(1) && !stdout(&output).contains("that no registration covers");
        (output, usize::from(found))
    })
}

/// Removes what a process that was recorded has left in /tmp.
pub fn tidy(output: &Output) {
    let text = stdout(output);
    let between = |start: &str, end: &str| text.split_once(start)?.1.split_once(end)?.0.parse().ok();
    let pid = between("/tmp/perf-", ".map").or_else(|| between("/tmp/jit-", ".dump"));
    drop(pid.map(TmpFiles));
}

/// What doctor says of a recording of the program without a mistake.
pub fn of_mistakes(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> Output {
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data).arg("--").arg(mistakes());
    record.env("JITSYM", "on").env("JITSYM_DIR", dir).envs(environment.iter().copied());
    run(&mut record);
    of_recording(&data)
}

/// With a file system on the directory that has no room left.
pub fn full(dir: &Path) -> Output {
    let command = mistakes_under_doctor("none", 100);
    let script =
        "mount -t tmpfs -o size=16k none \"$1\"; head -c 16k /dev/zero >\"$1\"/x 2>/dev/null || :; shift; exec \"$@\"";
    let mut unshare = perf::command("unshare");
    unshare.args(["--mount", "sh", "-euc", script, "sh"]).arg(dir).arg(command.get_program()).args(command.get_args());
    try_run(unshare.env("JITSYM_DIR", dir))
}
