//! A pre-forking server under the real perf: samples of the parent and of each child have the names of the code that lived
//! there then in that process, though every process has other code at the same addresses. The same in time namespaces, whose
//! clocks are not that of perf.

#[path = "fork_perf/bpftrace.rs"]
mod bpftrace;
#[path = "fork_perf/inherited.rs"]
mod inherited;
#[path = "fork_perf/lent.rs"]
mod lent;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::HEADER_SIZE;

use crate::perf;
use crate::support::{
    compile, is_root, run, scratch_dir, serial, stdout, until_enough, wait_until, Link, TmpFiles, PACE,
};

fn server() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/perf/prefork.c"], Link::Shared, &["-O1"], "prefork"))
}

/// Code at an address of one process for a time.
#[derive(Debug)]
struct Life {
    pid: u32,
    addr: u64,
    size: u64,
    from: u64,
    to: u64,
    name: String,
}

/// What the server says of itself.
struct Truth {
    lives: Vec<Life>,
    parent: u32,
    workers: Vec<u32>,
    _files: Vec<TmpFiles>,
}

impl Truth {
    fn parse(text: &str) -> Truth {
        let (mut lives, mut parent, mut workers) = (Vec::new(), 0, Vec::new());
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| fields[at].parse::<u64>().expect("number");
            match fields[0] {
                "pid" => parent = number(1) as u32,
                "worker" => workers.push(number(1) as u32),
                "life" => lives.push(Life {
                    pid: number(1) as u32,
                    addr: u64::from_str_radix(fields[2], 16).expect("address"),
                    size: number(3),
                    from: number(4),
                    to: number(5),
                    name: fields[6].into(),
                }),
                _ => {}
            }
        }
        let files = workers.iter().chain([&parent]).map(|&pid| TmpFiles(pid)).collect();
        assert!(text.ends_with("end\n"), "{text}");
        Truth { lives, parent, workers, _files: files }
    }

    fn at(&self, pid: u32, time: u64, ip: u64) -> Option<&Life> {
        let here = |life: &&Life| life.pid == pid && (life.addr..life.addr + life.size).contains(&ip);
        self.lives.iter().filter(here).find(|life| (life.from..=life.to).contains(&time))
    }
}

/// A sample: process, time in nanoseconds, address, symbol, and the symbol of its caller.
struct Sample {
    pid: u32,
    time: u64,
    ip: u64,
    sym: String,
}

/// The samples of a recording, each with its innermost frame. The times of perf are exact to the nanosecond.
fn samples(data: &Path) -> Vec<Sample> {
    samples_by(perf::perf("script"), data)
}

/// The same as that `perf script` says.
fn samples_by(mut script: Command, data: &Path) -> Vec<Sample> {
    script.arg("--ns").arg("-i").arg(data).args(["-G", "-F", "pid,time,ip,sym"]);
    let parse = |line: &str| {
        // `PID TIME: ADDRESS SYMBOL`
        let (head, rest) = line.trim().split_once(": ")?;
        let (pid, time) = head.split_once(' ')?;
        let (ip, sym) = rest.trim().split_once(' ')?;
        let (seconds, nanoseconds) = time.trim().split_once('.')?;
        let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?;
        Some(Sample { pid: pid.parse().ok()?, time, ip: u64::from_str_radix(ip, 16).ok()?, sym: sym.into() })
    };
    let text = stdout(&run(&mut script));
    text.lines().filter_map(parse).collect()
}

/// How many samples there are in each piece of code in each process.
fn counts(truth: &Truth, samples: &[Sample]) -> BTreeMap<(u32, String), usize> {
    let mut counts = BTreeMap::new();
    for sample in samples {
        if let Some(life) = truth.at(sample.pid, sample.time, sample.ip) {
            *counts.entry((sample.pid, life.name.clone())).or_default() += 1;
        }
    }
    counts
}

/// Checks the names of all samples in known code.
fn check_names(truth: &Truth, samples: &[Sample]) {
    let mut names = perf::Verdict::new("names");
    for sample in samples {
        let Some(life) = truth.at(sample.pid, sample.time, sample.ip) else { continue };
        let (ip, sym) = (sample.ip, &sample.sym);
        names.check(*sym == life.name, || format!("{ip:x} of {} is {sym}, and not {life:?}", sample.pid));
    }
    names.decide(ENOUGH, 0.0);
}

fn inject(data: &Path) -> PathBuf {
    let injected = data.with_file_name("injected.data");
    run(perf::perf("inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected));
    injected
}

fn record(name: &str, environment: &[(&str, &str)]) -> (Truth, Vec<Sample>) {
    record_program(name, environment, server(), &["3", "0.2"], inject, expected)
}

/// With enough samples of what is expected to run.
fn record_program(
    name: &str,
    environment: &[(&str, &str)],
    program: &Path,
    arguments: &[&str],
    inject: fn(&Path) -> PathBuf,
    expected: fn(&Truth) -> Vec<(u32, String)>,
) -> (Truth, Vec<Sample>) {
    let data = scratch_dir(name).join("perf.data");
    until_enough(ENOUGH, |pace| {
        let mut record = perf::perf("record");
        record.envs(environment.iter().copied()).args(["-e", "cpu-clock", "-F", "999", "-k", "1"]);
        record.arg("-o").arg(&data).arg("--").arg(program).args(arguments).env(PACE, pace.to_string());
        let output = {
            let _alone = serial();
            run(&mut record)
        };
        let truth = Truth::parse(&stdout(&output));
        let samples = samples(&inject(&data));
        let counts = counts(&truth, &samples);
        let fewest = expected(&truth).iter().map(|piece| counts.get(piece).copied().unwrap_or(0)).min();
        ((truth, samples), fewest.unwrap_or(0))
    })
}

/// Samples that each piece of code has to have.
const ENOUGH: usize = 20;

/// What runs where: process and name.
fn expected(truth: &Truth) -> Vec<(u32, String)> {
    let of_parent = ["common_0", "common_1", "own_of_the_parent"].map(|name| (truth.parent, name.to_owned()));
    let of_worker = |(number, &worker): (usize, &u32)| {
        let names = ["own_0_of_worker", "own_1_of_worker", "reused_by_worker"].map(|name| format!("{name}_{number}"));
        ["common_0".into()].into_iter().chain(names).map(move |name| (worker, name))
    };
    of_parent.into_iter().chain(truth.workers.iter().enumerate().flat_map(of_worker)).collect()
}

/// Recorded from the start. Every worker ran its parent's code before and after its first call, its own, and its own in the
/// place of its parent's. Its files need not have its parent's code for that.
#[test]
fn a_server_that_forks_ahead() {
    for (name, environment) in [("late", &[][..]), ("at-once", &[("JITSYM_FORK", "now")][..])] {
        let (truth, samples) = record(name, environment);
        check_names(&truth, &samples);
        // Between the fork and the first call too.
        let first = |pid| {
            truth
                .lives
                .iter()
                .filter(|life| life.pid == pid && life.name.starts_with("own"))
                .map(|life| life.from)
                .min()
        };
        for &worker in &truth.workers {
            let own = first(worker).expect("own code");
            let early = samples.iter().filter(|sample| sample.pid == worker && sample.time < own);
            let named = early.filter(|sample| sample.sym == "common_0").count();
            assert!(named >= ENOUGH, "{named} samples in {worker} before its first call");
        }
        check_files(&truth, name == "late");
    }
}

/// A process in one time namespace, its child in another, and the process itself in a third one later.
#[test]
fn clocks_of_time_namespaces() {
    if !is_root("make time namespaces") {
        return;
    }
    let program = compile("gcc", &["c-tests/perf/time_namespace.c"], Link::Shared, &["-O1"], "time_namespace");
    for (name, environment) in [("time", &[][..]), ("time-at-once", &[("JITSYM_FORK", "now")][..])] {
        let all = |truth: &Truth| truth.lives.iter().map(|life| (life.pid, life.name.clone())).collect();
        let (truth, samples) = record_program(name, environment, &program, &["0.1"], inject, all);
        check_names(&truth, &samples);
    }
}

/// One map names the code of all programs that the process has executed. If there is a jitdump too, perf's own `inject` takes
/// the later programs' memory out of the recording where the map would name it, and `jitsym inject` leaves it there.
#[test]
fn a_process_that_executes_programs() {
    let program = compile("gcc", &["c-tests/perf/executes.c"], Link::Shared, &["-O1"], "executes");
    for (name, sinks) in [("executes-map", "map"), ("executes-both", "map,jitdump")] {
        let inject = if sinks == "map" { inject } else { perf::inject_by_jitsym };
        let all = |truth: &Truth| (0..3).map(|program| (truth.parent, format!("of_program_{program}"))).collect();
        let (truth, samples) = record_program(name, &[("JITSYM", sinks)], &program, &["0.1"], inject, all);
        check_names(&truth, &samples);
    }
}

/// Every process has files with its own records alone, and its own marker. `late`: workers may have written none of their
/// parent's code, or some.
fn check_files(truth: &Truth, late: bool) {
    for &pid in truth.workers.iter().chain([&truth.parent]) {
        let file = std::fs::read(format!("/tmp/jit-{pid}.dump")).expect("dump");
        let mut names = Vec::new();
        for load in RawRecords::from(&file, HEADER_SIZE).filter_map(|record| record.load()) {
            assert_eq!(load.pid, pid);
            names.push(String::from_utf8_lossy(load.name().expect("name")).into_owned());
        }
        let count = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        let is_parent = pid == truth.parent;
        // Its parent's code comes two seconds after the fork, without code that has been replaced by then.
        let may_lack = late && !is_parent && count("common") < 2;
        assert!(count("common") == 2 || may_lack, "{names:?}");
        assert_eq!(count("worker"), if is_parent { 0 } else { 3 }, "{names:?}");
        assert_eq!(count("own_of_the_parent"), usize::from(is_parent), "{names:?}");
    }
}

/// perf is told of one worker alone, while it runs: by its marker it finds the worker's dump, and not the parent's.
#[test]
fn one_worker_is_looked_at() {
    let data = scratch_dir("attach").join("perf.data");
    let (truth, samples) = until_enough(3 * ENOUGH, |pace| {
        let (worker, truth) = attach(&data, pace);
        let samples = samples(&inject(&data));
        assert!(samples.iter().all(|sample| sample.pid == worker));
        let counts = counts(&truth, &samples);
        let first = counts.get(&(worker, "common_0".into())).copied().unwrap_or(0);
        // Three pieces of code at least.
        let seen = counts.values().filter(|&&count| count >= ENOUGH).count();
        ((truth, samples), first.min(seen * ENOUGH))
    });
    check_names(&truth, &samples);
}

/// Records the last of two workers, which wait until perf counts.
fn attach(data: &Path, pace: u32) -> (u32, Truth) {
    let _alone = serial();
    let mut child = perf::command(server())
        .args(["2", "0.2", "wait"])
        .envs([("JITSYM_FORK", "now"), (PACE, &pace.to_string())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("server");
    let input = child.stdin.take().expect("input");
    let mut output = BufReader::new(child.stdout.take().expect("output"));
    let mut text = String::new();
    while text.matches("worker").count() < 2 {
        assert!(output.read_line(&mut text).expect("line") > 0, "{text}");
    }
    let worker: u32 = text.lines().rev().find_map(|line| line.strip_prefix("worker ")?.parse().ok()).expect("pid");
    let own = format!("/jit-{worker}.dump");
    wait_until("a marker of the worker's own", || {
        let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).expect("maps");
        let is_marker = |line: &&str| line.contains(" r-x") && line.contains(".dump");
        let markers: Vec<&str> = maps.lines().filter(is_marker).collect();
        let is_there = markers.iter().any(|marker| marker.ends_with(&own));
        assert!(!is_there || markers.len() == 1, "{maps}");
        is_there
    });
    let record = perf::attach(&["-k", "1"], worker, data);
    drop(input);
    output.read_to_string(&mut text).expect("output");
    assert!(child.wait().expect("end").success());
    record.wait();
    (worker, Truth::parse(&text))
}
