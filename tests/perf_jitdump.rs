//! What perf makes of a jitdump: record, inject and script as a user would, held against the ground truth.
//!
//! A name is right or the test fails. Shares are compared within 5 points, since the samples are some thousand. Of the
//! stacks one in a hundred may be cut off: perf copies the stack from the stack pointer up, so that a register just popped
//! is not in the copy.

// What `perf annotate` prints, as the matrix of readers has it.
#[allow(dead_code)]
#[path = "../xtask/src/annotate.rs"]
mod annotate;
#[path = "support/perf.rs"]
mod perf;
#[allow(dead_code)]
#[path = "../xtask/src/score.rs"]
mod score;
mod support;
#[allow(dead_code)]
#[path = "../xtask/src/truth.rs"]
mod truth;

use perf::{Place, Recording, Sample, Truth};
use std::collections::BTreeMap;
use std::path::Path;
use support::{run, stdout};

/// Leaves, callers and C functions with every kind of unwind description, and exactly the bytes free behind each piece of
/// code that `jitsym_unwind_size` asks for: names, shares of time, stacks and source lines are all there.
#[test]
fn stacks_shares_and_lines() {
    let recording = Recording::with_stacks("stacks", perf::program(), &["scenario=stacks", "layout=gap", "seconds=2"]);
    let truth = &recording.truth;
    let injected = recording.inject();
    let samples = perf::samples(truth, &injected, true);
    let found = perf::guest_samples(truth, &samples);
    perf::check_names(&found, 500);
    let names: Vec<&str> = found.iter().map(|(sample, _)| &*sample.sym).collect();
    perf::check_shares(truth, &names);
    perf::check_stacks(truth, &found);
    perf::check_stack_shares(truth, &samples);
    perf::check_lines(truth, &samples);
    for name in ["leaf_fp", "leaf fixed (no frame at all)", "steps_rows"] {
        check_annotate(truth, &found, &injected, name);
    }
}

/// `perf annotate` shows the instructions with every line of the guest's source that they come from, and each sample at its
/// instruction. (Which instruction of a loop has the samples depends on the processor: one that fuses the pair at its end never
/// has any at the jump.)
fn check_annotate(truth: &Truth, found: &[(&Sample, &Place)], injected: &Path, name: &str) {
    let mut annotate = perf::perf("annotate");
    annotate.arg("--stdio").arg("-i").arg(injected).arg("-s").arg(name);
    let text = stdout(&run(&mut annotate));
    let source = std::fs::read_to_string(&truth.source).expect("guest source");
    let source: Vec<&str> = source.lines().collect();
    let function = truth.function(name).expect("function");
    for row in &function.rows {
        let line = source[row.1 as usize - 1].trim();
        assert!(line.contains(name), "the guest's source names the function in each line: {line:?}");
        assert!(text.contains(line), "no source line {line:?} in\n{text}");
    }
    for instruction in ["dec", "jne", "ret"] {
        assert!(text.contains(instruction), "no {instruction} in the code of {name} in\n{text}");
    }
    let mut taken: BTreeMap<u64, usize> = BTreeMap::new();
    for (sample, place) in found.iter().filter(|(_, place)| place.name == name) {
        *taken.entry(sample.ip - place.addr).or_default() += 1;
    }
    let shown = annotate::parse(&text).expect("what perf annotate prints");
    let right = annotate::compare(&taken, &shown);
    println!("{name}: samples at {taken:?}");
    assert!(right.percent() >= 99.0, "{name}: samples at {taken:?}, but {shown:?} in\n{text}");
    // The loops: where all of the time goes.
    let burns = |offset: &u64| source[function.line_at(*offset) as usize - 1].contains("burn");
    let spent: usize = shown.iter().filter(|(offset, _)| burns(offset)).map(|(_, count)| count).sum();
    assert!(spent * 100 >= right.counted * 90, "{shown:?} in the lines that burn of {name} in\n{text}");
}

/// Code without a free byte between the pieces keeps the right names, even where free bytes were claimed that there are not.
#[test]
fn packed_code_keeps_its_names() {
    for layout in ["layout=packed", "layout=lied"] {
        let name = layout.replace('=', "-");
        let recording = Recording::with_stacks(&name, perf::program(), &["scenario=stacks", layout, "seconds=1.6"]);
        let truth = &recording.truth;
        let samples = perf::samples(truth, &recording.inject(), true);
        let found = perf::guest_samples(truth, &samples);
        perf::check_names(&found, 500);
        let names: Vec<&str> = found.iter().map(|(sample, _)| &*sample.sym).collect();
        perf::check_shares(truth, &names);
        check_injected_frames(truth, &samples);
    }
}

/// Packed code that is called so has stacks and lines as well, whatever its frames are; also when it is moved, and when other code
/// takes its place.
#[test]
fn packed_code_that_says_so_has_stacks() {
    for (scenario, phases) in [("move", 4), ("reuse", 5)] {
        let arguments = [&format!("scenario={scenario}"), "layout=marked", "seconds=1.4"];
        let recording = Recording::with_stacks(&format!("{scenario}-marked"), perf::program(), &arguments);
        check_phases(&recording, phases);
    }
}

/// Whatever injected object a frame is given to, the frame lies within that object's code.
fn check_injected_frames(truth: &Truth, samples: &[perf::Sample]) {
    let mut within = perf::Verdict::new("frames within their object's code");
    for frame in samples.iter().flat_map(|sample| &sample.frames).filter(|frame| frame.is_injected()) {
        let size = truth.function(&frame.sym).map_or(0, |function| function.size);
        within.check((perf::TEXT_OFFSET..perf::TEXT_OFFSET + size).contains(&frame.ip), || format!("{frame:?}"));
    }
    within.decide(500, 0.0);
}

/// Moved code has its name, stacks and lines at the old place before and at the new place after; and so have others that are
/// put at the old place later.
#[test]
fn moved_code() {
    let recording = Recording::with_stacks("move", perf::program(), &["scenario=move", "layout=gap", "seconds=1.6"]);
    check_phases(&recording, 4);
}

/// The same with packed code and without call stacks: names only. (With `--call-graph dwarf` perf notes all mappings; without,
/// it learns of the dump by an executable one only.)
#[test]
fn moved_packed_code_keeps_its_names() {
    let arguments = ["scenario=move", "layout=packed", "seconds=1"];
    let recording = Recording::new("move-packed", perf::program(), &["-k", "1"], &arguments);
    let samples = perf::samples(&recording.truth, &recording.inject(), false);
    perf::check_names(&perf::guest_samples(&recording.truth, &samples), 500);
}

/// An address that holds one piece of code after another: each sample has the name of its time.
#[test]
fn reused_addresses() {
    let recording = Recording::with_stacks("reuse", perf::program(), &["scenario=reuse", "layout=gap", "seconds=1.6"]);
    check_phases(&recording, 5);
}

/// Code that is freed, its memory even unmapped, before the recording ends. The program is made by clang and holds the
/// static library.
#[test]
fn freed_code() {
    let arguments = ["scenario=free", "layout=gap", "seconds=1.5"];
    let recording = Recording::with_stacks("free", perf::static_program(), &arguments);
    check_phases(&recording, 2);
}

/// A recording whose code changes on the way: everything is right in each phase.
fn check_phases(recording: &Recording, phases: usize) {
    let truth = &recording.truth;
    assert_eq!(truth.phases.len(), phases, "{:?}", truth.phases);
    let samples = perf::samples(truth, &recording.inject(), true);
    let found = perf::guest_samples(truth, &samples);
    perf::check_names(&found, 500);
    perf::check_stacks(truth, &perf::not_unwound_before(&found));
    perf::check_lines(truth, &samples);
    // That the test is about something: code ran at several places, and places were held by several functions.
    let run = |place: &&perf::Place| found.iter().filter(|(_, other)| std::ptr::eq(*other, *place)).count() >= 20;
    let run: Vec<&perf::Place> = truth.places.iter().filter(run).collect();
    let gone = run.iter().filter(|place| place.to != u64::MAX).count();
    assert!(gone >= 3, "only {gone} places that were run and given up");
}
