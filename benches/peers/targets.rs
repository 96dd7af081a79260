//! What this library is meant to reach, and whether it did.

use crate::contenders::Kind;
use crate::rounds::Results;
use crate::statistics::Quartiles;
use crate::task::{Mode, Setting};

/// A list of verdicts; what was not measured is left out.
struct List<'a> {
    results: &'a Results,
    target: &'static str,
    rows: Vec<(String, bool)>,
}

const P50: &str = "batch_p50";
const MEAN: &str = "batch_mean";
const P99: &str = "single_p99";
const P999: &str = "single_p99.9";

const fn setting(mode: Mode, size: usize, threads: usize) -> Setting {
    Setting { mode, size, threads }
}

pub fn print(results: &Results) {
    let mut list = List { results, target: "", rows: Vec::new() };
    let steady = setting(Mode::Latency, 512, 1);
    let bursts = setting(Mode::Bursts, 512, 8);

    let paced = results.settings().into_iter().filter(|setting| matches!(setting.mode, Mode::Latency | Mode::Bursts));
    let paced: Vec<Setting> = paced.collect();
    list.target = "T1 caller's p50 at most 1.3 x bare + 8 ns";
    for &setting in &paced {
        list.at_most_of(setting, P50, Kind::Bare, |bare| 1.3 * bare + 8.0);
    }
    list.target = "T2 caller's p50 at 64 KiB at most 1.25 x memcpy into as much memory";
    list.at_most_of(setting(Mode::Latency, 65_536, 1), P50, Kind::Memcpy, |memcpy| 1.25 * memcpy);
    list.target = "T3 one thread, p50 and mean: 12 x cheaper than CPython, 15 x than wasmtime";
    for figure in [P50, MEAN] {
        list.cheaper(steady, figure, Kind::CPython, 12.0);
        list.cheaper(steady, figure, Kind::Wasmtime, 15.0);
    }
    list.target =
        "T4 8 threads, cheaper than CPython and wasmtime: p50 8 x and 12 x, mean 20 x and 25 x, p99 80 x and 100 x";
    for (figure, cpython, wasmtime) in [(P50, 8.0, 12.0), (MEAN, 20.0, 25.0), (P99, 80.0, 100.0)] {
        list.cheaper(bursts, figure, Kind::CPython, cpython);
        list.cheaper(bursts, figure, Kind::Wasmtime, wasmtime);
    }
    list.target = "T5 8 threads: p99 at most 1.25 x memcpy's + 100 ns, p99.9 at most 2 us or memcpy's + 0.5 us";
    list.at_most_of(bursts, P99, Kind::Memcpy, |memcpy| 1.25 * memcpy + 100.0);
    for &setting in paced.iter().filter(|setting| setting.threads == 8) {
        list.at_most_of(setting, P999, Kind::Memcpy, |memcpy| (memcpy + 500.0).max(2000.0));
    }
    list.target = "T6 system calls for each record: none by the caller, 0.05 in all";
    if let Some(syscalls) = &results.syscalls {
        list.add(format!("caller {:.4}", syscalls.caller), syscalls.caller == 0.0);
        list.add(format!("all threads {:.4}", syscalls.all), syscalls.all <= 0.05);
    }
    list.target =
        "T7 processor time of all threads: 500 ns, 1.8 x bulk writes (1.6 x with one thread), 0.45 x CPython and wasmtime";
    for threads in [1, 2, 4, 8] {
        let setting = setting(Mode::Saturated, 512, threads);
        list.at_most(setting, "cpu", 500.0, "ns");
        for (other, most) in
            [(Kind::Bulk, if threads == 1 { 1.6 } else { 1.8 }), (Kind::CPython, 0.45), (Kind::Wasmtime, 0.45)]
        {
            let ratio = results.ratio(setting, (Kind::Jitsym, other), "cpu");
            list.add_ratio(setting, format!("{}'s", other.name()), ratio, |ratio| ratio <= most, most);
        }
    }
    list.target = "T8 8 threads, saturated: records a second, and times those of CPython and wasmtime";
    for (size, least) in [(512, 2.3e6), (64, 4e6)] {
        let setting = setting(Mode::Saturated, size, 8);
        if let Some(rate) = results.median(setting, Kind::Jitsym, "per_second") {
            list.add(format!("{size} B: {:.2} M of {:.1} M", rate / 1e6, least / 1e6), rate >= least);
        }
    }
    for (other, least) in [(Kind::CPython, 2.8), (Kind::Wasmtime, 3.5)] {
        let setting = setting(Mode::Saturated, 512, 8);
        let ratio = results.ratio(setting, (Kind::Jitsym, other), "per_second");
        list.add_ratio(setting, format!("{}'s", other.name()), ratio, |ratio| ratio >= least, least);
    }
    list.target = "T9 caller's p50 at most 1.2 x crossed";
    for &setting in &paced {
        list.at_most_of(setting, P50, Kind::Crossed, |crossed| 1.2 * crossed);
    }
    list.target =
        "T10 at 1000 records/s 0.4 % of a core; when idle no wake-ups, and one for the caller to pay afterwards";
    let rate = setting(Mode::Rate, 512, 1);
    list.at_most(rate, "background", 0.4, "%");
    list.at_most(rate, "wakeups", 0.0, "a second");
    if let Some(wakes) = results.syscalls.as_ref().and_then(|syscalls| syscalls.wakes) {
        list.add(format!("futex calls of the caller {wakes}"), wakes <= 1);
    }
    list.target =
        "T11 a process that registers ten functions: init and close 200 us, first call 100 us, first call of a \
                   further thread 20 us, and 120 page faults and 0.6 MiB more than one that only loads the library";
    let bounds = [
        ("init", 200.0, "us"),
        ("close", 200.0, "us"),
        ("first", 100.0, "us"),
        ("further", 20.0, "us"),
        ("faults", 120.0, "page faults"),
        ("memory", 0.6, "MiB"),
    ];
    for (figure, most, unit) in bounds {
        list.at_most(setting(Mode::Start, 512, 1), figure, most, unit);
    }

    println!("\n### targets\n");
    let met = list.rows.iter().filter(|row| row.1).count();
    list.rows.iter().for_each(|(text, met)| println!("- {text}: {}", if *met { "met" } else { "**not met**" }));
    println!("\n{met} of {} met", list.rows.len());
}

impl List<'_> {
    fn add(&mut self, text: String, met: bool) {
        let number = self.target.split(' ').next().unwrap_or_default();
        let told = self.rows.iter().any(|(row, _)| row.starts_with(&format!("{number} ")));
        let about = if told { number } else { self.target };
        self.rows.push((format!("{about}: {text}"), met));
    }

    fn add_ratio(
        &mut self,
        setting: Setting,
        what: String,
        ratio: Option<Quartiles>,
        met: impl Fn(f64) -> bool,
        bound: f64,
    ) {
        if let Some(Quartiles { low, median, high }) = ratio {
            let text = format!("{}: {median:.2} [{low:.2}-{high:.2}] x {what}, bound {bound}", place(setting));
            self.add(text, met(median));
        }
    }

    /// At most what is allowed by the figure of a floor in the same round.
    fn at_most_of(&mut self, setting: Setting, figure: &str, floor: Kind, allowed: impl Fn(f64) -> f64) {
        let kinds = (Kind::Jitsym, floor);
        let ratio = self.results.paired(setting, kinds, figure, |jitsym, floor| jitsym / allowed(floor));
        let medians = [Kind::Jitsym, floor].map(|kind| self.results.median(setting, kind, figure));
        if let (Some(ratio), [Some(jitsym), Some(floor)]) = (ratio, medians) {
            let figure = short(figure);
            let what = format!("what is allowed ({figure}, {jitsym:.0} ns of {:.0})", allowed(floor));
            self.add_ratio(setting, what, Some(ratio), |ratio| ratio <= 1.0, 1.0);
        }
    }

    fn cheaper(&mut self, setting: Setting, figure: &str, than: Kind, least: f64) {
        let ratio = self.results.ratio(setting, (than, Kind::Jitsym), figure);
        self.add_ratio(
            setting,
            format!("cheaper than {} ({})", than.name(), short(figure)),
            ratio,
            |ratio| ratio >= least,
            least,
        );
    }

    fn at_most(&mut self, setting: Setting, figure: &str, most: f64, unit: &str) {
        if let Some(value) = self.results.median(setting, Kind::Jitsym, figure) {
            self.add(format!("{}: {value:.2} {unit} of {most} ({})", place(setting), short(figure)), value <= most);
        }
    }
}

/// A figure's name without that of how it was timed.
fn short(figure: &str) -> &str {
    figure.split('_').next_back().unwrap_or(figure)
}

fn place(setting: Setting) -> String {
    format!(
        "{}, {} B, {} thread{}",
        setting.mode.name(),
        setting.size,
        setting.threads,
        if setting.threads == 1 { "" } else { "s" }
    )
}
