//! LuaJIT, with the guest of `tests/luajit`: each phase burns its time in one line, in another kind of trace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::recording::{
    at_least, built, check_stacks, is_compiled, registered_and_gone, source, Recording, Sample, Way, STACKS,
};
use crate::perf;
use crate::support::{artifacts, root, run, scratch_dir, stdout, until_enough};

/// Samples in traces that each phase has to have.
const ENOUGH: usize = 40;
const PHASES: [&str; 9] =
    ["loop", "inlined", "side", "side_inlined", "spill", "recursion", "coroutines", "callback", "stitched"];

fn luajit() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("luajit", "luajit"))
}

/// Where each phase is hot: `FILE:LINE`.
fn hot_lines() -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    for file in ["hot.lua", "inlined.lua"] {
        let text = std::fs::read_to_string(root().join("tests/luajit").join(file)).expect("guest");
        for (index, line) in text.lines().enumerate() {
            if let Some((_, phase)) = line.split_once(" -- hot: ") {
                lines.insert(phase.to_string(), format!("{file}:{}", index + 1));
            }
        }
    }
    lines
}

/// The lines of a phase and of what calls it, as `FILE:LINE`: functions are paragraphs of the guest.
fn lines_of_phase(phase: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in ["hot.lua", "inlined.lua"] {
        let text = std::fs::read_to_string(root().join("tests/luajit").join(file)).expect("guest");
        let mut next = 1;
        for paragraph in text.split("\n\n") {
            let count = paragraph.lines().count();
            let words = [format!("phases.{phase} ="), format!("-- hot: {phase}\n"), "local function burn".into()];
            if words.iter().any(|word| paragraph.contains(word)) {
                lines.extend((next..next + count).map(|line| format!("{file}:{line}")));
            }
            next += count + 1;
        }
    }
    lines
}

fn record(name: &str, way: Way, variables: &[(&str, &str)]) -> Recording {
    until_enough(ENOUGH, |pace| {
        let seconds = format!("{}", 0.2 * f64::from(pace));
        let guest = root().join("tests/luajit/hot.lua");
        let words = [luajit().to_str().expect("UTF-8"), guest.to_str().expect("UTF-8"), &seconds];
        let recording = Recording::of(name, way, variables, STACKS, &[&words, &PHASES[..]].concat());
        let compiled =
            |phase: &str| recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).count();
        let fewest = PHASES.map(compiled).into_iter().min().unwrap_or(0);
        (recording, fewest)
    })
}

/// The samples of a phase in compiled code, which have names.
fn check_names<'r>(what: &str, recording: &'r Recording, phase: &str) -> Vec<&'r Sample> {
    let traces: Vec<&Sample> = recording.during(recording.phase(phase)).filter(|sample| sample.is_compiled()).collect();
    let is_named = |sample: &&&Sample| {
        let name = &sample.frames[0].0;
        name.starts_with("TRACE_") && name.contains(".lua:") || name.starts_with("exit stubs ")
    };
    let named = traces.iter().filter(is_named).count();
    let others = || {
        let others = traces.iter().filter(|sample| !is_named(sample)).take(5);
        format!("{:?}", others.map(|sample| &sample.frames).collect::<Vec<_>>())
    };
    at_least(&format!("{what}, {phase}: names"), named, traces.len(), ENOUGH, 99, others);
    traces
}

fn check(what: &str, recording: &Recording) {
    let lines = hot_lines();
    for phase in PHASES {
        let traces = check_names(what, recording, phase);
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for sample in &traces {
            *found.entry(&sample.line).or_default() += 1;
        }
        let of_phase = lines_of_phase(phase);
        let in_phase =
            |sample: &&&Sample| of_phase.contains(&sample.line) || sample.frames[0].0.starts_with("exit stubs ");
        let inside = traces.iter().filter(in_phase).count();
        at_least(&format!("{what}, {phase}: lines of the phase"), inside, traces.len(), ENOUGH, 99, || {
            format!("{found:?}")
        });
        // How much of the time the quick instructions around it take depends on the processor.
        let hot = found.get(&*lines[phase]).copied().unwrap_or(0);
        at_least(&format!("{what}, {phase}: lines"), hot, traces.len(), ENOUGH, 50, || format!("{found:?}"));
    }
    // LuaJIT's own code between a trace and the interpreter has no table for the frame of the trace.
    let is_leaving = |sample: &Sample| sample.frames.iter().any(|frame| frame.0 == "lj_vm_exit_handler");
    check_stacks(what, recording, 200, |sample| !is_leaving(sample));
    // The library of C calls the trace's function, which calls traces.
    let through = recording.during(recording.phase("callback")).filter(|sample| sample.is_compiled());
    let (mut right, mut all) = (0, 0);
    for sample in through {
        all += 1;
        let from = sample.frames.iter().position(|frame| frame.0.contains("qsort_r"));
        right += usize::from(from.is_some_and(|from| sample.frames[..from].iter().any(is_compiled)));
    }
    at_least(&format!("{what}: through a callback of C"), right, all, ENOUGH, 99, String::new);
}

#[test]
fn luajit_with_a_jitdump() {
    let recording = record("luajit-jitdump", Way::Jitdump, &[("LUAJIT_JITSYM", "1")]);
    check("jitdump", &recording);
    let stubs = recording.dumped().into_iter().filter(|code| code.name.starts_with("exit stubs ")).count();
    assert!(stubs >= 1, "no exit stubs");
}

/// Without the library, the headers write the map: number, file and line of each trace, as LuaJIT's own writer did.
#[test]
fn luajit_without_the_library() {
    let recording = record("luajit-alone", Way::Alone, &[("JITSYM", "map")]);
    for phase in PHASES {
        check_names("without the library", &recording, phase);
    }
    let source = luajit().parent().and_then(Path::parent).expect("prefix").join("build/src/lj_trace.c");
    let source = std::fs::read_to_string(source).expect("source");
    assert!(source.contains("lj_jitsym_addtrace") && !source.contains("perf-%d.map"));
}

/// gdb goes from the middle of a trace to `main`, with the trace's name, for which a user can set a breakpoint, and its line.
#[test]
fn luajit_in_gdb() {
    let (guest, library) = (root().join("tests/luajit/visits.lua"), scratch_dir("luajit").join("stop.so"));
    let mut cc = Command::new("gcc");
    run(cc.current_dir(root()).args(["-g", "-O1", "-fPIC", "-shared", "c-tests/debug/stop.c", "-o"]).arg(&library));
    let mut gdb = perf::command("gdb");
    gdb.env("JITSYM", "gdb").env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"));
    gdb.args([
        "-batch",
        "-nx",
        "-ex",
        "set debuginfod enabled off",
        "-ex",
        "set breakpoint pending on",
        "-ex",
        "break reached",
        "-ex",
        "run",
        "-ex",
        "bt",
    ]);
    // The guest asks the module for a flush, which is not loaded. A debugger that listens knows of code before it runs.
    let module = "package.loaded.jitsym = {flush = function() return true end}";
    gdb.arg("--args").arg(luajit()).args(["-e", module]).arg(&guest).arg(&library);
    let text = stdout(&run(&mut gdb));
    let source = std::fs::read_to_string(&guest).expect("guest");
    let line = |comment: &str| 1 + source.lines().position(|line| line.ends_with(comment)).expect("the line");
    let stack: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let at = stack.iter().position(|frame| frame.contains(" TRACE_1 ("));
    let at = at.unwrap_or_else(|| panic!("no trace: {text}"));
    assert!(stack[at].ends_with(&format!("visits.lua:{}", line("-- inlined"))), "{text}");
    assert!(stack[at + 1..].iter().any(|frame| frame.contains(" main (")), "{text}");
}

/// The memory of traces is adopted: names, lines and stacks without `perf inject`.
#[test]
fn luajit_in_adopted_memory() {
    check("adopted", &record("luajit-adopted", Way::Regions, &[("JITSYM_ADOPT", "1")]));
}

/// A program that compiles and flushes all the time computes the same, and at its end nothing is registered that is not live.
#[test]
fn luajit_flushes() {
    let guest = root().join("bindings/luajit/churn.lua");
    let run_it = |variables: &[(&str, &str)]| {
        let mut command = perf::command(luajit());
        command.envs(variables.iter().copied()).arg(&guest).args(["4", "1000"]);
        command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"));
        let output = run(&mut command);
        (stdout(&output), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (plain, _) = run_it(&[]);
    for variables in
        [[("JITSYM", "map,jitdump"), ("JITSYM_REMOVE", "1")], [("JITSYM_ADOPT", "1"), ("JITSYM_REMOVE", "1")]]
    {
        let (output, said) = run_it(&[&variables[..], &[("JITSYM_DEBUG", "1")]].concat());
        assert_eq!(output, plain, "{variables:?}");
        let (registered, gone) = registered_and_gone(&said);
        println!("{variables:?}: {registered} registered, {gone} unregistered");
        assert!(registered > 1000 && gone == registered, "{said}");
    }
}

/// The code of each generation has its own name, though it lies where that of others was, and its stacks are whole.
#[test]
fn flushed_traces() {
    let guest = root().join("tests/runtimes/flushes.lua");
    for (name, way, variable) in [
        ("luajit-flushes-jitdump", Way::Jitdump, ("LUAJIT_JITSYM", "1")),
        ("luajit-flushes-adopted", Way::Regions, ("JITSYM_ADOPT", "1")),
    ] {
        let recording = until_enough(4 * ENOUGH, |pace| {
            let generations = (60.0 * f64::from(pace)).to_string();
            let words = [luajit().to_str().expect("UTF-8"), guest.to_str().expect("UTF-8"), &generations];
            let recording = Recording::of(name, way, &[variable], STACKS, &words);
            let compiled = recording.samples.iter().filter(|sample| sample.is_compiled()).count();
            (recording, compiled)
        });
        let traces = recording.samples.iter().filter(|sample| sample.is_compiled());
        let traces: Vec<_> =
            traces.filter_map(|sample| Some((&sample.frames[0].0, &recording.phase_at(sample.time)?.name))).collect();
        let is_named = |(symbol, phase): &&(&String, &String)| {
            symbol.starts_with("TRACE_") && symbol.contains(&format!(" {phase}.lua:"))
                || symbol.starts_with("exit stubs ")
        };
        let named = traces.iter().filter(is_named).count();
        let others = || format!("{:?}", traces.iter().filter(|trace| !is_named(trace)).take(5).collect::<Vec<_>>());
        at_least(&format!("{name}: names"), named, traces.len(), 4 * ENOUGH, 99, others);
        check_stacks(name, &recording, 4 * ENOUGH, |sample| sample.is_compiled());
    }
}

/// LuaJIT as it is, with its own objects for gdb, over the bridge. They have one line for a trace, and no exit stubs.
#[test]
fn objects_for_gdb() {
    let build = scratch_dir("built-luajit-gdbjit");
    run(Command::new("cp").args(["-RT"]).arg(source("luajit")).arg(&build));
    let mut make = Command::new("make");
    run(make.current_dir(&build).args(["-C", "src", "luajit", "XCFLAGS=-DLUAJIT_USE_GDBJIT"]));
    let program = build.join("src/luajit");
    let guest = root().join("tests/luajit/hot.lua");
    let recording = until_enough(10 * ENOUGH, |pace| {
        let seconds = (2.0 * f64::from(pace)).to_string();
        let words = [program.to_str().expect("UTF-8"), guest.to_str().expect("UTF-8"), &seconds, "loop", "spill"];
        let recording = Recording::of("luajit-gdbjit", Way::Bridge, &[], STACKS, &words);
        let compiled = recording.samples.iter().filter(|sample| sample.is_compiled()).count();
        (recording, compiled)
    });
    // A trace has no table before the bridge has looked.
    let counts = |sample: &Sample| {
        sample.is_compiled() && recording.phase_at(sample.time).is_some_and(|phase| sample.time > phase.from + 0.5)
    };
    let traces: Vec<&Sample> = recording.samples.iter().filter(|sample| counts(sample)).collect();
    let is_named = |sample: &&&Sample| sample.frames[0].0.starts_with("TRACE_");
    let named = traces.iter().filter(is_named).count();
    let others = || format!("{:?}", traces.iter().find(|sample| !is_named(sample)).map(|sample| &sample.frames));
    at_least("objects for gdb: names", named, traces.len(), 5 * ENOUGH, 99, others);
    check_stacks("objects for gdb", &recording, 5 * ENOUGH, counts);
}
