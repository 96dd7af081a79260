//! Random code in regions: `c-tests/regions/random` runs at full speed, and some of its calls are stepped. Each instruction of these
//! is a sample, and its whole stack is compared with the truth.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context, Result};

use crate::perf::Perf;
use crate::program::{self, Leftovers};
use crate::score::{self, Frame, Sample, Share};
use crate::suites::Cache;
use crate::truth::{Part, Truth};
use crate::{run, script};

/// The command line.
pub struct Plan {
    pub cache: Cache,
    /// `None`: a fresh one.
    pub seed: Option<u64>,
    /// Parts of the names of workloads; empty: all.
    pub workloads: Vec<String>,
    /// Of `PERFS`; empty: all.
    pub perfs: Vec<String>,
    /// That each thread makes.
    pub calls: u32,
    /// Code is in a jitdump, for `perf inject --jit`, and memory is plain.
    pub jitdump: bool,
    /// `jitsym inject` runs after the recording, in place of `perf inject --jit`.
    pub inject: bool,
    pub quick: bool,
}

/// What a perf is called on the command line, and the Debian suite that it comes from.
const PERFS: [(&str, &str); 3] = [("6.1", "bookworm"), ("6.12", "trixie"), ("7.2", "sid")];

/// Rows that hold today: a workload in which all names are right, and the perfs with which all stacks are. Other cells are shown and
/// not judged. In workloads that use memory again, perf 7 goes on with the tables that it met first; with the others stacks do not
/// count at addresses that other code has had before, and while an epoch begins (`Truth::stale`). In `two-views-ends` these take
/// the address behind a call that ends code for the next code's. In `created-flips` and `adopted-flips` code dies some time before the program changes the protection
/// of the memory, which tells perf the new name for the code. Until then libunwind, which takes the lowest mapping of a name for the
/// beginning of the file, finds no tables at addresses that it has not met before.
const HOLDS: &[(&str, &[&str])] = &[
    ("created-comes", &["6.1", "6.12", "7.2"]),
    ("created-dies", &["6.1", "6.12", "7.2"]),
    ("created-all", &["6.1", "6.12"]),
    ("created-rwx-dies", &["6.1", "6.12", "7.2"]),
    ("created-fork", &["6.1", "6.12", "7.2"]),
    ("created-grow", &["6.1", "6.12"]),
    ("two-views-comes", &["6.1", "6.12", "7.2"]),
    ("two-views-dies", &["6.1", "6.12", "7.2"]),
    ("two-views-all", &["6.1", "6.12"]),
    ("two-views-ends", &["7.2"]),
    ("two-views-over", &["6.1", "6.12"]),
    ("adopted-comes", &["6.1", "6.12", "7.2"]),
    ("adopted-dies", &["6.1", "6.12", "7.2"]),
    ("adopted-arenas", &["6.1", "6.12", "7.2"]),
    ("adopted-fork", &["6.1", "6.12", "7.2"]),
    ("adopted-late", &["6.1", "6.12", "7.2"]),
    ("adopted-rwx", &["6.1", "6.12"]),
    ("automatic-comes", &["6.1"]),
    ("automatic-dies", &["6.1"]),
    ("churn-created", &["6.1", "6.12"]),
    ("churn-two-views", &["6.1", "6.12"]),
    ("churn-adopted", &["6.1", "6.12"]),
    ("created-flips-page", &[]),
    ("created-flips-run", &[]),
    ("created-flips-arena", &[]),
    ("adopted-flips-page", &[]),
    ("adopted-flips-run", &[]),
    ("adopted-flips-arena", &[]),
];

/// The reduced run takes this many cells of those that hold, which the seed chooses, with the perfs that the tests use.
const QUICK_CELLS: usize = 5;
const QUICK_PERFS: &[&str] = &["6.1"];

/// How much of the stack is copied: more than the program's code and C functions take.
const STACK_SIZE: usize = 32768;
/// What the program calls stepped code from.
const ENTER: &str = "enter_code";

/// How many wrong samples of each kind are shown.
const EXAMPLES: usize = 3;

/// The result of one workload with one perf.
#[derive(Default)]
struct Outcome {
    names: Share,
    stacks: Share,
    /// Where stacks stop being right: the shape of the last frame that is.
    broken_after: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Outcome {
    fn shown(&self) -> String {
        let wrong = |share: &Share| share.counted - share.right;
        format!("{} / {} of {}", wrong(&self.names), wrong(&self.stacks), self.stacks.counted)
    }

    fn is_right(&self, with_stacks: bool) -> bool {
        let is_right = |share: &Share| share.counted > 0 && share.right == share.counted;
        is_right(&self.names) && (!with_stacks || is_right(&self.stacks))
    }
}

/// Runs the workloads and prints a table. Whether everything that is listed in `HOLDS` was right.
pub fn run(plan: &Plan) -> Result<bool> {
    if std::env::consts::ARCH != "x86_64" {
        println!("The generator makes code for x86-64 alone.");
        return Ok(true);
    }
    let program = program::build_random()?;
    let tool = if plan.inject { Some(program::build_tool()?) } else { None };
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
    println!("Seed {seed}. Names and stacks that are wrong, of so many.\n");
    let versions: Vec<&str> = perfs.iter().map(|(_, perf)| perf.version.as_str()).collect();
    println!("| workload | {} |\n|---|{}", versions.join(" | "), "---|".repeat(perfs.len()));
    let mut failed = Vec::new();
    for workload in list.lines().filter(|workload| cells.iter().any(|cell| cell.0 == *workload)) {
        let begin = Instant::now();
        let about = || format!("seed {seed}, {workload}");
        let recorded = Recorded::make(plan, &perfs[0].1, &program, workload, seed).with_context(about)?;
        let (counters, took) = (&recorded.truth.options["counters"], begin.elapsed().as_secs_f64());
        eprintln!("{workload}: recorded in {took:.1} s; {counters}");
        let mut row = Vec::new();
        for (name, perf) in &perfs {
            if !cells.contains(&(workload, *name)) {
                row.push(String::new());
                continue;
            }
            let begin = Instant::now();
            let version = &perf.version;
            // Each epoch of `jitsym inject` has addresses of its own for its tables.
            let remembers = *name != "7.2" && tool.is_none();
            let outcome = recorded
                .measure(perf, tool.as_deref(), remembers)
                .with_context(|| format!("{}, perf {version}", about()))?;
            eprintln!("{workload} with perf {version}: {}, {:.1} s", outcome.shown(), begin.elapsed().as_secs_f64());
            if !outcome.broken_after.is_empty() {
                eprintln!("    broken after {:?}", outcome.broken_after);
            }
            for wrong in &outcome.wrong {
                eprintln!("    {wrong}");
            }
            // After `jitsym inject`, stacks are right with each perf.
            let held = HOLDS.iter().find(|(held, _)| *held == workload).filter(|_| !plan.jitdump);
            if held.is_some_and(|(_, perfs)| !outcome.is_right(plan.inject || perfs.contains(name))) {
                failed.push(format!("--seed {seed} --workload {workload} --perf {name}"));
            }
            row.push(outcome.shown());
        }
        println!("| {workload} | {} |", row.join(" | "));
    }
    for failed in &failed {
        println!("Not all right: cargo xtask regions {failed}");
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

/// A run of a workload, for all perfs.
struct Recorded {
    dir: PathBuf,
    truth: Truth,
    is_jitdump: bool,
    leftovers: Leftovers,
}

impl Recorded {
    fn make(plan: &Plan, perf: &Perf, program: &Path, workload: &str, seed: u64) -> Result<Self> {
        let dir = program::scratch()?;
        let (seed, calls) = (seed.to_string(), plan.calls.to_string());
        let truth = dir.join("truth");
        let mut command = run::command(program);
        command.args([workload, &seed, &calls]).arg(&truth).arg(if plan.jitdump { "jitdump" } else { "region" });
        let recorded = jitsym_step::record(jitsym_step::Plan {
            program: command,
            perf: perf.command(&dir, "record"),
            graph: jitsym_step::Graph::Stack(STACK_SIZE),
            enter: &[ENTER],
            every: false,
            hold: None,
            data: &dir.join("perf.data"),
        });
        // Its files are to go even if it has failed.
        let leftovers = Leftovers::of(&truth);
        let mut made = Recorded { dir, truth: Truth::default(), is_jitdump: plan.jitdump, leftovers };
        let recorded = recorded?;
        let mut truth = Truth::parse(&std::fs::read_to_string(&truth)?)?;
        truth.set_moments(&recorded.moments, &recorded.symbols);
        made.truth = truth;
        Ok(made)
    }

    /// `remembers`: it unwinds an address as it has done before. `tool`: the program that injects, if it is not perf.
    fn measure(&self, perf: &Perf, tool: Option<&Path>, remembers: bool) -> Result<Outcome> {
        let (dir, mut data) = (&self.dir, self.dir.join("perf.data"));
        let files = self.leftovers.files();
        if let Some(tool) = tool {
            data = perf.inject_with(tool, dir, &data)?;
        } else if self.is_jitdump {
            data = perf.inject(dir, &data)?;
        }
        let flat = script::parse(&perf.script(dir, &data, &["-G", "-F", script::FIELDS])?)?;
        let stacks = script::parse(&perf.script(dir, &data, &["-F", script::FIELDS])?)?;
        if let Some(file) = files.iter().find(|file| !file.exists()) {
            bail!("somebody has removed {}", file.display());
        }
        let stale = if remembers {
            let mapped = perf.script(dir, &data, script::MAPPINGS)?;
            self.truth.stale(&self.truth.between_mappings(&script::mappings(&mapped)?))
        } else {
            HashSet::new()
        };
        Ok(judge(&self.truth, &stale, &script::samples(&self.truth, &flat, &stacks)?))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Functions of the program that stepped code calls, or that interrupt it.
const NATIVE: [&str; 2] = ["native_burn", "on_signal"];

fn judge(truth: &Truth, stale: &HashSet<(u32, u64)>, samples: &[Sample]) -> Outcome {
    let mut outcome = Outcome::default();
    let shown_at: HashMap<(u32, u64), &Sample> = samples.iter().map(|s| ((s.tid, s.time), s)).collect();
    let (mut wrong_names, mut wrong_stacks) = (Vec::new(), Vec::new());
    for moment in truth.moments.iter().flatten() {
        let Some(stack) = &moment.stack else { continue };
        let sample = shown_at.get(&(moment.tid, moment.time));
        let name = sample.and_then(|sample| sample.name.as_deref());
        let named = match &stack[0] {
            Part::Code(index) => name == Some(&truth.codes[*index].name),
            Part::Native(native) if NATIVE.contains(&native.as_str()) => name == Some(native),
            _ => continue,
        };
        let frames = sample.map(|sample| &*sample.frames).unwrap_or_default();
        let is_stale = stale.contains(&(moment.tid, moment.time));
        let right = is_stale || score::is_stack(truth, stack, frames);
        outcome.names.add(named);
        if !is_stale {
            outcome.stacks.add(right);
        }
        if !right {
            *outcome.broken_after.entry(last_right(truth, stack, frames)).or_default() += 1;
        }
        let examples = if named { &mut wrong_stacks } else { &mut wrong_names };
        if (!right || !named) && examples.len() < EXAMPLES {
            let age = match stack[0] {
                Part::Code(index) => (moment.time - truth.codes[index].from) / 1000,
                _ => 0,
            };
            examples.push(format!(
                "at {:x}, {age} us after it came, name {name:?}: {} instead of {}",
                moment.ip,
                score::shown(frames),
                score::expected(truth, stack)
            ));
        }
    }
    outcome.wrong = [wrong_names, wrong_stacks].concat();
    outcome
}

/// The shape of the last frame that is right, as the beginning of its name.
fn last_right(truth: &Truth, stack: &[Part], frames: &[Frame]) -> String {
    let is_right = |(part, frame): &(&Part, &Frame)| match part {
        Part::Code(index) => frame.name.as_deref().is_some_and(|name| truth.codes[*index].is_named(name)),
        Part::Native(name) => frame.name.as_ref() == Some(name),
        Part::OneNative => true,
        Part::AnyNative => false,
    };
    let last = stack.iter().zip(frames).take_while(is_right).last();
    let name = last.and_then(|(_, frame)| frame.name.as_deref()).unwrap_or("nothing");
    name.split('_').next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::Kind;
    use crate::truth::Moment;

    fn judged(name: &str, stack: Vec<Part>, frames: &str) -> [usize; 4] {
        let text = "pid\t7\ncode\t0\t1000\t100\t1\t0\tbare_1\ncode\t1\t2000\t100\t1\t0\tfixed_2\nend\n";
        let mut truth = Truth::parse(text).unwrap();
        truth.moments = Some(vec![Moment { tid: 7, time: 15, ip: 0x1010, callers: Vec::new(), stack: Some(stack) }]);
        let frame = |part: &str| {
            let guest = part.contains("bare") || part.contains("fixed");
            Frame { name: Some(part.into()), kind: if guest { Kind::Guest } else { Kind::Native } }
        };
        let frames = frames.split_whitespace().map(frame).collect();
        let sample = Sample { tid: 7, time: 15, ip: 0x1010, name: Some(name.into()), frames };
        let Outcome { names, stacks, .. } = judge(&truth, &HashSet::new(), &[sample]);
        [names.counted, names.right, stacks.counted, stacks.right]
    }

    #[test]
    fn each_moment_has_one_stack() {
        let native = |name: &str| Part::Native(name.into());
        let stack = || vec![Part::Code(0), Part::Code(1), native("enter_code"), Part::AnyNative];
        let whole = "bare_1 fixed_2 enter_code run main _start";
        assert_eq!(judged("bare_1", stack(), whole), [1, 1, 1, 1]);
        assert_eq!(judged("old_7", stack(), whole), [1, 0, 1, 1]);
        assert_eq!(judged("bare_1", stack(), "bare_1 enter_code run main _start"), [1, 1, 1, 0]);
        assert_eq!(judged("bare_1", stack(), "bare_1 fixed_2"), [1, 1, 1, 0]);
        assert_eq!(judged("bare_1", stack(), ""), [1, 1, 1, 0]);
        let burning = || [vec![native("native_burn")], stack()].concat();
        assert_eq!(judged("native_burn", burning(), &format!("native_burn {whole}")), [1, 1, 1, 1]);
        assert_eq!(judged("native_burn", burning(), "native_burn"), [1, 1, 1, 0]);
        let handling = || [vec![native("on_signal"), Part::OneNative], stack()].concat();
        assert_eq!(judged("on_signal", handling(), &format!("on_signal __restore_rt {whole}")), [1, 1, 1, 1]);
        assert_eq!(judged("on_signal", handling(), "on_signal __restore_rt bare_1 enter_code"), [1, 1, 1, 0]);
        assert_eq!(judged("enter_code", vec![native("enter_code")], "enter_code"), [0, 0, 0, 0]);
    }

    #[test]
    fn the_reduced_run_is_chosen_by_the_seed() {
        let plan = Plan {
            cache: Cache { dir: "/".into(), mirror: None },
            seed: None,
            workloads: Vec::new(),
            perfs: Vec::new(),
            calls: 1,
            jitdump: false,
            inject: false,
            quick: true,
        };
        let list = HOLDS.iter().map(|(workload, _)| *workload).collect::<Vec<_>>().join("\n");
        let cells = chosen(&plan, &list, 1);
        assert_eq!(cells, chosen(&plan, &list, 1));
        assert!(!cells.is_empty() && cells.iter().all(|(workload, perf)| holds(workload, perf)));
    }
}
