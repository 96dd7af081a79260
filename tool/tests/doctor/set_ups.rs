//! Machines, processes and recordings that are broken on purpose.

use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::sync::OnceLock;

use crate::support::*;
use crate::toy::{broken, no_size, toy};
use crate::{doctor, of_command, perf};

/// A broken set-up: its heading in the document, what is done, what a user meets without `jitsym doctor`, and the cause.
pub struct SetUp {
    pub heading: &'static str,
    pub done: &'static str,
    pub without: &'static str,
    pub make: fn(&Path) -> Output,
    pub cause: &'static str,
}

pub const SET_UPS: &[SetUp] = &[
    SetUp {
        heading: "No perf",
        done: "perf is not installed under the given name.",
        without: "`perf: command not found`",
        make: |_| try_run(&mut doctor(&["--perf", "no-such-perf"])),
        cause: "there is no program `no-such-perf`",
    },
    SetUp {
        heading: "No permission",
        done: "The machine lets only root record, and the user is not root.",
        without: "perf prints advice that names the setting",
        make: paranoid,
        cause: "perf_event_paranoid is 4",
    },
    SetUp {
        heading: "Turned off",
        done: "`JITSYM=off` is in the environment.",
        without: "no names",
        make: |dir| try_run(doctor(&[]).env("JITSYM", "off").env("JITSYM_DIR", dir)),
        cause: "JITSYM=off turns everything off",
    },
    SetUp {
        heading: "A mistyped word",
        done: "The process was started with `JITSYM=jitdmp`.",
        without: "no names",
        make: |dir| of_process(toy_with(&[("JITSYM", "jitdmp")], dir), "libjitsym.so"),
        cause: "did you mean jitdump?",
    },
    SetUp {
        heading: "A process without the library",
        done: "The process is `sleep`.",
        without: "no names",
        make: |_| of_process(perf::command("sleep").arg("600").spawn().expect("start"), "/sleep"),
        cause: "has no libjitsym",
    },
    SetUp {
        heading: "noexec",
        done: "The directory of the files is mounted noexec.",
        without: "names, but stacks end at compiled code",
        make: |dir| in_mount(dir, "noexec", "JITSYM_DIR"),
        cause: "is mounted noexec",
    },
    SetUp {
        heading: "No room in /dev/shm",
        done: "The file system is full. Only a killed program can lose records.",
        without: "code is missing after a `kill -9`",
        make: |dir| in_mount(dir, "size=4k", "JITSYM_SPOOL_DIR"),
        cause: "has no room",
    },
    SetUp {
        heading: "In a container",
        done: "The process is number 1 in another pid namespace.",
        without: "no names in perf 7",
        make: container,
        cause: "in a pid namespace of its own",
    },
    SetUp {
        heading: "A jitdump without its mark",
        done: "A runtime has its jitdump open, but has ended the mapping by which perf finds the jitdump.",
        without: "`perf inject` reports success, but adds no names",
        make: unmapped,
        cause: "no executable mapping, by which perf finds it",
    },
    SetUp {
        heading: "Another clock",
        done: "The program was recorded by `perf record --call-graph dwarf`.",
        without: "`perf inject` prints `jitted code must be sampled with perf record -k 1`",
        make: |dir| of_recording(&record(dir, &["--call-graph", "dwarf"], &[])),
        cause: "recorded without -k 1",
    },
    SetUp {
        heading: "Not injected",
        done: "The program was recorded by `perf record -k 1 --call-graph dwarf`. `jitsym inject` was not run.",
        without: "stacks end at compiled code",
        make: |dir| of_recording(&record(dir, DWARF, &[])),
        cause: "jitsym inject has not been run",
    },
    SetUp {
        heading: "The jitdump is gone",
        done: "The program was run with `JITSYM_REMOVE=1`.",
        without: "`perf inject` ends with an error",
        make: |dir| of_recording(&record(dir, DWARF, &[("JITSYM_REMOVE", "1")])),
        cause: "was removed before its code was put into the recording",
    },
    SetUp {
        heading: "Nothing was written",
        done: "The program was recorded with `JITSYM=off`. The recording does not contain this setting.",
        without: "no names",
        make: |dir| of_recording(&record_toy(dir, &["-k", "1"], &[("JITSYM", "off")])),
        cause: "has named no code",
    },
    SetUp {
        heading: "A call that is refused",
        done: "The program does not set `struct_size`, and ignores the status. `jitsym doctor -- COMMAND` records the program.",
        without: "no names",
        make: |dir| of_command(&no_size(), dir, &[]),
        cause: "jitsym_code.struct_size is 0: set it to sizeof(jitsym_code), or use JITSYM_CODE()",
    },
    SetUp {
        heading: "A session that was never opened",
        done: "The program does not call `jitsym_init`. `jitsym doctor -- COMMAND` records the program.",
        without: "no names",
        make: |dir| of_command(&broken("no_session", "jitsym_init(NULL, &session)", "JITSYM_OK"), dir, &[]),
        cause: "the session was never opened",
    },
    SetUp {
        heading: "Memory that is not adopted",
        done: "The program runs with `JITSYM=region JITSYM_ADOPT=1`, and its code is in shared memory. `jitsym doctor -- COMMAND` records the program.",
        without: "no names",
        make: |dir| of_command(shared(), dir, ADOPTING),
        cause: "is not adopted: it is shared",
    },
    SetUp {
        heading: "A variable that a script sets",
        done: "A script sets `JITSYM=off` and starts the program. `jitsym doctor -- COMMAND` records the script.",
        without: "no names",
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
        done: "`JITSYM_DIR` names a directory that does not exist. `jitsym doctor -- COMMAND` records the program.",
        without: "no names",
        make: |dir| of_command(toy(), &dir.join("missing"), &[]),
        cause: "there is no such directory",
    },
    SetUp {
        heading: "The recording before the injection",
        done: "`jitsym inject` has made `jit.data`, but the user looks at `perf.data`.",
        without: "no names",
        make: |dir| {
            let data = record(dir, DWARF, &[]);
            inject(&data);
            of_recording(&data)
        },
        cause: "the code of the jitdump was put into ",
    },
    SetUp {
        heading: "perf inject that has failed",
        done: "The program was recorded without `-k 1`. The user looks at the unfinished file of `perf inject`.",
        without: "perf prints `incompatible file format (rerun with -v to learn more)`",
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
        done: "`perf inject` was run on a second recording, and has replaced an object of the first recording.",
        without: "names and lines may be wrong",
        make: |dir| {
            let data = perf_inject(&record(dir, DWARF, &[]));
            let objects = objects(&data, "/jitted-");
            std::fs::copy(&objects[0], &objects[1]).expect("replace an object");
            of_recording(&data)
        },
        cause: "are those of another run of perf inject",
    },
    SetUp {
        heading: "Objects removed",
        done: "Somebody has removed the directory `jit.data.objects`.",
        without: "no names",
        make: |dir| {
            let data = inject(&record(dir, DWARF, &[]));
            std::fs::remove_dir_all(dir.join("jit.data.objects")).expect("remove the objects");
            of_recording(&data)
        },
        cause: "that jitsym inject has made were removed",
    },
    SetUp {
        heading: "Frame pointers that are not there",
        done: "The program was recorded with `-g`. The compiled code and the program have no frame pointers.",
        without: "callers are missing or absurd",
        make: |dir| of_recording(&inject(&record(dir, &["-k", "1", "-g"], &[]))),
        cause: "recorded by frame pointers, and some code has none",
    },
    SetUp {
        heading: "No unwind description",
        done: "The program registers its code without `jitsym_code.unwind`.",
        without: "stacks end at compiled code",
        make: |dir| of_recording(&inject(&record(dir, DWARF, &[("JITSYM_UNWIND", "0")]))),
        cause: "the program describes no frames (jitsym_code.unwind)",
    },
];

/// The toy with its code in shared memory.
pub fn shared() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| broken("shared", "MAP_PRIVATE | MAP_ANONYMOUS", "MAP_SHARED | MAP_ANONYMOUS"))
}

pub const ADOPTING: &[(&str, &str)] = &[("JITSYM", "region"), ("JITSYM_ADOPT", "1")];

pub const DWARF: &[&str] = &["-k", "1", "--call-graph", "dwarf"];

/// A fake of the kernel's files, because the real setting is the machine's.
pub fn paranoid(dir: &Path) -> Output {
    std::fs::create_dir_all(dir.join("sys/kernel")).expect("directory");
    std::fs::create_dir_all(dir.join("self")).expect("directory");
    std::fs::write(dir.join("sys/kernel/perf_event_paranoid"), "4\n").expect("setting");
    std::fs::write(dir.join("self/status"), "Name:\tjitsym\nCapEff:\t0000000000000000\n").expect("status");
    try_run(doctor(&["--proc"]).arg(dir))
}

pub fn toy_with(environment: &[(&str, &str)], dir: &Path) -> Child {
    process_with(toy(), environment, dir)
}

pub fn process_with(program: &Path, environment: &[(&str, &str)], dir: &Path) -> Child {
    let mut command = perf::command(program);
    command.arg(root().join("examples/hello.toy")).arg("600").env("JITSYM_DIR", dir);
    command.envs(environment.iter().copied()).spawn().expect("start the toy")
}

/// Starts the toy with all sinks, and waits until its map names something.
pub fn toy_that_has_code(dir: &Path) -> Child {
    let child = toy_with(&[("JITSYM", "on")], dir);
    let map = dir.join(format!("perf-{}.map", child.id()));
    wait_until("a map of the toy", || std::fs::metadata(&map).is_ok_and(|map| map.len() > 0));
    child
}

/// Looks at a process when a file is mapped in it, and ends it.
pub fn of_process(mut child: Child, mapped: &str) -> Output {
    let pid = child.id();
    wait_until(mapped, || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains(mapped));
    let output = try_run(&mut doctor(&[&pid.to_string()]));
    child.kill().expect("end it");
    child.wait().expect("wait");
    output
}

/// In a mount namespace, with a file system like that on the directory.
pub fn in_mount(dir: &Path, option: &str, variable: &str) -> Output {
    let command = doctor(&[]);
    let script = format!(
        "mount -t tmpfs -o {option} none \"$1\"; head -c 8k /dev/zero >\"$1\"/x 2>/dev/null || :; exec \"$2\" doctor"
    );
    let mut unshare = perf::command("unshare");
    unshare.args(["--mount", "sh", "-euc", &script, "sh"]).arg(dir).arg(command.get_program()).env(variable, dir);
    try_run(&mut unshare)
}

pub fn container(dir: &Path) -> Output {
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

pub fn unmapped(dir: &Path) -> Output {
    let mut shell = perf::command("sh");
    shell.args(["-c", "exec 3>\"$0\"; exec sleep 600"]).arg(dir.join("jit-77.dump"));
    let child = shell.spawn().expect("start");
    of_process(child, "/sleep")
}

/// Records the ground-truth program, whose C part has no frame pointers.
pub fn record(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data).arg("--").arg(perf::program());
    record.args(["scenario=stacks", "layout=gap", "seconds=0.2"]).arg(format!("dir={}", dir.display()));
    run(record.envs(environment.iter().copied()));
    data
}

/// Records the toy.
pub fn record_toy(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data).arg(toy());
    record.arg(root().join("examples/hello.toy")).arg("0.3").env("JITSYM_DIR", dir);
    run(record.envs(environment.iter().copied()));
    data
}

pub fn inject(data: &Path) -> PathBuf {
    let injected = data.with_file_name("jit.data");
    let mut inject = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    run(inject.arg("inject").arg("-i").arg(data).arg("-o").arg(&injected));
    injected
}

/// As [`inject`], by perf.
pub fn perf_inject(data: &Path) -> PathBuf {
    let injected = data.with_file_name("jit.data");
    run(perf::perf("inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected));
    injected
}

/// The objects in a recording whose paths contain a text.
pub fn objects(data: &Path, text: &str) -> Vec<PathBuf> {
    let list = stdout(&run(perf::perf("buildid-list").arg("-i").arg(data)));
    let paths = list.lines().filter_map(|line| line.split_once(' ')).map(|(_, path)| path);
    let objects: Vec<PathBuf> = paths.filter(|path| path.contains(text)).map(PathBuf::from).collect();
    assert!(objects.len() > 1, "{list}");
    objects
}

pub fn of_recording(data: &Path) -> Output {
    try_run(doctor(&[]).arg(data))
}
