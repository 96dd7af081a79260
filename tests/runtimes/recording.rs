//! A recording of a runtime, and what perf says of its samples.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cfi::{self, Dumped};
use crate::perf;
use crate::support::{
    artifacts, fetched, once, root, run, scratch_dir, serial, shared_dir, spaceless, stdout, TmpFiles,
};

/// The source of a runtime as Debian has it. Its package is called as the runtime, or otherwise.
pub fn source(name: &str) -> PathBuf {
    let package = match name {
        "cpython" => "python3.13",
        "newer-cpython" => "python3.14",
        "lua" => "lua5.4",
        _ => name,
    };
    fetched(&format!("{name}-source")).join(package)
}

/// The runtime, built from its source: `PREFIX/bin/NAME`. Built again only if something has changed.
pub fn built(name: &str, program: &str) -> PathBuf {
    let source = source(name);
    let prefix = shared_dir(format!("built-{name}"));
    let script = root().join("examples").join(name.trim_start_matches("newer-")).join("build.sh");
    once(&prefix, "", || drop(run(Command::new("sh").arg(script).arg(&source).arg(&prefix))));
    prefix.join("bin").join(program)
}

/// The ways in which code is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A jitdump, and `jitsym inject`.
    Jitdump,
    /// Regions, and nothing after the recording.
    Regions,
    /// The bridge in a program without the library, and `jitsym inject`.
    Bridge,
    /// The perf map of a program that does not find the library.
    Alone,
}

/// One frame of a stack: symbol and object.
pub type Frame = (String, String);

/// A sample of the thread that runs the guest.
pub struct Sample {
    pub time: f64,
    /// `FILE:LINE` of the address, if perf knows it.
    pub line: String,
    pub frames: Vec<Frame>,
}

impl Sample {
    /// Whether the code that ran was compiled at run time.
    pub fn is_compiled(&self) -> bool {
        self.frames.first().is_some_and(is_compiled)
    }

    /// Whether the stack goes down to where the program began.
    pub fn is_whole(&self) -> bool {
        self.frames.iter().rev().take(4).any(|(symbol, _)| symbol == "main")
    }
}

/// In an object of the library, or in memory that no object describes.
pub fn is_compiled((_, object): &Frame) -> bool {
    let name = object.rsplit('/').next().unwrap_or_default();
    ["jit", "perf-", "anon"].iter().any(|start| name.starts_with(start))
}

/// What the guest did from when to when.
pub struct Phase {
    pub name: String,
    pub from: f64,
    pub to: f64,
}

pub struct Recording {
    pub file: PathBuf,
    pub phases: Vec<Phase>,
    pub samples: Vec<Sample>,
    files: TmpFiles,
}

/// For stacks: the interpreters and their C libraries keep no frame pointers. perf's buffer holds a quarter of a second of them.
pub const STACKS: &[&str] = &["--call-graph", "dwarf,16384", "-m", "4M"];

impl Recording {
    /// Records a runtime. Each line of its output is the name of a phase, its begin and its end.
    pub fn of(name: &str, way: Way, variables: &[(&str, &str)], options: &[&str], command: &[&str]) -> Recording {
        let dir = scratch_dir("recordings");
        let file = dir.join(format!("{name}.data"));
        let mut record = perf::perf("record");
        let library = artifacts().shared_dir.join("libjitsym.so");
        record.envs(variables.iter().copied()).env("JITSYM_LIB", &library);
        match way {
            Way::Jitdump => record.env("JITSYM", "map,jitdump"),
            // The runtime's own variable has to be enough.
            Way::Regions => record.env_remove("JITSYM"),
            Way::Bridge => record.env("JITSYM", "bridge").env("LD_PRELOAD", spaceless(&library)),
            Way::Alone => record.env("JITSYM_LIB", "/nowhere/libjitsym.so"),
        };
        record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&file);
        // Not by way of a shell: perf then sometimes loses all stacks that begin in the C library.
        record.args(command);
        let (output, pid, files) = perf::whole(&file, || {
            let output = {
                let _serial = serial();
                stdout(&run(&mut record))
            };
            let pids = stdout(&run(perf::perf("script").args(["-G", "-F", "pid", "-i"]).arg(&file)));
            let pids: BTreeSet<&str> = pids.lines().map(str::trim).collect();
            assert_eq!(pids.len(), 1, "one process");
            let pid = pids.first().and_then(|pid| pid.parse().ok()).expect("pid");
            (output, pid, TmpFiles(pid))
        });
        let phases = output.lines().map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [name, from, to] = fields[..] else { panic!("the guest printed {line:?}") };
            Phase { name: name.into(), from: from.parse().expect("begin"), to: to.parse().expect("end") }
        });
        let phases: Vec<Phase> = phases.collect();
        assert!(!phases.is_empty(), "the guest printed nothing");
        let file = match way {
            Way::Jitdump | Way::Bridge => perf::inject_by_jitsym(&file),
            Way::Regions | Way::Alone => file,
        };
        let samples = samples(&file, pid);
        Recording { file, phases, samples, files }
    }

    /// The jitdump of the process.
    pub fn dump(&self) -> PathBuf {
        format!("/tmp/jit-{}.dump", self.files.0).into()
    }

    /// All code in it.
    pub fn dumped(&self) -> Vec<Dumped> {
        cfi::read_dump(std::fs::File::open(self.dump()).expect("jitdump"))
    }

    pub fn phase(&self, name: &str) -> &Phase {
        self.phases.iter().find(|phase| phase.name == name).unwrap_or_else(|| panic!("no phase {name}"))
    }

    /// The samples of a phase.
    pub fn during(&self, phase: &Phase) -> impl Iterator<Item = &Sample> {
        let during = phase.from..phase.to;
        self.samples.iter().filter(move |sample| during.contains(&sample.time))
    }

    /// The phase at a time.
    pub fn phase_at(&self, time: f64) -> Option<&Phase> {
        self.phases.iter().find(|phase| (phase.from..phase.to).contains(&time))
    }
}

/// The samples of the first thread of a process.
fn samples(file: &Path, pid: u32) -> Vec<Sample> {
    let script = |options: &[&str]| {
        stdout(&run(perf::perf("script").args(["--ns", "--no-inline"]).args(options).arg("-i").arg(file)))
    };
    // Lines without callers: perf 6.1 may crash when it looks for the line of a frame that is in no file.
    let (stacks, lines) =
        (script(&["-F", "tid,time,ip,sym,dso"]), script(&["--max-stack", "1", "-F", "tid,time,ip,srcline"]));
    let bare = script(&["-G", "-F", "tid,time"]);
    let blocks = |text: &str| -> Vec<Vec<String>> {
        let blocks = text.split("\n\n").filter(|block| !block.trim().is_empty());
        blocks.map(|block| block.lines().filter(|line| !line.is_empty()).map(String::from).collect()).collect()
    };
    let (stacks, lines) = (blocks(&stacks), blocks(&lines));
    assert_eq!((stacks.len(), stacks.len()), (lines.len(), bare.lines().count()));
    let mut samples = Vec::new();
    for ((stack, line), bare) in stacks.iter().zip(&lines).zip(bare.lines()) {
        let fields: Vec<&str> = bare.split_whitespace().collect();
        let [tid, time] = fields[..] else { panic!("perf script printed {bare:?}") };
        if tid != pid.to_string() {
            continue;
        }
        let frame = |line: &String| {
            let frame = line.trim_start().split_once(' ').and_then(|(_, frame)| frame.rsplit_once(" ("));
            let (symbol, object) = frame.unwrap_or_else(|| panic!("perf script printed {line:?}"));
            (symbol.to_owned(), object.trim_end_matches(')').to_owned())
        };
        samples.push(Sample {
            time: time.trim_end_matches(':').parse().expect("time"),
            line: line.get(2).map_or_else(String::new, |line| line.trim().into()),
            frames: stack[1..].iter().map(frame).collect(),
        });
    }
    samples
}

/// How many pieces of code the library says to have registered, and how many of them were gone before the process ended. `said` is
/// what it has said with `JITSYM_DEBUG`.
pub fn registered_and_gone(said: &str) -> (u64, u64) {
    let end = said.lines().find(|line| line.contains("at exit: ")).unwrap_or_else(|| panic!("no end in {said}"));
    let words: Vec<&str> = end.split([' ', ',', ';']).collect();
    let count = |what: &str| -> u64 {
        let at = words.iter().position(|word| *word == what).unwrap_or_else(|| panic!("{what} in {end}"));
        words[at - 1].parse().expect("number")
    };
    assert_eq!((count("refused"), count("dropped"), count("unreadable")), (0, 0, 0), "{end}");
    (count("registered"), count("unregistered"))
}

/// Fails if less than this many percent are right, and more than two are not: two of a hundred samples can fall into what is no code
/// of the guest. Says the numbers in any case.
pub fn at_least(what: &str, right: usize, all: usize, enough: usize, percent: usize, others: impl FnOnce() -> String) {
    println!("{what}: {right} of {all}");
    assert!(all >= enough, "{what}: only {all} samples");
    assert!(all - right <= (all * (100 - percent) / 100).max(2), "{what}: {right} of {all}; others: {}", others());
}

/// Every stack with a compiled frame in it goes down to `main`, of the samples that count.
pub fn check_stacks(what: &str, recording: &Recording, enough: usize, counts: impl Fn(&Sample) -> bool) {
    let compiled: Vec<&Sample> = recording
        .samples
        .iter()
        .filter(|sample| {
            recording.phase_at(sample.time).is_some() && sample.frames.iter().any(is_compiled) && counts(sample)
        })
        .collect();
    let whole = compiled.iter().filter(|sample| sample.is_whole()).count();
    let broken = || format!("{:?}", compiled.iter().find(|sample| !sample.is_whole()).map(|sample| &sample.frames));
    at_least(&format!("{what}: stacks down to main"), whole, compiled.len(), enough, 99, broken);
}
