//! Several runtimes in one process, under the real perf: all code has its name, whoever wrote it down, and whatever cannot be
//! written beside another runtime says why.

mod hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::perf;
use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::HEADER_SIZE;

use crate::support::{
    artifacts, checker, compile, describe, once, plugin, run, scratch_dir, serial, shared_dir, stdout, thorough, tool,
    try_run, until_enough, Link, TmpFiles, PACE,
};

/// Samples that each piece of code has to have.
const ENOUGH: usize = 15;

/// Code that ran.
#[derive(Debug)]
struct Life {
    addr: u64,
    size: u64,
    from: u64,
    name: String,
}

impl Life {
    fn is_at(&self, ip: u64, time: u64) -> bool {
        (self.addr..self.addr + self.size).contains(&ip) && self.from <= time
    }
}

/// A copy of the library, by its own word.
#[derive(Debug)]
struct Copy {
    running: u32,
    failed: u32,
    map: PathBuf,
    dump: PathBuf,
    error: String,
}

/// What a process says of itself.
#[derive(Debug)]
struct Told {
    pid: u32,
    lives: Vec<Life>,
    copies: Vec<Copy>,
    text: String,
}

impl Told {
    fn parse(text: &str) -> Told {
        let mut told = Told { pid: 0, lives: Vec::new(), copies: Vec::new(), text: text.into() };
        for line in text.lines() {
            let fields: Vec<&str> = line.split(['\t', ' ']).collect();
            let number = |at: usize| fields[at].parse::<u64>().expect("number");
            match fields[0] {
                "pid" => told.pid = number(1) as u32,
                "life" => {
                    told.pid = number(1) as u32;
                    let addr = u64::from_str_radix(fields[2], 16).expect("address");
                    told.lives.push(Life { addr, size: number(3), from: number(4), name: fields[6].into() });
                }
                "copy" => {
                    let fields: Vec<&str> = line.split('\t').collect();
                    let bits = |at: usize| fields[at].parse().expect("bits");
                    let (map, dump, error) = (fields[4].into(), fields[5].into(), fields[6].into());
                    told.copies.push(Copy { running: bits(2), failed: bits(3), map, dump, error });
                }
                _ => {}
            }
        }
        assert!(text.ends_with("end\n"), "{text}");
        told
    }

    /// The names of all jitdumps of this process, as perf goes by them.
    fn dumps(&self) -> Vec<PathBuf> {
        let is_one = |zeros: &usize| Path::new(&format!("/tmp/jit-{:0>zeros$}{}.dump", "", self.pid)).exists();
        (0..12).filter(is_one).map(|zeros| format!("/tmp/jit-{:0>zeros$}{}.dump", "", self.pid).into()).collect()
    }

    /// That every piece of code is in one of the dumps, and that no two have an index in common.
    fn check_dumps(&self, but: &str) {
        let (mut seen, mut names) = (BTreeMap::new(), Vec::new());
        for path in self.dumps() {
            let bytes = std::fs::read(&path).expect("dump");
            for load in RawRecords::from(&bytes, HEADER_SIZE).filter_map(|record| record.load()) {
                let name = String::from_utf8_lossy(load.name().expect("name")).into_owned();
                let other = seen.insert(load.index, name.clone());
                assert!(other.is_none(), "{name} in {} and {other:?} have one index", path.display());
                names.push(name);
            }
        }
        for life in self.lives.iter().filter(|life| !life.name.starts_with(but)) {
            assert!(names.contains(&life.name), "{life:?} is missing: {names:?}\n{}", self.text);
        }
    }

    fn map_lines(&self) -> Vec<perf::MapLine> {
        let path = format!("/tmp/perf-{}.map", self.pid);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        perf::parse_map_lines(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// That every piece of code has its line.
    fn check_map(&self, but: &str) {
        let lines = self.map_lines();
        for life in self.lives.iter().filter(|life| !life.name.starts_with(but)) {
            let wanted = perf::MapLine { start: life.addr, end: life.addr + life.size, name: life.name.clone() };
            assert!(lines.contains(&wanted), "{wanted:?} is missing: {lines:?}\n{}", self.text);
        }
    }
}

fn host() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/several/several.c"], Link::None, &["-O1"], "several"))
}

/// Copies of the shared library, a to c, and plugins with the static one inside, p and q.
fn objects() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = shared_dir("objects");
        let library = artifacts().shared_dir.join("libjitsym.so");
        once(&dir.join("all"), "", || {
            for name in ["a", "b", "c"] {
                std::fs::copy(&library, dir.join(name)).expect("copy of the library");
            }
            plugin(&dir.join("p"));
            std::fs::copy(dir.join("p"), dir.join("q")).expect("copy of the plugin");
        });
        dir
    })
}

/// The host's arguments; an object is named by its letter.
fn arguments(actions: &str) -> Vec<String> {
    let dir = objects().display();
    let is_object = |word: &str| ["a", "b", "c", "p", "q"].contains(&word);
    let path = |word: &str| if is_object(word) { format!("{dir}/{word}") } else { word.into() };
    actions.split_whitespace().map(path).collect()
}

/// Address and symbol of each sample.
fn samples(data: &Path) -> Vec<(u64, u64, String)> {
    let mut script = perf::perf("script");
    script.arg("--ns").arg("-i").arg(data).args(["-G", "-F", "time,ip,sym"]);
    let parse = |line: &str| {
        let (time, rest) = line.trim().split_once(": ")?;
        let (ip, sym) = rest.trim().split_once(' ')?;
        let (seconds, nanoseconds) = time.trim().split_once('.')?;
        let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?;
        Some((time, u64::from_str_radix(ip, 16).ok()?, sym.to_string()))
    };
    stdout(&run(&mut script)).lines().filter_map(parse).collect()
}

/// A run under `perf record`.
struct Recording {
    told: Told,
    data: PathBuf,
    _files: Vec<TmpFiles>,
}

impl Recording {
    /// Of the host with these actions.
    fn new(name: &str, actions: &str) -> Recording {
        let data = scratch_dir(name).join("perf.data");
        until_enough(ENOUGH, |pace| {
            let mut record = Self::perf(&data);
            // Each process's files are to be complete.
            record.arg(host()).args(arguments(actions)).env(PACE, pace.to_string()).env("JITSYM_FORK", "on");
            let output = {
                let _alone = serial();
                run(&mut record)
            };
            Self::of(&stdout(&output), data.clone()).with_fewest()
        })
    }

    /// With the number of samples in the piece of code that has the fewest.
    fn with_fewest(self) -> (Recording, usize) {
        let samples = samples(&self.data);
        let count = |life: &Life| samples.iter().filter(|(time, ip, _)| life.is_at(*ip, *time)).count();
        let fewest = self.told.lives.iter().map(count).min().unwrap_or(0);
        (self, fewest)
    }

    fn perf(data: &Path) -> Command {
        let mut record = perf::perf("record");
        record.args(["-e", "cpu-clock", "-F", "999", "-k", "1", "-o"]).arg(data).arg("--");
        record
    }

    fn of(text: &str, data: PathBuf) -> Recording {
        let pid_in =
            |line: &str| line.strip_prefix("pid ").or(line.strip_prefix("life "))?.split(' ').next()?.parse().ok();
        let pids: BTreeSet<u32> = text.lines().filter_map(pid_in).collect();
        let _files = pids.into_iter().map(TmpFiles).collect();
        Recording { told: Told::parse(text), data, _files }
    }

    fn injected(&self) -> PathBuf {
        let injected = self.data.with_file_name("injected.data");
        run(perf::perf("inject").arg("--jit").arg("-i").arg(&self.data).arg("-o").arg(&injected));
        injected
    }

    /// All samples in code that was announced have its name, and each piece has been sampled. `but`: how the names of writers
    /// begin that have not written this kind of file.
    fn check_names(&self, data: &Path, but: &str) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names = perf::Verdict::new("names");
        let lives: Vec<&Life> = self.told.lives.iter().filter(|life| !life.name.starts_with(but)).collect();
        for (time, ip, sym) in samples(data) {
            let Some(life) = lives.iter().find(|life| life.is_at(ip, time)) else { continue };
            *counts.entry(&life.name).or_default() += 1;
            names.check(sym == life.name, || format!("{ip:x} is {sym}, and not {life:?}\n{}", self.told.text));
        }
        names.decide(ENOUGH, 0.0);
        for life in lives {
            let count = counts.get(&*life.name).copied().unwrap_or(0);
            assert!(count >= ENOUGH, "{count} samples in {life:?}");
        }
    }

    /// Names without and with the jitdumps, and the files.
    fn check(&self) {
        self.check_names(&self.data, "dump");
        self.check_names(&self.injected(), "map");
        self.told.check_map("dump");
        self.told.check_dumps("map");
    }
}

#[test]
fn two_sessions_of_one_copy() {
    let recording = Recording::new("sessions", "load a session more flush burn 0.05 more burn 0.05");
    recording.check();
    assert_eq!(recording.told.dumps().len(), 1);
    assert_eq!(recording.told.lives.len(), 4);
}

/// The shared library three times, one of them in a namespace of its own, and the static one in two plugins.
#[test]
fn copies_of_the_library() {
    let recording = Recording::new("copies", "load a more load b apart c plugin p more flush plugin q more burn 0.05");
    recording.check();
    let told = &recording.told;
    assert_eq!((told.dumps().len(), told.copies.len(), told.lives.len()), (5, 5, 10));
    for copy in &told.copies {
        assert_eq!((copy.running, copy.failed, &*copy.error), (7, 0, ""), "{told:?}");
        assert_eq!(copy.map, Path::new(&format!("/tmp/perf-{}.map", told.pid)));
        assert!(told.dumps().contains(&copy.dump), "{copy:?}");
    }
}

/// One plugin is unloaded with its session open and something on its way, the other goes on; one was never used.
#[test]
fn plugins_are_unloaded() {
    let recording = Recording::new("plugins", "idle q plugin p more plugin q more unload more burn 0.05 exit");
    recording.check();
    assert_eq!((recording.told.lives.len(), recording.told.copies.len()), (4, 1));
}

/// A copy that has closed its session has left files that are not the next one's.
#[test]
fn one_copy_after_the_other() {
    let recording = Recording::new("after", "load a more close load b more burn 0.05");
    recording.check();
    assert_eq!((recording.told.dumps().len(), recording.told.lives.len()), (2, 2));
}

/// When the program has no thread any more, the copies' own do not keep the process for each other.
#[test]
fn the_last_thread_ends() {
    let recording = Recording::new("last", "load a more load b more burn 0.05 last");
    recording.check();
    assert_eq!((recording.told.dumps().len(), recording.told.lives.len()), (2, 3));
}

/// Copies go on in a forked child, in the files of that.
#[test]
fn copies_in_a_forked_child() {
    let recording = Recording::new("fork", "load a more plugin p more flush fork more burn 0.05");
    // Without the jitdumps perf would look up in the parent's map what was mapped before the fork.
    recording.check_names(&recording.injected(), "-");
    recording.told.check_map("-");
    recording.told.check_dumps("-");
    assert_eq!((recording.told.dumps().len(), recording.told.lives.len()), (2, 5));
}

/// Runtimes that write the same files in every way that is known, before the library does and after it, and in turn with it.
#[test]
fn other_runtimes() {
    let all = ["foreign map-own foreign dump-own", "foreign map-append foreign dump-append", "foreign map-each"];
    for (number, others) in all.into_iter().enumerate() {
        for (when, actions) in [
            ("before", format!("{others} more load a more flush more more burn 0.05")),
            ("after", format!("load a more flush {others} more more flush more burn 0.05")),
            ("late", format!("load a apart b {others} more flush more burn 0.05 exit")),
        ] {
            // With one of them, and with all in a thorough run.
            if when == "late" && number > 0 && !thorough() {
                continue;
            }
            let recording = Recording::new(&format!("others-{number}-{when}"), &actions);
            recording.check();
        }
    }
}

/// Runs the host without perf.
fn run_host(actions: &str) -> (Told, TmpFiles) {
    let output = run(perf::command(host()).args(arguments(actions)));
    let told = Told::parse(&stdout(&output));
    let files = TmpFiles(told.pid);
    (told, files)
}

/// Lines of others are not lost when code of a copy is replaced, which would have its map written anew, nor when it finds a file
/// that nobody has open.
#[test]
fn maps_are_not_taken_away() {
    for actions in [
        "load a more flush foreign map-each more flush replace 0 flush more flush exit",
        "load a more flush foreign map-append flush replace 0 flush more exit",
        "load a more flush plugin p flush replace 0 flush more exit",
        "foreign map-each more load a more flush replace 1 exit",
        "load a more close load b more replace 1 exit",
    ] {
        let (told, _files) = run_host(actions);
        told.check_map("-");
    }
}

/// Somebody opens a file as if it were new. It has been cut, and nobody has it open yet: it is not taken for one that a user has cut.
#[test]
fn files_that_are_being_opened() {
    for actions in
        ["load a more flush foreign dump-slow more flush exit", "load a more flush foreign map-slow more flush exit"]
    {
        let in_time = |_| Some(run_host(actions)).filter(|(told, _)| !told.text.contains("too slowly"));
        let (told, _files) = (0..100).find_map(in_time).expect("a machine that is not always this busy");
        told.check_map("dump");
        told.check_dumps("map");
    }
}

/// What cannot be joined is refused with its reason, and the other sink goes on.
#[test]
fn refusals() {
    // Every name for a dump is somebody else's.
    let (told, _files) = run_host("foreign dump-all! load a more flush exit");
    let copy = &told.copies[0];
    assert_eq!((copy.running, copy.failed), (5, 2), "{told:?}");
    assert!(copy.error.contains("all other names for it are taken"), "{told:?}");
    assert!(told.dumps().iter().all(|dump| dump.metadata().expect("dump").len() == 0), "{told:?}");
    told.check_map("dump");
    // Somebody has begun a line: as long as it is not ended nothing can be appended, and then it is.
    let (told, _files) = run_host("foreign map-half! load a more flush say line flush exit");
    let (before, after) = (&told.copies[0], &told.copies[1]);
    assert_eq!((before.running, before.failed), (6, 1), "{told:?}");
    assert!(before.error.contains("ends within a line of another library"), "{told:?}");
    assert_eq!((after.running, after.failed), (7, 0), "{told:?}");
    assert_eq!(told.map_lines()[0].name, "half");
    told.check_map("dump");
}

/// A process that is killed with all of this: recovering completes what the copies have in common without losing the lines of
/// others, and without the code of others in a jitdump.
#[test]
fn killed_and_recovered() {
    let spools = scratch_dir("spools");
    for actions in [
        "load a more flush apart b plugin p more flush foreign map-own more flush more more kill",
        // A map that the library has not made.
        "foreign map-each more load a more flush more more kill",
        // Who appends to the library's own jitdump, before and after its writer has noticed.
        "load a more flush foreign dump-append more flush more more kill",
        "load a more flush foreign dump-append more more kill",
    ] {
        let mut killed = perf::command(host());
        killed.env("JITSYM_SPOOL_DIR", &spools).args(arguments(actions));
        let output = try_run(&mut killed);
        let told = Told::parse(&stdout(&output));
        let _files = TmpFiles(told.pid);
        assert!(!output.status.success(), "{}", describe(&killed, &output));
        let mut recover = perf::command(tool());
        run(recover.env("JITSYM_SPOOL_DIR", &spools).arg("recover").arg(told.pid.to_string()));
        assert_eq!(std::fs::read_dir(&spools).expect("spools").count(), 0);
        told.check_map("dump");
        told.check_dumps("map");
        // What others have appended comes before what was on its way, which has the times of its calls all the same.
        told.dumps().iter().for_each(|path| checker::assert_sound(path, &["time-backwards"]));
    }
}
