//! Ground truth for source lines and call stacks: `hot.lua` says when which line was hot, in which kind of trace.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Samples in traces that each phase has to have.
const ENOUGH_IN_PHASE: usize = 50;
pub const PHASES: [&str; 9] =
    ["loop", "inlined", "side", "side_inlined", "spill", "recursion", "coroutines", "callback", "stitched"];

pub fn program(file: &str) -> PathBuf {
    root().join("tests/luajit").join(file)
}

/// A recording of `hot.lua` with all phases, each of which has enough samples in traces.
pub fn record(luajit: &Path, name: &str, variables: &[(&str, &str)]) -> Recording {
    until_enough(ENOUGH_IN_PHASE, |pace| {
        let seconds = 0.2 * f64::from(pace);
        let mut arguments: Vec<OsString> = vec![program("hot.lua").into(), seconds.to_string().into()];
        arguments.extend(PHASES.map(OsString::from));
        let recording = {
            let _serial = serial();
            record_with(luajit, name, variables, &["--call-graph", "dwarf,8192"], &arguments)
        };
        let phases = phases(&recording);
        let text = stdout(&run(perf("script").args(["-G", "-F", "time,ip", "-i"]).arg(&recording.file)));
        let of_phase = |(_, from, to): &(String, f64, f64)| {
            let in_trace = |line: &&str| {
                let (time, ip) = line.trim().split_once(": ").unwrap_or_else(|| panic!("perf script printed {line:?}"));
                let time: f64 = time.parse().expect("time");
                (*from..*to).contains(&time) && recording.in_areas(u64::from_str_radix(ip.trim(), 16).expect("address"))
            };
            text.lines().filter(in_trace).count()
        };
        let fewest = phases.iter().map(of_phase).min().unwrap_or(0);
        (recording, fewest)
    })
}

/// From when to when each phase went, as the program has printed it.
fn phases(recording: &Recording) -> Vec<(String, f64, f64)> {
    let phase = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields[0].into(), fields[1].parse().expect("seconds"), fields[2].parse().expect("seconds"))
    };
    recording.output.lines().map(phase).collect()
}

/// Where each phase is hot: `FILE:LINE`.
fn hot_lines() -> HashMap<String, String> {
    let mut lines = HashMap::new();
    for file in ["hot.lua", "inlined.lua"] {
        let text = std::fs::read_to_string(program(file)).expect("program");
        for (index, line) in text.lines().enumerate() {
            if let Some((_, phase)) = line.split_once(" -- hot: ") {
                lines.insert(phase.to_string(), format!("{file}:{}", index + 1));
            }
        }
    }
    lines
}

/// A perf of a newer suite, with a directory of our own for what it keeps.
pub fn newer_perf() -> impl Fn(&str) -> Command {
    let program = fetched("perf");
    move |subcommand| perf::of(command(&program), &[], subcommand)
}

/// What perf says of a sample: the time in seconds, the address, the source line, and for each frame its symbol and object.
pub struct Stack {
    pub time: f64,
    pub ip: u64,
    line: String,
    pub frames: Vec<(String, String)>,
}

/// Reads the samples of a recording, or of what was made of it, with the perf that is given.
pub fn stacks(perf: impl Fn(&str) -> Command, recording: &Recording, file: &Path) -> Vec<Stack> {
    // Lines without callers: perf 6.1 may crash when it looks for the line of a frame that is in no file.
    let script = |depth: &str, fields: &str| {
        let mut script = perf("script");
        script.args(["--no-inline", "--max-stack", depth, "-F", fields, "-i"]).arg(file);
        stdout(&run(&mut script))
    };
    let (whole, leaves) = (script("100", "pid,time,ip,sym,dso"), script("1", "pid,time,ip,srcline"));
    // Where callers are printed addresses are those in the file.
    let ips = stdout(&run(perf("script").args(["-G", "-F", "pid,time,ip", "-i"]).arg(file)));
    let ips: Vec<(&str, u64)> = ips
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(header, ip)| (header.trim(), u64::from_str_radix(ip, 16).expect("address")))
        .collect();
    let samples = |text: &str| -> Vec<Vec<String>> {
        let blocks = text.split("\n\n").filter(|block| !block.trim().is_empty());
        let lines = |block: &str| block.lines().filter(|line| !line.is_empty()).map(String::from).collect();
        blocks.map(lines).collect()
    };
    let (whole, leaves) = (samples(&whole), samples(&leaves));
    assert_eq!((whole.len(), whole.len()), (leaves.len(), ips.len()));
    let mut stacks = Vec::new();
    for ((sample, leaf), (bare, ip)) in whole.iter().zip(&leaves).zip(ips) {
        let header: Vec<&str> = sample[0].split_whitespace().collect();
        assert_eq!((sample[0].trim(), &sample[0]), (bare, &leaf[0]), "the same sample");
        let [pid, time] = header[..] else { panic!("perf script printed {sample:?}") };
        if pid != recording.pid.to_string() {
            continue;
        }
        let frame = |line: &String| {
            let frame = line.trim_start().split_once(' ').and_then(|(_, frame)| frame.rsplit_once(" ("));
            let (symbol, object) = frame.unwrap_or_else(|| panic!("perf script printed {line:?}"));
            (symbol.into(), object.trim_end_matches(')').into())
        };
        stacks.push(Stack {
            time: time.trim_end_matches(':').parse().expect("time"),
            ip,
            line: leaf.get(2).map_or_else(String::new, |line| line.trim().into()),
            frames: sample[1..].iter().map(frame).collect(),
        });
    }
    stacks
}

fn is_in_trace(stack: &Stack) -> bool {
    stack.frames.first().is_some_and(|frame| frame.1.contains("/jitcode-"))
}

/// Samples of a phase may be in the stubs that lead out of traces, which are part of the memory.
pub const IN_STUBS: usize = 1;

/// The phase that a sample was taken in.
fn phase_at(phases: &[(String, f64, f64)], time: f64) -> Option<&str> {
    phases.iter().find(|(_, from, to)| (*from..*to).contains(&time)).map(|(name, ..)| &**name)
}

/// Whether these symbols are in the stack, in this order.
pub fn goes_through(stack: &Stack, symbols: &[&str]) -> bool {
    let mut frames = stack.frames.iter();
    // With debug information of the C library it is called `__GI___qsort_r`.
    symbols.iter().all(|symbol| {
        frames.any(|frame| frame.0.trim_start_matches("__GI_").trim_start_matches('_').starts_with(symbol))
    })
}

/// perf prints no frame at all of a sample now and then.
fn is_named(stack: &Stack) -> bool {
    stack.frames.first().is_some_and(|frame| frame.0.starts_with("TRACE_"))
}

/// The line in `FILE:LINE`, or in a name that ends with it. 0 if there is none.
fn line_of(place: &str) -> u32 {
    place.rsplit_once(':').and_then(|(_, line)| line.parse().ok()).unwrap_or(0)
}

/// In each phase: samples in traces have names, the line that was hot is the one that they are in, and their stacks go
/// through the right callers to `main`. A hundredth of each may be otherwise, and this many samples may have no name.
pub fn check(recording: &Recording, stacks: &[Stack], is_in_trace: impl Fn(&Stack) -> bool, unnamed: usize) {
    let lines = hot_lines();
    let phases = phases(recording);
    assert_eq!(phases.len(), PHASES.len(), "{}", recording.output);
    for phase in PHASES {
        let of_phase: Vec<&Stack> =
            stacks.iter().filter(|stack| phase_at(&phases, stack.time) == Some(phase)).collect();
        // The interpreter, the compiler and C functions take their share too.
        let traces: Vec<&Stack> = of_phase.iter().filter(|stack| is_in_trace(stack)).copied().collect();
        let named = traces.iter().filter(|stack| is_named(stack)).count();
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for stack in &traces {
            *found.entry(&stack.line).or_default() += 1;
        }
        let hot = found.get(&*lines[phase]).copied().unwrap_or(0);
        // A trace has the frame of the interpreter, which C has called. The loop of the phase `callback` lies below the function
        // that the C library calls back.
        let is_called_back = |stack: &Stack| {
            let is_above = |frame: &(String, String)| line_of(&frame.0) <= line_of(&lines[phase]);
            phase == "callback" && stack.frames.first().is_some_and(is_above)
        };
        let is_whole = |stack: &Stack| {
            let (caller, callers): (&str, &[&str]) = match is_called_back(stack) {
                true => ("/libc.so", &["TRACE_", "qsort_r", "lua_pcall", "main", "start"]),
                false => ("/luajit", &["TRACE_", "lua_pcall", "main", "start"]),
            };
            stack.frames.get(1).is_some_and(|frame| frame.1.contains(caller)) && goes_through(stack, callers)
        };
        let whole = traces.iter().filter(|stack| is_whole(stack)).count();
        let all = traces.len();
        println!(
            "{phase}: {named} of {all} named, {hot} in {}, {whole} whole; {} others",
            lines[phase],
            of_phase.len() - all
        );
        // Now and then LuaJIT cannot compile a side trace with many values.
        assert!(all >= ENOUGH_IN_PHASE, "{phase}: {all} of {} samples in traces", of_phase.len());
        let few = |count: usize, beside: usize| count <= beside + all / 100;
        assert!(few(all - named, unnamed), "{phase}: {named} of {all} have names");
        // How much of the time the quick instructions around it take depends on the processor.
        assert!(hot * 2 > all, "{phase}: {hot} of {all} in {}, but {found:?}", lines[phase]);
        let broken = traces.iter().find(|stack| !is_whole(stack)).map(|stack| &stack.frames);
        assert!(few(named - whole.min(named), IN_STUBS), "{phase}: {whole} of {all} stacks whole, not {broken:#?}");
    }
}

/// Square roots are computed in the hot lines alone.
fn check_all_square_roots(pid: u32) {
    let lines: Vec<u32> =
        hot_lines().values().map(|line| line.rsplit_once(':').expect("line").1.parse().expect("number")).collect();
    let (right, wrong): (Vec<u32>, Vec<u32>) = square_roots(pid).into_iter().partition(|line| lines.contains(line));
    println!("{} square roots in hot lines, others in {wrong:?}", right.len());
    assert!(
        right.len() >= 100 && wrong.len() * 100 <= right.len(),
        "{} in hot lines, others in {wrong:?}",
        right.len()
    );
}

/// Real recordings of two versions of LuaJIT, read by an old perf and a new one.
#[test]
fn lines_and_stacks_of_traces_are_right() {
    let (newer_luajit, newer_perf) = (fetched("luajit"), newer_perf());
    for (luajit, name) in [(Path::new("luajit"), "hot"), (&newer_luajit, "hot-newer")] {
        let recording = record(luajit, name, &[]);
        check_files(recording.pid);
        check_all_square_roots(recording.pid);
        // LuaJIT packs its traces and uses their memory again, so `perf inject` would lose stacks.
        let injected = crate::perf::inject_by_jitsym(&recording.file);
        println!("{name}, perf with libunwind:");
        check(&recording, &stacks(perf, &recording, &injected), is_in_trace, IN_STUBS);
        println!("{name}, perf with libdw:");
        check(&recording, &stacks(&newer_perf, &recording, &injected), is_in_trace, IN_STUBS);
    }
}
