//! `cargo xtask test`: builds everything once, runs each test in a process and a `/tmp` of its own, and says which took longest.

mod binaries;
mod jobs;
mod private;
mod report;
mod running;
mod tiers;

use std::path::PathBuf;

use anyhow::{bail, Result};

use crate::program::root;
use jobs::Job;
pub use tiers::Tier;
use tiers::Tiers;

/// What is to be run, from the command line.
pub struct Plan {
    pub tier: Tier,
    /// Parts of `SUITE::TEST`; empty: all.
    pub filters: Vec<String>,
    /// How many tests run at a time.
    pub jobs: usize,
}

/// Tests that are begun first. They build what others wait for, or take longest: the end of a run waits for the last test.
const FIRST: &str = include_str!("first.txt");

/// Runs the tests. Whether all have passed.
pub fn run(plan: &Plan) -> Result<bool> {
    let built = binaries::build(plan.tier)?;
    let mut jobs = built.jobs()?;
    let tiers = Tiers::parse(&std::fs::read_to_string(root().join("tests/tiers.txt"))?)?;
    if plan.tier != Tier::Fast {
        tiers.check(&jobs.iter().map(|job| job.name.clone()).collect::<Vec<_>>())?;
    }
    jobs.retain(|job| is_wanted(plan, tiers.of(&job.name), &job.name));
    if jobs.is_empty() {
        bail!("no test is called like that");
    }
    let place = |job: &Job| FIRST.lines().position(|line| line == job.name).unwrap_or(usize::MAX);
    jobs.sort_by_cached_key(|job| (place(job), job.name.clone()));
    let scratch = root().join("target/tests");
    let ended = jobs::run(jobs, plan.jobs, &built, &scratch)?;
    report::write(&ended, &scratch.join("times.tsv"))?;
    Ok(report::print(&ended))
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
    std::thread::available_parallelism().map_or(2, usize::from) * 2
}

/// The programs that the tests are, and those that they use.
struct Built {
    binaries: Vec<binaries::Binary>,
    tool: PathBuf,
    tier: Tier,
    /// A name that no other run has.
    run: String,
}
