//! What perf shows of the code that a child has inherited, and of the child's own code, if perf comes before the fork, after
//! it, or when the child's files have all code. The installed perf, and those of newer Debian suites.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::HEADER_SIZE;

use super::{samples_by, Truth, ENOUGH};
use crate::perf::{self, Verdict};
use crate::support::{compile, run, scratch_dir, serial, stdout, until_enough, versions, Link, PACE};

/// Of processor time for each pair of functions.
pub const SECONDS: &str = "0.05";

pub fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/perf/inherited.c"], Link::Shared, &["-O1"], "inherited"))
}

/// A perf of some version.
struct Perf(PathBuf);

impl Perf {
    fn all() -> impl Iterator<Item = Perf> {
        versions("perf").into_iter().map(Perf)
    }

    fn command(&self, subcommand: &str) -> Command {
        perf::of(perf::command(&self.0), &[], subcommand)
    }

    /// perf 7 takes any jitdump that a process has mapped for that of the process: also the parent's, which the child maps
    /// until it has written its parent's code.
    fn reads_any_dump(&self) -> bool {
        let version = stdout(&run(perf::command(&self.0).arg("--version")));
        let major = version.trim().strip_prefix("perf version ").and_then(|rest| rest.split('.').next());
        major.and_then(|major| major.parse::<u32>().ok()).expect("version") >= 7
    }

    fn inject(&self, data: &Path) -> PathBuf {
        let injected = data.with_file_name("injected.data");
        run(self.command("inject").arg("--jit").arg("-i").arg(data).arg("-o").arg(&injected));
        injected
    }

    /// The samples of the two processes in compiled code. `stacks`: with what called this code.
    fn samples(&self, truth: &Inherited, data: &Path, stacks: bool) -> Vec<Seen> {
        let script = || {
            let mut script = self.command("script");
            script.arg("--no-inline");
            script
        };
        let mut chains = Vec::new();
        if stacks {
            let text = stdout(&run(script().arg("-i").arg(data).args(["-F", "pid,time,ip,sym"])));
            let frame = |line: &str| Some(line.trim().split_once(' ')?.1.split('+').next()?.to_owned());
            let blocks = text.split("\n\n").filter(|block| !block.trim().is_empty());
            chains
                .extend(blocks.map(|block| block.trim_start_matches('\n').lines().skip(1).filter_map(frame).collect()));
        }
        let samples = samples_by(script(), data);
        assert!(!stacks || chains.len() == samples.len(), "{} stacks, {} samples", chains.len(), samples.len());
        let mut chains: std::vec::IntoIter<Vec<String>> = chains.into_iter();
        let mut seen = Vec::new();
        for sample in samples {
            let frames = chains.next().unwrap_or_default();
            let is_in = |ran: &&Ran| ran.pid == sample.pid && (ran.from..=ran.to).contains(&sample.time);
            let Some(ran) = truth.ran.iter().find(is_in) else { continue };
            if truth.processes.at(sample.pid, sample.time, sample.ip).is_some_and(|life| life.name == ran.inner) {
                seen.push(Seen { ran: ran.clone(), time: sample.time, ip: sample.ip, name: sample.sym, frames });
            }
        }
        seen
    }
}

/// Code that ran for a time, called by other compiled code.
#[derive(Clone, Debug)]
struct Ran {
    pid: u32,
    from: u64,
    to: u64,
    outer: String,
    inner: String,
}

/// A sample in code that ran, with what perf shows of it.
#[derive(Debug)]
struct Seen {
    ran: Ran,
    time: u64,
    ip: u64,
    name: String,
    frames: Vec<String>,
}

impl Seen {
    fn is_named(&self) -> bool {
        self.name == self.ran.inner
    }

    /// Down to `main`. Samples at the first and the last instruction have their caller by the tables too.
    fn is_whole(&self) -> bool {
        let [inner, outer, caller, ..] = &self.frames[..] else { return false };
        let is_called = *inner == self.ran.inner && *outer == self.ran.outer && caller == "run";
        is_called && self.frames.iter().any(|name| name == "main")
    }
}

/// What the program says of itself, and its files.
struct Inherited {
    processes: Truth,
    ran: Vec<Ran>,
    child: u32,
    /// When the child's jitdump got each of its pieces of code first.
    dumped: BTreeMap<String, u64>,
    map: String,
}

impl Inherited {
    fn parse(text: &str) -> Inherited {
        let processes = Truth::parse(text);
        let ran = text.lines().filter_map(|line| {
            let fields: Vec<&str> = line.strip_prefix("run ")?.split(' ').collect();
            let number = |at: usize| fields[at].parse::<u64>().expect("number");
            let (outer, inner) = (fields[3].into(), fields[4].into());
            Some(Ran { pid: number(0) as u32, from: number(1), to: number(2), outer, inner })
        });
        let (ran, child) = (ran.collect(), processes.workers[0]);
        let dump = std::fs::read(format!("/tmp/jit-{child}.dump")).expect("dump");
        let mut dumped = BTreeMap::new();
        for record in RawRecords::from(&dump, HEADER_SIZE) {
            if let Some(load) = record.load() {
                let name = String::from_utf8_lossy(load.name().expect("name")).into_owned();
                dumped.entry(name).or_insert(record.timestamp);
            }
        }
        let map = std::fs::read_to_string(format!("/tmp/perf-{child}.map")).expect("map");
        Inherited { processes, ran, child, dumped, map }
    }

    fn is_dumped(&self, name: &str, time: u64) -> bool {
        self.dumped.get(name).is_some_and(|&since| since <= time)
    }

    /// The samples of the pair of functions in the child that has fewest.
    fn fewest(&self, samples: &[Seen]) -> usize {
        let mut counts = BTreeMap::new();
        for ran in self.ran.iter().filter(|ran| ran.pid == self.child) {
            counts.insert((&ran.outer, &ran.inner), 0);
        }
        for sample in samples {
            if let Some(count) = counts.get_mut(&(&sample.ran.outer, &sample.ran.inner)) {
                *count += 1;
            }
        }
        counts.into_values().min().unwrap_or(0)
    }
}

/// A recording with enough samples of each pair of functions in the child. `stop`: perf comes when the child stands there, and
/// otherwise before the program.
fn record(perf: &Perf, policy: &str, stop: Option<&str>, options: &str) -> (Inherited, PathBuf) {
    let data = scratch_dir(format!("{policy}-{}", stop.unwrap_or("first"))).join("perf.data");
    let arguments = [SECONDS, &[stop.unwrap_or_default(), options].join(",")];
    let recorded = until_enough(ENOUGH, |pace| {
        let pace = pace.to_string();
        let environment = [("JITSYM_FORK", policy), (PACE, pace.as_str())];
        let truth = perf::whole(&data, || {
            let _alone = serial();
            let text = match stop {
                Some(stop) => attach(perf, &data, &arguments, environment, stop),
                None => {
                    let mut record = perf.command("record");
                    record.envs(environment).args(["-e", "cpu-clock", "-F", "999"]).args(perf::WITH_STACKS);
                    stdout(&run(record.arg("-o").arg(&data).arg("--").arg(program()).args(arguments)))
                }
            };
            Inherited::parse(&text)
        });
        let samples = perf.samples(&truth, &data, false);
        // Where perf has come late, it has missed what the child ran first.
        let fewest = truth.fewest(&samples);
        (truth, fewest)
    });
    (recorded, data)
}

/// Runs the program, of which perf records the child from the stop on.
fn attach(perf: &Perf, data: &Path, arguments: &[&str], environment: [(&str, &str); 2], stop: &str) -> String {
    let mut command = perf::command(program());
    let command = command.args(arguments).envs(environment).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guest = command.spawn().expect("program");
    let mut output = BufReader::new(guest.stdout.take().expect("output"));
    let mut text = String::new();
    let child = read_until(&mut output, &mut text, &format!("{stop} "));
    let record = perf::attach_by(perf.command("record"), perf::WITH_STACKS, child, data);
    guest.stdin.take().expect("input").write_all(b"\n").expect("go on");
    output.read_to_string(&mut text).expect("output");
    assert!(guest.wait().expect("end").success());
    record.wait();
    text
}

/// Reads until a line that begins so, and returns the number behind that.
pub fn read_until(output: &mut impl BufRead, text: &mut String, begin: &str) -> u32 {
    loop {
        let from = text.len();
        assert!(output.read_line(text).expect("line") > 0, "{text}");
        if let Some(number) = text[from..].strip_prefix(begin) {
            return number.trim().parse().expect("number");
        }
    }
}

/// Everything has its name and its stack.
fn check_all(samples: &[Seen]) {
    let (mut names, mut stacks) = (Verdict::new("names"), Verdict::new("stacks"));
    for sample in samples {
        names.check(sample.is_named(), || format!("{sample:?}"));
        stacks.check(sample.is_whole(), || format!("{sample:?}"));
    }
    names.decide(ENOUGH, 0.0);
    stacks.decide(ENOUGH, 1.0);
}

/// With a jitdump all is right. By maps, perf takes the names in memory of the parent from the parent's map, whatever the child
/// has compiled there.
#[test]
fn perf_comes_before_the_fork() {
    for perf in Perf::all() {
        let (truth, data) = record(&perf, "late", None, "");
        check_all(&perf.samples(&truth, &perf.inject(&data), true));
        let mut names = Verdict::new("names by maps");
        for sample in perf.samples(&truth, &data, false) {
            let holds = |pid: u32| {
                let here = move |life: &&super::Life| {
                    life.pid == pid && (life.addr..life.addr + life.size).contains(&sample.ip)
                };
                truth.processes.lives.iter().rfind(here)
            };
            let expected = holds(truth.processes.parent).map_or(&sample.ran.inner, |life| &life.name);
            names.check(sample.name == *expected, || format!("{sample:?} is not {expected}"));
        }
        names.decide(ENOUGH, 0.0);
    }
}

/// The child's own code has its names. Inherited code has names and tables as soon as the child's jitdump has this code.
#[test]
fn perf_comes_after_the_fork() {
    for perf in Perf::all() {
        for policy in ["late", "on", "now"] {
            let (truth, data) = record(&perf, policy, Some("forked"), "");
            let (mut names, mut stacks) = (Verdict::new("names"), Verdict::new("stacks"));
            let mut without = 0;
            for sample in perf.samples(&truth, &perf.inject(&data), true) {
                let is_dumped = |name: &str| truth.is_dumped(name, sample.time);
                if perf.reads_any_dump() && policy != "now" {
                    // The parent has registered code there later.
                    if sample.ran.inner != "own_at_free" {
                        names.check(sample.is_named(), || format!("{sample:?}"));
                    }
                } else if is_dumped(&sample.ran.inner) {
                    names.check(sample.is_named(), || format!("{sample:?}"));
                    let is_known = is_dumped(&sample.ran.outer);
                    stacks.check(sample.is_whole() == is_known, || format!("{sample:?}, {is_known}"));
                    without += usize::from(!is_known);
                } else {
                    stacks.check(!sample.is_whole(), || format!("{sample:?}"));
                    without += 1;
                }
            }
            names.decide(ENOUGH, 0.0);
            println!("{policy}: {without} without stacks");
            if !perf.reads_any_dump() {
                stacks.decide(ENOUGH, 1.0);
                // With `on` the files say that the code is there since the fork.
                assert_eq!(without > 0, policy == "late");
            }
            let mut by_map = Verdict::new("names by maps");
            for sample in perf.samples(&truth, &data, false) {
                by_map.check(sample.is_named(), || format!("{sample:?}"));
            }
            by_map.decide(ENOUGH, 0.0);
        }
    }
}

/// Nothing is missing.
#[test]
fn perf_comes_when_the_files_are_complete() {
    for perf in Perf::all() {
        let (truth, data) = record(&perf, "late", Some("late"), "");
        check_all(&perf.samples(&truth, &perf.inject(&data), true));
        for sample in perf.samples(&truth, &data, false) {
            assert!(sample.is_named(), "{sample:?}");
        }
    }
}

/// A child that ends before its files have its parent's code: its map has the names that perf shows, and no others.
#[test]
fn perf_comes_to_a_child_that_ends_soon() {
    for perf in Perf::all() {
        for policy in ["late", "on"] {
            let (truth, data) = record(&perf, policy, Some("forked"), "short");
            let mut names = Verdict::new("names");
            for sample in perf.samples(&truth, &data, false) {
                let is_in_map = truth.map.lines().any(|line| line.ends_with(&format!(" {}", sample.ran.inner)));
                names.check(sample.is_named() == is_in_map, || format!("{sample:?}: {}", truth.map));
                assert!(is_in_map || policy == "late");
            }
            names.decide(ENOUGH, 0.0);
        }
    }
}
