//! Runs of the ground-truth program of the matrix, with or without perf.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use jitsym_step::Graph;

use crate::score::{self, Score};
use crate::support::{self, fresh_dir, run, stdout, until_enough, TmpFiles, PACE};
use crate::truth::{Truth, Unwind};
use crate::{matrix_truth, perf, script};

/// Call stacks by unwind tables.
pub const TABLES: Graph = Graph::Stack(16384);
/// The same for `perf record`, with the clock of the truth.
pub const STACKS: &[&str] = &["-k", "CLOCK_MONOTONIC", "--call-graph", "dwarf,16384", "-m", "4M"];

/// The program for readers that follow tables.
pub fn for_tables() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| matrix_truth::build("gcc", matrix_truth::TABLES, "matrix_jit"))
}

/// The program for readers that follow frame pointers.
pub fn for_frame_pointers() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| matrix_truth::build("gcc", matrix_truth::FRAME_POINTERS, "matrix_jit_fp_gcc"))
}

fn read_truth(path: &Path) -> Truth {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Truth::parse(&text).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()))
}

/// The directory of one run: tests run at the same time, and some run a scenario twice.
fn dir_of(scenario: &str, options: &[&str]) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test").replace("::", "-");
    fresh_dir(format!("{test}-{scenario}-{}", options.join("-").replace(['=', '/'], "-")))
}

/// A run that was stepped or recorded by perf.
pub struct Recorded {
    pub truth: Truth,
    pub dir: PathBuf,
    /// For every other command of perf.
    pub options: Vec<String>,
    what: String,
    data: PathBuf,
    /// Another perf than the installed one.
    perf: Option<PathBuf>,
    /// Whether `jitsym inject` has made `data`.
    is_injected: bool,
    _files: Vec<TmpFiles>,
}

impl Recorded {
    /// Steps through a scenario.
    pub fn of(program: &Path, scenario: &str, options: &[&str], graph: Graph) -> Self {
        let dir = dir_of(scenario, options);
        let (data, path) = (dir.join("perf.data"), dir.join("truth"));
        let mut command = perf::command(program);
        command.args([scenario, "sinks=region", "step=1"]).args(options).arg(format!("truth={}", path.display()));
        let recorded = jitsym_step::record(jitsym_step::Plan {
            program: command,
            perf: perf::perf("record"),
            graph,
            enter: &["call_guest"],
            every: false,
            hold: None,
            data: &data,
        });
        let recorded = recorded.unwrap_or_else(|error| panic!("{scenario}: {error:#}"));
        let mut truth = read_truth(&path);
        truth.set_moments(&recorded.moments, &recorded.symbols);
        let pids: BTreeSet<u32> = recorded.moments.iter().map(|moment| moment.pid).chain([truth.pid]).collect();
        let (options, what, _files) = (Vec::new(), scenario.into(), pids.into_iter().map(TmpFiles).collect());
        Recorded { truth, dir, options, what, data, perf: None, is_injected: false, _files }
    }

    /// Samples a scenario.
    pub fn sampled(program: &Path, scenario: &str, options: &[&str], perf_options: &[&str]) -> Self {
        Recorded::with_enough(650, |pace| Recorded::at_pace(pace, program, scenario, options, perf_options))
    }

    /// Of a program that burns so many times as long.
    fn at_pace(pace: u32, program: &Path, scenario: &str, options: &[&str], perf_options: &[&str]) -> Self {
        let dir = dir_of(scenario, options);
        let (data, truth) = (dir.join("perf.data"), dir.join("truth"));
        let mut record = perf::perf("record");
        record.args(["-e", "cpu-clock", "-F", "999"]).args(perf_options).arg("-o").arg(&data).arg("--");
        record.arg(program).args([scenario, "sinks=region", "seconds=1"]).args(options);
        record.arg(format!("truth={}", truth.display())).env(PACE, pace.to_string());
        let (truth, files) = perf::whole(&data, || {
            run(&mut record);
            let truth = read_truth(&truth);
            let files = TmpFiles(truth.pid);
            (truth, files)
        });
        Recorded::new(scenario, dir, truth, files)
    }

    /// A run with so many samples in code of the guest. (A second of processor time gives 999 at most.)
    pub fn with_enough(wanted: usize, mut record: impl FnMut(u32) -> Recorded) -> Recorded {
        until_enough(wanted, |pace| {
            let recorded = record(pace);
            let count = recorded.right_names().values().map(Vec::len).sum();
            (recorded, count)
        })
    }

    fn new(scenario: &str, dir: PathBuf, truth: Truth, files: TmpFiles) -> Self {
        let data = dir.join("perf.data");
        let (options, what, _files) = (Vec::new(), scenario.into(), vec![files]);
        let mut recorded = Recorded { truth, dir, options, what, data, perf: None, is_injected: false, _files };
        // Children have files of their own.
        let pids = recorded.perf("script", &["-G", "-F", "pid"]);
        let mut pids: Vec<u32> = pids.lines().filter_map(|line| line.trim().parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.retain(|pid| *pid != recorded.truth.pid);
        recorded._files.extend(pids.into_iter().map(TmpFiles));
        recorded
    }

    /// The output of another command of perf.
    pub fn perf(&self, subcommand: &str, arguments: &[&str]) -> String {
        let mut command = match &self.perf {
            Some(program) => perf::of(perf::command(program), &[], subcommand),
            None => perf::perf(subcommand),
        };
        stdout(&run(command.arg("-i").arg(&self.data).args(&self.options).args(arguments)))
    }

    /// From now on this perf reads the recording, or the installed one.
    pub fn read_with(&mut self, perf: Option<PathBuf>) {
        self.perf = perf;
    }

    /// From now on perf reads the recording that `jitsym inject` makes. Returns what the command says.
    pub fn inject(&mut self) -> String {
        self.inject_with_status(0)
    }

    pub fn inject_with_status(&mut self, status: i32) -> String {
        let new = self.data.with_file_name("jit.data");
        let mut inject = perf::command(support::tool());
        let output = inject.arg("inject").arg("-i").arg(&self.data).arg("-o").arg(&new).output().expect("run jitsym");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        (self.data, self.is_injected) = (new, true);
        stdout(&output)
    }

    /// Injects while the files of regions are damaged. perf can read the new recording.
    pub fn inject_damaged(&mut self, round: usize) {
        let new = self.data.with_file_name("damaged.data");
        let mut inject = perf::command(support::tool());
        let output = inject.arg("inject").arg("-i").arg(&self.data).arg("-o").arg(&new).output().expect("run jitsym");
        assert!(matches!(output.status.code(), Some(0 | 1)), "round {round}: {output:?}");
        run(perf::perf("script").args(["-G", "--no-inline"]).arg("-i").arg(&new));
    }

    /// The files of regions that name code of samples.
    pub fn files(&self) -> Vec<String> {
        let frames = self.script(&["-G"]).into_iter().filter_map(|sample| sample.frames.into_iter().next());
        let mut files: Vec<String> = frames.map(|frame| frame.dso).filter(|dso| script::is_region(dso)).collect();
        files.sort();
        files.dedup();
        files
    }

    /// The samples, by thread and time, that have the right name, without those that are in a file.
    pub fn right_outside(&self, file: &str) -> BTreeSet<(u32, u64)> {
        let samples = self.script(&["-G"]).into_iter();
        let is_right = |sample: &script::Printed| {
            let frame = sample.frames.first().filter(|frame| frame.dso != file)?;
            let code = &self.truth.codes[self.truth.code_at(frame.ip, sample.time)?];
            (frame.sym.as_deref() == Some(&code.name)).then_some(())
        };
        samples.filter(|sample| is_right(sample).is_some()).map(|sample| (sample.tid, sample.time)).collect()
    }

    /// The names that perf shows of samples in other code.
    pub fn wrong_names(&self) -> Vec<String> {
        let frames = self
            .script(&["-G"])
            .into_iter()
            .filter_map(|sample| Some((sample.time, sample.frames.into_iter().next()?)));
        let wrong = frames.filter_map(|(time, frame)| {
            let code = &self.truth.codes[self.truth.code_at(frame.ip, time)?];
            frame.sym.filter(|name| *name != code.name && name != "[unknown]")
        });
        wrong.collect()
    }

    fn script(&self, options: &[&str]) -> Vec<script::Printed> {
        let text = self.perf("script", &[&["--ns", "--no-inline", "-F", script::FIELDS], options].concat());
        script::parse(&text).unwrap_or_else(|error| panic!("{}: {error:#}", self.what))
    }

    /// By the name of code, in the order of time, whether each sample in it has that name.
    pub fn right_names(&self) -> BTreeMap<&str, Vec<bool>> {
        let mut right: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for sample in self.script(&["-G"]) {
            let Some(frame) = sample.frames.first() else { continue };
            let Some(index) = self.truth.code_at(frame.ip, sample.time) else { continue };
            let code = &self.truth.codes[index];
            right.entry(&code.name).or_default().push(frame.sym.as_deref() == Some(&code.name));
        }
        right
    }

    /// For `script::mappings`.
    pub fn mapped(&self) -> String {
        self.perf("script", &[&["--ns"], script::MAPPINGS].concat())
    }

    fn score(&self) -> Score {
        let samples = script::samples(&self.truth, &self.script(&["-G"]), &self.script(&[]));
        let samples = samples.unwrap_or_else(|error| panic!("{}: {error:#}", self.what));
        let with_stacks = self.truth.unwind().expect("unwind") != Unwind::Neither;
        // In a recording of `jitsym inject`, the tables of each epoch have other addresses.
        if !self.truth.options.contains_key("stale-frames") || self.is_injected {
            return score::score(&self.truth, &samples, with_stacks);
        }
        // There the names count.
        let mapped = self.mapped();
        let mappings = script::mappings(&mapped).expect("mappings");
        let (mut truth, stale) = (self.truth.clone(), self.truth.stale(&self.truth.between_mappings(&mappings)));
        let moments = truth.moments.iter_mut().flatten();
        moments.filter(|moment| stale.contains(&(moment.tid, moment.time))).for_each(|moment| moment.stack = None);
        score::score(&truth, &samples, with_stacks)
    }

    /// All names and stacks are right; of samples that were taken by chance 99 %, and there are enough.
    pub fn check(&self) {
        let Score { names, stacks, wrong, .. } = self.score();
        let late = self.truth.options.get("late").map_or("none", String::as_str);
        let shown = format!("{}: names {names:?}, stacks {stacks:?}, functions late: {late}", self.what);
        println!("{shown}");
        let (enough, percent) = if self.truth.moments.is_some() { (50, 100.0) } else { (300, 99.0) };
        assert!(names.counted >= enough && stacks.counted >= enough, "{shown}");
        let is_right = names.percent() >= percent && stacks.percent() >= percent;
        assert!(is_right, "{shown}\n{}", wrong.join("\n"));
    }

    /// The shares of right names and stacks, in percent.
    pub fn shares(&self) -> [f64; 2] {
        let Score { names, stacks, .. } = self.score();
        [names.percent(), stacks.percent()]
    }

    /// The share of right names, in percent, is what is expected.
    pub fn check_is(&self, is_expected: impl Fn(f64) -> bool) {
        let names = self.score().names;
        let shown = format!("{}: names {names:?}", self.what);
        println!("{shown}");
        assert!(is_expected(names.percent()), "{shown}");
    }
}

/// A run that waits for a word at its beginning or its end.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    scenario: String,
    dir: PathBuf,
    /// It does not go before the process.
    files: Option<TmpFiles>,
}

impl Running {
    pub fn start(scenario: &str, options: &[&str]) -> Self {
        Running::at_pace(1, scenario, options)
    }

    /// One that burns so many times as long.
    pub fn at_pace(pace: u32, scenario: &str, options: &[&str]) -> Self {
        let dir = dir_of(scenario, options);
        let mut command = perf::command(for_tables());
        command.env(PACE, pace.to_string()).args([scenario, "sinks=region", "seconds=1"]).args(options);
        command.arg(format!("truth={}", dir.join("truth").display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the program");
        let output = BufReader::new(child.stdout.take().expect("standard output"));
        let files = Some(TmpFiles(child.id()));
        Running { child, output, scenario: scenario.into(), dir, files }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read from the program");
        assert_eq!(line.trim(), word, "{}", self.scenario);
    }

    pub fn go(&mut self) {
        self.child.stdin.as_mut().expect("standard input").write_all(b"\n").expect("write to the program");
    }

    /// The truth, which is whole when the program has said that it is done.
    pub fn truth(&self) -> Truth {
        read_truth(&self.dir.join("truth"))
    }

    /// Of a run that waits for perf.
    pub fn recorded(mut start: impl FnMut() -> Running) -> Recorded {
        let mut first = Some(start());
        let data = first.as_ref().map(|running| running.dir.join("perf.data")).expect("one");
        let mut running = perf::whole(&data, || {
            let mut running = first.take().unwrap_or_else(&mut start);
            running.record();
            running
        });
        let files = running.files.take().expect("files of the process");
        Recorded::new(&running.scenario, running.dir.clone(), running.truth(), files)
    }

    /// perf attaches, the program goes on, and both come to their end.
    fn record(&mut self) {
        let record = perf::attach(STACKS, self.pid(), &self.dir.join("perf.data"));
        self.go();
        assert!(self.child.wait().expect("wait for the program").success());
        record.wait();
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill the program");
        self.child.wait().expect("wait for the program");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What other tools print about a file. They print no complaint.
pub fn tool(command: &mut Command) -> String {
    let output = run(command.env("LC_ALL", "C"));
    assert!(output.stderr.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}
