//! What code regions cost: whoever registers code, the background thread, the program that runs in them, and the disk.
//! `cargo bench --bench regions [-- [--quick] [--library=FILE] [calls] [memory] [writer] [running]]`; docs/performance.md says what it printed.
//!
//! Each measurement is a process of its own, those that are compared run one after the other in each round, and what is printed
//! are the medians over the rounds of ratios within them.

#[path = "../peers/clock.rs"]
mod clock;
mod interface;
#[path = "../peers/library.rs"]
mod library;
mod running;
#[path = "../peers/statistics.rs"]
mod statistics;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use statistics::{shuffle, Quartiles};

/// What a worker has measured.
type Figures = BTreeMap<String, f64>;

/// The parts, in this order.
const PARTS: [&str; 4] = ["calls", "memory", "writer", "running"];
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;
/// The rounds of what takes long and varies little.
const WRITER_ROUNDS: usize = 3;

struct Harness {
    library: PathBuf,
    dir: PathBuf,
    rounds: usize,
    order: u64,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.first().is_some_and(|word| word == worker::WORKER) {
        return worker::run(&words[1..]);
    }
    let library = words.iter().find_map(|word| word.strip_prefix("--library=")).map(PathBuf::from);
    let is_known = |word: &String| word == "--quick" || word.starts_with("--library=") || PARTS.contains(&&**word);
    // `cargo bench -- OPTIONS` is meant for the other benchmark.
    if !words.iter().all(is_known) {
        return;
    }
    let is_quick = words.iter().any(|word| word == "--quick");
    let parts: Vec<&str> = PARTS.into_iter().filter(|part| words.iter().any(|word| word == part)).collect();
    let mut harness = Harness {
        library: library.unwrap_or_else(library::build),
        dir: std::env::temp_dir().join(format!("jitsym-bench-regions-{}", std::process::id())),
        rounds: if is_quick { QUICK_ROUNDS } else { ROUNDS },
        order: Instant::now().elapsed().as_nanos() as u64 + u64::from(std::process::id()),
    };
    for part in if parts.is_empty() { PARTS.to_vec() } else { parts } {
        match part {
            "calls" => harness.calls(),
            "memory" => harness.memory(),
            "writer" => harness.writer(is_quick),
            _ => harness.running(),
        }
    }
}

impl Harness {
    /// Runs a worker in a directory of its own.
    fn measure(&self, task: &[&str]) -> Figures {
        std::fs::create_dir(&self.dir).unwrap_or_else(|error| panic!("{}: {error}", self.dir.display()));
        let program = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(program);
        command.arg(worker::WORKER).args([&self.library, &self.dir]).args(task).stderr(Stdio::inherit());
        let output = command.output().expect("start a worker");
        let _ = std::fs::remove_dir_all(&self.dir);
        assert!(output.status.success(), "{task:?}: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let figure =
            |line: &str| line.split_once(' ').map(|(name, value)| (name.into(), value.parse().expect("number")));
        text.lines().filter_map(figure).collect()
    }

    /// Runs some tasks in each round, in random order; for each task its figures by round.
    fn rounds(&mut self, rounds: usize, tasks: &[Vec<&str>]) -> Vec<Vec<Figures>> {
        let mut all = vec![Vec::new(); tasks.len()];
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        for _ in 0..rounds {
            shuffle(&mut order, &mut self.order);
            order.iter().for_each(|&task| all[task].push(self.measure(&tasks[task])));
        }
        all
    }

    /// What a registration costs the caller: in a region, and next to that without one.
    fn calls(&mut self) {
        println!("\n### A registration, one thread at a steady pace\n");
        println!("Without the timer, which costs {:.0} ns.\n", clock::Scale::calibrate().overhead_ns());
        println!("| code | memory | p50, ns | mean, ns | p99, ns | p50 / without | mean / without |");
        println!("|-----:|--------|--------:|---------:|--------:|--------------:|---------------:|");
        for size in ["64", "512"] {
            let kinds = ["without", "created", "adopted"];
            let all = self.rounds(self.rounds, &kinds.map(|kind| vec!["calls", kind, size]));
            for (kind, of_kind) in kinds.iter().zip(&all) {
                let values = ["p50", "mean", "p99"].map(|name| format!("{:.0}", median(of_kind, name)));
                let ratios = ["p50", "mean"].map(|name| ratio(of_kind, &all[0], name));
                println!("| {size} | {kind} | {} | {} |", values.join(" | "), ratios.join(" | "));
            }
        }
    }

    /// What memory for one function costs: a piece from the library, and next to that a mapping of its own.
    fn memory(&mut self) {
        println!("\n### Memory for a function, from its allocation to its end, while a thousand live\n");
        println!(
            "| code | registered | mmap, mprotect, munmap, ns | jitsym_alloc, jitsym_free, ns | ratio | generations |"
        );
        println!(
            "|-----:|------------|---------------------------:|------------------------------:|------:|------------:|"
        );
        for (size, names) in [("200", "unnamed"), ("200", "named"), ("2000", "named"), ("20000", "named")] {
            let all = self.rounds(self.rounds, &["mapped", "allocated"].map(|kind| vec!["memory", kind, size, names]));
            let [mapped, allocated] = [&all[0], &all[1]].map(|figures| median(figures, "ns"));
            let (ratio, generations) = (ratio(&all[1], &all[0], "ns"), median(&all[1], "generations"));
            let is_named = if names == "named" { "yes" } else { "no" };
            println!("| {size} | {is_named} | {mapped:.0} | {allocated:.0} | {ratio} | {generations:.0} |");
        }
    }

    /// What the background thread takes for a function, and how long the files become.
    fn writer(&mut self, is_quick: bool) {
        println!("\n### The background thread, and the disk: 64 bytes of code, 100,000 functions a second\n");
        println!("| functions | order | lines | without a region, ns each | in one, ns each | ratio | bytes of its file each | after the close |");
        println!("|----------:|-------|-------|--------------------------:|----------------:|------:|-----------------------:|----------------:|");
        let rounds = if is_quick { 1 } else { WRITER_ROUNDS };
        for (order, lines) in [("up", "0"), ("down", "0"), ("random", "0"), ("up", "4")] {
            for count in ["1000", "10000", "100000"] {
                let tasks = ["without", "created"].map(|kind| vec!["writer", kind, count, order, lines]);
                let all = self.rounds(rounds, &tasks);
                let [without, within] = [&all[0], &all[1]].map(|figures| median(figures, "ns"));
                let ratio = ratio(&all[1], &all[0], "ns");
                let [meanwhile, bytes] = ["meanwhile", "bytes"].map(|name| median(&all[1], name));
                let times = format!("{without:.0} | {within:.0} | {ratio}");
                println!("| {count} | {order} | {lines} | {times} | {meanwhile:.0} | {bytes:.0} |");
            }
        }
    }

    /// What running code pays for the kind of memory that it lies in.
    fn running(&mut self) {
        println!("\n### Running code: time in a region by time in anonymous memory\n");
        println!("| program | created | adopted |");
        println!("|---------|--------:|--------:|");
        let mut all: Vec<Figures> = Vec::new();
        for _ in 0..self.rounds {
            all.push(self.measure(&["running"]));
        }
        for (name, text) in running::PROGRAMS {
            let of = |kind: &str| {
                let each = all.iter().filter_map(|figures| {
                    Some(figures.get(&format!("{name}-{kind}"))? / figures.get(&format!("{name}-anonymous"))?)
                });
                let each: Vec<f64> = each.collect();
                if each.is_empty() {
                    "not on this machine".into()
                } else {
                    show(Quartiles::of(each))
                }
            };
            println!("| {text} | {} | {} |", of("created"), of("adopted"));
        }
        for program in ["nbody", "fannkuch"] {
            let mut ratios = Vec::new();
            for round in 0..self.rounds {
                let mut times = [0.0; 2];
                for adopt in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    times[adopt] = self.luajit(program, adopt == 1);
                }
                ratios.push(times[1] / times[0]);
            }
            println!("| LuaJIT, {program} | | {} |", show(Quartiles::of(ratios)));
        }
    }

    /// How long a program takes, in seconds.
    fn luajit(&self, program: &str, adopt: bool) -> f64 {
        std::fs::create_dir(&self.dir).unwrap_or_else(|error| panic!("{}: {error}", self.dir.display()));
        let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("bindings/luajit");
        let mut luajit = Command::new("luajit");
        luajit.arg("-ljitsym").arg(bindings.join(format!("{program}.lua")));
        luajit.env("LUA_PATH", bindings.join("?.lua")).env("JITSYM_LIB", &self.library);
        luajit
            .env("JITSYM_DIR", &self.dir)
            .env("JITDUMPDIR", &self.dir)
            .env("JITSYM_ADOPT", if adopt { "1" } else { "0" });
        let start = Instant::now();
        let status = luajit.stdout(Stdio::null()).status().expect("start luajit");
        let seconds = start.elapsed().as_secs_f64();
        let _ = std::fs::remove_dir_all(&self.dir);
        assert!(status.success(), "{program}: {status}");
        seconds
    }
}

fn each<'a>(figures: &'a [Figures], name: &'a str) -> impl Iterator<Item = f64> + 'a {
    figures.iter().map(move |figures| figures[name])
}

fn median(figures: &[Figures], name: &str) -> f64 {
    Quartiles::of(each(figures, name)).median
}

/// One by the other within rounds.
fn ratio(one: &[Figures], other: &[Figures], name: &str) -> String {
    show(Quartiles::of(each(one, name).zip(each(other, name)).map(|(one, other)| one / other)))
}

fn show(ratio: Quartiles) -> String {
    format!("{:.2} [{:.2}-{:.2}]", ratio.median, ratio.low, ratio.high)
}
