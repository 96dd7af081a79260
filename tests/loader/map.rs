//! `include/jitsym_map.h`: where the library is missing, its users still have a perf map.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{dir_of_all, give_away, INSTEAD};
use crate::perf::{self, Recording};
use crate::support::{
    artifacts, compile, describe, fresh_dir, is_root, once, plugin, root, run, scratch_dir, shared_dir, stdout,
    try_run, Link,
};

const NOWHERE: &str = "/nowhere/libjitsym.so";

fn library() -> PathBuf {
    artifacts().shared_dir.join("libjitsym.so")
}

fn alone() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-O1", "-std=gnu99", "-Wpedantic"];
    BUILT.get_or_init(|| compile("gcc", &["c-tests/loader/map_alone.c"], Link::None, &flags, "map_alone"))
}

/// A run without the library, in a new directory.
fn command(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("JITSYM_LIB", NOWHERE).arg(fresh_dir(format!("map-{}", words[0]))).args(words);
    command
}

fn succeed(command: &mut Command) -> String {
    let output = try_run(command);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", describe(command, &output));
    stdout(&output)
}

/// What each call does, and what each failure of a disk, of the host, and of other runtimes costs.
#[test]
fn without_the_library() {
    for test in
        ["calls", "names", "left", "limits", "closed", "removed", "fork", "inherited", "cancel", "forks", "locked"]
    {
        succeed(&mut command(alone(), &[test]));
    }
}

/// The same under AddressSanitizer and UndefinedBehaviorSanitizer. clang compiles the program too.
#[test]
fn sanitized() {
    let flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = compile("gcc", &["c-tests/loader/map_alone.c"], Link::None, &flags, "map_alone_sanitized");
    for test in ["calls", "names", "limits", "removed", "fork"] {
        succeed(command(&program, &[test]).env("ASAN_OPTIONS", "detect_leaks=0"));
    }
    let program = compile("gcc", &["c-tests/loader/map.c"], Link::None, &flags, "map_sanitized");
    for seed in ["1", "2", "3"] {
        succeed(&mut command(&program, &["random", seed]));
    }
    let program = compile("clang", &["c-tests/loader/map_alone.c"], Link::None, &["-O2"], "map_alone_clang");
    succeed(&mut command(&program, &["calls"]));
}

/// Two copies of the header in a process write one map, and so do a copy of the header and one of the library, even if each
/// descriptor has a high number.
#[test]
fn copies_share_a_map() {
    let copy = shared_dir("bin").join("plugin_dl.so");
    once(&copy, "", || {
        let mut gcc = Command::new("gcc");
        gcc.current_dir(root()).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-fPIC", "-shared"]);
        run(gcc.args(INSTEAD).args(["-fvisibility=hidden", "c-tests/support/plugin.c", "-o"]).arg(&copy));
    });
    let with_library = scratch_dir("bin").join("plugin.so");
    plugin(&with_library);
    for plugin in [&copy, &with_library] {
        succeed(&mut command(alone(), &["copies", plugin.to_str().expect("UTF-8")]));
    }
}

#[test]
fn in_a_jail() {
    if is_root("change the root directory") {
        succeed(&mut command(alone(), &["chroot"]));
    }
}

/// A program with the rights of another user writes nothing. A child that becomes another user has its parent's names.
#[test]
fn privileged_programs() {
    if !is_root("give a program to another user") {
        return;
    }
    let dir = dir_of_all("map");
    let program = dir.join("alone");
    fs::copy(alone(), &program).expect("copy");
    give_away(&program);
    let output = try_run(Command::new(&program).env_clear().env("JITSYM", "map").arg(&dir).arg("rights"));
    let files = fs::read_dir(&dir).expect("directory").count();
    let child = try_run(Command::new(alone()).env_clear().env("JITSYM_LIB", NOWHERE).arg(&dir).arg("user"));
    fs::remove_dir_all(&dir).expect("remove the directory");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files, 1, "only the program");
    assert!(child.status.success(), "{child:?}");
}

/// A disk without room.
#[test]
fn full_disk() {
    if !is_root("mount a small file system") {
        return;
    }
    let dir = fresh_dir("full");
    let script = "mount -t tmpfs -o size=16k none \"$2\" && exec \"$1\" \"$2\" full";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", script, "sh"]).arg(alone()).arg(&dir).env("JITSYM_LIB", NOWHERE);
    succeed(&mut unshare);
}

/// A directory that does not exist, or cannot be written.
#[test]
fn no_directory() {
    for dir in ["/nowhere/dir", "/proc"] {
        let output = try_run(Command::new(alone()).env_clear().env("JITSYM_LIB", NOWHERE).args([dir, "full"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("expected JITSYM_?") && output.status.code() == Some(1), "{said}");
    }
}

/// What a program that makes random calls prints: with the library, and without it.
fn both(mode: &str, seed: u64, sorted: bool) -> [Vec<String>; 2] {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-O1", "-std=c99", "-Wpedantic"];
    let program =
        BUILT.get_or_init(|| compile("gcc", &["c-tests/loader/map.c"], Link::None, &flags, "map_differential"));
    [library().as_os_str(), OsStr::new(NOWHERE)].map(|library| {
        let mut command = command(program, &[mode, &seed.to_string()]);
        // The child's map has the parent's code at once.
        let output = try_run(command.env("JITSYM_LIB", library).env("JITSYM_FORK", "on"));
        assert!(output.status.success() && output.stderr.is_empty(), "{}", describe(&command, &output));
        let mut lines: Vec<String> =
            output.stdout.split(|&byte| byte == b'\n').map(|line| line.escape_ascii().to_string()).collect();
        if sorted {
            // While another thread's line is being written, a call takes the line for unfinished, and writes an empty line.
            lines.retain(|line| line != "map ");
            lines.sort_unstable();
        }
        lines
    })
}

fn compare(mode: &str, seeds: std::ops::Range<u64>, sorted: bool) {
    for seed in seeds {
        let [expected, found] = both(mode, seed, sorted);
        let differs = expected.iter().zip(&found).find(|(expected, found)| expected != found);
        assert!(expected == found, "{mode} {seed}: {differs:?}, {} and {} lines", expected.len(), found.len());
        let lines = found.iter().filter(|line| line.starts_with("map ")).count();
        assert!(lines > 50, "{mode} {seed}: {lines} lines");
    }
}

/// The same calls have the same statuses, and the same lines in the same order, whoever writes them. The seed is printed.
#[test]
fn same_as_the_library() {
    let seed = u64::from(std::process::id()) << 8;
    println!("seed {seed}");
    compare("characters", 0..1, false);
    compare("random", 1..20, false);
    compare("random", seed..seed + 20, false);
    // Of code that takes the place of other code too, in a map that the library shares with another runtime.
    compare("shared", seed..seed + 20, false);
    compare("threads", 1..4, true);
    compare("fork", seed..seed + 5, true);
}

/// Options and variables ask for a map in the same cases.
#[test]
fn same_configurations() {
    let [with, without] = [library().as_os_str(), OsStr::new(NOWHERE)]
        .map(|library| succeed(command(alone(), &["configurations"]).env("JITSYM_LIB", library)));
    assert_eq!(with, without);
    let answers: BTreeSet<&str> = with.lines().filter_map(|line| Some(line.rsplit_once(' ')?.1)).collect();
    assert_eq!((with.lines().count(), answers), (240, BTreeSet::from(["0", "1"])));
}

/// perf names each function of a program that has only the headers.
#[test]
fn perf_sees_the_functions() {
    let flags = [&INSTEAD[..], &["-O1"]].concat();
    let program = compile("gcc", &["c-tests/perf/truth_jit.c"], Link::None, &flags, "truth_jit_alone");
    let recording = Recording::of("loader-map", 1.0, &[], |record, dir| {
        record.env("JITSYM_LIB", NOWHERE).env("JITSYM", "map");
        record.arg(&program).arg(format!("dir={}", dir.display())).args([
            "scenario=stacks",
            "layout=packed",
            "sinks=map",
            "seconds=1",
        ]);
    });
    let samples = perf::samples(&recording.truth, &recording.data, false);
    let mut names = perf::Verdict::new("names");
    for sample in samples.iter().filter(|sample| recording.truth.in_arena(sample.ip)) {
        let newest = recording.truth.newest_at(sample.ip).map(|place| &*place.name);
        names.check(newest == Some(&*sample.sym), || format!("{sample:?}, expected {newest:?}"));
    }
    names.decide(200, 1.0);
}
