//! What perf makes of a jitdump: record, inject and script as a user would, held against the ground truth.
//!
//! Programs are stepped, so that each instruction of the guest is a sample, and each name, stack and line is right or the test
//! fails. One program is sampled: shares are compared within 5 points, since the samples are some thousand, and of the stacks one
//! in a hundred may be cut off.

use crate::annotate;
use crate::perf::{self, Place, Recording, Sample, Truth};
use crate::support::{compile, fresh_dir, run, stdout, Link};
use jitsym_step::Graph;
use std::collections::BTreeMap;
use std::path::Path;

/// Leaves, callers and C functions with every kind of unwind description, and free bytes behind each piece of code: names,
/// shares of time, stacks and source lines are all there after perf's own `perf inject --jit`.
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
    perf::check_lines(truth, &samples, 500);
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

/// The same by stepping: each instruction of each of them.
#[test]
fn each_instruction() {
    let (recording, moments) =
        Recording::stepped("each", perf::program(), perf::TABLES, &["scenario=stacks", "layout=gap"]);
    let samples = perf::samples(&recording.truth, &recording.inject(), true);
    moments.check(&recording.truth, &samples);
    perf::check_lines(&recording.truth, &samples, 20);
}

/// perf skips the records of inlined functions: names, stacks and lines are as without them.
#[test]
fn records_of_inlined_functions_are_skipped() {
    let arguments = ["scenario=stacks", "layout=gap", "inlined=1"];
    let (recording, moments) = Recording::stepped("inlined", perf::program(), perf::TABLES, &arguments);
    let said = recording.inject_loudly();
    assert!(said.contains("unknown record type 827346260, skipping"), "{said}");
    let samples = perf::samples(&recording.truth, &recording.inject(), true);
    moments.check(&recording.truth, &samples);
    perf::check_lines(&recording.truth, &samples, 20);
    let arguments = ["scenario=move", "layout=gap", "inlined=1"];
    check_phases("move-inlined", perf::program(), &arguments, Inject::Perf, 4);
}

/// Code without a free byte between the pieces keeps the right names after perf's own `perf inject --jit`.
#[test]
fn packed_code_keeps_its_names() {
    let arguments = ["scenario=stacks", "layout=packed"];
    let (recording, moments) = Recording::stepped("packed", perf::program(), perf::TABLES, &arguments);
    let truth = &recording.truth;
    let injected = recording.inject();
    moments.check(truth, &perf::samples(truth, &injected, false));
    check_injected_frames(truth, &perf::samples(truth, &injected, true));
}

/// After `jitsym inject`, packed code has stacks and lines as well, whatever its frames are; also when it is moved, and when
/// other code takes its place.
#[test]
fn packed_code_has_stacks() {
    check_phases("move-inject", perf::program(), &["scenario=move", "layout=packed"], Inject::Jitsym, 4);
    check_phases("reuse-inject", perf::program(), &["scenario=reuse", "layout=packed"], Inject::Jitsym, 5);
}

/// Whatever injected object a frame is given to, the frame lies within that object's code.
fn check_injected_frames(truth: &Truth, samples: &[perf::Sample]) {
    let mut within = perf::Verdict::new("frames within their object's code");
    for frame in samples.iter().flat_map(|sample| &sample.frames).filter(|frame| frame.is_injected()) {
        let size = truth.function(&frame.sym).map_or(0, |function| function.size);
        within.check((perf::TEXT_OFFSET..perf::TEXT_OFFSET + size).contains(&frame.ip), || format!("{frame:?}"));
    }
    within.decide(50, 0.0);
}

/// Moved code has its name, stacks and lines at the old place before and at the new place after; and so have others that are
/// put at the old place later.
#[test]
fn moved_code() {
    check_phases("move", perf::program(), &["scenario=move", "layout=gap"], Inject::Perf, 4);
}

/// The same with packed code and without tables: names only. (With `--call-graph dwarf` perf notes all mappings; without, it
/// learns of the dump by an executable one only.)
#[test]
fn moved_packed_code_keeps_its_names() {
    let arguments = ["scenario=move", "layout=packed"];
    let (recording, moments) = Recording::stepped("move-packed", perf::program(), Graph::FramePointers, &arguments);
    moments.check(&recording.truth, &perf::samples(&recording.truth, &recording.inject(), false));
}

/// An address that holds one piece of code after another: each sample has the name of its time.
#[test]
fn reused_addresses() {
    check_phases("reuse", perf::program(), &["scenario=reuse", "layout=gap"], Inject::Perf, 5);
}

/// Code that is freed, its memory even unmapped, before the recording ends. The program is made by clang and holds the
/// static library.
#[test]
fn freed_code() {
    check_phases("free", perf::static_program(), &["scenario=free", "layout=gap"], Inject::Perf, 2);
}

/// What puts the jitdump into the recording.
enum Inject {
    Perf,
    Jitsym,
}

/// Steps through a program whose code changes on the way: everything is right in each phase.
fn check_phases(name: &str, program: &Path, arguments: &[&str], inject: Inject, phases: usize) {
    let (recording, moments) = Recording::stepped(name, program, perf::TABLES, arguments);
    let truth = &recording.truth;
    assert_eq!(truth.phases.len(), phases, "{:?}", truth.phases);
    let injected = match inject {
        Inject::Perf => recording.inject(),
        Inject::Jitsym => recording.inject_by_jitsym(),
    };
    let samples = perf::samples(truth, &injected, true);
    moments.check(truth, &samples);
    perf::check_lines(truth, &samples, 20);
    // That the test is about something: code ran at several places, and places were held by several functions.
    let found = perf::guest_samples(truth, &samples);
    let has_run = |place: &&perf::Place| found.iter().any(|(_, other)| std::ptr::eq(*other, *place));
    let run: Vec<&perf::Place> = truth.places.iter().filter(has_run).collect();
    let gone = run.iter().filter(|place| place.to != u64::MAX).count();
    assert!(gone >= 3, "only {gone} places that were run and given up");
}

/// Samples in the library have the host's callers in a recording by frame pointers too, at each instruction of three calls.
#[test]
fn the_library_has_frame_pointers() {
    let dir = fresh_dir("frame-pointers");
    let flags = &["-std=gnu11", "-O1", "-fno-omit-frame-pointer"];
    let mut program = perf::command(compile("gcc", &["c-tests/perf/registers.c"], Link::Static, flags, "registers"));
    program.arg(&dir).arg("light");
    let (perf, data) = (perf::perf("record"), &dir.join("perf.data"));
    let plan = jitsym_step::Plan {
        program,
        perf,
        graph: Graph::FramePointers,
        enter: &["calls_the_library"],
        every: false,
        hold: None,
        data,
    };
    let recorded = jitsym_step::record(plan).expect("a recording");
    let script = stdout(&run(perf::perf("script").args(["--no-inline", "-F", "ip,sym,dso", "-i"]).arg(data)));
    let stacks: Vec<&str> = script.split("\n\n").filter(|stack| !stack.trim().is_empty()).collect();
    assert_eq!(stacks.len(), recorded.moments.len(), "{script}");
    // Functions of the C library have no frame pointers.
    let is_here = |stack: &&&str| stack.trim_start().lines().next().is_some_and(|leaf| leaf.ends_with("/registers)"));
    let here: Vec<&&str> = stacks.iter().filter(is_here).collect();
    assert!(
        here.iter().any(|stack| stack.trim_start().lines().next().is_some_and(|leaf| leaf.contains("jitsym"))),
        "{script}"
    );
    for stack in here {
        assert!(stack.lines().any(|frame| frame.contains(" main (")), "{stack}");
    }
}
