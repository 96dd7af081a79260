//! Random code in regions: `c-tests/regions/random` runs under perf, and each sample's whole stack is compared with the truth.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context, Result};

use crate::perf::Perf;
use crate::program::{self, Leftovers};
use crate::score::{self, Sample, Share};
use crate::suites::Cache;
use crate::truth::{Part, Truth};
use crate::{raw, run, script};

/// The command line.
pub struct Plan {
    pub cache: Cache,
    /// `None`: a fresh one.
    pub seed: Option<u64>,
    /// Parts of the names of workloads; empty: all.
    pub workloads: Vec<String>,
    /// Of `PERFS`; empty: all.
    pub perfs: Vec<String>,
    pub seconds: f64,
    /// Code is in a jitdump, for `perf inject --jit`, and memory is plain.
    pub jitdump: bool,
    pub quick: bool,
}

/// What a perf is called on the command line, and the Debian suite that it comes from.
const PERFS: [(&str, &str); 3] = [("6.1", "bookworm"), ("6.12", "trixie"), ("7.2", "sid")];

/// Names and whole stacks that a row needs, in percent, and the most samples without any frame. A cell fails that falls short with
/// its seed, and with one of the next two.
const WANTED: f64 = 99.0;
const WITHOUT_FRAMES: f64 = 1.0;

/// Rows that hold today: a workload, and the perfs with which it reaches these numbers. Other cells are shown and not judged.
const HOLDS: &[(&str, &[&str])] = &[
    ("created-comes", &["6.1", "6.12", "7.2"]),
    ("created-dies", &["6.1", "6.12", "7.2"]),
    ("created-rwx-dies", &["6.1", "6.12", "7.2"]),
    ("created-fork", &["6.1", "6.12", "7.2"]),
    ("created-grow", &["6.1", "6.12", "7.2"]),
    ("two-views-comes", &["6.1", "6.12", "7.2"]),
    ("two-views-dies", &["6.1", "6.12", "7.2"]),
    ("two-views-all", &["6.1", "6.12"]),
    ("two-views-ends", &["6.1", "6.12", "7.2"]),
    ("two-views-over", &["6.1", "6.12"]),
    ("adopted-comes", &["6.1", "6.12", "7.2"]),
    ("adopted-dies", &["6.1", "6.12", "7.2"]),
    ("adopted-arenas", &["6.1", "6.12", "7.2"]),
    ("adopted-fork", &["6.1", "6.12", "7.2"]),
    ("adopted-rwx", &["7.2"]),
];

/// The reduced run takes this many cells of those that hold, which the seed chooses, with the perfs that the tests use.
const QUICK_CELLS: usize = 10;
const QUICK_PERFS: &[&str] = &["6.1", "7.2"];
const QUICK_SECONDS: f64 = 3.0;

/// How often samples are taken, and how much of the stack is copied: more than the program's code and C functions take.
const FREQUENCY: &str = "997";
const STACK_SIZE: &str = "dwarf,32768";

/// Fewer samples tell nothing.
const ENOUGH: usize = 200;
const ATTEMPTS: u32 = 4;
/// How many wrong samples of each kind are shown.
const EXAMPLES: usize = 3;

/// The result of one workload with one perf.
#[derive(Default)]
struct Outcome {
    names: Share,
    stacks: Share,
    /// Of those that `stacks` counts.
    without_frames: usize,
    /// Records that perf had no room for; without a mapping among them it cannot be right.
    lost: u64,
    /// Files of regions that somebody else removed while they were read.
    gone: usize,
    /// In C functions of the program and of the library, between two runs of code.
    elsewhere: usize,
    /// Where stacks stop being right: the shape of the last frame that is.
    broken_after: BTreeMap<String, usize>,
    wrong: Vec<String>,
    counters: String,
}

impl Outcome {
    fn without_frames(&self) -> f64 {
        100.0 * self.without_frames as f64 / self.stacks.counted.max(1) as f64
    }

    fn shown(&self) -> String {
        let (names, stacks) = (self.names.percent(), self.stacks.percent());
        format!("{names:.1} / {stacks:.1} / {:.1} ({})", self.without_frames(), self.stacks.counted)
    }

    fn is_right(&self) -> bool {
        let enough = self.names.counted >= ENOUGH;
        let whole = self.names.percent() >= WANTED && self.stacks.percent() >= WANTED;
        enough && whole && self.without_frames() <= WITHOUT_FRAMES
    }
}

/// Runs the workloads and prints a table. Whether everything that is listed in `HOLDS` was right.
pub fn run(plan: &Plan) -> Result<bool> {
    if std::env::consts::ARCH != "x86_64" {
        println!("The generator makes code for x86-64 alone.");
        return Ok(true);
    }
    let program = program::build_random()?;
    let list = run::stdout(run::command(&program).arg("list"))?;
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64 % 1_000_000_000;
    let seed = plan.seed.unwrap_or(fresh);
    let cells = chosen(plan, &list, seed);
    let mut perfs = Vec::new();
    for (name, suite) in PERFS {
        if cells.iter().any(|(_, perf)| *perf == name) {
            perfs.push((name, Perf::of_suite(&plan.cache, suite)?));
        }
    }
    if perfs.is_empty() {
        bail!("there are the workloads\n{list}and the perfs {}", PERFS.map(|(name, _)| name).join(", "));
    }
    println!("Seed {seed}. Names right, whole stacks, samples without any frame, in percent; number of samples.\n");
    let versions: Vec<&str> = perfs.iter().map(|(_, perf)| perf.version.as_str()).collect();
    println!("| workload | {} |\n|---|{}", versions.join(" | "), "---|".repeat(perfs.len()));
    let mut failed = Vec::new();
    for workload in list.lines().filter(|workload| cells.iter().any(|cell| cell.0 == *workload)) {
        let mut row = Vec::new();
        for (name, perf) in &perfs {
            if !cells.contains(&(workload, *name)) {
                row.push(String::new());
                continue;
            }
            let outcome = measure(plan, perf, &program, workload, seed)
                .with_context(|| format!("seed {seed}, {workload}, perf {}", perf.version))?;
            let Outcome { elsewhere, lost, gone, counters, .. } = &outcome;
            let version = &perf.version;
            eprintln!("{workload} with perf {version}: {elsewhere} elsewhere, {lost} lost, {gone} gone; {counters}");
            if !outcome.broken_after.is_empty() {
                eprintln!("    broken after {:?}", outcome.broken_after);
            }
            for wrong in &outcome.wrong {
                eprintln!("    {wrong}");
            }
            if !plan.jitdump && holds(workload, name) && !outcome.is_right() {
                // One function that perf has a wrong frame of may be in a hundredth of one run's samples.
                let again = [seed + 1, seed + 2].map(|seed| measure(plan, perf, &program, workload, seed));
                for (seed, outcome) in (seed + 1..).zip(again) {
                    let outcome = outcome.with_context(|| format!("seed {seed}, {workload}, perf {version}"))?;
                    eprintln!("    again with seed {seed}: {}", outcome.shown());
                    if !outcome.is_right() {
                        failed.push(format!("--seed {seed} --workload {workload} --perf {name}"));
                    }
                }
            }
            row.push(outcome.shown());
        }
        println!("| {workload} | {} |", row.join(" | "));
    }
    for failed in &failed {
        println!("Less than {WANTED} percent twice, or too few samples: cargo xtask regions {failed}");
    }
    Ok(failed.is_empty())
}

fn holds(workload: &str, perf: &str) -> bool {
    HOLDS.iter().any(|(held, perfs)| *held == workload && perfs.contains(&perf))
}

/// Pairs of a workload and a perf.
fn chosen<'a>(plan: &Plan, workloads: &'a str, seed: u64) -> Vec<(&'a str, &'static str)> {
    let is_workload = |name: &str| plan.workloads.is_empty() || plan.workloads.iter().any(|part| name.contains(part));
    let is_perf = |name: &str| plan.perfs.is_empty() || plan.perfs.iter().any(|perf| perf == name);
    let mut cells = Vec::new();
    for workload in workloads.lines().filter(|name| is_workload(name)) {
        let of_row = PERFS.iter().map(|(perf, _)| (workload, *perf));
        cells.extend(of_row.filter(|(_, perf)| is_perf(perf)));
    }
    if plan.quick {
        cells.retain(|(workload, perf)| QUICK_PERFS.contains(perf) && holds(workload, perf));
        cells.sort_by_key(|cell| {
            let mut hasher = DefaultHasher::new();
            (seed, cell).hash(&mut hasher);
            hasher.finish()
        });
        cells.truncate(QUICK_CELLS);
    }
    cells
}

/// Tries again where a loaded machine has left too few samples or made perf lose some, and where files were removed.
fn measure(plan: &Plan, perf: &Perf, program: &Path, workload: &str, seed: u64) -> Result<Outcome> {
    let dir = program::scratch()?;
    let mut seconds = if plan.quick { QUICK_SECONDS } else { plan.seconds };
    for attempt in 1.. {
        let outcome = measure_in(&dir, plan, perf, program, &[workload, &seed.to_string(), &seconds.to_string()]);
        std::fs::remove_dir_all(&dir)?;
        let outcome = outcome?;
        let is_enough = outcome.names.counted >= ENOUGH;
        if attempt == ATTEMPTS || is_enough && (outcome.lost == 0 && outcome.gone == 0 || outcome.is_right()) {
            return Ok(outcome);
        }
        std::fs::create_dir(&dir)?;
        seconds *= if is_enough { 1.0 } else { 2.0 };
    }
    unreachable!("the last attempt returns")
}

fn measure_in(dir: &Path, plan: &Plan, perf: &Perf, program: &Path, arguments: &[&str]) -> Result<Outcome> {
    let (mut data, truth) = (dir.join("perf.data"), dir.join("truth"));
    let mut record = perf.command(dir, "record");
    record.args(["-e", "cpu-clock", "-k", "CLOCK_MONOTONIC", "-F", FREQUENCY, "-m", "4M"]);
    record.args(["--call-graph", STACK_SIZE, "-o"]);
    record.arg(&data).arg("--").arg(program).args(arguments).arg(&truth).arg(if plan.jitdump {
        "jitdump"
    } else {
        "region"
    });
    let recorded = run::success(&mut record);
    // Its files are to go even if it has failed.
    let leftovers = Leftovers::of(&truth);
    recorded?;
    let lost = raw::lost(&data)?;
    let files = leftovers.files();
    if plan.jitdump {
        data = perf.inject(dir, &data)?;
    }
    let truth = Truth::parse(&std::fs::read_to_string(&truth)?)?;
    let flat = script::parse(&perf.script(dir, &data, &["-G", "-F", script::FIELDS])?)?;
    let stacks = script::parse(&perf.script(dir, &data, &["-F", script::FIELDS])?)?;
    let gone = files.iter().filter(|file| !file.exists()).count();
    Ok(Outcome { lost, gone, ..judge(&truth, &script::samples(&truth, &flat, &stacks)?) })
}

fn judge(truth: &Truth, samples: &[Sample]) -> Outcome {
    let mut outcome =
        Outcome { counters: truth.options.get("counters").cloned().unwrap_or_default(), ..Outcome::default() };
    let (mut wrong_names, mut wrong_stacks) = (Vec::new(), Vec::new());
    let begin = truth.runs.values().flatten().map(|run| run.from).min().unwrap_or_default();
    for sample in samples {
        let Some(stack) = truth.stack_at(sample.tid, sample.time) else {
            outcome.elsewhere += 1;
            continue;
        };
        let holds_ip = |part: &Part| match part {
            Part::Code(index) => {
                let code = &truth.codes[*index];
                (code.addr..code.addr + code.size).contains(&sample.ip)
            }
            Part::Native(name) => sample.name.as_ref() == Some(name),
            Part::AnyNative => false,
        };
        let guest = stack.iter().position(holds_ip);
        let right = match guest {
            // Only the kernel knows where the signal interrupted the code, so any of its functions is accepted.
            _ if sample.name.as_deref() == Some("on_signal") => {
                let after = sample.frames.get(2..).unwrap_or_default();
                (0..stack.len() - 1).any(|from| score::is_stack(truth, &stack[from..], after))
            }
            Some(from) => score::is_stack(truth, &stack[from..], &sample.frames),
            None => {
                outcome.elsewhere += 1;
                continue;
            }
        };
        let mut named = true;
        if let Some(Part::Code(index)) = guest.map(|from| &stack[from]) {
            named = sample.name.as_ref() == Some(&truth.codes[*index].name);
            outcome.names.add(named);
        }
        outcome.stacks.add(right);
        outcome.without_frames += usize::from(sample.frames.is_empty());
        if !right {
            *outcome.broken_after.entry(last_right(truth, stack, guest, sample)).or_default() += 1;
        }
        let shown = if named { &mut wrong_stacks } else { &mut wrong_names };
        if (!right || !named) && shown.len() < EXAMPLES {
            shown.push(format!(
                "{} ms after the first run, at {:x}, name {:?}: {} instead of {}",
                (sample.time - begin) / 1_000_000,
                sample.ip,
                sample.name,
                score::shown(&sample.frames),
                score::expected(truth, &stack[guest.unwrap_or_default()..])
            ));
        }
    }
    outcome.wrong = [wrong_names, wrong_stacks].concat();
    outcome
}

/// The shape of the last frame that is right, as the beginning of its name.
fn last_right(truth: &Truth, stack: &[Part], from: Option<usize>, sample: &Sample) -> String {
    let expected = &stack[from.unwrap_or_default()..];
    let is_right = |(part, frame): &(&Part, &score::Frame)| match part {
        Part::Code(index) => frame.name.as_deref().is_some_and(|name| truth.codes[*index].is_named(name)),
        Part::Native(name) => frame.name.as_ref() == Some(name),
        Part::AnyNative => false,
    };
    let last = expected.iter().zip(&sample.frames).take_while(is_right).last();
    let name = last.and_then(|(_, frame)| frame.name.as_deref()).unwrap_or("nothing");
    name.split('_').next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::{Frame, Kind};

    fn judged(name: &str, ip: u64, time: u64, frames: &str) -> Outcome {
        let truth = Truth::parse(
            "pid\t7\ncode\t0\t1000\t100\t1\t0\tbare_1\ncode\t1\t2000\t100\t1\t0\tfixed_2\nalias\t1\tentry_2\n\
             run\t7\t10\t20\t0,1,*enter_code,?,*main,?\nrun\t7\t30\t40\t*native_burn,0,*enter_code,?,*main,?\nend\n",
        )
        .unwrap();
        let frame = |part: &str| {
            let guest = part.contains("bare") || part.contains("fixed") || part.contains("entry");
            Frame { name: Some(part.into()), kind: if guest { Kind::Guest } else { Kind::Native } }
        };
        let frames = frames.split_whitespace().map(frame).collect();
        judge(&truth, &[Sample { tid: 7, time, ip, name: Some(name.into()), frames }])
    }

    fn numbers(outcome: &Outcome) -> [usize; 6] {
        let Outcome { names, stacks, without_frames, elsewhere, .. } = outcome;
        [names.counted, names.right, stacks.counted, stacks.right, *without_frames, *elsewhere]
    }

    #[test]
    fn each_sample_is_compared_with_the_stack_of_its_time() {
        let whole = "bare_1 fixed_2 enter_code run main _start";
        assert_eq!(numbers(&judged("bare_1", 0x1010, 15, whole)), [1, 1, 1, 1, 0, 0]);
        assert_eq!(numbers(&judged("fixed_2", 0x2010, 15, "fixed_2 enter_code run main _start")), [1, 1, 1, 1, 0, 0]);
        assert_eq!(numbers(&judged("old_7", 0x1010, 15, whole)), [1, 0, 1, 1, 0, 0]);
        assert_eq!(numbers(&judged("bare_1", 0x1010, 15, "bare_1 enter_code run main _start")), [1, 1, 1, 0, 0, 0]);
        assert_eq!(numbers(&judged("bare_1", 0x1010, 15, "bare_1 fixed_2 enter_code")), [1, 1, 1, 0, 0, 0]);
        assert_eq!(numbers(&judged("bare_1", 0x1010, 15, "")), [1, 1, 1, 0, 1, 0]);
        assert_eq!(numbers(&judged("bare_1", 0x1010, 25, whole)), [0, 0, 0, 0, 0, 1], "no run at that time");
        assert_eq!(numbers(&judged("clock_gettime", 0x9000, 15, "clock_gettime run main")), [0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn c_functions_that_code_calls_or_that_interrupt_it() {
        assert_eq!(
            numbers(&judged("native_burn", 0x9000, 35, "native_burn bare_1 enter_code main")),
            [0, 0, 1, 1, 0, 0]
        );
        assert_eq!(numbers(&judged("native_burn", 0x9000, 35, "native_burn")), [0, 0, 1, 0, 0, 0]);
        let interrupted = |frames: &str| numbers(&judged("on_signal", 0x9100, 15, frames));
        assert_eq!(interrupted("on_signal __restore_rt bare_1 fixed_2 enter_code main"), [0, 0, 1, 1, 0, 0]);
        assert_eq!(interrupted("on_signal __restore_rt entry_2 enter_code main"), [0, 0, 1, 1, 0, 0]);
        assert_eq!(interrupted("on_signal __restore_rt bare_1 enter_code main"), [0, 0, 1, 0, 0, 0]);
        assert_eq!(interrupted("on_signal __restore_rt"), [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn the_reduced_run_is_chosen_by_the_seed() {
        let plan = Plan {
            cache: Cache { dir: "/".into(), mirror: None },
            seed: None,
            workloads: Vec::new(),
            perfs: Vec::new(),
            seconds: 1.0,
            jitdump: false,
            quick: true,
        };
        let list = HOLDS.iter().map(|(workload, _)| *workload).collect::<Vec<_>>().join("\n");
        let cells = chosen(&plan, &list, 1);
        assert_eq!(cells, chosen(&plan, &list, 1));
        assert!(!cells.is_empty() && cells.iter().all(|(workload, perf)| holds(workload, perf)));
    }
}
