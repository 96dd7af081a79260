//! The time from a recording to a report: with `perf inject --jit` and `jitsym inject` on the same recording, and with regions.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{bail, Context, Result};

use crate::matrix::Task;
use crate::perf::{Graph, Mode, Perf, Recording};
use crate::program::{self, Program, Written};
use crate::run::{self, Used};
use crate::suites::Cache;

/// What is to be done, from the command line.
pub struct Plan {
    pub cache: Cache,
    /// Of functions.
    pub counts: Vec<usize>,
    pub suites: Vec<String>,
    pub rounds: usize,
}

const JITDUMP: Mode = Mode::new("jitdump", Graph::Dwarf, Written::Jitdump);
const REGION: Mode = Mode::new("region", Graph::Dwarf, Written::Region);

/// CPU time that the program burns: a report has the same number of samples for all counts.
const SECONDS: f64 = 1.0;

/// The ways from a recording to a report. The first two start from the same recording.
const WAYS: [&str; 3] = ["perf inject", "jitsym inject", "region"];

/// One recording, from its program's last word to a report in print.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// perf's own end, the step between recording and report, `perf report`.
    record: Duration,
    step: Used,
    report: Used,
    /// The files that a report needs beside the recording, and their blocks in bytes.
    files: usize,
    bytes: u64,
}

impl Cost {
    fn total(&self) -> Duration {
        self.record + self.step.time + self.report.time
    }
}

/// Measures all ways in turn and prints a table in Markdown.
pub fn run(plan: &Plan) -> Result<()> {
    let (program, tool) = (Program::build()?, program::build_tool()?);
    println!("| perf | functions | way | to a report | record ends | step | on a processor | its memory | report | on a processor | files | on disk |");
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for suite in &plan.suites {
        let perf = Perf::of_suite(&plan.cache, suite)?;
        for &count in &plan.counts {
            let mut costs: [Vec<Cost>; WAYS.len()] = Default::default();
            for round in 0..plan.rounds {
                let [of_perf, ours] = recorded(&perf, &program, JITDUMP, count, |dir, made| {
                    // The second one finds files in the caches of the kernel.
                    let (perf, ours) = (|| by_perf(&perf, dir, made), || by_ours(&perf, &tool, dir, made));
                    if round % 2 == 0 {
                        Ok([perf()?, ours()?])
                    } else {
                        let ours = ours()?;
                        Ok([perf()?, ours])
                    }
                })?;
                let [region] = recorded(&perf, &program, REGION, count, |dir, made| Ok([as_it_is(&perf, dir, made)?]))?;
                for ((way, cost), costs) in WAYS.iter().zip([of_perf, ours, region]).zip(&mut costs) {
                    eprintln!("{suite} {count} {way} {round}: {cost:?}");
                    costs.push(cost);
                }
            }
            for (way, costs) in WAYS.iter().zip(&costs) {
                println!("{}", row(&perf, count, way, costs));
            }
        }
    }
    Ok(())
}

/// Makes a recording and passes it to `ways`. Adds the time in which the recording ended.
fn recorded<const N: usize>(
    perf: &Perf,
    program: &Program,
    mode: Mode,
    count: usize,
    ways: impl FnOnce(&Path, &Recording) -> Result<[Cost; N]>,
) -> Result<[Cost; N]> {
    let dir = program::scratch()?;
    let task = Task { scenario: "many", seconds: SECONDS, dir: &dir, living: false, count };
    let measured = perf.record(program, &task, &mode).and_then(|made| {
        let recorded = SystemTime::now();
        // The program's last word.
        let ended = std::fs::metadata(dir.join("truth"))?.modified()?;
        let record = recorded.duration_since(ended).context("clock")?;
        Ok(ways(&dir, &made)?.map(|cost| Cost { record, ..cost }))
    });
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn by_perf(perf: &Perf, dir: &Path, made: &Recording) -> Result<Cost> {
    let data = dir.join("injected.data");
    let before = files_of(made)?;
    let mut inject = perf.command(dir, "inject");
    inject.arg("--jit").arg("-i").arg(&made.data).arg("-o").arg(&data);
    let step = run::used(&mut inject, Stdio::null())?;
    let objects = files_of(made)?.into_iter().filter(|path| !before.contains(path)).collect::<Vec<_>>();
    let (files, bytes) = weight(&[objects.as_slice(), std::slice::from_ref(&data)].concat())?;
    let report = report(perf, dir, &data)?;
    objects.iter().try_for_each(std::fs::remove_file)?;
    Ok(Cost { step, report, files, bytes, ..Cost::default() })
}

fn by_ours(perf: &Perf, tool: &Path, dir: &Path, made: &Recording) -> Result<Cost> {
    let (data, objects) = (dir.join("ours.data"), dir.join("objects"));
    let mut inject = run::command(tool);
    inject.arg("inject").arg("-i").arg(&made.data).arg("-o").arg(&data).arg("--objects").arg(&objects);
    let step = run::used(&mut inject, Stdio::null())?;
    let mut paths = vec![data.clone()];
    for entry in std::fs::read_dir(&objects)? {
        paths.push(entry?.path());
    }
    let (files, bytes) = weight(&paths)?;
    let report = report(perf, dir, &data)?;
    Ok(Cost { step, report, files, bytes, ..Cost::default() })
}

fn as_it_is(perf: &Perf, dir: &Path, made: &Recording) -> Result<Cost> {
    let (files, bytes) = weight(&files_of(made)?)?;
    Ok(Cost { report: report(perf, dir, &made.data)?, files, bytes, ..Cost::default() })
}

fn report(perf: &Perf, dir: &Path, data: &Path) -> Result<Used> {
    let printed = dir.join("report");
    let mut report = perf.command(dir, "report");
    let used = run::used(report.arg("-i").arg(data).args(["--stdio", "--no-children"]), File::create(&printed)?)?;
    let text = std::fs::read(&printed)?;
    let text = String::from_utf8_lossy(&text);
    if !text.contains("hot_") {
        bail!("the report has no name of the guest:\n{text}");
    }
    Ok(used)
}

/// The files in /tmp that the process of a recording has left, and that perf has made for it, without its map.
fn files_of(made: &Recording) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/tmp")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if program::process_of(&name) == Some(made.truth.pid) && !name.ends_with(".map") {
            files.push(entry.path());
        }
    }
    Ok(files)
}

fn weight(paths: &[PathBuf]) -> Result<(usize, u64)> {
    let mut bytes = 0;
    for path in paths {
        bytes += std::fs::metadata(path)?.blocks() * 512;
    }
    Ok((paths.len(), bytes))
}

fn row(perf: &Perf, count: usize, way: &str, costs: &[Cost]) -> String {
    let of = |value: fn(&Cost) -> u64| median(costs.iter().map(value).collect());
    let seconds = |value: fn(&Cost) -> u64| format!("{:.2} s", of(value) as f64 / 1e6);
    let (step, processor, peak) = match of(|cost| cost.step.peak) {
        0 => ("none".into(), String::new(), String::new()),
        peak => (
            seconds(|cost| cost.step.time.as_micros() as u64),
            seconds(|cost| cost.step.processor.as_micros() as u64),
            format!("{} MiB", peak / 1024),
        ),
    };
    format!(
        "| {} | {count} | {way} | {} | {} | {step} | {processor} | {peak} | {} | {} | {} | {:.1} MiB |",
        perf.version,
        seconds(|cost| cost.total().as_micros() as u64),
        seconds(|cost| cost.record.as_micros() as u64),
        seconds(|cost| cost.report.time.as_micros() as u64),
        seconds(|cost| cost.report.processor.as_micros() as u64),
        of(|cost| cost.files as u64),
        of(|cost| cost.bytes) as f64 / f64::from(1 << 20),
    )
}

fn median(mut list: Vec<u64>) -> u64 {
    list.sort_unstable();
    let middle = list.len() / 2;
    if list.len() % 2 == 1 {
        list[middle]
    } else {
        (list[middle - 1] + list[middle]) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!((median(vec![3, 1, 2]), median(vec![4, 1, 2, 3])), (2, 2));
    }
}
