//! MoarVM, which runs Debian's Rakudo.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::perf;
use crate::recording::{at_least, built, check_stacks, registered_and_gone, Recording, Sample, Way, STACKS};
use crate::support::{checker, fresh_dir, root, run, stdout, until_enough};

/// Samples in compiled code that each phase has to have.
const ENOUGH: usize = 40;
/// So many that the garbage collector has given memory of code back, which then has other code.
const GENERATIONS: usize = 400;

fn moar() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("moarvm", "moar"))
}

/// What its script `raku` calls.
const RAKUDO: [&str; 4] = [
    "--libpath=/usr/share/nqp/lib",
    "--libpath=/usr/lib/perl6/lib",
    "--libpath=/usr/lib/perl6/runtime",
    "/usr/lib/perl6/runtime/rakudo.moarvm",
];

fn guest() -> PathBuf {
    root().join("tests/runtimes/hot.raku")
}

/// Where the guest burns in each phase: the function, and the line that ends with `# PHASE`.
fn hot(phase: &str) -> (String, String) {
    let function = match phase {
        "first" | "second" => "first_or_second",
        "big" => "big_numbers",
        other => other,
    };
    let text = std::fs::read_to_string(guest()).expect("guest");
    let line = 1 + text.lines().position(|line| line.ends_with(&format!("# {phase}"))).expect("the hot line");
    (format!("{function} "), format!("hot.raku:{line}"))
}

fn record(name: &str, way: Way, variables: &[(&str, &str)]) -> Recording {
    until_enough(ENOUGH, |pace| {
        let seconds = format!("{}", 0.3 * f64::from(pace));
        let (moar, guest) = (moar().to_str().expect("UTF-8"), guest());
        let words = [&[moar][..], &RAKUDO, &[guest.to_str().expect("UTF-8"), &seconds, "0"]].concat();
        let recording = Recording::of(name, way, variables, STACKS, &words);
        let compiled =
            |phase: &str| recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).count();
        let fewest = ["first", "second", "numbers"].map(compiled).into_iter().min().unwrap_or(0);
        (recording, fewest)
    })
}

fn check(what: &str, recording: &Recording) {
    for phase in ["first", "second", "numbers"] {
        let (function, line) = hot(phase);
        let compiled: Vec<&Sample> =
            recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).collect();
        let others = |is_right: &dyn Fn(&Sample) -> bool| {
            let wrong = compiled.iter().filter(|sample| !is_right(sample)).take(5);
            format!("{:?}", wrong.map(|sample| (&sample.frames[0], &sample.line)).collect::<Vec<_>>())
        };
        let is_named =
            |sample: &Sample| sample.frames[0].0.starts_with(&function) && sample.frames[0].0.contains("hot.raku:");
        let named = compiled.iter().filter(|sample| is_named(sample)).count();
        at_least(&format!("{what}, {phase}: names"), named, compiled.len(), ENOUGH, 99, || others(&is_named));
        let is_at_line = |sample: &Sample| sample.line == line;
        let at_line = compiled.iter().filter(|sample| is_at_line(sample)).count();
        at_least(&format!("{what}, {phase}: lines"), at_line, compiled.len(), ENOUGH, 95, || others(&is_at_line));
    }
    // C burns, called by compiled code.
    let burning = recording.during(recording.phase("big"));
    let burning: Vec<&Sample> =
        burning.filter(|sample| sample.frames.first().is_some_and(|frame| frame.1.contains("/libtommath"))).collect();
    let is_called = |sample: &&&Sample| sample.frames.iter().any(|frame| frame.0.starts_with("big_numbers "));
    let called = burning.iter().filter(is_called).count();
    let others = || format!("{:?}", burning.iter().find(|sample| !is_called(sample)).map(|sample| &sample.frames));
    at_least(&format!("{what}, big: callers of C"), called, burning.len(), ENOUGH / 2, 90, others);
    check_stacks(what, recording, 200, |_| true);
}

/// Code that comes and goes has its own name, wherever it lies.
#[test]
fn moarvm_frees_code() {
    let log = fresh_dir("generations").join("log");
    let variables = [("MVM_JITSYM", "1"), ("JITSYM_DEBUG", log.to_str().expect("UTF-8"))];
    let (moar, guest) = (moar().to_str().expect("UTF-8"), guest());
    let generations = GENERATIONS.to_string();
    let words = [&[moar][..], &RAKUDO, &[guest.to_str().expect("UTF-8"), "0", &generations]].concat();
    let recording = Recording::of("moarvm-generations", Way::Jitdump, &variables, &["-g"], &words);
    let (registered, gone) = registered_and_gone(&std::fs::read_to_string(&log).expect("log"));
    println!("{registered} registered, {gone} unregistered");
    assert!(gone >= 10, "{gone} of {registered} unregistered");
    checker::assert_sound(&recording.dump(), &[]);

    let (mut right, mut all, mut wrong) = (0, 0, Vec::new());
    for sample in recording.samples.iter().filter(|sample| sample.is_compiled()) {
        let Some(phase) = recording.phase_at(sample.time) else { continue };
        let name = sample.frames[0].0.split(' ').next().unwrap_or_default();
        if name.starts_with("generation_") {
            all += 1;
            right += usize::from(name == phase.name);
            if name != phase.name {
                wrong.push((name, &phase.name));
            }
        }
    }
    at_least("generations: names", right, all, ENOUGH, 99, || format!("{wrong:?}"));
}

#[test]
fn moarvm_with_a_jitdump() {
    let recording = record("moarvm-jitdump", Way::Jitdump, &[("MVM_JITSYM", "1")]);
    check("jitdump", &recording);
    check_annotation(&recording);
}

/// Code memory is the library's: names, lines and stacks without `perf inject`.
#[test]
fn moarvm_in_regions() {
    let recording = record("moarvm-regions", Way::Regions, &[("MVM_JITSYM", "1")]);
    check("regions", &recording);
    let elsewhere = recording.samples.iter().filter(|sample| sample.is_compiled());
    let elsewhere = elsewhere.filter(|sample| !sample.frames[0].1.contains("/jit-")).count();
    assert_eq!(elsewhere, 0, "compiled code that is in no region");
    check_annotation(&recording);
}

/// `perf annotate` shows the source of the guest.
fn check_annotation(recording: &Recording) {
    let (function, _) = hot("numbers");
    let named = recording.samples.iter().flat_map(|sample| sample.frames.first());
    let symbol = &named.into_iter().find(|frame| frame.0.starts_with(&function)).expect("a sample").0;
    let annotated = run(perf::perf("annotate").args(["--stdio", "-i"]).arg(&recording.file).arg(symbol));
    let annotated = stdout(&annotated);
    assert!(annotated.contains("sqrt($x)"), "no line of the guest's source in\n{annotated}");
}
