//! Regions held against random code: `c-tests/regions/random` runs under perf, and each sample's whole stack has to be the one that
//! the program says.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context, Result};

use crate::perf::Perf;
use crate::program::{self, Leftovers};
use crate::run;
use crate::score::{self, Sample, Share};
use crate::script;
use crate::suites::Cache;
use crate::truth::{Part, Truth};

/// What is to be done, from the command line.
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

/// What is wanted of names and of whole stacks, in percent, and at most of samples without any frame.
const WANTED: f64 = 99.0;
const WITHOUT_FRAMES: f64 = 1.0;

/// What holds today: workload, and the perfs with which it has what is wanted. Everything else is shown and not judged.
const HOLDS: &[(&str, &[&str])] = &[("created-comes", &["6.1", "6.12"]), ("two-views-comes", &["6.1", "6.12"])];

/// The workloads of the reduced run.
const QUICK: &[&str] = &["created-comes", "two-views-comes"];
const QUICK_PERFS: &[&str] = &["6.1", "7.2"];
const QUICK_SECONDS: f64 = 2.0;

/// How often samples are taken, and how much of the stack is copied: more than the program's code and C functions take.
const FREQUENCY: &str = "997";
const STACK_SIZE: &str = "dwarf,32768";

/// Fewer samples tell nothing.
const ENOUGH: usize = 200;
/// How many wrong samples are shown.
const EXAMPLES: usize = 4;

/// What one perf made of one workload.
#[derive(Default)]
struct Outcome {
    names: Share,
    stacks: Share,
    /// Of those that `stacks` counts.
    without_frames: usize,
    /// In C functions of the program and of the library, between two runs of code.
    elsewhere: usize,
    wrong: Vec<String>,
    counters: String,
}

impl Outcome {
    fn without_frames(&self) -> f64 {
        100.0 * self.without_frames as f64 / self.stacks.counted.max(1) as f64
    }

    fn is_right(&self) -> bool {
        let enough = self.names.counted >= ENOUGH;
        let whole = self.names.percent() >= WANTED && self.stacks.percent() >= WANTED;
        enough && whole && self.without_frames() <= WITHOUT_FRAMES
    }
}

/// Runs the workloads and prints a table. Whether everything that is listed in `HOLDS` was right.
pub fn run(plan: &Plan) -> Result<bool> {
    let program = program::build_random()?;
    let list = run::stdout(run::command(&program).arg("list"))?;
    let named =
        |name: &&str, parts: &[String]| parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
    let is_chosen = |name: &&str| named(name, &plan.workloads) && (!plan.quick || QUICK.contains(name));
    let workloads: Vec<&str> = list.lines().filter(is_chosen).collect();
    let is_wanted = |name: &str| plan.perfs.is_empty() && !plan.quick || plan.perfs.iter().any(|perf| perf == name);
    let mut perfs = Vec::new();
    for (name, suite) in PERFS {
        if is_wanted(name) || plan.quick && plan.perfs.is_empty() && QUICK_PERFS.contains(&name) {
            perfs.push((name, Perf::of_suite(&plan.cache, suite)?));
        }
    }
    if workloads.is_empty() || perfs.is_empty() {
        bail!("there are the workloads\n{list}and the perfs {}", PERFS.map(|(name, _)| name).join(", "));
    }
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64 % 1_000_000_000;
    let seed = plan.seed.unwrap_or(fresh);
    println!("Seed {seed}. Names right, whole stacks, samples without any frame, in percent; number of samples.\n");
    let versions: Vec<&str> = perfs.iter().map(|(_, perf)| perf.version.as_str()).collect();
    println!("| workload | {} |\n|---|{}", versions.join(" | "), "---|".repeat(perfs.len()));
    let mut failed = Vec::new();
    for workload in workloads {
        let mut cells = Vec::new();
        for (name, perf) in &perfs {
            let outcome = measure(plan, perf, &program, workload, seed)
                .with_context(|| format!("seed {seed}, {workload}, perf {}", perf.version))?;
            let holds = !plan.jitdump && HOLDS.iter().any(|(held, perfs)| *held == workload && perfs.contains(name));
            eprintln!("{workload} with perf {}: {} elsewhere; {}", perf.version, outcome.elsewhere, outcome.counters);
            for wrong in &outcome.wrong {
                eprintln!("    {wrong}");
            }
            if holds && !outcome.is_right() {
                failed.push(format!(
                    "{workload} with perf {}: cargo xtask regions --seed {seed} --workload {workload} --perf {name}",
                    perf.version
                ));
            }
            cells.push(format!(
                "{:.1} / {:.1} / {:.1} ({})",
                outcome.names.percent(),
                outcome.stacks.percent(),
                outcome.without_frames(),
                outcome.stacks.counted
            ));
        }
        println!("| {workload} | {} |", cells.join(" | "));
    }
    for failed in &failed {
        println!("Not at {WANTED} percent: {failed}");
    }
    Ok(failed.is_empty())
}

fn measure(plan: &Plan, perf: &Perf, program: &Path, workload: &str, seed: u64) -> Result<Outcome> {
    let dir = program::scratch()?;
    let outcome = measure_in(&dir, plan, perf, program, workload, seed);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn measure_in(dir: &Path, plan: &Plan, perf: &Perf, program: &Path, workload: &str, seed: u64) -> Result<Outcome> {
    let (mut data, truth) = (dir.join("perf.data"), dir.join("truth"));
    let mut record = perf.command(dir, "record");
    record.args(["-e", "cpu-clock", "-k", "CLOCK_MONOTONIC", "-F", FREQUENCY, "--call-graph", STACK_SIZE, "-o"]);
    record.arg(&data).arg("--").arg(program).args([workload, &seed.to_string()]);
    let seconds = if plan.quick { QUICK_SECONDS } else { plan.seconds };
    record.arg(seconds.to_string()).arg(&truth).arg(if plan.jitdump { "jitdump" } else { "region" });
    let recorded = run::success(&mut record);
    // Its files are to go even if it has failed.
    let _leftovers = Leftovers::of(&truth);
    recorded?;
    if plan.jitdump {
        data = perf.inject(dir, &data)?;
    }
    let truth = Truth::parse(&std::fs::read_to_string(&truth)?)?;
    let flat = script::parse(&perf.script(dir, &data, &["-G", "-F", script::FIELDS])?)?;
    let stacks = script::parse(&perf.script(dir, &data, &["-F", script::FIELDS])?)?;
    Ok(judge(&truth, &script::samples(&truth, &flat, &stacks)?))
}

fn judge(truth: &Truth, samples: &[Sample]) -> Outcome {
    let mut outcome =
        Outcome { counters: truth.options.get("counters").cloned().unwrap_or_default(), ..Outcome::default() };
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
            // Where a signal has interrupted it nobody knows but the kernel, so any of the functions will do.
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
        if (!right || !named) && outcome.wrong.len() < EXAMPLES {
            outcome.wrong.push(format!(
                "at {:x}, time {}: {} of {:?} instead of {}",
                sample.ip,
                sample.time,
                score::shown(&sample.frames),
                sample.name,
                score::expected(truth, &stack[guest.unwrap_or_default()..])
            ));
        }
    }
    outcome
}
