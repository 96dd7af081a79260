//! The distribution of single calls as a drawing (SVG): so many percent of the calls took at most so long.

use std::fmt::Write;

use crate::args::Args;
use crate::contenders::Kind;
use crate::measure::{percentile_name, PERCENTILES};
use crate::rounds::Results;
use crate::task::{Mode, Setting};

const PANELS: [(Setting, &str); 2] = [
    (Setting { mode: Mode::Latency, size: 512, threads: 1 }, "1 thread, 100,000 functions a second"),
    (Setting { mode: Mode::Bursts, size: 512, threads: 8 }, "8 threads, bursts of 16, 1 ms apart"),
];

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 56.0;
const GAP: f64 = 46.0;
const LEGEND: f64 = 96.0;
/// Nanoseconds at both ends of the axis, as powers of ten.
const LOWEST: f64 = 1.0;
const HIGHEST: f64 = 6.0;
/// The last percentile that is drawn.
const LAST: f64 = 99.99;

/// Half bright, so that they show on white and on black.
fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Memcpy => "#8c8c8c",
        Kind::Bare => "#b5a58c",
        Kind::Crossed => "#c98bb0",
        Kind::Jitsym => "#f0522e",
        Kind::CPython => "#4f8fe0",
        Kind::V8 => "#2fa56b",
        Kind::Llvm => "#a571dd",
        Kind::Wasmtime => "#c28a12",
        Kind::LuaJit => "#1fa3ac",
        Kind::MoarVm => "#d95a9f",
        Kind::Channel => "#8f9c2c",
        Kind::Bulk => "#6f7fa5",
    }
}

/// Each further nine of a percentile takes up the same room.
fn x(percent: f64) -> f64 {
    let nines = |percent: f64| -(1.0 - percent / 100.0).log10();
    // The logarithm of one, turned round, is below zero.
    (WIDTH * nines(percent) / nines(LAST)).max(0.0)
}

fn y(ns: f64) -> f64 {
    HEIGHT * (HIGHEST - ns.max(1.0).log10().clamp(LOWEST, HIGHEST)) / (HIGHEST - LOWEST)
}

/// Whether there will be something to draw.
pub fn is_measured(args: &Args) -> bool {
    let has = |list: &Option<Vec<usize>>, value: usize| list.as_ref().is_none_or(|list| list.contains(&value));
    PANELS.iter().any(|(setting, _)| {
        let threads = setting.mode == Mode::Latency || has(&args.threads, setting.threads);
        args.modes.contains(&setting.mode) && has(&args.sizes, setting.size) && threads
    })
}

/// The drawing, with a panel for each setting that was measured.
pub fn draw(results: &Results) -> String {
    let measured = results.settings();
    let panels: Vec<_> = PANELS.into_iter().filter(|(setting, _)| measured.contains(setting)).collect();
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|&kind| results.rounds.keys().any(|key| *key == (panels[0].0, kind))).collect();
    let width = LEFT + panels.len() as f64 * (WIDTH + GAP) + LEGEND;
    let height = TOP + HEIGHT + 56.0;
    let mut svg = String::new();
    let out = &mut svg;
    put(
        out,
        format_args!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#808080">"##
        ),
    );
    put(
        out,
        format_args!(
            r#"<text x="{LEFT}" y="20" font-size="15">Registering a function of 512 bytes: how long the calling thread is busy</text>"#
        ),
    );
    for (number, (setting, title)) in panels.iter().enumerate() {
        let left = LEFT + number as f64 * (WIDTH + GAP);
        put(out, format_args!(r#"<g transform="translate({left} {TOP})">"#));
        put(out, format_args!(r#"<text y="-10">{title}</text>"#));
        axes(out, number == 0);
        kinds.iter().for_each(|&kind| line(out, results, *setting, kind));
        put(out, format_args!("</g>"));
    }
    let left = LEFT + panels.len() as f64 * (WIDTH + GAP) - GAP + 20.0;
    for (number, &kind) in kinds.iter().enumerate() {
        let at = TOP + 16.0 + number as f64 * 22.0;
        put(
            out,
            format_args!(
                r#"<path d="M{left} {at}h22" {}/><text x="{}" y="{}" fill="{}">{}</text>"#,
                stroke(kind),
                left + 28.0,
                at + 4.0,
                color(kind),
                kind.name()
            ),
        );
    }
    put(out, format_args!("</svg>"));
    svg
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(format_args!("{text}\n")).expect("a string takes everything");
}

fn stroke(kind: Kind) -> String {
    let width = if kind == Kind::Jitsym { 3.0 } else { 1.6 };
    let dashes =
        if matches!(kind, Kind::Memcpy | Kind::Bare | Kind::Crossed) { r#" stroke-dasharray="5 4""# } else { "" };
    format!(r#"fill="none" stroke="{}" stroke-width="{width}"{dashes}"#, color(kind))
}

fn axes(out: &mut String, with_labels: bool) {
    const GRID: &str = r##"stroke="#808080" stroke-opacity="0.3""##;
    for power in LOWEST as i32..=HIGHEST as i32 {
        let at = y(10_f64.powi(power));
        put(out, format_args!(r#"<path d="M0 {at:.1}h{WIDTH}" {GRID}/>"#));
        if with_labels {
            let label = ["1 ns", "10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms"][power as usize];
            put(out, format_args!(r#"<text x="-8" y="{:.1}" text-anchor="end">{label}</text>"#, at + 4.0));
        }
    }
    for percent in [0.0, 50.0, 90.0, 99.0, 99.9, LAST] {
        let at = x(percent);
        put(out, format_args!(r#"<path d="M{at:.1} 0v{HEIGHT}" {GRID}/>"#));
        put(out, format_args!(r#"<text x="{at:.1}" y="{}" text-anchor="middle">{percent}</text>"#, HEIGHT + 20.0));
    }
    let middle = WIDTH / 2.0;
    put(
        out,
        format_args!(r#"<text x="{middle}" y="{}" text-anchor="middle">percent of the calls</text>"#, HEIGHT + 42.0),
    );
}

fn line(out: &mut String, results: &Results, setting: Setting, kind: Kind) {
    let mut points = String::new();
    for percent in PERCENTILES {
        let value = results.median(setting, kind, &percentile_name("single", percent));
        if let Some(ns) = value {
            write!(points, "{:.1},{:.1} ", x(percent), y(ns)).expect("a string takes everything");
        }
    }
    put(out, format_args!(r#"<polyline points="{}" {}/>"#, points.trim_end(), stroke(kind)));
}
