//! `jitsym inject`: what the real perf shows of the new recording, held against what the programs know that they have run, and
//! what the command does with recordings and jitdumps of any kind.

// Not all of these is needed here.
#[allow(dead_code)]
#[path = "check/damage.rs"]
mod damage;
#[path = "inject/damaged.rs"]
mod damaged;
#[path = "inject/made.rs"]
mod made;
#[path = "inject/parts.rs"]
mod parts;
#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "inject/refusals.rs"]
mod refusals;
#[allow(dead_code)]
#[path = "check/random.rs"]
mod rng;
#[path = "inject/shapes.rs"]
mod shapes;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::*;

fn inject(input: &Path, output: &Path) -> Command {
    let mut command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    command.arg("inject").arg("-i").arg(input).arg("-o").arg(output);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything that perf says of a recording, without what depends on the name of the file.
fn all_of(data: &Path) -> String {
    let fields = ["--show-mmap-events", "--show-task-events", "-F", "comm,tid,pid,time,event,ip,sym,dso,period"];
    stdout(&run(perf::perf("script").args(fields).arg("--no-inline").arg("-i").arg(data)))
}

/// A recording without jitdumps stays as it is, in every byte if it was not compressed.
#[test]
fn a_recording_without_jitdumps() {
    let _alone = serial();
    let dir = fresh_dir("copies");
    let kinds: [(&str, &[&str]); 4] = [
        ("plain", &[]),
        ("several", &["-e", "task-clock,page-faults", "-g"]),
        ("dwarf", &["--call-graph", "dwarf,4096"]),
        ("compressed", &["-z", "--call-graph", "dwarf,4096"]),
    ];
    for (kind, options) in kinds {
        let (data, new) = (dir.join(format!("{kind}.data")), dir.join(format!("{kind}.new.data")));
        let mut record = perf::perf("record");
        record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data);
        // Children, and enough events for several rounds.
        run(record.args(["--", "sh", "-c", "for i in 1 2 3; do (seq 200000 >/dev/null); done"]));
        let output = run(&mut inject(&data, &new));
        assert!(stdout(&output).ends_with("a copy, because no process of the recording has a jitdump\n"), "{output:?}");
        assert!(all_of(&data) == all_of(&new), "{kind}");
        let are_same = std::fs::read(&data).expect("recording") == std::fs::read(&new).expect("copy");
        assert_eq!(are_same, kind != "compressed", "{kind}");
    }
}

fn injected(data: &Path) -> PathBuf {
    let new = data.with_file_name("jit.data");
    let output = run(&mut inject(data, &new));
    assert!(stdout(&output).contains("of them in samples of 1 process"), "{output:?}");
    new
}

/// The names of all samples in compiled code are right, and the stacks reach the start of the program.
fn check_whole(recording: &perf::Recording) -> PathBuf {
    check(recording, |frames| frames.last().is_some_and(|frame| frame.sym == "_start"))
}

/// The names of all samples in compiled code are right, and all stacks are whole.
fn check(recording: &perf::Recording, is_whole: impl Fn(&[perf::PerfFrame]) -> bool) -> PathBuf {
    let new = injected(&recording.data);
    let samples = perf::samples(&recording.truth, &new, true);
    let found = perf::guest_samples(&recording.truth, &samples);
    perf::check_names(&found, 500);
    let mut whole = perf::Verdict::new("whole stacks");
    for (sample, place) in &found {
        whole.check(is_whole(&sample.frames), || format!("{}: {:?}", place.name, sample.frames));
    }
    whole.decide(500, 1.0);
    new
}

/// Code is used again: old samples have the old name, and new samples the new one. The code is packed, so that perf's own inject
/// finds no stacks in a perf with libunwind.
#[test]
fn code_that_is_used_again() {
    let arguments = ["scenario=reuse", "layout=packed", "sinks=jitdump", "seconds=1"];
    check_whole(&perf::Recording::with_stacks("again", perf::program(), &arguments));
}

/// The same with the perf of each newer suite.
#[test]
fn newer_perfs() {
    let arguments = ["scenario=reuse", "layout=packed", "sinks=jitdump", "seconds=1"];
    let recording = perf::Recording::with_stacks("inject-newer", perf::program(), &arguments);
    let new = injected(&recording.data);
    for name in ["trixie/perf", "perf"] {
        let mut script = perf::of(perf::command(fetched(name)), &[], "script");
        let text = stdout(&run(script.args(["--ns", "--no-inline", "-F", perf::STACK_FIELDS, "-i"]).arg(&new)));
        let mut samples = perf::samples(&recording.truth, &new, false);
        let count = perf::add_stacks(&recording.truth, &mut samples, &text);
        assert_eq!(count, samples.len(), "{name}");
        let (mut names, mut whole) = (perf::Verdict::new("names"), perf::Verdict::new("stacks that reach _start"));
        for (sample, place) in perf::guest_samples(&recording.truth, &samples) {
            let first = sample.frames.first().map_or("", |frame| &frame.sym);
            names.check(first == place.name, || format!("{name}: {first} is {}", place.name));
            let last = sample.frames.last().map_or("", |frame| &frame.sym);
            whole.check(last == "_start", || format!("{name}, {}: {:?}", place.name, sample.frames));
        }
        names.decide(500, 1.0);
        whole.decide(500, 1.0);
    }
}

/// The same of a compressed recording with several events.
#[test]
fn compressed_with_several_events() {
    let options = ["-k", "1", "-z", "-e", "task-clock", "--call-graph", "dwarf,16384", "-m", "4M"];
    let arguments = ["scenario=reuse", "layout=packed", "sinks=jitdump", "seconds=1"];
    check_whole(&perf::Recording::new("inject-several", perf::program(), &options, &arguments));
}

/// In the jitdump's name and records, a process of a container has another pid than in the recording.
#[test]
fn a_process_of_a_container() {
    let arguments = ["scenario=reuse", "layout=packed", "sinks=jitdump", "seconds=1"];
    let recording = perf::Recording::of("inject-container", 1.0, perf::WITH_STACKS, |record, dir| {
        record.args(["unshare", "--pid", "--fork", "--mount-proc"]).arg(perf::program()).env("JITSYM_DIR", dir);
        record.arg(format!("dir={}", dir.display())).args(arguments);
    });
    // The files are in the test's directory. Files in /tmp with this pid are not the test's.
    let mut recording = ManuallyDrop::new(recording);
    let text = stdout(&run(perf::perf("script").args(["-G", "-F", "pid,ip", "-i"]).arg(&recording.data)));
    let pid_of_code = |line: &str| {
        let (pid, addr) = line.trim_start().split_once(char::is_whitespace)?;
        let addr = u64::from_str_radix(addr.trim(), 16).ok()?;
        recording.truth.in_arena(addr).then(|| pid.parse().expect("a pid"))
    };
    let pid = text.lines().find_map(pid_of_code).expect("a sample in code");
    assert_ne!(pid, recording.truth.pid);
    recording.truth.pid = pid;
    // Of such a process, perf 6.1 shows no caller of `__libc_start_call_main`.
    check(&recording, |frames| frames.iter().any(|frame| frame.sym == "main"));
}

/// perf shows the inlined functions of a jitdump as frames.
#[test]
fn inlined_functions() {
    let arguments = ["scenario=stacks", "layout=packed", "sinks=jitdump", "seconds=1", "inlined=1"];
    let recording = perf::Recording::with_stacks("inject-inlined", perf::program(), &arguments);
    let (truth, new) = (&recording.truth, injected(&recording.data));
    let text = stdout(&run(perf::perf("script").args(["--ns", "--inline", "-F", "time,ip,sym", "-i"]).arg(&new)));
    let mut blocks = text.split("\n\n").map(|block| block.trim_matches('\n').lines());
    let (mut frames, mut count) = (perf::Verdict::new("inlined frames"), 0);
    for sample in perf::samples(truth, &new, false) {
        let time = format!("{}.{:09}:", sample.time / 1_000_000_000, sample.time % 1_000_000_000);
        let block = blocks.find(|block| block.clone().next().is_some_and(|line| line.trim() == time));
        let shown: Vec<&str> = block.expect("the same sample").skip(1).take(3).map(|line| line.trim()).collect();
        let Some(place) = truth.place_at(sample.ip, sample.time) else { continue };
        let (function, offset) = (&truth.functions[place.function.expect("it runs")], sample.ip - place.addr);
        let mut expected = vec![place.name.clone()];
        for (row, name) in [(1, "outer (inlined)"), (function.rows.len().wrapping_sub(1), "inner (inlined)")] {
            if function.rows.len() > 2 && offset >= function.rows[row].0 {
                expected.insert(0, name.to_owned());
            }
        }
        let names: Vec<&str> = shown.iter().filter_map(|frame| Some(frame.split_once(' ')?.1)).collect();
        let is_right = names.len() >= expected.len() && names.iter().zip(&expected).all(|(one, other)| one == other);
        frames.check(is_right, || format!("{expected:?}: {names:?}"));
        count += usize::from(expected.len() > 1);
    }
    frames.decide(500, 1.0);
    assert!(count > 100, "{count} samples in inlined functions");
}

/// Every frame of known stacks is there.
#[test]
fn known_stacks() {
    let arguments = ["scenario=stacks", "layout=packed", "sinks=jitdump", "seconds=1"];
    let recording = perf::Recording::with_stacks("inject-stacks", perf::program(), &arguments);
    let new = check_whole(&recording);
    let samples = perf::samples(&recording.truth, &new, true);
    perf::check_stacks(&recording.truth, &perf::guest_samples(&recording.truth, &samples));
}

/// Workers have the code of their parent under its names, and code of their own where the others have other code.
#[test]
fn forked_workers() {
    let flags = ["-std=gnu99", "-O1", "-fno-omit-frame-pointer"];
    let program = compile("gcc", &["c-tests/perf/prefork.c"], Link::Shared, &flags, "inject-prefork");
    let dir = fresh_dir("workers");
    let data = dir.join("perf.data");
    let _alone = serial();
    let mut record = perf::perf("record");
    record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "-g", "-o"]).arg(&data).arg("--").arg(program);
    let output = run(record.args(["2", "1"]));
    let text = stdout(&output);
    let pids: Vec<u32> = text.lines().filter_map(|line| line.strip_prefix("worker ")?.trim().parse().ok()).collect();
    assert_eq!(pids.len(), 2, "{text}");
    let new = dir.join("jit.data");
    let output = run(&mut inject(&data, &new));
    assert!(stdout(&output).contains("in samples of 3 processes"), "{output:?}");
    let script = stdout(&run(perf::perf("script").args(["-G", "-F", "pid,ip,sym", "-i"]).arg(&new)));
    for (number, pid) in pids.iter().enumerate() {
        let has = |name: &str| {
            script.lines().any(|line| line.trim().starts_with(&pid.to_string()) && line.trim().ends_with(name))
        };
        assert!(has("common_0"), "{script}");
        assert!(has(&format!("own_0_of_worker_{number}")), "{script}");
        assert!(!has(&format!("own_0_of_worker_{}", 1 - number)), "{script}");
    }
    pids.into_iter().for_each(|pid| drop(TmpFiles(pid)));
}
