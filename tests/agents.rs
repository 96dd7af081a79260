//! Continuous profilers on the program c-tests/regions/profiled.c: the names and stacks of code that exists when the profiler
//! attaches, and of code that is compiled later.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::perf;
use crate::support::{compile, fetched, fresh_dir, is_root, serial, wait_until, Link};

const KINDS: [&str; 4] = ["two-views", "one-view", "adopted", "alloc"];
/// The functions on a stack, the outermost first, and the number of samples.
type Stack = (Vec<String>, u64);

/// The processor time, in hundredths of a second, for which the program runs before and after the late code is compiled.
const TURN: u64 = 300;

/// profile-bee reads a file once. Code that is there when it attaches has names and whole stacks, with and without frame pointers.
/// Later code has names, and whole stacks if it has frame pointers.
#[test]
fn profile_bee() {
    // $0 is the program, which needs tracefs.
    const SCRIPT: &str = r#"
        grep -q ' /sys/kernel/tracing ' /proc/mounts || mount -t tracefs none /sys/kernel/tracing
        exec "$0" "$@"
    "#;
    if !is_root("load eBPF programs") {
        return;
    }
    let program = fetched("profile-bee");
    for kind in KINDS {
        let found = watch(kind, "folded", |pid, out| {
            let mut agent = perf::command("unshare");
            agent.args(["-m", "sh", "-euc", SCRIPT]).arg(&program).args([
                "--time",
                "0",
                "--frequency",
                "199",
                "--dwarf",
            ]);
            agent.args(["--pid", &pid.to_string(), "--output"]).arg(out);
            (agent, "exit monitoring enabled")
        });
        check("profile-bee", kind, &found);
    }
}

/// lightswitch reads a file once, too. It has no stack for code without any unwind table.
#[test]
fn lightswitch() {
    // The first argument is the directory of the profiler, which also looks at the list of file systems. It drops all samples if
    // the kernel has no list of modules, so it then reads an empty list.
    const SCRIPT: &str = r#"
        grep -q ' /sys/kernel/debug ' /proc/mounts || mount -t debugfs none /sys/kernel/debug
        grep -q ' /sys/kernel/debug/tracing ' /proc/mounts || mount -t tracefs none /sys/kernel/debug/tracing
        modules=$1
        shift
        [ -e /proc/modules ] || export LD_PRELOAD="$modules"
        exec "$0" "$@"
    "#;
    if !is_root("load eBPF programs") {
        return;
    }
    let program = fetched("lightswitch");
    let modules = compile("gcc", &["c-tests/regions/no_modules.c"], Link::None, &["-shared", "-fPIC"], "no_modules.so");
    for kind in KINDS {
        let found = watch(kind, "svg", |pid, out| {
            let mut agent = perf::command("unshare");
            agent.args(["-m", "sh", "-euc", SCRIPT]).arg(&program).arg(&modules).args(["--duration", "3600"]);
            agent
                .args(["--sample-freq", "199", "--pids", &pid.to_string(), "--cache-dir-base"])
                .arg(out.with_file_name(""));
            agent.arg("--profile-path").arg(out.with_file_name("")).arg("--profile-name").arg("out.svg");
            (agent, "tracing BPF programs loaded")
        });
        check("lightswitch", kind, &found);
    }
}

/// Runs the program under a profiler, until both have seen enough of each other. Returns the stacks that the profiler wrote.
fn watch(kind: &str, extension: &str, agent: impl FnOnce(u32, &Path) -> (Command, &'static str)) -> Vec<Stack> {
    let program = compile("gcc", &["c-tests/regions/profiled.c"], Link::Shared, FLAGS, "profiled");
    let dir = fresh_dir(format!("profiled-{kind}"));
    let out = dir.join("out").with_extension(extension);
    let _alone = serial();
    let mut host = Killed(perf::command(&program).arg(&dir).arg(kind).stdout(Stdio::piped()).spawn().expect("host"));
    let mut said = BufReader::new(host.0.stdout.take().expect("output"));
    let mut wait_for = |wanted: &str| {
        let mut line = String::new();
        said.read_line(&mut line).expect("line");
        assert_eq!(line.trim(), wanted, "{kind}");
    };
    wait_for("ready");
    let log = dir.join("log");
    let to_log = || std::fs::File::options().create(true).append(true).open(&log).expect("log");
    let (mut command, attached) = agent(host.0.id(), &out);
    let mut agent = Killed(command.current_dir(&dir).stdout(to_log()).stderr(to_log()).spawn().expect("profiler"));
    let read_log = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until(attached, || {
        assert!(agent.0.try_wait().expect("state").is_none(), "{kind}: {}", read_log());
        read_log().contains(attached)
    });
    run_for(host.0.id(), TURN);
    signal(host.0.id(), libc::SIGUSR1);
    wait_for("late");
    run_for(host.0.id(), TURN);
    signal(agent.0.id(), libc::SIGINT);
    wait_until("the profiler's end", || agent.0.try_wait().expect("state").is_some());
    let text = std::fs::read_to_string(&out).unwrap_or_else(|error| panic!("{kind}: {error}: {}", read_log()));
    if extension == "svg" {
        return stacks_of_graph(&text);
    }
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((stack.split(';').map(str::to_owned).collect(), count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The stacks of a flame graph, in which each caller lies below its callees.
fn stacks_of_graph(svg: &str) -> Vec<Stack> {
    struct Frame<'t> {
        name: &'t str,
        y: u64,
        samples: Range<u64>,
    }
    let field = |text: &str, name: &str| -> Option<u64> {
        text.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok()
    };
    let frame = |text| -> Option<Frame> {
        let (title, rest) = str::split_once(text, "</title>")?;
        let (x, width) = (field(rest, "fg:x")?, field(rest, "fg:w")?);
        Some(Frame { name: title.rsplit_once(" (")?.0, y: field(rest, " y")?, samples: x..x + width })
    };
    let mut frames: Vec<Frame> = svg.split("<title>").skip(1).filter_map(frame).collect();
    frames.sort_by_key(|frame| Reverse(frame.y));
    let callers = |callee: &Frame| {
        let has = |frame: &&Frame| frame.y >= callee.y && frame.samples.contains(&callee.samples.start);
        let names = frames.iter().filter(has).map(|frame| frame.name.split(' ').next().unwrap_or_default().to_owned());
        names.collect()
    };
    let leaves = frames.iter().filter(|frame| frame.name.contains("_inner"));
    leaves.map(|leaf| (callers(leaf), leaf.samples.end - leaf.samples.start)).collect()
}

const FLAGS: &[&str] = &["-std=gnu11", "-O1", "-fno-omit-frame-pointer"];

/// What a profiler says of the innermost function of each chain: how many samples have its name, and how many of these have the
/// whole stack.
fn check(agent: &str, kind: &str, found: &[Stack]) {
    let mut counts = BTreeMap::from(["early_fp", "early_sp", "late_fp", "late_sp"].map(|chain| (chain, (0, 0))));
    for (stack, count) in found {
        for (chain, (named, whole)) in &mut counts {
            let Some(leaf) = stack.iter().position(|frame| *frame == format!("{chain}_inner")) else { continue };
            *named += count;
            let callers = ["main".into(), "run_chain".into(), format!("{chain}_outer"), format!("{chain}_middle")];
            *whole += if stack[..leaf].ends_with(&callers) { *count } else { 0 };
        }
    }
    println!("{agent}, {kind}: {counts:?}");
    for (chain, (named, whole)) in counts {
        assert!(named > 0, "{agent}, {kind}: no sample of {chain} in {found:?}");
        // In the first two and the last instruction of late code, the profiler's tables are wrong.
        let is_told = chain != "late_sp";
        assert!(
            !is_told || whole * 10 >= named * 9,
            "{agent}, {kind}: {whole} of {named} stacks of {chain} in {found:?}"
        );
    }
}

/// Waits until a process has used this much more processor time, in ticks.
fn run_for(pid: u32, ticks: u64) {
    let used = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let fields = stat.rsplit(')').next().expect("fields").split_whitespace();
        fields.skip(11).take(1).map(|field| field.parse::<u64>().expect("time")).sum()
    };
    let end = used() + ticks;
    wait_until("processor time", || used() >= end);
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a system call that touches no memory.
    assert_eq!(unsafe { libc::kill(pid as libc::pid_t, number) }, 0);
}

/// A process that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
