//! The harness: which contenders meet in which setting, and the rounds in which they do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::args::{Args, SMOKE};
use crate::contenders::Kind;
use crate::library;
use crate::measure::Figures;
use crate::statistics::{shuffle, Quartiles};
use crate::syscalls::{self, Syscalls};
use crate::task::{Mode, Setting, Task};

/// The region that `memcpy` writes to where a round trip through the library does not take more.
const REGION: usize = 1 << 20;
/// Code above this size fills the library's memory faster than the processor's caches.
const LARGE: usize = 16 << 10;
/// Rounds in which the background thread is watched while there is nothing to do, which takes long and hardly varies.
const IDLE_ROUNDS: usize = 2;

/// Against whom the library is held everywhere.
const SATURATED: [Kind; 5] = [Kind::Memcpy, Kind::Jitsym, Kind::CPython, Kind::Wasmtime, Kind::Bulk];
const CALLERS: [Kind; 11] = [
    Kind::Memcpy,
    Kind::Bare,
    Kind::Crossed,
    Kind::Jitsym,
    Kind::CPython,
    Kind::V8,
    Kind::Llvm,
    Kind::Wasmtime,
    Kind::LuaJit,
    Kind::MoarVm,
    Kind::Channel,
];
const MAIN: [Kind; 6] = [Kind::Memcpy, Kind::Bare, Kind::Crossed, Kind::Jitsym, Kind::CPython, Kind::Wasmtime];
const FLOOR: [Kind; 4] = [Kind::Memcpy, Kind::Bare, Kind::Crossed, Kind::Jitsym];

/// All figures: for each setting and contender those of each round.
#[derive(Default)]
pub struct Results {
    pub rounds: BTreeMap<(Setting, Kind), Vec<Figures>>,
    /// Bytes of a record on top of its code.
    pub around: usize,
    /// System calls, where there is a strace to count them.
    pub syscalls: Option<Syscalls>,
    /// The regions of `memcpy` by size of code.
    pub regions: BTreeMap<usize, usize>,
}

impl Results {
    pub fn settings(&self) -> BTreeSet<Setting> {
        self.rounds.keys().map(|(setting, _)| *setting).collect()
    }

    /// A figure in each round; empty where it was not measured.
    pub fn each(&self, setting: Setting, kind: Kind, figure: &str) -> Vec<f64> {
        let rounds = self.rounds.get(&(setting, kind)).into_iter().flatten();
        rounds.filter_map(|figures| figures.get(figure)).copied().collect()
    }

    pub fn quartiles(&self, setting: Setting, kind: Kind, figure: &str) -> Option<Quartiles> {
        let values = self.each(setting, kind, figure);
        (!values.is_empty()).then(|| Quartiles::of(values))
    }

    pub fn median(&self, setting: Setting, kind: Kind, figure: &str) -> Option<f64> {
        self.quartiles(setting, kind, figure).map(|quartiles| quartiles.median)
    }

    /// What `relate` makes of a figure of one contender and that of another in the same round.
    pub fn paired(
        &self,
        setting: Setting,
        kinds: (Kind, Kind),
        figure: &str,
        relate: impl Fn(f64, f64) -> f64,
    ) -> Option<Quartiles> {
        let (one, other) = (self.each(setting, kinds.0, figure), self.each(setting, kinds.1, figure));
        (!one.is_empty() && one.len() == other.len())
            .then(|| Quartiles::of(one.into_iter().zip(other).map(|(one, other)| relate(one, other))))
    }

    /// How many times as much of a figure one contender has as another one.
    pub fn ratio(&self, setting: Setting, kinds: (Kind, Kind), figure: &str) -> Option<Quartiles> {
        self.paired(setting, kinds, figure, |one, other| one / other)
    }
}

/// What meets in a setting.
fn settings(args: &Args, mode: Mode) -> Vec<(Setting, Vec<Kind>)> {
    let usual: &[(usize, usize, &[Kind])] = match mode {
        Mode::Probe => &[],
        Mode::Start => return vec![(Setting { mode, size: 512, threads: 1 }, vec![Kind::Jitsym])],
        Mode::Latency => &[(64, 1, &MAIN), (512, 1, &CALLERS), (4096, 1, &MAIN), (65_536, 1, &MAIN)],
        Mode::Bursts => {
            &[(512, 1, &MAIN), (512, 2, &MAIN), (512, 4, &MAIN), (512, 8, &CALLERS), (64, 8, &FLOOR), (4096, 8, &FLOOR)]
        }
        Mode::Saturated => &[
            (512, 1, &SATURATED),
            (512, 2, &SATURATED),
            (512, 4, &SATURATED),
            (512, 8, &Kind::ALL),
            (64, 8, &SATURATED),
        ],
        Mode::Rate => {
            &[(512, 1, &[Kind::Memcpy, Kind::Jitsym, Kind::CPython, Kind::Wasmtime, Kind::LuaJit, Kind::Channel])]
        }
    };
    let mut pairs: Vec<(usize, usize)> = usual.iter().map(|&(size, threads, _)| (size, threads)).collect();
    if args.sizes.is_some() || args.threads.is_some() {
        let unique = |values: Vec<usize>| values.into_iter().collect::<BTreeSet<usize>>();
        let sizes = unique(args.sizes.clone().unwrap_or(pairs.iter().map(|pair| pair.0).collect()));
        let threads = unique(match mode {
            Mode::Latency | Mode::Rate => vec![1],
            _ => args.threads.clone().unwrap_or(pairs.iter().map(|pair| pair.1).collect()),
        });
        pairs = sizes.iter().flat_map(|&size| threads.iter().map(move |&threads| (size, threads))).collect();
    }
    let with_kinds = |(size, threads): (usize, usize)| {
        let of_usual = usual.iter().find(|row| (row.0, row.1) == (size, threads)).map_or(&MAIN[..], |row| row.2);
        let kinds = match &args.contenders {
            Some(kinds) => FLOOR.into_iter().chain(kinds.iter().copied()).collect(),
            None => of_usual.iter().copied().collect::<BTreeSet<Kind>>(),
        };
        (Setting { mode, size, threads }, kinds.into_iter().collect())
    };
    pairs.into_iter().map(with_kinds).collect()
}

/// Runs everything that was asked for.
pub fn run(args: &Args) -> Results {
    let start = Instant::now();
    let library = args.library.clone().unwrap_or_else(library::build);
    let library = library.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let scratch = Scratch::new(args);
    let mut results = Results::default();
    let mut order = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let mut task = Task {
        setting: Setting { mode: Mode::Probe, size: 512, threads: 1 },
        contender: Kind::Jitsym,
        effort: args.effort,
        tables: 0,
        region: REGION,
        idle: false,
        pin: args.pin,
        dir: scratch.0.clone(),
        library,
    };
    task.tables = measure(&task)["tables"] as usize;
    results.around = task.shape().total() - task.setting.size;

    for &mode in &args.modes {
        let settings = settings(args, mode);
        for (setting, _) in &settings {
            results.regions.entry(setting.size).or_insert_with(|| region(&mut task, setting.size));
        }
        for round in 0..args.rounds {
            for (setting, kinds) in &settings {
                for kind in shuffled(kinds, &mut order) {
                    (task.setting, task.contender, task.region) = (*setting, kind, results.regions[&setting.size]);
                    task.idle =
                        mode == Mode::Rate && kind == Kind::Jitsym && round < IDLE_ROUNDS && args.effort > SMOKE;
                    let mut figures = measure(&task);
                    if mode == Mode::Start {
                        task.idle = true;
                        let loaded = measure(&task);
                        for name in ["faults", "memory"] {
                            *figures.get_mut(name).expect("a figure") -= loaded[name];
                        }
                    }
                    results.rounds.entry((*setting, kind)).or_default().push(figures);
                }
            }
            let seconds = start.elapsed().as_secs();
            eprintln!("{}: round {} of {} done after {seconds} s", mode.name(), round + 1, args.rounds);
        }
    }
    if args.modes.contains(&Mode::Latency) {
        results.syscalls = syscalls::count(&mut task, args.effort > SMOKE);
    }
    results
}

/// Random order, but those that targets hold closely against each other run one after another: what else the machine does changes
/// from second to second.
fn shuffled(kinds: &[Kind], order: &mut u64) -> Vec<Kind> {
    let (mut close, others): (Vec<Kind>, Vec<Kind>) =
        kinds.iter().partition(|&kind| FLOOR.contains(kind) || *kind == Kind::Bulk);
    shuffle(&mut close, order);
    let mut groups: Vec<Vec<Kind>> = others.into_iter().map(|kind| vec![kind]).chain([close]).collect();
    shuffle(&mut groups, order);
    groups.concat()
}

/// How large a region `memcpy` has to write to: that in which the library's records move, which depends on how long they wait
/// for the writer.
fn region(task: &mut Task, size: usize) -> usize {
    if size <= LARGE {
        return REGION;
    }
    task.contender = Kind::Jitsym;
    task.setting = Setting { mode: Mode::Probe, size, threads: 1 };
    let memory = Quartiles::of((0..3).map(|_| measure(task)["memory"])).median as usize;
    memory.next_multiple_of(REGION)
}

/// Runs a worker.
fn measure(task: &Task) -> Figures {
    measure_with(Command::new(this_program()), task)
}

/// The program that is a worker when it is told to be one.
pub fn this_program() -> PathBuf {
    std::env::current_exe().expect("the path of this program")
}

/// Runs a worker by a command that lacks only what the worker is to do.
pub fn measure_with(mut command: Command, task: &Task) -> Figures {
    std::fs::create_dir(&task.dir).unwrap_or_else(|error| panic!("{}: {error}", task.dir.display()));
    let output = command.args(task.to_words()).output().expect("start a worker");
    // Before the next one needs the memory.
    let _ = std::fs::remove_dir_all(&task.dir);
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{} of {:?}: {}\n{errors}", task.contender.name(), task.setting, output.status);
    }
    let figure = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(figure).collect()
}

/// The workers' directory: one that does not exist while no worker runs.
struct Scratch(PathBuf);

const PREFIX: &str = "jitsym-bench-";

impl Scratch {
    fn new(args: &Args) -> Scratch {
        // An interrupted run has left its files, which fill the memory of the machine.
        for entry in std::fs::read_dir(&args.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Scratch(args.dir.join(format!("{PREFIX}{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
