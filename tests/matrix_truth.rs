//! The ground-truth program of the matrix (`c-tests/matrix/`), held against itself and against the files that the library
//! wrote: readers are measured by this truth, so it has to be true.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use crate::cfi::{self, Dumped};
use crate::perf::{self, Place};
use crate::support::{checker, compile, run, scratch_dir, stdout, Link};
use crate::truth::{Code, Part, Run, Truth};

/// As for readers that follow the tables, and for those that follow frame pointers.
pub const TABLES: &[&str] = &["-std=gnu11", "-Wpedantic", "-O2", "-fno-optimize-sibling-calls", "-fomit-frame-pointer"];
pub const FRAME_POINTERS: &[&str] =
    &["-std=gnu11", "-Wpedantic", "-O2", "-fno-optimize-sibling-calls", "-fno-omit-frame-pointer", "-DFRAME_POINTERS"];

/// The program, as the compiler makes it with these flags.
pub fn build(compiler: &str, flags: &[&str], name: &str) -> PathBuf {
    let dir = crate::support::root().join("c-tests/matrix");
    let files = std::fs::read_dir(dir).expect("sources").map(|entry| entry.expect("source").path());
    let mut sources: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .map(|path| path.display().to_string())
        .collect();
    sources.sort();
    let sources: Vec<&str> = sources.iter().map(|source| &**source).collect();
    compile(compiler, &sources, Link::Shared, flags, name)
}

fn scenarios(program: &Path) -> Vec<String> {
    let list = stdout(&run(perf::command(program).arg("list")));
    list.lines().map(String::from).collect()
}

/// Code of such a scenario is neither in the map nor in the jitdump; `tests/regions.rs` looks at the files that it is in.
fn is_about_regions(scenario: &str) -> bool {
    scenario.starts_with("region-")
}

/// A run that has printed its truth and waits to be let go, so that its files and its memory can be looked at.
struct Held {
    child: Child,
    output: BufReader<ChildStdout>,
    truth: Truth,
    dir: PathBuf,
}

impl Held {
    fn new(program: &Path, scenario: &str, name: &str) -> Self {
        let dir = scratch_dir(name);
        let truth = dir.join("truth");
        let mut command = perf::command(program);
        command.arg(scenario).args(["seconds=0.08", "count=1000", "hold=1"]);
        if is_about_regions(scenario) {
            command.args(["sinks=region", "memory=created"]);
        }
        command.arg(format!("truth={}", truth.display())).arg(format!("dir={}", dir.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the program");
        let mut output = BufReader::new(child.stdout.take().expect("standard output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("read from the program");
        assert_eq!(line, "done\n", "{scenario}");
        let truth = Truth::parse(&std::fs::read_to_string(truth).expect("truth")).expect("truth");
        Held { child, output, truth, dir }
    }

    /// A file as the process sees it, which may live in a namespace of its own.
    fn file(&self, sink: &str) -> PathBuf {
        format!("/proc/{}/root{}", self.truth.pid, self.truth.paths[sink].display()).into()
    }

    fn let_go(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("wait for the program");
        assert!(status.success(), "{status}");
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("read from the program");
        assert_eq!(rest, "");
        std::fs::remove_dir_all(&self.dir).expect("remove the scratch directory");
    }
}

/// Every scenario: the truth holds in itself, and the files of the library say the same. Returns what the truths are.
fn check_scenarios(compiler: &str, program: &Path) -> HashMap<String, Truth> {
    let names = scenarios(program);
    assert!(names.len() >= 30 && names.contains(&"namespace".into()), "{names:?}");
    let mut truths = HashMap::new();
    for scenario in names {
        println!("{scenario}");
        let held = Held::new(program, &scenario, &format!("{scenario}-{compiler}"));
        check(&held.truth);
        if !is_about_regions(&scenario) {
            check_dump(&held);
            check_map(&held);
        }
        check_source(&held);
        truths.insert(scenario, held.truth.clone());
        held.let_go();
    }
    truths
}

#[test]
fn truth_is_true_by_clang() {
    check_scenarios("clang", &build("clang", TABLES, "matrix_jit_clang"));
}

/// And what each scenario is there for is there.
#[test]
fn truth_is_true_by_gcc() {
    let truths = check_scenarios("gcc", &build("gcc", TABLES, "matrix_jit"));
    let of = |scenario: &str| &truths[scenario];
    let packed = |truth: &Truth, up: bool| {
        let pairs = truth.codes.windows(2);
        assert!(pairs.len() > 30 && truth.options["gap"] == "no");
        pairs.into_iter().all(|pair| {
            let (low, high) = if up { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
            low.addr + low.size == high.addr
        })
    };
    assert!(packed(of("packed-up"), true));
    assert!(packed(of("packed-down"), false));

    let depth = |truth: &Truth| truth.runs.values().flatten().map(|run| stack(run).len()).max();
    assert!(depth(of("deep-recursion")) > Some(100));
    let callbacks = of("callbacks");
    let sorts = Part::Native("sort_in_c".into());
    assert!(callbacks.runs.values().flatten().any(|run| stack(run).contains(&sorts)));
    let threads = of("threads");
    assert!(threads.runs.len() == 4 && !threads.runs.contains_key(&threads.pid), "{:?}", threads.runs.keys());

    let overlap = |a: &Code, b: &Code| a.addr < b.addr + b.size && b.addr < a.addr + a.size;
    let overlapping = of("moves-overlapping");
    let moved = |up: bool| {
        let pairs = overlapping
            .codes
            .iter()
            .enumerate()
            .flat_map(|(at, a)| overlapping.codes[at + 1..].iter().find(|b| b.name == a.name).map(|b| (a, b)));
        pairs.filter(|(a, b)| overlap(a, b) && (a.addr < b.addr) == up).count()
    };
    assert!(moved(true) > 20 && moved(false) > 20, "{} up, {} down", moved(true), moved(false));
    let reuse = of("reuse");
    let lives = reuse.codes.iter().filter(|code| code.to != u64::MAX).map(|code| code.to - code.from);
    assert!(lives.clone().count() > 30 && lives.min() < Some(10_000_000));
    let flushed = of("cache-flush");
    let ends: HashMap<u64, usize> = flushed.codes.iter().fold(HashMap::new(), |mut ends, code| {
        *ends.entry(code.to).or_default() += 1;
        ends
    });
    assert!(ends.len() == 8 && ends.values().all(|&count| count == 12) && !ends.contains_key(&u64::MAX), "{ends:?}");
    assert_eq!(of("no-unwind").options["unwind"], "none");

    assert_eq!(of("memfd").options["memory"], "memfd");
    let late = of("late");
    let unnamed: Vec<&Run> = late.unnamed.values().flatten().collect();
    assert!(unnamed.len() > 5 && unnamed.iter().all(|time| time.to - time.from > 1_000_000));
    let sizes = |truth: &Truth| truth.codes.iter().map(|code| code.size).collect::<Vec<_>>();
    assert!(sizes(of("one-byte")).contains(&1) && sizes(of("one-mebibyte")).contains(&(1 << 20)));
    let names = |truth: &Truth| truth.codes.iter().map(|code| code.name.clone()).collect::<Vec<_>>();
    assert!(names(of("short-names")).contains(&"f".into()));
    let mut long = names(of("long-names"));
    long.retain(|name| !name.starts_with("caller"));
    assert!(long.len() > 10 && long.iter().all(|name| (990..=1000).contains(&name.len())), "{long:?}");
    assert!(long.iter().filter(|name| name.contains('~')).count() >= 8, "{long:?}");
    assert_eq!(names(of("many")).len(), 1000);
    assert!(of("last-line").hot_lines.len() >= 4);
    assert!(of("mangled-names").codes.iter().map(|code| code.aliases.len()).sum::<usize>() >= 4);
}

/// Compiled for readers that follow frame pointers, it says which stacks they can see.
#[test]
fn frame_pointers_are_kept() {
    for compiler in ["gcc", "clang"] {
        let program = build(compiler, FRAME_POINTERS, &format!("matrix_jit_fp_{compiler}"));
        for (scenario, unwind) in [("frame-pointers", "both"), ("row-tables", "dwarf")] {
            let held = Held::new(&program, scenario, &format!("fp-{scenario}-{compiler}"));
            check(&held.truth);
            assert_eq!(held.truth.options["unwind"], unwind);
            held.let_go();
        }
    }
}

/// What a thread ran, innermost first.
fn stack(run: &Run) -> &[Part] {
    run.stack.as_deref().expect("runs have stacks")
}

/// What must hold for any scenario.
fn check(truth: &Truth) {
    assert!(truth.pid > 0);
    assert!(truth.options.contains_key("unwind") && truth.unwind().is_ok(), "{:?}", truth.options);
    assert!(["yes", "no"].contains(&&*truth.options["gap"]), "{:?}", truth.options);
    check_codes(truth);
    check_runs(truth);
}

/// No address belongs to two pieces of code at one time.
fn check_codes(truth: &Truth) {
    let mut events = Vec::new();
    for (at, code) in truth.codes.iter().enumerate() {
        assert!(code.size > 0 && code.from > 0 && code.from < code.to && !code.name.is_empty(), "{code:?}");
        assert!(code.lines.windows(2).all(|pair| pair[0].0 < pair[1].0), "{code:?}");
        assert!(code.lines.iter().all(|&(offset, line, _)| offset < code.size && line > 0), "{code:?}");
        events.push((code.from, true, at));
        events.push((code.to, false, at));
    }
    // What ends in the very nanosecond in which other code begins is gone.
    events.sort();
    let mut live: BTreeMap<u64, &Code> = BTreeMap::new();
    for (_, begins, at) in events {
        let code = &truth.codes[at];
        if !begins {
            live.remove(&code.addr);
            continue;
        }
        let before = live.range(..code.addr + code.size).next_back();
        if let Some((_, before)) = before {
            assert!(before.addr + before.size <= code.addr, "{code:?} lies over {before:?}");
        }
        live.insert(code.addr, code);
    }
}

/// Each thread runs one stack at a time, of code that is there all the while.
fn check_runs(truth: &Truth) {
    let count: usize = truth.runs.values().map(Vec::len).sum();
    assert!(count >= 20, "only {count} runs");
    for (tid, runs) in &truth.runs {
        let mut times: Vec<&Run> = runs.iter().chain(truth.unnamed.get(tid).into_iter().flatten()).collect();
        times.sort_by_key(|run| run.from);
        assert!(times.iter().all(|run| run.from < run.to), "{times:?}");
        assert!(times.windows(2).all(|pair| pair[0].to <= pair[1].from), "thread {tid} runs two stacks: {times:?}");
    }
    for run in truth.runs.values().flatten() {
        assert!(matches!(stack(run).first(), Some(Part::Code(_))), "code is innermost: {run:?}");
        assert_eq!(stack(run).last(), Some(&Part::AnyNative), "the driver is outermost: {run:?}");
        for part in stack(run) {
            match part {
                Part::Code(index) => {
                    let code = &truth.codes[*index];
                    assert!(code.from <= run.from && run.to <= code.to, "{code:?} does not live in {run:?}");
                }
                Part::Native(name) => assert!(["sort_in_c", "call_in_c"].contains(&&**name), "{run:?}"),
                Part::OneNative | Part::AnyNative => {}
            }
        }
    }
}

/// Each piece of code is in the dump, with a time before it ran, and with the bytes that are there.
fn check_dump(held: &Held) {
    let truth = &held.truth;
    let bytes = std::fs::read(held.file("jitdump")).expect("jitdump");
    // A jitdump does not say that the code which tables are mapped over is gone.
    let gone = truth.codes.iter().any(|code| code.to < u64::MAX);
    let mut allowed: Vec<&str> = if gone { vec!["mapped-over-earlier", "mapped-over-later"] } else { Vec::new() };
    // Its row does not follow the stack pointer up to its last instruction.
    if truth.codes.iter().any(|code| code.name == "drops_frame") {
        allowed.push("unwind-epilogue");
    }
    checker::problems(&bytes, &truth.paths["jitdump"], &allowed).unwrap_or_else(|problems| panic!("{problems}"));
    let loads = cfi::read_dump(&*bytes);
    assert_eq!(loads.len(), truth.codes.len(), "pieces of code in the dump");
    let mut by_place: HashMap<(u64, usize, &str), Vec<&Dumped>> = HashMap::new();
    for load in &loads {
        by_place.entry((load.addr, load.code.len(), &load.name)).or_default().push(load);
    }
    let mut memory = std::fs::File::open(format!("/proc/{}/mem", truth.pid)).expect("memory of the program");
    let mut first_runs = HashMap::new();
    for run in truth.runs.values().flatten() {
        for part in stack(run) {
            let first = first_runs.entry(part).or_insert(run.from);
            *first = run.from.min(*first);
        }
    }
    for (at, code) in truth.codes.iter().enumerate() {
        let first_run = first_runs.get(&Part::Code(at)).copied().unwrap_or(code.to);
        let name = shown(&code.name);
        let candidates = by_place.get(&(code.addr, code.size as usize, &name));
        let found = candidates.into_iter().flatten().find(|load| (code.from..=first_run).contains(&load.time));
        let load = found.unwrap_or_else(|| panic!("{code:?}, first run at {first_run}, is not in the dump"));
        let mapped = load.tables.as_ref().is_some_and(|tables| tables.2 > 0);
        assert_eq!(mapped, truth.options["gap"] == "yes", "{code:?}");
        let lines: Vec<_> =
            code.lines.iter().map(|(offset, line, file)| (code.addr + offset, *line, file.clone())).collect();
        // Behind them is the one that closes the table.
        assert_eq!(load.lines.get(..lines.len()), Some(&*lines), "{code:?}");
        if code.to == u64::MAX {
            let mut bytes = vec![0; load.code.len()];
            memory.seek(SeekFrom::Start(code.addr)).expect("address");
            memory.read_exact(&mut bytes).expect("read the code");
            assert!(bytes == load.code, "bytes of {code:?}");
        }
    }
}

/// A name as it is in the files: short ones are made longer.
fn shown(name: &str) -> String {
    if name.len() < 3 {
        format!("{name}()")
    } else {
        name.into()
    }
}

/// The map names each address by the code that lay there last.
fn check_map(held: &Held) {
    let place = |code: &Code| Place {
        function: None,
        name: shown(&code.name),
        addr: code.addr,
        size: code.size,
        from: code.from,
        done: code.from,
        to: code.to,
        moved: false,
    };
    let places = held.truth.codes.iter().map(place).collect();
    let paths = [("map".into(), held.file("map"))].into();
    let truth = perf::Truth { places, paths, ..Default::default() };
    perf::check_map(&truth, &std::fs::read(held.file("map")).expect("map"));
}

/// The hot lines are the last of their tables, and lines of a file that is there.
fn check_source(held: &Held) {
    for (index, line) in &held.truth.hot_lines {
        let code = &held.truth.codes[*index];
        let (_, last, file) = code.lines.last().expect("lines of code with a hot one");
        assert_eq!((last, Path::new(file)), (line, &*held.truth.paths["source"]));
        let source = std::fs::read_to_string(held.file("source")).expect("guest source");
        let text = source.lines().nth(*line as usize - 1).expect("line of the source");
        assert!(text.contains("burn") && text.contains(&code.name), "{text}");
    }
}
