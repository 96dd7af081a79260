//! The matrix: every reader in every scenario, what each cell came to, and whether that is as it should be.

use std::path::Path;
use std::time::Instant;

use anyhow::{bail, Result};

use crate::lost::{self, Lost};
use crate::perf::{self, Perf};
use crate::program::{self, Program};
use crate::score::{Score, Share};
use crate::suites::{self, Cache};
use crate::{mirror, table};

/// What a cell has to reach, in percent.
pub const WANTED: f64 = 99.0;
/// Fewer samples than this tell nothing.
const ENOUGH: usize = 200;

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
    pub mode: String,
    run: Runner,
}

enum Runner {
    Perf(usize, &'static perf::Mode),
}

/// What one cell is about.
pub struct Task<'a> {
    pub scenario: &'a str,
    pub seconds: f64,
    /// For its files.
    pub dir: &'a Path,
    /// The program is to live until it has been looked at.
    pub living: bool,
}

/// What a reader came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub shares: Vec<(What, Share)>,
    /// Examples of what is wrong.
    pub wrong: Vec<String>,
}

impl Outcome {
    /// Names, and stacks where there are any that can be whole.
    pub fn of(score: Score) -> Self {
        let mut shares = vec![(What::Names, score.names), (What::Stacks, score.stacks)];
        shares.retain(|(what, share)| *what != What::Stacks || share.counted > 0);
        Outcome { shares, wrong: score.wrong }
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
    Lines,
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
    pub lost: Option<&'static Lost>,
    pub verdict: Verdict,
}

/// Runs the matrix and prints it. Whether all is as it should be.
pub fn run(plan: &Plan) -> Result<bool> {
    let program = Program::build()?;
    let perfs = perfs(plan)?;
    let columns: Vec<Column> = columns(&perfs).into_iter().filter(|column| is_wanted(plan, column)).collect();
    let scenarios = chosen(plan, &program.scenarios()?)?;
    if columns.is_empty() {
        bail!("no reader is called like that");
    }
    let scratch = program::scratch()?;
    let mut cells = Vec::new();
    for scenario in &scenarios {
        for (index, column) in columns.iter().enumerate() {
            if plan.quick && !is_quick(&column.id, scenario) {
                continue;
            }
            let begin = Instant::now();
            let dir = scratch.join(format!("{scenario}-{}", column.id.replace('/', "-")));
            std::fs::create_dir_all(&dir)?;
            let measured = measure(&program, &perfs, column, scenario, plan, &dir);
            if !plan.keep {
                std::fs::remove_dir_all(&dir)?;
            }
            let lost = lost::find(&column.id, scenario);
            let verdict = judge(&measured, lost);
            let cell = Cell { column: index, scenario: scenario.clone(), measured, lost, verdict };
            eprintln!("{}", table::line(&cell, column, begin.elapsed()));
            if plan.verbose || verdict == Verdict::Wrong {
                table::details(&cell);
            }
            cells.push(cell);
        }
    }
    if !plan.keep {
        std::fs::remove_dir_all(&scratch)?;
    }
    let text = table::markdown(&columns, &scenarios, &cells);
    println!("{text}");
    if plan.write {
        table::write(&text)?;
    }
    let not_right = |cell: &&Cell| matches!(cell.verdict, Verdict::Wrong | Verdict::Won);
    for cell in cells.iter().filter(not_right) {
        let what = if cell.verdict == Verdict::Won { "is listed as lost, but was right" } else { "is wrong" };
        println!("{} in {} {what}: {}", columns[cell.column].id, cell.scenario, table::shown(&cell.measured));
    }
    Ok(!cells.iter().any(|cell| cell.verdict == Verdict::Wrong))
}

/// The perfs of the suites: the machine's own, if it is of that suite.
fn perfs(plan: &Plan) -> Result<Vec<(&'static str, Perf)>> {
    let own = mirror::own_suite();
    let mut perfs = Vec::new();
    for suite in ["bookworm", "trixie", "sid"] {
        let wanted = perf::MODES.iter().any(|mode| is_named(plan, &format!("perf-{suite}/{}", mode.name)));
        if !wanted || (plan.quick && suite == "trixie") {
            continue;
        }
        let perf = if own.as_deref() == Some(suite) {
            Perf::new("perf".into(), "objdump".into())?
        } else {
            let bin = plan.cache.commands(suite, &suites::PERF)?;
            Perf::new(bin.join("perf"), bin.join("objdump"))?
        };
        perfs.push((suite, perf));
    }
    Ok(perfs)
}

fn columns(perfs: &[(&'static str, Perf)]) -> Vec<Column> {
    let mut columns = Vec::new();
    for (index, (suite, perf)) in perfs.iter().enumerate() {
        for mode in perf::MODES {
            columns.push(Column {
                id: format!("perf-{suite}/{}", mode.name),
                reader: format!("perf {} ({suite})", perf.version),
                mode: mode.name.into(),
                run: Runner::Perf(index, mode),
            });
        }
    }
    columns
}

fn is_named(plan: &Plan, id: &str) -> bool {
    plan.readers.is_empty() || plan.readers.iter().any(|part| id.contains(part.as_str()))
}

fn is_wanted(plan: &Plan, column: &Column) -> bool {
    is_named(plan, &column.id)
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

/// The cells of the reduced run: each thing that can go wrong, once for each perf.
fn is_quick(id: &str, scenario: &str) -> bool {
    let mode = id.rsplit('/').next().unwrap_or_default();
    match scenario {
        "declared-gap" | "row-tables" | "fixed-frame" | "callbacks" | "moves" | "threads" => mode == "dwarf",
        "packed-down" | "reuse" => mode == "dwarf" || mode == "map",
        "frame-pointers" => mode == "fp",
        "attach-late" => mode == "attach",
        _ => false,
    }
}

fn measure(
    program: &Program,
    perfs: &[(&'static str, Perf)],
    column: &Column,
    scenario: &str,
    plan: &Plan,
    dir: &Path,
) -> Measured {
    let task = Task { scenario, seconds: if plan.quick { 1.0 } else { 2.0 }, dir, living: false };
    let outcome = match column.run {
        Runner::Perf(index, mode) => perfs[index].1.measure(program, &task, mode),
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

/// What a cell came to. Too few samples are an error, and no success.
fn judge(measured: &Measured, lost: Option<&Lost>) -> Verdict {
    let right = match measured {
        Measured::Unavailable(_) => return Verdict::Unavailable,
        Measured::Failed(_) => false,
        Measured::Shares(Outcome { shares, .. }) => {
            let counted = shares.iter().find(|(what, _)| *what == What::Names).map_or(0, |(_, share)| share.counted);
            if counted < ENOUGH {
                return Verdict::Wrong;
            }
            shares.iter().all(|(_, share)| share.percent() >= WANTED)
        }
    };
    match (right, lost) {
        (true, None) => Verdict::Right,
        (true, Some(_)) => Verdict::Won,
        (false, None) => Verdict::Wrong,
        (false, Some(_)) => Verdict::Lost,
    }
}
