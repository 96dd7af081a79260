//! The tables, in Markdown.

use crate::args::{Args, SMOKE};
use crate::contenders::Kind;
use crate::pin::Pin;
use crate::rounds::Results;
use crate::statistics::Quartiles;
use crate::task::{Mode, Setting};

/// A column: its heading, the figure, and how it is shown.
struct Column {
    heading: &'static str,
    figure: &'static str,
    show: Show,
}

enum Show {
    /// The median of a number of nanoseconds or the like.
    Number,
    /// The median divided by a million.
    Millions,
    /// The median with two digits after the point.
    Fraction,
    /// The median with its quartiles.
    Quartiles,
    /// How many times this library's.
    ToJitsym,
    /// This library's is so many times as much.
    FromJitsym,
    /// How many times that of `memcpy`.
    ToMemcpy,
}

const fn column(heading: &'static str, figure: &'static str, show: Show) -> Column {
    Column { heading, figure, show }
}

const CALLER: &[Column] = &[
    column("p50", "batch_p50", Show::Number),
    column("mean", "batch_mean", Show::Number),
    column("p99", "single_p99", Show::Number),
    column("p99.9", "single_p99.9", Show::Number),
    column("p50 / memcpy", "batch_p50", Show::ToMemcpy),
    column("p50 / jitsym", "batch_p50", Show::ToJitsym),
    column("mean / jitsym", "batch_mean", Show::ToJitsym),
    column("p99 / jitsym", "single_p99", Show::ToJitsym),
];

const SATURATED: &[Column] = &[
    column("M records/s", "per_second", Show::Millions),
    column("CPU ns/record", "cpu", Show::Number),
    column("peak MiB", "peak", Show::Number),
    column("jitsym's records/s are", "per_second", Show::FromJitsym),
    column("CPU / jitsym", "cpu", Show::ToJitsym),
];

const RATE: &[Column] = &[
    column("p50", "single_p50", Show::Number),
    column("mean", "single_mean", Show::Number),
    column("p99", "single_p99", Show::Number),
    column("background, % of a core", "background", Show::Fraction),
    column("wake-ups/s when idle", "wakeups", Show::Fraction),
    column("first call after that", "first", Show::Number),
    column("p50 / jitsym", "single_p50", Show::ToJitsym),
    column("mean / jitsym", "single_mean", Show::ToJitsym),
];

const START: &[Column] = &[
    column("init, us", "init", Show::Quartiles),
    column("first call, us", "first", Show::Quartiles),
    column("first of a further thread, us", "further", Show::Quartiles),
    column("all ten, us", "calls", Show::Quartiles),
    column("close, us", "close", Show::Quartiles),
    column("page faults more", "faults", Show::Quartiles),
    column("peak MiB more", "memory", Show::Quartiles),
];

pub fn print(args: &Args, results: &Results) {
    if args.effort == SMOKE {
        println!("\nFar too short to measure anything: without `cargo bench` this only shows that everything works.");
    }
    let timers = results.rounds.values().flatten().filter_map(|figures| figures.get("timer"));
    println!(
        "\nMedians over {} rounds, ratios within rounds with their [quartiles]. Nanoseconds a call without the timer, which costs {:.0}.",
        args.rounds,
        Quartiles::of(timers.copied()).median
    );
    println!("A record has {} bytes on top of its code. Files in {}.", results.around, args.dir.display());
    if let Some(Pin(caller, background)) = args.pin {
        println!("Callers run on processor {caller}, background threads on {background}.");
    }
    for (size, region) in &results.regions {
        println!("memcpy at {size} bytes of code goes round in {} MiB for each thread.", region >> 20);
    }
    for setting in results.settings() {
        let (about, columns) = match setting.mode {
            Mode::Latency => ("one thread at a steady pace", CALLER),
            Mode::Bursts => ("bursts of 16, 1 ms apart", CALLER),
            Mode::Saturated => ("as fast as they can", SATURATED),
            Mode::Rate | Mode::Probe => ("one each millisecond", RATE),
            Mode::Start => ("a process that registers ten functions", START),
        };
        let plural = if setting.threads == 1 { "" } else { "s" };
        println!(
            "\n### {}, {} bytes, {} thread{plural}: {about}\n",
            setting.mode.name(),
            setting.size,
            setting.threads
        );
        print_table(results, setting, columns);
    }
}

fn print_table(results: &Results, setting: Setting, columns: &[Column]) {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(columns.iter().map(|column| column.heading.to_owned()));
    for kind in Kind::ALL.into_iter().filter(|&kind| results.rounds.contains_key(&(setting, kind))) {
        let mut row = vec![kind.name().to_owned()];
        row.extend(columns.iter().map(|column| cell(results, setting, kind, column)));
        rows.push(row);
    }
    let widths: Vec<usize> =
        (0..=columns.len()).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
    for (number, row) in rows.iter().enumerate() {
        print!("| {:<width$} |", row[0], width = widths[0]);
        row.iter().zip(&widths).skip(1).for_each(|(cell, width)| print!(" {cell:>width$} |"));
        println!();
        if number == 0 {
            print!("|{}|", "-".repeat(widths[0] + 2));
            widths[1..].iter().for_each(|width| print!("{}:|", "-".repeat(width + 1)));
            println!();
        }
    }
}

fn cell(results: &Results, setting: Setting, kind: Kind, column: &Column) -> String {
    let median = || results.median(setting, kind, column.figure);
    let with_quartiles = |Quartiles { low, median, high }| {
        let digits = if median < 10.0 { 2 } else { 0 };
        format!("{median:.digits$} [{low:.digits$}-{high:.digits$}]")
    };
    let ratio = |one: Kind, other: Kind| {
        results.ratio(setting, (one, other), column.figure).filter(|_| one != other).map(with_quartiles)
    };
    let text = match column.show {
        Show::Number => median().map(|value| format!("{value:.0}")),
        Show::Millions => median().map(|value| format!("{:.2}", value / 1e6)),
        Show::Fraction => median().map(|value| format!("{value:.2}")),
        Show::Quartiles => results.quartiles(setting, kind, column.figure).map(with_quartiles),
        Show::ToJitsym => ratio(kind, Kind::Jitsym),
        Show::FromJitsym => ratio(Kind::Jitsym, kind).map(|text| format!("{text} x")),
        Show::ToMemcpy => ratio(kind, Kind::Memcpy),
    };
    text.unwrap_or_default()
}
