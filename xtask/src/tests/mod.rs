//! `cargo xtask test`: builds everything once, runs each test in a process and a `/tmp` of its own, and says which took longest.

mod binaries;
mod jobs;
mod private;
mod promises;
mod report;
mod running;
mod tiers;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};

use anyhow::{bail, Result};

use crate::program::{self, root};
use jobs::Job;
pub use tiers::Tier;
use tiers::{fits, Tiers};

/// What is to be run, from the command line.
pub struct Plan {
    pub tier: Tier,
    /// Parts of `SUITE::TEST`; empty: all.
    pub filters: Vec<String>,
    /// How many tests run at a time.
    pub jobs: usize,
}

/// Tests that are begun first: those that need no C library, while that is built; then those that build what others wait for, or take
/// longest, because the end of a run waits for the last test.
const FIRST: &str = include_str!("first.txt");

/// Runs the tests. Whether all have passed.
pub fn run(plan: &Plan) -> Result<bool> {
    let scratch = root().join("target/tests");
    let _lock = jobs::alone(&scratch)?;
    let built = binaries::build(plan.tier)?;
    let mut jobs = built.jobs()?;
    let tiers = Tiers::parse(&std::fs::read_to_string(root().join("tests/tiers.txt"))?)?;
    if plan.tier != Tier::Fast && plan.filters.is_empty() {
        let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        tiers.check(&names)?;
        let sources = sources_in_c(&root().join("c-tests"))?;
        // A definition, or for some functions the part of their names that is known.
        let is_in_c = |name: &str| match name.split('*').max_by_key(|part| part.len()) {
            Some(part) if name.contains('*') => part.len() > 3 && sources.contains(part),
            _ => root().join(name).is_file() || sources.contains(&format!("void {name}(")),
        };
        promises::check(&std::fs::read_to_string(root().join("docs/guarantees.md"))?, &names, &tiers, is_in_c)?;
    }
    jobs.retain(|job| is_wanted(plan, tiers.of(&job.name), &job.name));
    if jobs.is_empty() {
        bail!("no test is called like that");
    }
    let place = |job: &Job| FIRST.lines().position(|line| fits(line, &job.name)).unwrap_or(usize::MAX);
    // In no order, because the tests of a suite often wait for each other.
    let hash = |job: &Job| BuildHasherDefault::<DefaultHasher>::default().hash_one(&job.name);
    jobs.sort_by_cached_key(|job| (place(job), hash(job)));
    // The linker uses one processor, so tests run beside it. Those that need the library have cargo wait for it, and say why if it
    // cannot be built.
    let ended = jobs::run(jobs, plan.jobs, &built, &scratch, || drop(program::build_library()))?;
    report::write(&ended, &scratch.join("times.tsv"))?;
    Ok(report::print(&ended))
}

/// The text of all C programs.
fn sources_in_c(dir: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            text += &sources_in_c(&path)?;
        } else {
            text += &String::from_utf8_lossy(&std::fs::read(&path)?);
        }
    }
    Ok(text)
}

/// Whoever names tests gets them whatever their tier.
fn is_wanted(plan: &Plan, tier: Tier, name: &str) -> bool {
    if plan.filters.is_empty() {
        tier <= plan.tier
    } else {
        plan.filters.iter().any(|part| name.contains(part.as_str()))
    }
}

/// How many tests run at a time if the command line does not say it: some wait for other programs, or for the disk.
pub fn usual_jobs() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) * 3
}

/// The programs that the tests are, and those that they use.
struct Built {
    binaries: Vec<binaries::Binary>,
    tool: PathBuf,
    tier: Tier,
    /// A name that no other run has.
    run: String,
}
