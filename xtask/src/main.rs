//! Commands for those who work on libjitsym.
//!
//!     cargo xtask matrix [--readers A,B] [--scenarios A,B] [--quick] [--write] [--verbose] [--keep] [--cache DIR] [--mirror URI]
//!     cargo xtask inject [--counts A,B] [--suites A,B] [--rounds N] [--cache DIR] [--mirror URI]
//!     cargo xtask regions [--seed N] [--workload A,B] [--perf A,B] [--calls N] [--jitdump] [--inject] [--quick] [--cache DIR] [--mirror URI]
//!     cargo xtask test [fast|gate|all] [--jobs N] [PART...]
//!     cargo xtask tools [--cache DIR] [--mirror URI]
//!     cargo xtask tool NAME [--cache DIR] [--mirror URI]
//!     cargo xtask source DIR

mod annotate;
mod attach;
mod blaze;
mod bpf;
mod crates;
mod debuggers;
mod document;
mod eu_stack;
mod inject;
mod lost;
mod matrix;
mod mirror;
mod perf;
mod program;
mod raw;
mod regions;
mod release;
mod report;
mod run;
mod samply;
mod score;
mod script;
mod stepped;
mod suites;
mod table;
mod tests;
mod truth;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};

use matrix::Plan;
use suites::Cache;

const USAGE: &str = "\
cargo xtask matrix   Runs readers over the ground truth and prints the share of what they show right.
    --readers A,B    only readers with one of these in their names (perf-bookworm/dwarf, perf-sid, ...)
    --scenarios A,B  only these scenarios
    --quick          a choice of both, in less than three minutes
    --write          puts what was measured into the tables of docs/compatibility.md
    --verbose        shows examples of what is wrong, also in cells that are right
    --keep           leaves the recordings where they are
cargo xtask inject   Measures how long it takes from a recording to a report: with `perf inject --jit` and `jitsym inject` on
                     the same recording, and with regions.
    --counts A,B     of functions (1000,10000,100000)
    --suites A,B     the Debian suites whose perf does it (bookworm,sid)
    --rounds N       of all, one after the other (3)
cargo xtask regions  Runs random code in regions, steps through some of it, and prints how many names and whole stacks are wrong.
    --seed N         as a failure names it; otherwise a fresh one
    --workload A,B   only workloads with one of these in their names
    --perf A,B       only these (6.1,6.12,7.2)
    --calls N        that each thread of a workload makes, of which one in fifty is stepped (4000)
    --jitdump        a jitdump and `perf inject --jit` in place of regions
    --inject         `jitsym inject` after the recording
    --quick          a choice of workloads and perfs, in half a minute
cargo xtask test     Runs the tests; of SUITE::TEST only those whose names have one of the PARTs in them.
    fast|gate|all    how many (gate)
    --jobs N         how many at a time (three for each processor)
cargo xtask tools    Prepares the tools of newer Debian suites and prints their versions.
cargo xtask tool N   Prepares one that the tests of the library use and prints where it is: python3.13, luajit, perf,
                     cargo-cinstall, cargo-deny, zig; qemu-aarch64, qemu-arm, qemu-i386, qemu-ppc64le, qemu-riscv64,
                     qemu-s390x (with a rustc beside them);
                     trixie/perf, trixie/gdb, sid/gdb, trixie/lldb, sid/lldb; bpftrace;
                     samply, profile-bee, lightswitch (built from their sources; the last two take 10 minutes each);
                     unwinders (libraries, where they are unpacked);
                     moarvm-source, lua-source, luajit-source, cpython-source, newer-cpython-source (directories that
                     have them);
                     clean, older-clean (root directories of Debian 13 and 12).
cargo xtask source D For scripts/release.sh: completes a copy of the sources, so that it builds without cargo and without a network.
All:
    --cache DIR      where the tools are kept (${XDG_CACHE_HOME:-~/.cache}/jitsym-matrix)
    --mirror URI     the Debian archive to fetch them from (the one that apt uses)";

fn main() -> ExitCode {
    match command(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn command(mut arguments: impl Iterator<Item = String>) -> Result<bool> {
    let command = arguments.next().unwrap_or_default();
    let tool = if command == "tool" { Some(arguments.next().context("which tool?")?) } else { None };
    if command == "source" {
        let tree = arguments.next().context("which directory?")?;
        return release::source(tree.as_ref()).map(|()| true);
    }
    let cache = Cache { dir: default_cache()?, mirror: None };
    let mut plan = Plan {
        cache,
        readers: Vec::new(),
        scenarios: Vec::new(),
        quick: false,
        write: false,
        verbose: false,
        keep: false,
    };
    let (mut counts, mut suites, mut rounds) = (vec![1_000, 10_000, 100_000], vec!["bookworm".into(), "sid".into()], 3);
    let mut random = regions::Plan {
        cache: Cache { dir: PathBuf::new(), mirror: None },
        seed: None,
        workloads: Vec::new(),
        perfs: Vec::new(),
        calls: 4000,
        jitdump: false,
        inject: false,
        quick: false,
    };
    let mut all = tests::Plan { tier: tests::Tier::Gate, filters: Vec::new(), jobs: tests::usual_jobs() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        let list = |text: String| text.split(',').map(str::to_string).collect::<Vec<_>>();
        match argument.as_str() {
            "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            "--cache" => plan.cache.dir = std::path::absolute(value()?)?,
            "--mirror" => plan.cache.mirror = Some(value()?),
            "--readers" if command == "matrix" => plan.readers = list(value()?),
            "--scenarios" if command == "matrix" => plan.scenarios = list(value()?),
            "--quick" if command == "matrix" => plan.quick = true,
            "--write" if command == "matrix" => plan.write = true,
            "--verbose" if command == "matrix" => plan.verbose = true,
            "--keep" if command == "matrix" => plan.keep = true,
            "--counts" if command == "inject" => {
                counts = list(value()?).iter().map(|text| text.parse()).collect::<Result<_, _>>().context(USAGE)?;
            }
            "--suites" if command == "inject" => suites = list(value()?),
            "--rounds" if command == "inject" => rounds = value()?.parse().context(USAGE)?,
            "--seed" if command == "regions" => random.seed = Some(value()?.parse().context(USAGE)?),
            "--workload" if command == "regions" => random.workloads = list(value()?),
            "--perf" if command == "regions" => random.perfs = list(value()?),
            "--calls" if command == "regions" => random.calls = value()?.parse().context(USAGE)?,
            "--inject" if command == "regions" => random.inject = true,
            "--jitdump" if command == "regions" => random.jitdump = true,
            "--quick" if command == "regions" => random.quick = true,
            "--jobs" if command == "test" => all.jobs = value()?.parse().context(USAGE)?,
            part if command == "test" && !part.starts_with('-') => match tests::Tier::parse(part) {
                Some(tier) => all.tier = tier,
                None => all.filters.push(part.into()),
            },
            _ => bail!("unknown argument {argument:?}\n{USAGE}"),
        }
    }
    match command.as_str() {
        "matrix" => matrix::run(&plan),
        "inject" => inject::run(&inject::Plan { cache: plan.cache, counts, suites, rounds }).map(|()| true),
        "regions" => regions::run(&regions::Plan { cache: plan.cache, ..random }),
        "test" => tests::run(&all),
        "tool" => suites::print_one(&plan.cache, &tool.unwrap_or_default()).map(|()| true),
        "tools" => suites::print_all(&plan.cache).map(|()| true),
        _ => bail!("no command\n{USAGE}"),
    }
}

fn default_cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set; use --cache")?).join(".cache"),
    };
    Ok(base.join("jitsym-matrix"))
}
