//! Programs that never heard of the library, under the real perf.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perf::{self, PerfFrame, Verdict};
use crate::support::{
    artifacts, fresh_dir, once, root, run, scratch_dir, serial, shared_dir, stdout, until_enough, TmpFiles,
};

/// The shared library.
pub fn library() -> PathBuf {
    artifacts().shared_dir.join("libjitsym.so")
}

/// Packages of PyPI with a compiler.
pub const LLVMLITE: &str = "llvmlite==0.50.0";
pub const NUMBA: &str = "numba==0.68.1";
pub const WASMTIME: &str = "wasmtime==50.0.1";

/// Python with a package.
pub fn python(package: &str) -> PathBuf {
    let env = shared_dir("python").join(package);
    once(&env, package, || {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&env));
        run(Command::new(env.join("bin/pip")).args(["install", "--quiet", "--only-binary=:all:", package]));
    });
    env.join("bin/python")
}

pub fn guest(file: &str) -> PathBuf {
    root().join("tests/guests").join(file)
}

/// The stacks of a recording, innermost frame first.
pub struct Stacks {
    pub stacks: Vec<Vec<PerfFrame>>,
    _files: TmpFiles,
}

/// Records a guest, which prints its pid, for so long that there are 300 samples in compiled code, and then what perf shows.
/// `inject`: the jitdump is worked into the recording. `complete` is given the seconds.
pub fn record(name: &str, inject: bool, complete: impl Fn(&mut Command, &str)) -> Stacks {
    let dir = fresh_dir(name);
    let data = dir.join("perf.data");
    until_enough(WANTED, |pace| {
        let mut record = perf::perf("record");
        record.args(["-e", "cpu-clock", "-F", "499"]).args(perf::WITH_STACKS).arg("-o").arg(&data).arg("--");
        complete(&mut record, &(2 * pace).to_string());
        let files = perf::whole(&data, || {
            let output = {
                let _alone = serial();
                run(&mut record)
            };
            let text = stdout(&output);
            let pid = text.lines().find_map(|line| line.strip_prefix("pid ")).expect("pid");
            TmpFiles(pid.parse().expect("number"))
        });
        let shown = if inject { perf::inject_by_jitsym(&data) } else { data.clone() };
        let stacks = Stacks::parse(&script(&shown), files);
        let count = stacks.stacks.iter().filter(|stack| is_compiled(&stack[0])).count();
        (stacks, count)
    })
}

/// How many samples in compiled code there are at least.
const WANTED: usize = 300;

fn script(data: &Path) -> String {
    let mut script = perf::perf("script");
    stdout(&run(script.args(["--no-inline", "-F", "ip,sym,dso", "-i"]).arg(data)))
}

impl Stacks {
    /// What `perf script -F ip,sym,dso` has printed.
    pub fn parse(text: &str, files: TmpFiles) -> Stacks {
        let samples = text.split("\n\n").map(|sample| sample.lines().filter(|line| !line.trim().is_empty()));
        let stacks =
            samples.map(|lines| lines.map(PerfFrame::parse).collect()).filter(|stack: &Vec<_>| !stack.is_empty());
        Stacks { stacks: stacks.collect(), _files: files }
    }
}

/// Whether the frame lies in compiled code, however perf calls that memory.
pub fn is_compiled(frame: &PerfFrame) -> bool {
    let names = ["/jitted-", "/jitcode-", "/tmp/jit-", "[JIT]", "//anon", "/tmp/perf-", "[anon", "[unknown]"];
    names.iter().any(|name| frame.dso.contains(name)) || frame.dso.is_empty()
}

/// All samples in compiled code have one of the names: 99 %.
pub fn check_names(name: &str, stacks: &Stacks, is_right: impl Fn(&str) -> bool) {
    let mut names = Verdict::new(&format!("{name}: names"));
    for stack in stacks.stacks.iter().filter(|stack| is_compiled(&stack[0])) {
        names.check(is_right(&stack[0].sym), || format!("{:?}", stack[0]));
    }
    names.decide(WANTED / 2, 1.0);
}

/// Samples in compiled code lie in the files of regions, of which some begin with `jitted`: 99 %.
pub fn check_adopted(name: &str, stacks: &Stacks) {
    let mut adopted = Verdict::new(&format!("{name}: code in regions"));
    for stack in stacks.stacks.iter().filter(|stack| is_compiled(&stack[0])) {
        let name = stack[0].dso.rsplit('/').next().unwrap_or_default();
        let is_region = name.starts_with("jit-") || name.starts_with("jitted-") && name.contains("-r");
        adopted.check(is_region, || format!("{:?}", stack[0]));
    }
    adopted.decide(WANTED / 2, 1.0);
}

/// The stacks from `WAY_leaf` have these callers of the same way, and end where threads begin: 99 %.
pub fn check_stacks(name: &str, stacks: &Stacks, callers: &[&str]) {
    for way in ["first", "second"] {
        let mut whole = Verdict::new(&format!("{name}: stacks from {way}_leaf"));
        let leaf = format!("{way}_leaf");
        for stack in stacks.stacks.iter().filter(|stack| stack[0].sym.contains(&leaf)) {
            let is_caller = |(at, caller): (usize, &&str)| {
                stack.get(at + 1).is_some_and(|frame| frame.sym.contains(&format!("{way}_{caller}")))
            };
            let is_whole = callers.iter().enumerate().all(is_caller);
            let ends = stack.last().is_some_and(|frame| ["_start", "clone"].iter().any(|end| frame.sym.contains(end)));
            whole.check(is_whole && ends, || stack.iter().map(|frame| &*frame.sym).collect::<Vec<_>>().join(" < "));
        }
        whole.decide(WANTED / 4, 1.0);
    }
}

/// Samples in `WAY_leaf` have lines of that function of the guest: 99 %. `place`: how its first line and its last one look. The
/// recording of this name had its jitdump worked in.
pub fn check_lines(name: &str, file: &str, place: impl Fn(&str) -> (String, &'static str)) {
    let source = std::fs::read_to_string(guest(file)).expect("source");
    let range_of = |function: &str| {
        let (first, last) = place(function);
        let begin = source.lines().position(|line| line.contains(&first)).expect("first line");
        let len = source.lines().skip(begin).position(|line| line == last).expect("last line");
        begin + 1..=begin + 1 + len
    };
    let ranges = ["first_leaf", "second_leaf"].map(|function| (function, range_of(function)));
    let mut script = perf::perf("script");
    script.args(["--no-inline", "-G", "-F", "ip,sym,srcline", "-i"]).arg(scratch_dir(name).join("perf.jit.data"));
    let text = stdout(&run(&mut script));
    let text: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut lines = Verdict::new(&format!("{name}: lines"));
    for pair in text.windows(2) {
        let Some((_, range)) = ranges.iter().find(|(function, _)| pair[0].contains(function)) else { continue };
        let line = pair[1].rsplit_once(':').filter(|(found, _)| found.ends_with(file));
        let line = line.and_then(|(_, line)| line.parse::<usize>().ok());
        lines.check(line.is_some_and(|line| range.contains(&line)), || format!("{pair:?}"));
    }
    lines.decide(100, 1.0);
}
