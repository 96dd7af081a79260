//! The matrix: every reader in every scenario, what each cell came to, and whether that is as it should be.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{anyhow, bail, Context, Result};

use crate::debuggers::{self, Debugger, Which};
use crate::lost::{self, Lost};
use crate::perf::{self, Graph, Mode, Perf, Recording};
use crate::program::{self, Program, Scenario, Written};
use crate::score::{Score, Share};
use crate::suites::{self, Cache};
use crate::{blaze, bpf, crates, document, eu_stack, mirror, run, samply, stepped, table};

/// What a cell has to reach, in percent, where the program is stepped, and where it is sampled or stopped at some time.
const WANTED: f64 = 100.0;
const WANTED_SAMPLED: f64 = 99.0;
/// Scenarios in which each reader of stepped recordings also reads one of a plain `perf record`: one in which both are to say the same,
/// and one in which a reader is right about a function if it has seen samples in it before.
const SAMPLED: [&str; 2] = ["frame-pointers", "ends-with-call"];
const SAMPLED_SECONDS: f64 = 0.5;
/// CPU time that the program burns in a cell; more where a reader takes too few samples in that, up to so much.
const SECONDS: f64 = 1.0;
const MOST_SECONDS: f64 = 64.0;
/// Functions of the scenario `many`. With more, perf 6 takes minutes for one cell.
const MANY: usize = 10_000;
/// The Debian suites whose perf and debuggers are tried.
const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];
/// The readers of the reduced run.
const QUICK: [&str; 2] = ["perf-bookworm/", "gdb-sid/"];
/// Fewer samples than this tell nothing; of those that chance has chosen, and of those that were stepped.
const ENOUGH: usize = 200;
const ENOUGH_STEPPED: usize = 30;

/// What programs say where the machine does not allow something.
const NOT_AVAILABLE: &[&str] = &["namespaces are not allowed here"];

/// What is to be done, from the command line.
pub struct Plan {
    pub cache: Cache,
    /// Parts of the names of readers; empty: all.
    pub readers: Vec<String>,
    pub scenarios: Vec<String>,
    pub quick: bool,
    pub write: bool,
    pub verbose: bool,
    pub keep: bool,
}

/// One reader in one way of use: a column.
pub struct Column {
    /// As on the command line and in the list of lost cells: `perf-sid/dwarf`.
    pub id: String,
    /// For people: `perf 7.2.13`.
    pub reader: String,
    /// How it is used.
    pub mode: &'static Mode,
    run: Runner,
}

#[derive(Clone, Copy)]
enum Runner {
    /// Which one.
    Perf(usize),
    Samply,
    Blazesym,
    Bpftrace,
    EuStack,
    Crates,
    /// Which one.
    Debugger(usize),
}

/// What the columns are measured with.
struct Tools {
    perfs: Vec<(&'static str, Perf)>,
    samply: Option<PathBuf>,
    bpftrace: Option<PathBuf>,
    debuggers: Vec<(String, Debugger)>,
}

impl Tools {
    /// The perf that records for the other readers.
    fn recorder(&self) -> &Perf {
        let own = mirror::own_suite();
        let is_own = |(suite, _): &&(&str, Perf)| own.as_deref() == Some(suite);
        &self.perfs.iter().find(is_own).unwrap_or(&self.perfs[0]).1
    }
}

/// One of the tools that there is because there is a column for it.
fn present(tool: &Option<PathBuf>) -> &Path {
    tool.as_deref().expect("a column has its tool")
}

/// What one cell is about.
pub struct Task<'a> {
    pub scenario: &'a str,
    pub seconds: f64,
    /// For its files.
    pub dir: &'a Path,
    /// The program is to live until it has been looked at.
    pub living: bool,
    /// Functions of the scenario `many`.
    pub count: usize,
}

impl Task<'_> {
    /// The run of its scenario, of a program that waits for nobody.
    pub fn run(&self, written: Written) -> Scenario<'_> {
        Scenario {
            name: self.scenario,
            written,
            count: self.count,
            seconds: self.seconds,
            truth: self.dir.join("truth"),
            wait: false,
            // Files of a namespace can be read as long as its processes live.
            hold: self.living || self.scenario == "namespace",
            step: false,
        }
    }
}

/// What a reader came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub shares: Vec<(What, Share)>,
    /// What each share has to reach, in percent.
    pub wanted: f64,
    /// Where in its code a stack was wrong.
    pub wrong_offsets: BTreeSet<u64>,
    /// Examples of what is wrong.
    pub wrong: Vec<String>,
}

impl Outcome {
    /// Names, and stacks where there are any that can be whole.
    pub fn of(score: Score) -> Self {
        let mut shares = vec![(What::Names, score.names), (What::Stacks, score.stacks)];
        shares.retain(|(what, share)| *what != What::Stacks || share.counted > 0);
        Outcome { shares, wanted: WANTED_SAMPLED, wrong_offsets: score.wrong_offsets, wrong: score.wrong }
    }

    /// What is less than it has to be.
    pub fn missed(&self) -> impl Iterator<Item = (What, &Share)> {
        let wanted = |what| if what == What::Sampled { WANTED_SAMPLED } else { self.wanted };
        let missed = self.shares.iter().filter(move |(what, share)| share.percent() < wanted(*what));
        missed.map(|(what, share)| (*what, share))
    }

    /// Names and stacks of samples that were taken by chance.
    fn sampled(&self) -> Share {
        let mut all = Share::default();
        for (_, share) in self.shares.iter().filter(|(what, _)| [What::Names, What::Stacks].contains(what)) {
            all.counted += share.counted;
            all.right += share.right;
        }
        all
    }
}

/// What was measured in a cell.
#[derive(Clone, Debug)]
pub enum Measured {
    Shares(Outcome),
    Unavailable(String),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Names,
    Stacks,
    Report,
    Annotate,
    /// Source lines of samples.
    Lines,
    /// Objects that `perf inject` has made.
    Objects,
    /// Names and stacks in a recording of a plain `perf record`.
    Sampled,
}

/// How a cell is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Right,
    Wrong,
    /// It could not be won, and was not.
    Lost,
    /// It is listed as one that cannot be won, and was won.
    Won,
    Unavailable,
}

pub struct Cell {
    pub column: usize,
    pub scenario: String,
    pub measured: Measured,
    pub verdict: Verdict,
}

/// Runs the matrix and prints it. Whether all is as it should be.
pub fn run(plan: &Plan) -> Result<bool> {
    if plan.write && plan.quick {
        bail!("--write is for whole tables, or rows of them");
    }
    let program = Program::build()?;
    let scenarios = chosen(plan, &program.scenarios()?)?;
    let tools = tools(plan)?;
    let mut columns = columns(plan, &tools)?;
    columns.retain(|column| is_wanted(plan, &column.id));
    if columns.is_empty() {
        bail!("no reader is called like that");
    }
    let scratch = program::scratch()?;
    let mut cells = Vec::new();
    for scenario in &scenarios {
        let mut recordings =
            Recordings { program: &program, perf: tools.recorder(), scenario, dir: &scratch, made: HashMap::new() };
        for (index, column) in columns.iter().enumerate() {
            let about = match column.run {
                Runner::Perf(_) => column.mode.is_about(scenario),
                Runner::EuStack => eu_stack::is_about(scenario),
                Runner::Debugger(_) => debuggers::is_about(scenario),
                _ => column.mode.written.is_about(scenario),
            };
            if !about || plan.quick && !is_quick(&column.id, scenario) {
                continue;
            }
            let dir = scratch.join(format!("{scenario}-{}", column.id.replace('/', "-")));
            let lost = lost::find(&column.id, scenario);
            let mut seconds = SECONDS;
            let cell = loop {
                let begin = Instant::now();
                std::fs::create_dir_all(&dir)?;
                let measured = measure(&program, &tools, &mut recordings, column, seconds, &dir);
                if !column.is_stepped()
                    && counted(&measured).is_some_and(|counted| counted < ENOUGH)
                    && seconds < MOST_SECONDS
                {
                    seconds *= 4.0;
                    std::fs::remove_dir_all(&dir)?;
                    continue;
                }
                let verdict = judge(&measured, &lost);
                let cell = Cell { column: index, scenario: scenario.clone(), measured, verdict };
                eprintln!("{}", table::line(&cell, column, begin.elapsed()));
                if plan.verbose || verdict == Verdict::Wrong {
                    table::details(&cell);
                }
                if !plan.keep {
                    std::fs::remove_dir_all(&dir)?;
                }
                break cell;
            };
            cells.push(cell);
        }
    }
    if !plan.keep {
        std::fs::remove_dir_all(&scratch)?;
    }
    let sections = table::sections(&columns, &scenarios, &cells);
    for (_, text) in &sections {
        println!("{text}");
    }
    if plan.write {
        document::write(&sections, !(plan.scenarios.is_empty() && plan.readers.is_empty()))?;
    }
    let not_right = |cell: &&Cell| matches!(cell.verdict, Verdict::Wrong | Verdict::Won);
    for cell in cells.iter().filter(not_right) {
        let what = if cell.verdict == Verdict::Won { "is listed as lost, but was right" } else { "is wrong" };
        println!("{} in {} {what}: {}", columns[cell.column].id, cell.scenario, table::shown(&cell.measured));
    }
    Ok(!cells.iter().any(|cell| cell.verdict == Verdict::Wrong))
}

/// Prepares what is wanted.
fn tools(plan: &Plan) -> Result<Tools> {
    let own = mirror::own_suite();
    // The others read what a perf has recorded: the machine's own, or the oldest.
    let others = ["samply/", "blazesym/", "crates/"].iter().any(|id| is_wanted(plan, id));
    let recorder = own.as_deref().filter(|own| SUITES.contains(own)).unwrap_or(SUITES[0]);
    let mut perfs = Vec::new();
    for suite in SUITES {
        let wanted = perf::MODES.iter().any(|mode| is_wanted(plan, &format!("perf-{suite}/{}", mode.name)));
        if !(wanted || others && suite == recorder) {
            continue;
        }
        perfs.push((suite, Perf::of_suite(&plan.cache, suite)?));
    }
    let samply = is_wanted(plan, "samply/").then(|| plan.cache.samply()).transpose()?;
    // The one of the newest suite wants tracepoints of the kernel that not every kernel has.
    let bpftrace =
        is_wanted(plan, "bpftrace/").then(|| plan.cache.commands("bookworm", &suites::BPFTRACE)).transpose()?;
    let mut debuggers = Vec::new();
    for (which, suite) in [Which::Gdb, Which::Lldb].into_iter().flat_map(|which| SUITES.map(|suite| (which, suite))) {
        let name = format!("{}-{suite}", which.name());
        if is_wanted(plan, &format!("{name}/")) {
            debuggers.push((name, Debugger::of_suite(&plan.cache, suite, which)?));
        }
    }
    Ok(Tools { perfs, samply, bpftrace: bpftrace.map(|bin| bin.join("bpftrace")), debuggers })
}

fn columns(plan: &Plan, tools: &Tools) -> Result<Vec<Column>> {
    let mut columns = Vec::new();
    let mut add = |name: &str, reader: String, modes: &'static [Mode], run: Runner| {
        let column =
            |mode: &'static Mode| Column { id: format!("{name}/{}", mode.name), reader: reader.clone(), mode, run };
        columns.extend(modes.iter().map(column));
    };
    for (index, (suite, perf)) in tools.perfs.iter().enumerate() {
        let reader = format!("perf {} ({suite})", perf.version);
        add(&format!("perf-{suite}"), reader, perf::MODES, Runner::Perf(index));
    }
    let version = |tool: &Path| -> Result<String> {
        Ok(run::stdout(run::command(tool).arg("--version"))?.trim().replace(" v", " "))
    };
    if let Some(samply) = &tools.samply {
        add("samply", version(samply)?, samply::MODES, Runner::Samply);
    }
    if is_wanted(plan, "blazesym/") {
        add("blazesym", format!("blazesym {}", locked("blazesym")?), blaze::MODES, Runner::Blazesym);
    }
    if let Some(bpftrace) = &tools.bpftrace {
        add("bpftrace", version(bpftrace)?, bpf::MODES, Runner::Bpftrace);
    }
    if is_wanted(plan, "eu-stack/") {
        add("eu-stack", eu_stack::version()?, eu_stack::MODES, Runner::EuStack);
    }
    if is_wanted(plan, "crates/") {
        let reader = format!("linux-perf-data {}, object {}", locked("linux-perf-data")?, locked("object")?);
        add("crates", reader, crates::MODES, Runner::Crates);
    }
    for (index, (name, debugger)) in tools.debuggers.iter().enumerate() {
        let (which, suite) = name.split_once('-').unwrap_or((name, ""));
        add(name, format!("{which} {} ({suite})", debugger.version), debuggers::MODES, Runner::Debugger(index));
    }
    Ok(columns)
}

/// The newest version of a crate in the lock file.
fn locked(name: &str) -> Result<String> {
    let lock = std::fs::read_to_string(program::root().join("Cargo.lock"))?;
    let of_crate = format!("name = \"{name}\"");
    let mut versions = Vec::new();
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        if line == of_crate {
            versions.extend(lines.next().and_then(|line| line.split('"').nth(1)));
        }
    }
    versions.pop().map(str::to_string).with_context(|| format!("Cargo.lock has no {name}"))
}

/// Whether a column with that id, or one that begins so, is asked for.
fn is_wanted(plan: &Plan, id: &str) -> bool {
    if plan.quick && !QUICK.iter().any(|reader| id.starts_with(reader)) {
        return false;
    }
    let named = |part: &String| id.contains(part.as_str()) || (id.ends_with('/') && part.starts_with(id));
    plan.readers.is_empty() || plan.readers.iter().any(named)
}

fn chosen(plan: &Plan, all: &[String]) -> Result<Vec<String>> {
    for name in &plan.scenarios {
        if !all.contains(name) {
            bail!("no scenario {name:?}; there are {}", all.join(", "));
        }
    }
    let chosen = |name: &&String| plan.scenarios.is_empty() || plan.scenarios.contains(name);
    Ok(all.iter().filter(chosen).cloned().collect())
}

/// The cells of the reduced run: each thing that can go wrong, once.
fn is_quick(id: &str, scenario: &str) -> bool {
    let mode = id.rsplit('/').next().unwrap_or_default();
    match scenario {
        "moves" if mode == "stops" => true,
        "gaps" | "row-tables" | "fixed-frame" | "callbacks" | "moves" => mode == "dwarf",
        "packed-down" => ["dwarf", "map", "region"].contains(&mode),
        "reuse" => mode == "dwarf" || mode == "map",
        "region-adopted" => mode == "region",
        "frame-pointers" => mode == "fp",
        "attach-late" => mode == "attach",
        _ => false,
    }
}

/// What was recorded of a scenario, once for all columns that read the same.
struct Recordings<'a> {
    program: &'a Program,
    /// The machine's own, which reports what the kernel says.
    perf: &'a Perf,
    scenario: &'a str,
    dir: &'a Path,
    made: HashMap<(Graph, Written, bool, bool), Result<Recording, String>>,
}

impl Recordings<'_> {
    /// `living`: its program is still there. `sampled`: by a plain `perf record`.
    fn of(&mut self, mode: &Mode, living: bool, sampled: bool) -> Result<&Recording> {
        let Recordings { program, perf, scenario, dir, made } = self;
        let recording = made.entry((mode.graph, mode.written, living, sampled)).or_insert_with(|| {
            let dir = dir.join(format!("{scenario}-{:?}-{:?}-{living}-{sampled}", mode.graph, mode.written));
            let task = Task { scenario, seconds: SAMPLED_SECONDS, dir: &dir, living, count: MANY };
            let made = std::fs::create_dir_all(&dir).map_err(anyhow::Error::from).and_then(|()| match sampled {
                true => perf.record(program, &task, mode),
                false => stepped::record_scenario(perf, program, &task, mode),
            });
            made.map_err(|error| format!("{error:#}"))
        });
        recording.as_ref().map_err(|error| anyhow!("{error}"))
    }
}

impl Column {
    /// Whether what it reads was made by stepping. All others have to see a living process.
    fn is_stepped(&self) -> bool {
        match self.run {
            Runner::Perf(_) => !self.mode.attach,
            Runner::Samply | Runner::Blazesym | Runner::Crates => true,
            Runner::Bpftrace | Runner::EuStack | Runner::Debugger(_) => false,
        }
    }
}

fn measure(
    program: &Program,
    tools: &Tools,
    recordings: &mut Recordings,
    column: &Column,
    seconds: f64,
    dir: &Path,
) -> Measured {
    let task = Task { scenario: recordings.scenario, seconds, dir, living: false, count: MANY };
    let mode = column.mode;
    let mut read = |sampled| {
        let living = matches!(column.run, Runner::Blazesym);
        let recording = recordings.of(mode, living, sampled)?;
        match column.run {
            Runner::Perf(index) => tools.perfs[index].1.measure(recording, dir, mode),
            Runner::Samply => samply::measure(present(&tools.samply), recording, dir),
            Runner::Blazesym => blaze::measure(recording),
            _ => crates::measure(tools.recorder(), recording, dir),
        }
    };
    let outcome = match column.run {
        _ if column.is_stepped() => read(false).and_then(|mut outcome| {
            outcome.wanted = WANTED;
            if SAMPLED.contains(&task.scenario) {
                let sampled = read(true)?;
                outcome.shares.push((What::Sampled, sampled.sampled()));
                outcome.wrong.extend(sampled.wrong);
            }
            Ok(outcome)
        }),
        Runner::Perf(index) => {
            let perf = &tools.perfs[index].1;
            perf.record(program, &task, mode).and_then(|recording| perf.measure(&recording, dir, mode))
        }
        Runner::Bpftrace => bpf::measure(present(&tools.bpftrace), program, &task, mode),
        Runner::EuStack => eu_stack::measure(program, &task, mode),
        Runner::Debugger(index) => tools.debuggers[index].1.measure(program, &task, mode),
        Runner::Samply | Runner::Blazesym | Runner::Crates => unreachable!("they read what was stepped"),
    };
    match outcome {
        Ok(outcome) => Measured::Shares(outcome),
        Err(error) => {
            let error = format!("{error:#}");
            match NOT_AVAILABLE.iter().find_map(|text| error.lines().find(|line| line.contains(text))) {
                Some(line) => Measured::Unavailable(line.trim().to_string()),
                None => Measured::Failed(error),
            }
        }
    }
}

/// How many samples a cell has, if it was measured.
fn counted(measured: &Measured) -> Option<usize> {
    let Measured::Shares(Outcome { shares, .. }) = measured else { return None };
    Some(shares.iter().find(|(what, _)| *what == What::Names).map_or(0, |(_, share)| share.counted))
}

/// What a cell came to. Too few samples are an error, and no success.
fn judge(measured: &Measured, lost: &[&Lost]) -> Verdict {
    let outcome = match measured {
        Measured::Unavailable(_) => return Verdict::Unavailable,
        Measured::Failed(_) => return Verdict::Wrong,
        Measured::Shares(outcome) => outcome,
    };
    let enough = if outcome.wanted < WANTED { ENOUGH } else { ENOUGH_STEPPED };
    let mut missed = outcome.missed().map(|(what, _)| what).peekable();
    let all_right = missed.peek().is_none();
    let may_be_wrong = |what| lost.iter().any(|lost| lost.covers(what, &outcome.wrong_offsets));
    match lost {
        _ if counted(measured).is_some_and(|counted| counted < enough) => Verdict::Wrong,
        _ if all_right && lost.iter().all(|lost| lost.is_everywhere()) => Verdict::Right,
        _ if all_right => Verdict::Won,
        _ if missed.all(may_be_wrong) => Verdict::Lost,
        _ => Verdict::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(names: (usize, usize), stacks: (usize, usize)) -> Measured {
        let share = |(right, counted)| Share { counted, right };
        let shares = vec![(What::Names, share(names)), (What::Stacks, share(stacks))];
        let (wanted, wrong_offsets) = (WANTED_SAMPLED, BTreeSet::new());
        Measured::Shares(Outcome { shares, wanted, wrong_offsets, wrong: Vec::new() })
    }

    #[test]
    fn every_share_has_to_reach_what_is_wanted() {
        assert_eq!(judge(&measured((990, 1000), (990, 1000)), &[]), Verdict::Right);
        assert_eq!(judge(&measured((989, 1000), (1000, 1000)), &[]), Verdict::Wrong);
        assert_eq!(judge(&measured((1000, 1000), (989, 1000)), &[]), Verdict::Wrong);
        assert_eq!(judge(&Measured::Failed("why".into()), &[]), Verdict::Wrong);
        assert_eq!(judge(&Measured::Unavailable("why".into()), &[]), Verdict::Unavailable);
    }

    #[test]
    fn of_what_was_stepped_all_has_to_be_right() {
        let of = |stacks, wrong_offsets: &[u64], lost: &[&Lost]| {
            let Measured::Shares(outcome) = measured((1000, 1000), stacks) else { unreachable!() };
            let wrong_offsets = wrong_offsets.iter().copied().collect();
            judge(&Measured::Shares(Outcome { wanted: WANTED, wrong_offsets, ..outcome }), lost)
        };
        assert_eq!((of((1000, 1000), &[], &[]), of((999, 1000), &[0], &[])), (Verdict::Right, Verdict::Wrong));
        let at_entry = Lost { what: &[What::Stacks], at: Some(&[0]), ..lost::LOST[0] };
        assert_eq!(of((990, 1000), &[0], &[&at_entry]), Verdict::Lost);
        assert_eq!(of((990, 1000), &[0, 4], &[&at_entry]), Verdict::Wrong, "elsewhere too");
        let everywhere = Lost { scenarios: &["*"], ..at_entry };
        assert_eq!(of((1000, 1000), &[], &[&everywhere]), Verdict::Right);
        assert_eq!(of((1000, 1000), &[], &[&at_entry]), Verdict::Won);
    }

    #[test]
    fn too_few_samples_are_no_success() {
        assert_eq!(judge(&measured((199, 199), (199, 199)), &[]), Verdict::Wrong);
        assert_eq!(judge(&measured((0, 0), (0, 0)), &[&lost::LOST[0]]), Verdict::Wrong, "not even of a lost cell");
    }

    #[test]
    fn lost_cells_may_be_wrong_and_are_noticed_when_they_are_right() {
        let lost = &lost::LOST[0..1].iter().collect::<Vec<_>>();
        assert_eq!(judge(&measured((10, 1000), (10, 1000)), lost), Verdict::Lost);
        assert_eq!(judge(&measured((1000, 1000), (1000, 1000)), lost), Verdict::Won);
    }

    #[test]
    fn only_what_is_lost_may_be_wrong() {
        let of_stacks = Lost { what: &[What::Stacks], ..lost::LOST[0] };
        assert_eq!(judge(&measured((1000, 1000), (10, 1000)), &[&of_stacks]), Verdict::Lost);
        assert_eq!(judge(&measured((10, 1000), (10, 1000)), &[&of_stacks]), Verdict::Wrong);
        assert_eq!(judge(&Measured::Failed("why".into()), &[&of_stacks]), Verdict::Wrong);
    }

    #[test]
    fn readers_are_chosen_by_parts_of_their_names() {
        let plan = |readers: &[&str], quick| Plan {
            cache: Cache { dir: PathBuf::new(), mirror: None },
            readers: readers.iter().map(|name| name.to_string()).collect(),
            scenarios: Vec::new(),
            quick,
            write: false,
            verbose: false,
            keep: false,
        };
        assert!(is_wanted(&plan(&[], false), "samply/map"));
        assert!(is_wanted(&plan(&["samply/map"], false), "samply/"), "its tool is needed");
        assert!(
            is_wanted(&plan(&["sid"], false), "perf-sid/fp") && !is_wanted(&plan(&["sid"], false), "perf-trixie/fp")
        );
        assert!(is_wanted(&plan(&[], true), "perf-bookworm/fp") && !is_wanted(&plan(&[], true), "samply/map"));
        assert!(is_quick("perf-bookworm/map", "reuse") && !is_quick("perf-bookworm/fp", "reuse"));
    }
}
