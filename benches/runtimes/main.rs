//! What the library costs a whole runtime: programs of LuaJIT and MoarVM with it and without it, in turn.
//! `cargo bench --bench runtimes -- [--rounds=N] [luajit=PROGRAM] [module=PROGRAM] [moarvm=PROGRAM]`; docs/runtimes.md says what it printed.
//!
//! `luajit` and `moarvm` are the programs that the scripts in examples build, `module` is any LuaJIT. perf counts the processor
//! time of the thread that runs the program. What is printed are the medians over the rounds of ratios within them.

#[path = "../peers/library.rs"]
mod library;
#[allow(dead_code, reason = "the other benchmarks use all of it")]
#[path = "../peers/statistics.rs"]
mod statistics;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use statistics::{shuffle, Quartiles};

const ROUNDS: usize = 9;

/// Names of the programs, and the words that start them.
type Programs = &'static [(&'static str, &'static [&'static str])];

const LUA: Programs = &[
    ("nbody", &["bindings/luajit/nbody.lua"]),
    ("fannkuch", &["bindings/luajit/fannkuch.lua"]),
    ("mandelbrot", &["bindings/luajit/mandelbrot.lua"]),
    ("strings", &["bindings/luajit/strings.lua"]),
    ("churn 40", &["bindings/luajit/churn.lua", "40"]),
];

const RAKU: Programs = &[
    ("words", &["-e", "my %h; for ^3_000_000 { %h{'w' ~ $_ % 1000}++ }; say %h.elems"]),
    ("numbers", &["-e", "my num $x = 1e0; for ^30_000_000 { $x = $x * 1.0000001e0 + 1e-9 }; say $x"]),
    ("objects", &["-e", "class P { has $.x; method n { P.new(x => $!x + 1) } }; my $p = P.new(x => 0); $p = $p.n for ^1_500_000; say $p.x"]),
];

/// A way to announce code: what it is called, and its variables.
type Way = (&'static str, &'static [(&'static str, &'static str)]);

const JITDUMP: (&str, &str) = ("JITSYM", "map,jitdump");
const ADOPT: (&str, &str) = ("JITSYM_ADOPT", "1");
const LUAJIT: &[Way] = &[("jitdump", &[("LUAJIT_JITSYM", "1"), JITDUMP]), ("adopted", &[ADOPT])];
const MODULE: &[Way] = &[("jitdump", &[JITDUMP]), ("adopted", &[ADOPT])];
const MOARVM: &[Way] = &[
    ("jitdump", &[("MVM_JITSYM", "1"), JITDUMP]),
    ("created", &[("MVM_JITSYM", "1")]),
    ("adopted", &[("MVM_JITSYM", "own"), ADOPT]),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let is_ours = |name: &str| name.contains("JITSYM");
    assert!(!std::env::vars().any(|(name, _)| is_ours(&name)), "a variable of the library is set");
    let rounds = option("--rounds").map_or(ROUNDS, |rounds| rounds.parse().expect("--rounds"));
    let runtimes = [("luajit", LUA, LUAJIT), ("module", LUA, MODULE), ("moarvm", RAKU, MOARVM)];
    for (name, programs, ways) in runtimes {
        // `cargo bench` alone builds no runtime.
        let Some(runtime) = option(name) else { continue };
        let library = library::build();
        println!("| {name} | way | processor time | wall time |\n|---|---|---:|---:|");
        for (program, words) in programs {
            compare(&library, Path::new(runtime), name == "module", program, words, ways, rounds);
        }
    }
}

/// Prints a line for each way.
fn compare(
    library: &Path,
    runtime: &Path,
    is_module: bool,
    program: &str,
    words: &[&str],
    ways: &[Way],
    rounds: usize,
) {
    let mut ratios = vec![[const { Vec::new() }; 2]; ways.len()];
    let mut state = u64::from(std::process::id());
    for _ in 0..rounds {
        let mut order: Vec<Option<usize>> = std::iter::once(None).chain((0..ways.len()).map(Some)).collect();
        shuffle(&mut order, &mut state);
        let mut taken = vec![[0.0; 2]; ways.len() + 1];
        for way in order {
            let mut command = Command::new("perf");
            let counted = counted();
            command.args(["stat", "-i", "-x,", "-e", "task-clock", "-o"]).arg(&counted).arg("--").arg(runtime);
            if let Some(way) = way {
                command.env("JITSYM_LIB", library).env("JITSYM_REMOVE", "1").envs(ways[way].1.iter().copied());
                if is_module {
                    command.env("LUA_PATH", "bindings/luajit/?.lua;;").arg("-ljitsym");
                }
            }
            taken[way.map_or(ways.len(), |way| way)] = measure(command.args(words), &counted);
        }
        for (way, ratios) in ratios.iter_mut().enumerate() {
            for (kind, ratios) in ratios.iter_mut().enumerate() {
                ratios.push(taken[way][kind] / taken[ways.len()][kind]);
            }
        }
    }
    for ((way, _), ratios) in ways.iter().zip(ratios) {
        let [processor, wall] = ratios.map(|ratios| {
            let Quartiles { low, median, high } = Quartiles::of(ratios);
            format!("{median:.2} [{low:.2}-{high:.2}]")
        });
        println!("| {program} | {way} | {processor} | {wall} |");
    }
}

fn counted() -> PathBuf {
    std::env::temp_dir().join(format!("jitsym-bench-runtimes-{}", std::process::id()))
}

/// Processor time of the first thread, and wall time.
fn measure(command: &mut Command, counted: &Path) -> [f64; 2] {
    // perf prints numbers as the locale has them.
    command.env("LC_ALL", "C").current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status().expect("start perf");
    let wall = begin.elapsed().as_secs_f64();
    assert!(status.success(), "{command:?}: {status}");
    let text = std::fs::read_to_string(counted).expect("what perf counted");
    let _ = std::fs::remove_file(counted);
    let count = text.lines().find_map(|line| line.split(',').next()?.parse().ok());
    [count.unwrap_or_else(|| panic!("perf stat wrote {text:?}")), wall]
}
