//! What it takes to come from a recording to a report: `perf inject --jit` and a jitdump, and regions, next to each other.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{bail, Context, Result};

use crate::matrix::Task;
use crate::perf::{Graph, Mode, Perf};
use crate::program::{self, Program, Written};
use crate::run;
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

/// CPU time that the program burns: what a report has to do for samples is the same for all counts.
const SECONDS: f64 = 1.0;

/// One recording, from its program's last word to a report in print.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// perf's own end, `perf inject`, `perf report`.
    record: Duration,
    inject: Duration,
    report: Duration,
    files: usize,
    /// Blocks that are in use.
    bytes: u64,
}

impl Cost {
    fn total(&self) -> Duration {
        self.record + self.inject + self.report
    }
}

/// Measures both in turn and prints a table in Markdown.
pub fn run(plan: &Plan) -> Result<()> {
    let program = Program::build()?;
    println!("| perf | functions | way | to a report | record ends | inject | report | files | on disk |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for suite in &plan.suites {
        let perf = Perf::of_suite(&plan.cache, suite)?;
        for &count in &plan.counts {
            let mut costs = [Vec::new(), Vec::new()];
            for round in 0..plan.rounds {
                for (mode, costs) in [JITDUMP, REGION].iter().zip(&mut costs) {
                    let cost = measure(&perf, &program, mode, count)?;
                    eprintln!("{suite} {count} {} {round}: {cost:?}", mode.name);
                    costs.push(cost);
                }
            }
            for (mode, costs) in [JITDUMP, REGION].iter().zip(&costs) {
                println!("{}", row(&perf, count, mode, costs));
            }
        }
    }
    Ok(())
}

fn measure(perf: &Perf, program: &Program, mode: &Mode, count: usize) -> Result<Cost> {
    let dir = program::scratch()?;
    let task = Task { scenario: "many", seconds: SECONDS, dir: &dir, living: false, count };
    let cost = measure_in(perf, program, mode, &task);
    std::fs::remove_dir_all(&dir)?;
    cost
}

fn measure_in(perf: &Perf, program: &Program, mode: &Mode, task: &Task) -> Result<Cost> {
    let recording = perf.record(program, task, mode)?;
    let recorded = SystemTime::now();
    let is_jitdump = mode.written == Written::Jitdump;
    let data = if is_jitdump { perf.inject(task.dir, &recording.data)? } else { recording.data.clone() };
    let injected = SystemTime::now();
    let text = run::stdout(perf.command(task.dir, "report").arg("-i").arg(&data).args(["--stdio", "--no-children"]))?;
    let reported = SystemTime::now();
    if !text.contains("hot_") {
        bail!("the report has no name of the guest:\n{text}");
    }
    // The program's last word.
    let ended = std::fs::metadata(task.dir.join("truth"))?.modified()?;
    let (mut files, mut bytes) = (0, 0);
    let mut count = |path: &Path| -> Result<()> {
        files += 1;
        bytes += std::fs::metadata(path)?.blocks() * 512;
        Ok(())
    };
    if is_jitdump {
        count(&data)?;
    }
    for entry in std::fs::read_dir("/tmp")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if program::process_of(&name) == Some(recording.truth.pid) && !name.ends_with(".map") {
            count(&entry.path())?;
        }
    }
    Ok(Cost {
        record: recorded.duration_since(ended).context("clock")?,
        inject: if is_jitdump { injected.duration_since(recorded).context("clock")? } else { Duration::ZERO },
        report: reported.duration_since(injected).context("clock")?,
        files,
        bytes,
    })
}

fn row(perf: &Perf, count: usize, mode: &Mode, costs: &[Cost]) -> String {
    let seconds = |of: fn(&Cost) -> Duration| {
        format!("{:.2} s", median(costs.iter().map(|cost| of(cost).as_micros() as u64).collect()) as f64 / 1e6)
    };
    let files = median(costs.iter().map(|cost| cost.files as u64).collect());
    let bytes = median(costs.iter().map(|cost| cost.bytes).collect()) as f64 / f64::from(1 << 20);
    let inject = if mode.written == Written::Jitdump { seconds(|cost| cost.inject) } else { "none".into() };
    format!(
        "| {} | {count} | {} | {} | {} | {inject} | {} | {files} | {bytes:.1} MiB |",
        perf.version,
        mode.name,
        seconds(Cost::total),
        seconds(|cost| cost.record),
        seconds(|cost| cost.report),
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
