//! MoarVM, which runs Debian's Rakudo.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::recording::{at_least, built, check_stacks, registered_and_gone, Recording, Sample, Way, STACKS};
use crate::perf;
use crate::support::{checker, fresh_dir, root, run, stdout, until_enough};

/// Samples in compiled code that each phase has to have.
const ENOUGH: usize = 40;
/// So many that the garbage collector has given memory of code back, which then has other code; more, if that is too little.
const GENERATIONS: usize = 400;
/// How much code is to be gone.
const GONE: usize = 10;

/// Starts Debian's Rakudo on it.
fn raku() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("moarvm", "raku"))
}

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
        let (raku, guest) = (raku().to_str().expect("UTF-8"), guest());
        let words = [raku, guest.to_str().expect("UTF-8"), &seconds, "0"];
        let recording = Recording::of(name, way, variables, STACKS, &words);
        let compiled =
            |phase: &str| recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).count();
        let fewest = ["first", "second", "numbers"].map(compiled).into_iter().min().unwrap_or(0);
        (recording, fewest)
    })
}

fn is_of_guest(sample: &Sample) -> bool {
    sample.frames[0].0.contains("hot.raku:")
}

/// Of the samples of a phase in compiled code, those in the function that is hot. All of them have names.
fn check_names<'r>(what: &str, recording: &'r Recording, phase: &str) -> Vec<&'r Sample> {
    let (function, _) = hot(phase);
    let compiled: Vec<&Sample> =
        recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).collect();
    let others = |is_right: &dyn Fn(&Sample) -> bool| {
        let wrong = compiled.iter().filter(|sample| !is_right(sample)).take(5);
        format!("{:?}", wrong.map(|sample| (&sample.frames[0], &sample.line)).collect::<Vec<_>>())
    };
    // The clock and the core of Raku take a little of the time as well, the functions of other phases none.
    let is_hot = |sample: &Sample| sample.frames[0].0.starts_with(&function) && is_of_guest(sample);
    let is_named = |sample: &Sample| {
        let name = &sample.frames[0].0;
        is_hot(sample)
            || is_of_guest(sample) && ["seconds ", "phase "].iter().any(|start| name.starts_with(start))
            || ["#sources/", "gen/moar/"].iter().any(|core| name.contains(core))
    };
    let named = compiled.iter().filter(|sample| is_named(sample)).count();
    at_least(&format!("{what}, {phase}: names"), named, compiled.len(), ENOUGH, 99, || others(&is_named));
    let hot: Vec<&Sample> = compiled.iter().copied().filter(|sample| is_hot(sample)).collect();
    at_least(&format!("{what}, {phase}: hot"), hot.len(), compiled.len(), ENOUGH, 50, || others(&is_hot));
    hot
}

fn check(what: &str, recording: &Recording) {
    for phase in ["first", "second", "numbers"] {
        let (hot, (_, line)) = (check_names(what, recording, phase), hot(phase));
        let others = |is_right: &dyn Fn(&Sample) -> bool| {
            let wrong = hot.iter().filter(|sample| !is_right(sample)).take(5);
            format!("{:?}", wrong.map(|sample| (&sample.frames[0], &sample.line)).collect::<Vec<_>>())
        };
        let is_at_line = |sample: &Sample| sample.line == line;
        let at_line = hot.iter().filter(|sample| is_at_line(sample)).count();
        at_least(&format!("{what}, {phase}: lines"), at_line, hot.len(), ENOUGH / 2, 99, || others(&is_at_line));
    }
    // C burns, called by compiled code.
    let burning = recording.during(recording.phase("big"));
    let burning: Vec<&Sample> =
        burning.filter(|sample| sample.frames.first().is_some_and(|frame| frame.1.contains("/libtommath"))).collect();
    let is_called = |sample: &&&Sample| sample.frames.iter().any(|frame| frame.0.starts_with("big_numbers "));
    let called = burning.iter().filter(is_called).count();
    let whole = burning.iter().filter(|sample| sample.is_whole()).count();
    let broken = || format!("{:?}", burning.iter().find(|sample| !sample.is_whole()).map(|sample| &sample.frames));
    at_least(&format!("{what}, big: stacks that begin in C"), whole, burning.len(), ENOUGH / 2, 99, broken);
    // The interpreter calls it too, before the function is compiled.
    let others = || format!("{:?}", burning.iter().find(|sample| !is_called(sample)).map(|sample| &sample.frames));
    at_least(&format!("{what}, big: callers of C"), called, burning.len(), ENOUGH / 2, 90, others);
    check_stacks(what, recording, 3 * ENOUGH, |_| true);
}

/// Without the library, the headers write the map, for MoarVM's own variable too. MoarVM's own writer is gone.
#[test]
fn moarvm_without_the_library() {
    for variable in ["MVM_JITSYM", "MVM_JIT_PERF_MAP"] {
        let recording = record("moarvm-alone", Way::Alone, &[(variable, "1")]);
        for phase in ["first", "second", "numbers"] {
            check_names(variable, &recording, phase);
        }
    }
    let source = raku().parent().and_then(Path::parent).expect("prefix").join("build/src/moar.c");
    let source = std::fs::read_to_string(source).expect("source");
    assert!(source.contains("MVM_jitsym_init") && !source.contains("/tmp/perf-"));
}

/// Records a guest that compiles functions and forgets them. Returns also what the library has said.
fn record_generations(way: Way, variables: &[(&str, &str)]) -> (Recording, String) {
    let name = format!("moarvm-generations-{way:?}-{}", variables[0].1);
    let log = fresh_dir(&name).join("log");
    let variables = [&[("JITSYM_DEBUG", log.to_str().expect("UTF-8"))], variables].concat();
    until_enough(GONE, |pace| {
        let (raku, guest, generations) = (raku().to_str().expect("UTF-8"), guest(), GENERATIONS * pace as usize);
        let words = [raku, guest.to_str().expect("UTF-8"), "0", &generations.to_string()];
        let _ = std::fs::remove_file(&log);
        let recording = Recording::of(&name, way, &variables, STACKS, &words);
        let said = std::fs::read_to_string(&log).expect("log");
        let (registered, gone) = registered_and_gone(&said);
        println!("{registered} registered, {gone} unregistered");
        ((recording, said), gone as usize)
    })
}

/// Code that comes and goes has its own name, wherever it lies.
fn check_generations(recording: &Recording) {
    let (mut right, mut all, mut wrong) = (0, 0, Vec::new());
    for sample in recording.samples.iter().filter(|sample| sample.is_compiled()) {
        let Some(phase) = recording.phase_at(sample.time) else { continue };
        let name = sample.frames[0].0.split(' ').next().unwrap_or_default();
        // Without a name there is the address.
        if name.starts_with("generation_") || name == "[unknown]" {
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
fn moarvm_frees_code() {
    let (recording, _) = record_generations(Way::Jitdump, &[("MVM_JITSYM", "1")]);
    checker::assert_sound(&recording.dump(), &[]);
    check_generations(&recording);
    check_stacks("generations", &recording, 200, |_| true);
    // Memory of what is gone has other code then.
    let mut names: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    recording.dumped().into_iter().for_each(|code| _ = names.entry(code.addr).or_default().insert(code.name));
    let reused = names.values().filter(|names| names.len() > 1).count();
    println!("{reused} addresses of several functions");
    assert!(reused > 0, "no address of several functions");
}

/// Memory that MoarVM maps itself, each function by itself, is adopted.
const ADOPTED: [(&str, &str); 2] = [("MVM_JITSYM", "own"), ("JITSYM_ADOPT", "1")];

/// Names, lines and stacks without `perf inject`.
#[test]
fn moarvm_in_adopted_memory() {
    let recording = record("moarvm-adopted", Way::Regions, &ADOPTED);
    check("adopted", &recording);
    assert_in_regions(&recording);
    check_annotation(&recording);
}

/// The same in the library's memory.
#[test]
fn moarvm_frees_regions() {
    let (recording, _) = record_generations(Way::Regions, &[("MVM_JITSYM", "1")]);
    check_generations(&recording);
    assert_in_regions(&recording);
    check_stacks("generations in regions", &recording, 200, |_| true);
}

/// A program that compiles more functions than there can be regions: they share a few.
#[test]
fn moarvm_frees_adopted_code() {
    let (recording, said) = record_generations(Way::Regions, &ADOPTED);
    let (registered, _) = registered_and_gone(&said);
    let (regions, _) = said.split_once(" regions with ").expect("how many regions");
    let regions: u64 = regions.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("number");
    println!("{regions} regions");
    assert!(regions * 5 <= registered, "{regions} regions for {registered}");
    check_generations(&recording);
    assert_in_regions(&recording);
    check_stacks("adopted generations", &recording, 200, |_| true);
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
    assert_in_regions(&recording);
    check_annotation(&recording);
}

fn assert_in_regions(recording: &Recording) {
    let compiled: Vec<&Sample> = recording.samples.iter().filter(|sample| sample.is_compiled()).collect();
    let inside = compiled.iter().filter(|sample| sample.frames[0].1.contains("/jit")).count();
    at_least("code in regions", inside, compiled.len(), ENOUGH, 99, String::new);
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
