//! The real perf, the ground-truth program (`c-tests/perf/truth_jit.c`), and what the one says held against the other.
#![allow(dead_code)]

#[path = "lost.rs"]
mod lost;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use jitsym_step::Graph;

use crate::support::{checker, compile, run, scratch_dir, serial, stdout, until_enough, Link, TmpFiles, PACE};

/// What `perf inject` puts before the code in the objects that it makes.
pub const TEXT_OFFSET: u64 = 0x80;

/// No frame pointers in the C part, so that its frames are found only if those of the guest are right; and no sibling
/// calls, so that every C function is in the stack.
const FLAGS: &[&str] = &["-std=c99", "-Wpedantic", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// The ground-truth program, made by gcc and linked with the shared library.
pub fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/perf/truth_jit.c"], Link::Shared, FLAGS, "truth_jit"))
}

/// The same made by clang and linked with the static library.
pub fn static_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("clang", &["c-tests/perf/truth_jit.c"], Link::Static, FLAGS, "truth_jit_static"))
}

/// A command in an environment that does not depend on who runs the tests.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["JITSYM", "JITDUMP", "LUA_", "DEBUGINFOD"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    command.env("LC_ALL", "C.UTF-8").env("PERF_CONFIG", "/dev/null");
    command
}

/// perf, with its cache of objects in the scratch directory.
pub fn perf(subcommand: &str) -> Command {
    of(command("env"), crate::support::perf_words(subcommand), subcommand)
}

/// The same with another command, whose first arguments are these.
pub fn of(mut command: Command, words: &[&str], subcommand: &str) -> Command {
    command.args(words).arg("--buildid-dir").arg(scratch_dir("buildid")).arg(subcommand);
    command
}

// ------------------------------------------------------------------------------------------------ the truth

/// A function of the guest, as compiled.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub size: u64,
    pub code: Vec<u8>,
    /// Offset, line, column.
    pub rows: Vec<(u64, u32, u32)>,
    pub frames: Vec<Frame>,
}

impl Function {
    /// The source line of an offset.
    pub fn line_at(&self, offset: u64) -> u32 {
        self.rows.iter().rev().find(|row| row.0 <= offset).expect("line tables start at 0").1
    }

    /// The frame as it really is at an offset.
    pub fn frame_at(&self, offset: u64) -> &Frame {
        self.frames.iter().rev().find(|frame| frame.offset <= offset).expect("frames start at 0")
    }
}

/// The frame that the instructions have made: see `struct frame` in `x86_emit.h`.
#[derive(Clone, Debug)]
pub struct Frame {
    pub offset: u64,
    pub depth: i64,
    pub rbp: i64,
    pub rbx: i64,
    /// By register: where it was pushed (0: nowhere), and whether it has another value now.
    pub saved: HashMap<u16, (i64, bool)>,
}

/// Code at an address for a time.
#[derive(Clone, Debug)]
pub struct Place {
    /// Index in `Truth::functions`; none for code that is never run.
    pub function: Option<usize>,
    pub name: String,
    pub addr: u64,
    pub size: u64,
    /// Before and after the call that announced it.
    pub from: u64,
    pub done: u64,
    /// When it was gone, `u64::MAX` for never.
    pub to: u64,
    pub moved: bool,
}

impl Place {
    pub fn contains(&self, ip: u64) -> bool {
        (self.addr..self.addr + self.size).contains(&ip)
    }
}

/// A call stack that was run, and for how long.
#[derive(Clone, Debug)]
pub struct Stack {
    pub phase: String,
    pub ns: u64,
    /// Innermost first, down to `main`; `*` stands for any frames of the C library, `@TEXT` for one or more of objects with such
    /// a path.
    pub frames: Vec<String>,
}

/// All that the program says of itself.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub pid: u32,
    pub source: PathBuf,
    pub paths: HashMap<String, PathBuf>,
    pub arenas: Vec<(u64, u64)>,
    pub functions: Vec<Function>,
    pub places: Vec<Place>,
    pub phases: Vec<String>,
    /// From when to when each phase went.
    pub phase_times: Vec<(u64, u64)>,
    pub stacks: Vec<Stack>,
    pub stats: HashMap<String, u64>,
}

impl Truth {
    pub fn parse(text: &str) -> Self {
        let mut truth = Truth::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |index: usize| fields[index].parse::<u64>().unwrap_or_else(|_| panic!("number in {line:?}"));
            let hex = |index: usize| u64::from_str_radix(fields[index], 16).expect("hexadecimal number");
            match fields[0] {
                "pid" => truth.pid = number(1) as u32,
                "source" => truth.source = fields[1].into(),
                "path" => drop(truth.paths.insert(fields[1].into(), fields[2].into())),
                "arena" => truth.arenas.push((hex(1), number(2))),
                "function" => truth.functions.push(Function {
                    name: fields[2].into(),
                    size: number(3),
                    code: Vec::new(),
                    rows: Vec::new(),
                    frames: Vec::new(),
                }),
                "code" => {
                    let digits = fields[2];
                    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal byte");
                    truth.functions[number(1) as usize].code = (0..digits.len()).step_by(2).map(byte).collect();
                }
                "row" => {
                    let row = (number(2), number(3) as u32, number(4) as u32);
                    truth.functions[number(1) as usize].rows.push(row);
                }
                "frame" => {
                    let saved = |field: &&str| {
                        let parts: Vec<i64> = field.split(':').map(|part| part.parse().expect("number")).collect();
                        (parts[0] as u16, (parts[1], parts[2] != 0))
                    };
                    truth.functions[number(1) as usize].frames.push(Frame {
                        offset: number(2),
                        depth: number(3) as i64,
                        rbp: number(4) as i64,
                        rbx: number(5) as i64,
                        saved: fields[6..].iter().map(saved).collect(),
                    });
                }
                "place" => truth.places.push(Place {
                    function: fields[1].parse().ok(),
                    name: fields[2].into(),
                    addr: hex(3),
                    size: number(4),
                    from: number(5),
                    done: number(6),
                    to: if number(7) == 0 { u64::MAX } else { number(7) },
                    moved: fields[8] == "move",
                }),
                "phase" => {
                    truth.phases.push(fields[1].into());
                    truth.phase_times.push((number(2), number(3)));
                }
                "stack" => {
                    let frames = fields[3..].iter().map(|&name| name.into()).collect();
                    truth.stacks.push(Stack { phase: fields[1].into(), ns: number(2), frames });
                }
                "stat" => drop(truth.stats.insert(fields[1].into(), number(2))),
                "end" => {
                    truth.check();
                    return truth;
                }
                _ => panic!("the truth has a line {line:?}"),
            }
        }
        panic!("the truth is cut off:\n{text}");
    }

    /// What must hold for any run, whatever it is about.
    fn check(&self) {
        for counter in ["sinks_failed", "dropped", "unreadable", "write_errors", "map_forgotten", "names_changed"] {
            assert_eq!(self.stats[counter], 0, "{counter}");
        }
    }

    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Whether an address lies in memory that the guest has for code.
    pub fn in_arena(&self, ip: u64) -> bool {
        self.arenas.iter().any(|&(addr, size)| (addr..addr + size).contains(&ip))
    }

    /// The code that lived at an address at a time.
    pub fn place_at(&self, ip: u64, time: u64) -> Option<&Place> {
        self.places.iter().rev().find(|place| place.contains(ip) && (place.from..place.to).contains(&time))
    }

    /// The code that lived at an address last.
    pub fn newest_at(&self, ip: u64) -> Option<&Place> {
        self.places.iter().rev().find(|place| place.contains(ip))
    }

    /// Who lived last at each address: start to end and name, without overlap.
    pub fn newest(&self) -> BTreeMap<u64, (u64, String)> {
        let mut newest: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for place in &self.places {
            let (start, end) = (place.addr, place.addr + place.size);
            let overlapped: Vec<u64> =
                newest.range(..end).rev().take_while(|(_, (until, _))| *until > start).map(|(&at, _)| at).collect();
            for at in overlapped {
                let (until, name) = newest.remove(&at).expect("just found");
                if at < start {
                    newest.insert(at, (start, name.clone()));
                }
                if until > end {
                    newest.insert(end, (until, name));
                }
            }
            newest.insert(start, (end, place.name.clone()));
        }
        newest
    }

    /// The share of each innermost function of the guest in the time that was spent in such.
    pub fn shares(&self) -> HashMap<&str, f64> {
        let mut shares = HashMap::new();
        for stack in &self.stacks {
            if self.function(&stack.frames[0]).is_some() {
                *shares.entry(&*stack.frames[0]).or_insert(0.0) += stack.ns as f64;
            }
        }
        let total: f64 = shares.values().sum();
        shares.values_mut().for_each(|share| *share *= 100.0 / total);
        shares
    }
}

/// The truth of a finished run, and what removes the run's files: also if the truth is found to be bad. The files themselves
/// are checked.
pub fn read_truth(text: &str) -> (Truth, TmpFiles) {
    let pid = text.lines().find_map(|line| line.strip_prefix("pid\t")).and_then(|pid| pid.parse().ok());
    let files = TmpFiles(pid.unwrap_or_else(|| panic!("no process id in the truth:\n{text}")));
    let truth = Truth::parse(text);
    for path in truth.paths.values().filter(|path| path.exists()) {
        checker::assert_sound(path, &[]);
    }
    (truth, files)
}

// ------------------------------------------------------------------------------------------------ recordings

/// Records call stacks, and by the clock of the jitdump.
pub const WITH_STACKS: &[&str] = &["-k", "1", "--call-graph", "dwarf,16384", "-m", "4M"];

/// The same by stepping.
pub const TABLES: Graph = Graph::Stack(16384);

/// Samples in code of the guest for each second that it burns, where 999 are asked for.
pub const ENOUGH: f64 = 650.0;

/// How many samples of a recording are in code of the guest.
pub fn count_in_guest(truth: &Truth, data: &Path) -> usize {
    let text = stdout(&run(perf("script").args(["-G", "-F", "tid,ip", "-i"]).arg(data)));
    let addresses = text.lines().filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok());
    addresses.filter(|&ip| truth.in_arena(ip)).count()
}

/// Makes a recording again if the kernel had no room for all records in it: perf got too little time. Mappings are records too, and
/// what lies in those that it never read about has no name or an old one.
pub fn whole<T>(data: &Path, mut record: impl FnMut() -> T) -> T {
    for _ in 0..4 {
        let recording = record();
        let lost = lost(data);
        if lost == 0 {
            return recording;
        }
        println!("{lost} times records were lost");
    }
    record()
}

/// How many times the kernel had no room for records.
fn lost(data: &Path) -> u64 {
    lost::lost(&stdout(&run(perf("report").args(["--stats", "--force", "-i"]).arg(data))))
}

/// Starts `perf record` for a process that is there, and returns when its events count.
pub fn attach(arguments: &[&str], pid: u32, data: &Path) -> Attached {
    attach_by(perf("record"), arguments, pid, data)
}

/// The same with another `perf record`.
pub fn attach_by(mut record: Command, arguments: &[&str], pid: u32, data: &Path) -> Attached {
    let log = data.with_extension("log");
    record.args(["-e", "cpu-clock", "-F", "999"]).args(arguments).args(["-p", &pid.to_string()]);
    // It says so because it is told to wait for a moment.
    record.args(["-D", "50", "-o"]).arg(data).stderr(std::fs::File::create(&log).expect("log"));
    let mut attached = Attached { perf: record.spawn().expect("start perf"), log };
    while !attached.said().contains("Events enabled") {
        assert!(attached.perf.try_wait().expect("perf").is_none(), "{}", attached.said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    attached
}

/// A perf that records a process until that ends.
pub struct Attached {
    perf: Child,
    log: PathBuf,
}

impl Attached {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("log")
    }

    pub fn wait(mut self) {
        assert!(self.perf.wait().expect("wait for perf").success(), "{}", self.said());
    }
}

/// Puts the jitdump into a recording by `jitsym inject`. Returns the new recording.
pub fn inject_by_jitsym(data: &Path) -> PathBuf {
    let injected = data.with_extension("jit.data");
    run(Command::new(crate::support::tool()).arg("inject").arg("-i").arg(data).arg("-o").arg(&injected));
    injected
}

/// A run of the program under `perf record`.
pub struct Recording {
    pub truth: Truth,
    pub data: PathBuf,
    _files: TmpFiles,
}

impl Recording {
    /// Records a run of the program; one at a time, since time is measured.
    pub fn new(name: &str, program: &Path, perf_arguments: &[&str], arguments: &[&str]) -> Self {
        let seconds = arguments.iter().find_map(|argument| argument.strip_prefix("seconds=")).expect("seconds");
        Self::of(name, seconds.parse().expect("number of seconds"), perf_arguments, |record, dir| {
            record.arg(program).arg(format!("dir={}", dir.display())).args(arguments);
        })
    }

    /// Records what `complete` makes of the command `perf record`: some other program that prints a truth, and burns for so many
    /// seconds. It may have the directory.
    pub fn of(name: &str, seconds: f64, perf_arguments: &[&str], complete: impl Fn(&mut Command, &Path)) -> Self {
        let dir = scratch_dir(name);
        let data = dir.join("perf.data");
        until_enough((seconds * ENOUGH) as usize, |pace| {
            let mut record = perf("record");
            record.args(["-e", "cpu-clock", "-F", "999"]).args(perf_arguments).arg("-o").arg(&data).arg("--");
            complete(record.env(PACE, pace.to_string()), &dir);
            let (truth, _files) = whole(&data, || {
                let output = {
                    let _alone = serial();
                    run(&mut record)
                };
                read_truth(&stdout(&output))
            });
            let count = count_in_guest(&truth, &data);
            (Recording { truth, data: data.clone(), _files }, count)
        })
    }

    /// Steps through a run of the program: each instruction of the guest on each path of calls is a sample.
    pub fn stepped(name: &str, program: &Path, graph: Graph, arguments: &[&str]) -> (Self, Moments) {
        let dir = scratch_dir(name);
        let data = dir.join("perf.data");
        let mut command = command(program);
        command.arg(format!("dir={}", dir.display())).arg("step=1").args(arguments);
        let recorded = jitsym_step::record(jitsym_step::Plan {
            program: command,
            perf: perf("record"),
            graph,
            enter: &["run_slice"],
            every: false,
            hold: None,
            data: &data,
        });
        let recorded = recorded.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let text = std::fs::read_to_string(dir.join("program.out")).expect("truth");
        let (truth, _files) = read_truth(&text);
        (Recording { truth, data, _files }, Moments(recorded))
    }

    /// With call stacks and the clock of the jitdump.
    pub fn with_stacks(name: &str, program: &Path, arguments: &[&str]) -> Self {
        Self::new(name, program, WITH_STACKS, arguments)
    }

    /// Puts the jitdump into the recording by `jitsym inject`.
    pub fn inject_by_jitsym(&self) -> PathBuf {
        inject_by_jitsym(&self.data)
    }

    /// The recording with what the jitdump says worked into it.
    pub fn inject(&self) -> PathBuf {
        self.inject_loudly();
        self.data.with_file_name("injected.data")
    }

    /// The same. Returns what perf says.
    pub fn inject_loudly(&self) -> String {
        let injected = self.data.with_file_name("injected.data");
        let output = run(perf("inject").arg("--jit").arg("-i").arg(&self.data).arg("-o").arg(&injected));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// What is to be seen in a recording that was made by stepping.
pub struct Moments(jitsym_step::Recorded);

impl Moments {
    /// Each instruction of the guest has its sample with the right name, and with each frame of its stack if there are any.
    pub fn check(&self, truth: &Truth, samples: &[Sample]) {
        let shown: HashMap<u64, &Sample> = samples.iter().map(|sample| (sample.time, sample)).collect();
        let (mut names, mut stacks) = (Verdict::new("names"), Verdict::new("stacks"));
        let mut first: HashMap<u64, Option<&str>> = HashMap::new();
        let with_stacks = samples.iter().any(|sample| !sample.frames.is_empty());
        for moment in &self.0.moments {
            let Some(place) = truth.place_at(moment.ip, moment.time) else { continue };
            let sample = shown.get(&moment.time).copied();
            let at = || format!("{}+{:x}: {sample:x?}", place.name, moment.ip - place.addr);
            names.check(sample.is_some_and(|sample| sample.sym == place.name), at);
            // libunwind remembers how to unwind from an address, and perf tells it to forget only when a process executes another
            // program. It looks behind the call where perf shows the address within.
            let addresses = [moment.ip].into_iter().chain(moment.callers.iter().flatten().map(|addr| addr + 1));
            let held = addresses.map(|addr| (addr, truth.place_at(addr, moment.time).map(|place| place.name.as_str())));
            let other = held.filter(|&(addr, name)| *first.entry(addr).or_insert(name) != name).count();
            if !with_stacks || other > 0 {
                continue;
            }
            let frames = sample.map(|sample| &*sample.frames).unwrap_or_default();
            let callers = moment.callers.as_deref().unwrap_or_default();
            let expected: Vec<Option<&str>> =
                [moment.ip].iter().chain(callers).map(|&addr| self.name(truth, addr, moment.time)).collect();
            let is_right = |(frame, name): (&PerfFrame, &Option<&str>)| match name {
                Some(name) => frame.plain_name() == *name,
                None => frame.dso.contains("/libc"),
            };
            let right = frames.iter().zip(&expected).take_while(|pair| is_right(*pair)).count();
            let is_whole = right == expected.len() && frames[right..].iter().any(|frame| frame.sym == "main");
            // perf copies the stack from the stack pointer up, so that a register just popped is not in the copy.
            let is_cut = || right > 0 && right == frames.len() && is_popped(truth, place, moment.ip - place.addr);
            stacks.check(is_whole || is_cut(), || format!("{} instead of {expected:?}", at()));
        }
        names.decide(50, 0.0);
        if with_stacks {
            stacks.decide(50, 0.0);
        }
    }

    /// How many there are at such addresses.
    pub fn count(&self, is_there: impl Fn(u64) -> bool) -> usize {
        self.0.moments.iter().filter(|moment| is_there(moment.ip)).count()
    }

    /// The function, if it is not one of a library.
    fn name<'a>(&'a self, truth: &'a Truth, addr: u64, time: u64) -> Option<&'a str> {
        truth.place_at(addr, time).map(|place| &*place.name).or_else(|| self.0.symbols.name(addr))
    }
}

/// Whether a register was popped there that the table of a frame pointer's frame says is saved.
fn is_popped(truth: &Truth, place: &Place, offset: u64) -> bool {
    let Some(function) = place.function.map(|index| &truth.functions[index]) else { return false };
    let now = function.frame_at(offset);
    let was_saved = |register: &u16| {
        let before = function.frames.iter().filter(|frame| frame.offset <= offset);
        before.into_iter().any(|frame| frame.saved.get(register).is_some_and(|saved| saved.0 != 0))
    };
    let is_saved = |register: &u16| now.saved.get(register).is_some_and(|saved| saved.0 != 0);
    now.rbp != 0 && [RBX, R12].iter().any(|register| was_saved(register) && !is_saved(register))
}

const RBX: u16 = 3;
const R12: u16 = 12;

/// A frame as perf shows it.
#[derive(Clone, Debug)]
pub struct PerfFrame {
    /// In an object file: its own address, not that in memory.
    pub ip: u64,
    pub sym: String,
    pub dso: String,
    pub srcline: Option<String>,
}

impl PerfFrame {
    /// `ip symbol (object)`, where the symbol may hold blanks and parentheses.
    pub fn parse(text: &str) -> Self {
        let (ip, rest) = text.trim_start().split_once(' ').unwrap_or_else(|| panic!("frame in {text:?}"));
        let (sym, dso) = rest.rsplit_once(" (").unwrap_or_else(|| panic!("object in {text:?}"));
        PerfFrame {
            ip: u64::from_str_radix(ip, 16).unwrap_or_else(|_| panic!("address in {text:?}")),
            sym: sym.into(),
            dso: dso.strip_suffix(')').unwrap_or_else(|| panic!("object in {text:?}")).into(),
            srcline: None,
        }
    }

    pub fn is_injected(&self) -> bool {
        self.dso.contains("/jitted-") || self.dso.contains("/jitcode-")
    }

    /// The symbol, without the suffixes that compilers give to parts and copies of C functions.
    fn plain_name(&self) -> &str {
        if self.is_injected() {
            &self.sym
        } else {
            self.sym.split('.').next().unwrap_or_default()
        }
    }
}

/// A sample as perf shows it.
#[derive(Clone, Debug)]
pub struct Sample {
    pub time: u64,
    /// The address in memory.
    pub ip: u64,
    pub sym: String,
    pub dso: String,
    /// The call stack, innermost first; empty if none was recorded.
    pub frames: Vec<PerfFrame>,
}

/// `seconds.nanoseconds:`
fn parse_time(text: &str) -> u64 {
    let (seconds, nanoseconds) = text.trim_end_matches(':').split_once('.').expect("time");
    assert_eq!(nanoseconds.len(), 9, "{text}");
    seconds.parse::<u64>().expect("seconds") * 1_000_000_000 + nanoseconds.parse::<u64>().expect("nanoseconds")
}

/// The samples of a recording of the truth program, from `perf script`.
///
/// With a call graph perf prints addresses as they are in the object, so that a second run without it has to say where in
/// memory the sample was taken.
pub fn samples(truth: &Truth, data: &Path, stacks: bool) -> Vec<Sample> {
    samples_of(truth, data, stacks, &[])
}

/// The same, of these times only if there are any.
pub fn samples_of(truth: &Truth, data: &Path, stacks: bool, times: &[(u64, u64)]) -> Vec<Sample> {
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let ranges: Vec<String> = times.iter().map(|&(from, to)| format!("{},{}", seconds(from), seconds(to))).collect();
    let script = |options: &[&str]| {
        let mut script = perf("script");
        if !ranges.is_empty() {
            script.args(["--time", &ranges.join(" ")]);
        }
        stdout(&run(script.arg("-i").arg(data).args(["--ns", "--no-inline"]).args(options)))
    };
    let mut samples = Vec::new();
    for line in script(&["-G", "-F", "comm,tid,time,ip,sym,dso"]).lines() {
        let mut rest = line.trim_start();
        let mut field = || {
            let (field, behind) = rest.split_once(char::is_whitespace).unwrap_or_else(|| panic!("sample {line:?}"));
            rest = behind.trim_start();
            field
        };
        let (_comm, tid, time) = (field(), field(), parse_time(field()));
        // The writer thread's own samples tell nothing about the guest.
        if tid == truth.pid.to_string() {
            let PerfFrame { ip, sym, dso, .. } = PerfFrame::parse(rest);
            samples.push(Sample { time, ip, sym, dso, frames: Vec::new() });
        }
    }
    if stacks {
        let count = add_stacks(truth, &mut samples, &script(&["-F", STACK_FIELDS]));
        assert_eq!(count, samples.len(), "as many samples with stacks as without");
    }
    samples
}

/// What `perf script` is asked for, for `add_stacks`.
pub const STACK_FIELDS: &str = "comm,tid,time,ip,sym,dso,srcline";

/// Adds to samples the stacks that perf has printed of them, or of some of them. Returns of how many.
pub fn add_stacks(truth: &Truth, samples: &mut [Sample], text: &str) -> usize {
    let mut count = 0;
    let mut without = samples.iter_mut();
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let mut lines = block.lines();
        let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        if header[1] != truth.pid.to_string() {
            continue;
        }
        let time = parse_time(header[2]);
        let sample = without.find(|sample| sample.time == time).expect("the same samples in the same order");
        count += 1;
        for line in lines {
            match (line.strip_prefix('\t'), sample.frames.last_mut()) {
                (Some(frame), _) => sample.frames.push(PerfFrame::parse(frame)),
                (None, Some(last)) => last.srcline = Some(line.trim().into()),
                (None, None) => panic!("a source line without a frame: {line:?}"),
            }
        }
    }
    count
}

// ------------------------------------------------------------------------------------------------ comparisons

/// Collects what is wrong, so that a failure shows how wrong it is and not only that.
pub struct Verdict {
    what: String,
    checked: usize,
    wrong: usize,
    text: String,
}

impl Verdict {
    pub fn new(what: &str) -> Self {
        Verdict { what: what.into(), checked: 0, wrong: 0, text: String::new() }
    }

    pub fn check(&mut self, right: bool, message: impl FnOnce() -> String) {
        self.checked += 1;
        if !right {
            self.wrong += 1;
            if self.wrong <= 10 {
                let _ = writeln!(self.text, "  {}", message());
            }
        }
    }

    /// Fails the test unless enough was checked and at most so many percent were wrong, or two where some may be: so many of few are
    /// chance. Says the numbers in any case.
    pub fn decide(self, at_least: usize, percent: f64) {
        let Verdict { what, checked, wrong, text } = self;
        println!("{what}: {wrong} of {checked} wrong");
        assert!(checked >= at_least, "{what}: only {checked} checked, {at_least} needed");
        let allowed = if percent > 0.0 { (percent * checked as f64 / 100.0).max(2.0) } else { 0.0 };
        assert!(wrong as f64 <= allowed, "{what}: {wrong} of {checked} wrong\n{text}");
    }
}

/// The samples that were taken in code of the guest, each with the code that the truth says was there: by address and
/// time alone, whatever perf says. Fails if perf sees guest code elsewhere, or none where there is some.
pub fn guest_samples<'a>(truth: &'a Truth, samples: &'a [Sample]) -> Vec<(&'a Sample, &'a Place)> {
    let mut found = Vec::new();
    for sample in samples {
        match truth.place_at(sample.ip, sample.time) {
            Some(place) => found.push((sample, place)),
            None => assert!(
                !truth.in_arena(sample.ip) && !sample.dso.contains("/jitted-"),
                "a sample outside all guest code of its time: {sample:?}"
            ),
        }
    }
    found
}

/// Those of the samples whose address has not been sampled before while other code was there.
///
/// libunwind remembers how to unwind from an address, and perf tells it to forget only when a process executes another
/// program: at an address that was sampled before, perf unwinds as was right for the code that was there first. The names
/// are not touched by this, and no producer can do anything about it.
pub fn not_unwound_before<'a>(found: &[(&'a Sample, &'a Place)]) -> Vec<(&'a Sample, &'a Place)> {
    let mut first: HashMap<u64, &Place> = HashMap::new();
    let is_first =
        |(sample, place): &&(&'a Sample, &'a Place)| std::ptr::eq(*first.entry(sample.ip).or_insert(place), *place);
    found.iter().filter(is_first).copied().collect()
}

/// Every one of the samples has the name of the code that was there then.
pub fn check_names(found: &[(&Sample, &Place)], at_least: usize) {
    let mut names = Verdict::new("names");
    for (sample, place) in found {
        names.check(sample.sym == place.name, || format!("{:?} for {} at {:x}", sample, place.name, place.addr));
    }
    names.decide(at_least, 0.0);
}

/// How far a share of so many samples, in percent, may be from the true one: 5 points, or four standard deviations of a share that
/// chance decides.
pub fn tolerance(share: f64, samples: usize) -> f64 {
    let part = (share / 100.0).clamp(0.0, 1.0);
    (400.0 * (part * (1.0 - part) / samples as f64).sqrt()).max(5.0)
}

/// Each function's share of the samples is its share of the time.
pub fn check_shares(truth: &Truth, names: &[&str]) {
    assert!(names.len() >= 500, "only {} samples in guest code", names.len());
    let mut shares = truth.shares();
    for name in names {
        shares.entry(name).or_insert(0.0);
    }
    for (name, share) in shares {
        let samples = names.iter().filter(|&&other| other == name).count();
        let measured = samples as f64 * 100.0 / names.len() as f64;
        println!("share of {name}: {measured:.1} % of the samples, {share:.1} % of the time");
        let is_right = (measured - share).abs() <= tolerance(share, names.len());
        assert!(is_right, "{name}: {measured:.1} % of {} samples, {share:.1} % of the time", names.len());
    }
}

/// Whether a stack as perf shows it is the expected one, down to `main`.
fn is_stack(expected: &[String], frames: &[PerfFrame]) -> bool {
    match expected.split_first() {
        None => true,
        Some((first, rest)) if first == "*" => {
            let skipped = frames.iter().take_while(|frame| frame.dso.contains("/libc")).count();
            (0..=skipped).any(|skip| is_stack(rest, &frames[skip..]))
        }
        Some((first, rest)) if first.starts_with('@') => {
            let skipped = frames.iter().take_while(|frame| frame.dso.contains(&first[1..])).count();
            (1..=skipped).any(|skip| is_stack(rest, &frames[skip..]))
        }
        Some((first, rest)) => frames.first().is_some_and(|f| f.plain_name() == first) && is_stack(rest, &frames[1..]),
    }
}

/// The samples that have one of the stacks that were run, whole, from the innermost function down to the last that the truth
/// names: 99 % of those in guest code.
pub fn check_stacks(truth: &Truth, found: &[(&Sample, &Place)]) {
    let mut stacks = Verdict::new("stacks from guest code to main");
    for (sample, place) in found {
        // A sample may also be taken in a function between its callees.
        let expected = truth.stacks.iter().any(|stack| {
            let inner = (0..stack.frames.len()).filter(|&from| stack.frames[from] == place.name);
            inner.into_iter().any(|from| is_stack(&stack.frames[from..], &sample.frames))
        });
        stacks.check(expected, || describe_stack(sample));
    }
    stacks.decide(500, 1.0);
}

/// The same for C functions that burn, called by the guest: its frames are in the middle. And each stack has its share of
/// all samples that have one.
pub fn check_stack_shares(truth: &Truth, samples: &[Sample]) {
    for stack in truth.stacks.iter().filter(|stack| truth.function(&stack.frames[0]).is_none()) {
        let mut through = Verdict::new(&format!("stacks from {} through guest code to main", stack.frames[0]));
        for sample in samples.iter().filter(|sample| sample.sym == stack.frames[0]) {
            through.check(is_stack(&stack.frames, &sample.frames), || describe_stack(sample));
        }
        through.decide(20, 1.0);
    }

    let mut distinct: HashMap<&[String], (u64, usize)> = HashMap::new();
    for stack in truth.stacks.iter().filter(|stack| stack.ns > 0) {
        distinct.entry(&stack.frames).or_default().0 += stack.ns;
    }
    for (frames, (_, count)) in distinct.iter_mut() {
        *count = samples.iter().filter(|sample| is_stack(frames, &sample.frames)).count();
    }
    let ns: u64 = distinct.values().map(|(ns, _)| ns).sum();
    let count: usize = distinct.values().map(|(_, count)| count).sum();
    for (frames, (stack_ns, stack_count)) in distinct {
        let (share, measured) = (stack_ns as f64 * 100.0 / ns as f64, stack_count as f64 * 100.0 / count as f64);
        assert!(
            (share - measured).abs() <= tolerance(share, count),
            "{frames:?}: {measured:.1} % of {count} samples, {share:.1} % of time"
        );
    }
}

fn describe_stack(sample: &Sample) -> String {
    let names: Vec<&str> = sample.frames.iter().map(|frame| &*frame.sym).collect();
    format!("{:x} {}: {}", sample.ip, sample.sym, names.join(" < "))
}

/// Every frame of injected code has the line of the guest's source that its place in the line table says; also those in the
/// last row of a table, which ends with the code.
pub fn check_lines(truth: &Truth, samples: &[Sample], at_least: usize) {
    let file = truth.source.file_name().expect("file name").to_string_lossy();
    let (mut leaves, mut callers) = (Verdict::new("lines of leaves"), Verdict::new("lines of callers"));
    let mut last = Verdict::new("lines of the last row");
    // An object of `jitsym inject` has many functions. Its place in memory is known from its samples.
    let is_leaf = |sample: &&Sample| sample.frames.first().is_some_and(PerfFrame::is_injected);
    let leaf = |sample: &Sample| (sample.frames[0].dso.clone(), sample.ip.wrapping_sub(sample.frames[0].ip));
    let bases: HashMap<String, u64> = samples.iter().filter(is_leaf).map(leaf).collect();
    let offset_of = |frame: &PerfFrame, time: u64| {
        if frame.dso.contains("/jitted-") {
            return Some(frame.ip - TEXT_OFFSET);
        }
        let at = frame.ip.wrapping_add(*bases.get(&frame.dso)?);
        Some(at - truth.place_at(at, time)?.addr)
    };
    for sample in samples {
        for (depth, frame) in sample.frames.iter().enumerate().filter(|(_, frame)| frame.is_injected()) {
            let function = truth.function(&frame.sym).unwrap_or_else(|| panic!("function {frame:?}"));
            let Some(offset) = offset_of(frame, sample.time) else { continue };
            let expected = format!("{file}:{}", function.line_at(offset));
            let right = frame.srcline.as_deref() == Some(&*expected);
            let verdict = if depth == 0 { &mut leaves } else { &mut callers };
            verdict.check(right, || format!("{expected} expected: {frame:?}"));
            if depth == 0 && function.rows.last().is_some_and(|row| row.0 <= offset) {
                last.check(right, || format!("{expected} expected: {frame:?}"));
            }
        }
    }
    leaves.decide(at_least, 0.0);
    callers.decide(at_least, 0.0);
    last.decide(at_least / 10, 0.0);
}

// ------------------------------------------------------------------------------------------------ the perf map

/// One line of a perf map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapLine {
    pub start: u64,
    pub end: u64,
    pub name: String,
}

/// Reads a perf map more strictly than any profiler does: what passes here is understood by all of them.
pub fn parse_map(bytes: &[u8]) -> Result<Vec<MapLine>, String> {
    let lines = parse_map_lines(bytes)?;
    let mut sorted: Vec<&MapLine> = lines.iter().collect();
    sorted.sort_by_key(|line| line.start);
    for pair in sorted.windows(2) {
        if pair[0].end > pair[1].start {
            return Err(format!("overlap: {pair:?}"));
        }
    }
    Ok(lines)
}

/// The same, but for lines that claim an address twice.
pub fn parse_map_lines(bytes: &[u8]) -> Result<Vec<MapLine>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(format!("half a line at the end: {:?}", text.lines().next_back()));
    }
    let number = |digits: &str| {
        let lower = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let plain = lower && (!digits.starts_with('0') || digits == "0");
        if plain {
            u64::from_str_radix(digits, 16).ok()
        } else {
            None
        }
    };
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ' ');
        let (start, size) = (fields.next().and_then(number), fields.next().and_then(number));
        match (start, size, fields.next()) {
            (Some(start), Some(size @ 1..=0xffff_ffff), Some(name))
                if name.len() >= 3 && name == name.trim() && !name.contains(char::is_control) =>
            {
                lines.push(MapLine { start, end: start + size, name: name.into() });
            }
            _ => return Err(format!("line {line:?}")),
        }
    }
    Ok(lines)
}

/// The map names each address of the guest by the code that lived there last, and nothing else.
pub fn check_map(truth: &Truth, bytes: &[u8]) {
    checker::problems(bytes, &truth.paths["map"], &[]).unwrap_or_else(|problems| panic!("{problems}"));
    let lines = parse_map(bytes).unwrap_or_else(|error| panic!("perf map: {error}"));
    let mut map = BTreeMap::new();
    for line in lines {
        map.insert(line.start, (line.end, line.name));
    }
    let (map, newest) = (joined(map), joined(truth.newest()));
    let mut entries = Verdict::new("entries of the perf map");
    for entry in &newest {
        entries.check(map.contains(entry), || format!("{entry:x?} is missing"));
    }
    for entry in &map {
        entries.check(newest.contains(entry), || format!("{entry:x?} is not true"));
    }
    entries.decide(2, 0.0);
}

/// Adjacent ranges of one name become one, since it does not matter in how many lines a map says it.
fn joined(ranges: BTreeMap<u64, (u64, String)>) -> std::collections::BTreeSet<(u64, u64, String)> {
    let mut joined: Vec<(u64, u64, String)> = Vec::new();
    for (start, (end, name)) in ranges {
        match joined.last_mut() {
            Some(last) if last.1 == start && last.2 == name => last.1 = end,
            _ => joined.push((start, end, name)),
        }
    }
    joined.into_iter().collect()
}
