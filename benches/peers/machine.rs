//! What the benchmark runs on, and whether its ratios are those of the machine whose tables stand in docs/performance.md.

use std::fs::read_to_string;

use crate::contenders::Kind;
use crate::rounds::Results;
use crate::task::{Mode, Setting};

/// Where the ratios come from.
const MEASURED_ON: &str = "AMD EPYC (family 26, model 2), two processors of a virtual machine";

/// This library's p50 over that of a floor.
#[rustfmt::skip]
const MEASURED: &[(Mode, usize, usize, Kind, f64)] = &[
    (Mode::Latency, 64, 1, Kind::Memcpy, 4.83),
    (Mode::Latency, 64, 1, Kind::Bare, 2.17),
    (Mode::Latency, 512, 1, Kind::Memcpy, 4.08),
    (Mode::Latency, 512, 1, Kind::Bare, 2.38),
    (Mode::Bursts, 64, 1, Kind::Memcpy, 4.68),
    (Mode::Bursts, 64, 1, Kind::Bare, 2.78),
    (Mode::Bursts, 64, 8, Kind::Memcpy, 2.41),
    (Mode::Bursts, 64, 8, Kind::Bare, 1.47),
    (Mode::Bursts, 512, 1, Kind::Memcpy, 4.25),
    (Mode::Bursts, 512, 1, Kind::Bare, 4.17),
    (Mode::Bursts, 512, 8, Kind::Memcpy, 1.90),
    (Mode::Bursts, 512, 8, Kind::Bare, 1.79),
];

/// One line about this machine. Printed before anything is run, because of the load.
pub fn print() {
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.split(':').next().is_some_and(|word| word.trim() == name));
        line.and_then(|line| Some(line.split_once(':')?.1.trim()))
    };
    let or_unknown = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
    let file = |path: &str| or_unknown(read_to_string(path).ok().as_deref().map(str::trim));
    let cores = std::thread::available_parallelism().map_or("unknown".into(), |cores| cores.to_string());
    let hypervisor =
        field("flags").map(|flags| if flags.split(' ').any(|flag| flag == "hypervisor") { "yes" } else { "no" });
    println!(
        "\nProcessor: {} (family {}, model {}). Cores: {cores}. Caches: {}. Clock source: {}. Hypervisor: {}. Load: {}.",
        or_unknown(field("model name")),
        or_unknown(field("cpu family")),
        or_unknown(field("model")),
        caches(),
        file("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        or_unknown(hypervisor),
        file("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
    );
}

/// Level, kind and size of those of the first processor.
fn caches() -> String {
    let cache = |number: usize| {
        let part = |name: &str| read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{number}/{name}")).ok();
        Some(format!("L{} {} {}", part("level")?.trim(), part("type")?.trim(), part("size")?.trim()))
    };
    let caches: Vec<String> = (0..).map_while(cache).collect();
    if caches.is_empty() {
        "unknown".into()
    } else {
        caches.join(", ")
    }
}

/// A line that names the ratios which differ by more than a half.
pub fn compare(results: &Results) {
    let different = |&(mode, size, threads, floor, measured): &(Mode, usize, usize, Kind, f64)| {
        let ratio = results.ratio(Setting { mode, size, threads }, (Kind::Jitsym, floor), "batch_p50")?.median;
        let (mode, floor) = (mode.name(), floor.name());
        ((ratio - measured).abs() > measured / 2.0)
            .then(|| format!("{mode} {size} B, {threads} thr., to {floor} {ratio:.2} (there {measured:.2})"))
    };
    let different: Vec<String> = MEASURED.iter().filter_map(different).collect();
    if !different.is_empty() {
        println!("\n**p50 ratios unlike those in docs/performance.md, from {MEASURED_ON}**: {}.", different.join("; "));
    }
}
