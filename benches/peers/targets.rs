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

const fn setting(mode: Mode, size: usize, threads: usize) -> Setting {
    Setting { mode, size, threads }
}

pub fn print(results: &Results) {
    let mut list = List { results, target: "", rows: Vec::new() };
    let steady = setting(Mode::Latency, 512, 1);
    let bursts = setting(Mode::Bursts, 512, 8);

    list.target = "T1 caller's p50 at most 1.15 x memcpy + 15 ns";
    for size in [64, 512, 4096] {
        for setting in [setting(Mode::Latency, size, 1), setting(Mode::Bursts, size, 8)] {
            list.at_most_of_memcpy(setting, P50, 1.15, 15.0);
        }
    }
    list.target = "T2 caller's p50 at 64 KiB at most 1.25 x memcpy into as much memory";
    list.at_most_of_memcpy(setting(Mode::Latency, 65_536, 1), P50, 1.25, 0.0);
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
    list.target = "T5 8 threads: p99 at most 1.25 x memcpy's + 100 ns, p99.9 at most 2 us";
    list.at_most_of_memcpy(bursts, P99, 1.25, 100.0);
    list.at_most(bursts, "single_p99.9", 2000.0, "ns");
    list.target = "T6 system calls for each record: none by the caller, 0.05 in all";
    if let Some(syscalls) = &results.syscalls {
        list.add(format!("caller {:.4}", syscalls.caller), syscalls.caller == 0.0);
        list.add(format!("all threads {:.4}", syscalls.all), syscalls.all <= 0.05);
    }
    list.target = "T7 processor time of all threads: 500 ns, 1.8 x bulk writes, 0.45 x CPython and wasmtime";
    for threads in [1, 2, 4, 8] {
        let setting = setting(Mode::Saturated, 512, threads);
        list.at_most(setting, "cpu", 500.0, "ns");
        for (other, most) in [(Kind::Bulk, 1.8), (Kind::CPython, 0.45), (Kind::Wasmtime, 0.45)] {
            let ratio = results.ratio(setting, (Kind::Jitsym, other), "cpu");
            list.add_ratio(setting, format!("{}'s", other.name()), ratio, |ratio| ratio <= most, most);
        }
    }
    list.target = "T8 8 threads, saturated: records a second, and times those of CPython and wasmtime";
    for (size, least) in [(512, 2.3e6), (64, 5.4e6)] {
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
    list.target =
        "T10 at 1000 records/s 0.4 % of a core; when idle no wake-ups, and one for the caller to pay afterwards";
    let rate = setting(Mode::Rate, 512, 1);
    list.at_most(rate, "background", 0.4, "%");
    list.at_most(rate, "wakeups", 0.0, "a second");
    if let Some(wakes) = results.syscalls.as_ref().and_then(|syscalls| syscalls.wakes) {
        list.add(format!("futex calls of the caller {wakes}"), wakes <= 1);
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

    /// At most `factor` times the figure of `memcpy` plus `more`.
    fn at_most_of_memcpy(&mut self, setting: Setting, figure: &str, factor: f64, more: f64) {
        let allowed = |memcpy: f64| factor * memcpy + more;
        let ratio =
            self.results.paired(setting, (Kind::Jitsym, Kind::Memcpy), figure, |one, memcpy| one / allowed(memcpy));
        let medians = [Kind::Jitsym, Kind::Memcpy].map(|kind| self.results.median(setting, kind, figure));
        if let (Some(ratio), [Some(jitsym), Some(memcpy)]) = (ratio, medians) {
            let what = format!("what is allowed ({jitsym:.0} ns of {:.0})", allowed(memcpy));
            self.add_ratio(setting, what, Some(ratio), |ratio| ratio <= 1.0, 1.0);
        }
    }

    fn cheaper(&mut self, setting: Setting, figure: &str, than: Kind, least: f64) {
        let ratio = self.results.ratio(setting, (than, Kind::Jitsym), figure);
        let figure = figure.split('_').next_back().unwrap_or(figure);
        self.add_ratio(
            setting,
            format!("cheaper than {} ({figure})", than.name()),
            ratio,
            |ratio| ratio >= least,
            least,
        );
    }

    fn at_most(&mut self, setting: Setting, figure: &str, most: f64, unit: &str) {
        if let Some(value) = self.results.median(setting, Kind::Jitsym, figure) {
            self.add(format!("{}: {value:.2} {unit} of {most}", place(setting)), value <= most);
        }
    }
}

fn place(setting: Setting) -> String {
    format!("{} B, {} thread{}", setting.size, setting.threads, if setting.threads == 1 { "" } else { "s" })
}
