//! What a registration costs under callgrind: instructions, which are counted, and time, which is measured by hand.

use std::path::Path;

use super::{installed, Guest};
use crate::support::*;

/// glibc has a `memcpy` for each kind of processor. This one every x86-64 processor has.
const EVERY_PROCESSOR: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX2_Usable,-AVX,-AVX_Fast_Unaligned_Load,\
                               -SSSE3,-ERMS,-FSRM";

/// Functions to a burst, how many functions are registered, and the instructions that one may take, with those of the program
/// itself: a twentieth above what was measured.
const BOUNDS: &[(u64, [u64; 2], u64)] = &[
    (1, [200, 1000], 56_680),  // measured: 53,981
    (64, [640, 2560], 11_550), // measured: 11,003
];

/// Runs the program with functions packed, 64 to a page. Returns the instructions, and the microseconds of each function.
fn run(sinks: &str, count: u64, burst: u64) -> (u64, f64) {
    let dir = fresh_dir(format!("cost-{sinks}-{count}-{burst}"));
    let what = ["many", &count.to_string(), &burst.to_string()];
    // The length of a path counts, and this path has one length everywhere.
    let mut guest = Guest::with_path(Some((installed(), "callgrind")), dir, Path::new("/proc/self/cwd"), &what);
    guest.command.current_dir(&guest.dir).env("JITSYM", sinks).env("GLIBC_TUNABLES", EVERY_PROCESSOR);
    let output = guest.run_clean();
    let text = std::fs::read_to_string(guest.dir.join("out")).expect("profile");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals");
    let time = stdout(&output).split_once(" us").and_then(|(time, _)| time.parse().ok()).expect("time");
    (totals.trim().parse().expect("number"), time)
}

#[test]
fn instructions_of_a_registration() {
    for &(burst, counts, bound) in BOUNDS {
        let [few, many] = counts.map(|count| run("valgrind", count, burst).0);
        let measured = (many - few) / (counts[1] - counts[0]);
        println!("bursts of {burst}: {measured} of {bound}");
        // The control: a call that does nothing takes a tenth of that.
        assert!(measured > 5000, "{measured} instructions: the registrations were not seen");
        assert!(measured <= bound, "{measured} instructions of each in bursts of {burst}, and at most {bound}");
    }
}

/// The table in docs/valgrind.md: `cargo test --test tests -- --ignored --nocapture time_of_a_registration`.
#[test]
#[ignore = "measures time, for minutes"]
fn time_of_a_registration() {
    const ROUNDS: usize = 3;
    for (count, burst) in [(1000, 1), (10_000, 1), (1000, 64), (10_000, 64)] {
        let mut all: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let sinks = ["off", "valgrind", "on"];
            all.iter_mut().zip(sinks).for_each(|(times, sinks)| times.push(run(sinks, count, burst).1));
        }
        let [off, sink, default] = all.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!("{count} functions, bursts of {burst}: {sink} us, {default} with the other sinks, {off} without any");
    }
}
