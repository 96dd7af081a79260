//! `jitsym record`: what the real perf then says of programs that know what they have run, with jitdumps, with regions, with
//! children, and of processes that run already.

#[path = "record/newer.rs"]
mod newer;
#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "record/planted.rs"]
mod planted;
#[path = "record/probes.rs"]
mod probes;
#[path = "record/refusals.rs"]
mod refusals;
#[path = "record/runtimes.rs"]
mod runtimes;
#[path = "record/said.rs"]
mod said;
#[path = "../../tests/support/mod.rs"]
mod support;
mod toy;
#[path = "record/views.rs"]
mod views;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use support::*;

/// The program, with perf's cache of objects in the scratch directory.
fn jitsym(words: &[&str]) -> Command {
    // Each test has its own: a perf that reads an object of the cache while another one writes it loses frames.
    let test = std::thread::current().name().unwrap_or("test").replace("::", "-");
    let config = scratch_dir(format!("config-{test}")).join("perfconfig");
    let text = format!("[buildid]\n\tdir = {}\n", scratch_dir(format!("cache-{test}")).display());
    std::fs::write(&config, text).expect("settings of perf");
    let mut command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    command.env("PERF_CONFIG", config).args(words);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A server that forks its workers: its own frames are found by unwind tables only.
fn server() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-std=gnu99", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-inline"];
    BUILT.get_or_init(|| compile("gcc", &["c-tests/perf/prefork.c"], Link::Shared, &flags, "prefork"))
}

/// A program with a jitdump, whose code has no room after it: names and stacks are those of the truth, `--top` and the flame graph show
/// them.
#[test]
fn with_a_jitdump() {
    let _alone = serial();
    let dir = fresh_dir("jitdump");
    let (data, svg) = (dir.join("perf.data"), dir.join("hot.svg"));
    let (truth, _files, output) = until_enough(perf::ENOUGH as usize, |pace| {
        let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-g", "dwarf,16384", "--top", "-o"]);
        command.arg(&data).arg("--flamegraph").arg(&svg).arg("--").arg(perf::program());
        command.args(["scenario=stacks", "layout=packed", "seconds=1", &format!("dir={}", dir.display())]);
        let output = perf::whole(&data, || run(command.env(PACE, pace.to_string())));
        let (truth, files) = perf::read_truth(&stdout(&output));
        let count = perf::count_in_guest(&truth, &data);
        ((truth, files, output), count)
    });
    let samples = perf::samples(&truth, &data, true);
    let found = perf::guest_samples(&truth, &samples);
    perf::check_names(&found, 500);
    perf::check_stacks(&truth, &found);
    assert!(said(&output).contains("have samples: put in, with files in"), "{}", said(&output));
    let report = stdout(&run(perf::perf("report").args(["--stdio", "--no-children", "-g", "none", "-i"]).arg(&data)));
    let svg = std::fs::read_to_string(svg).expect("flame graph");
    let text = stdout(&output);
    let (_, top) = text.split_once("function, and its callers").expect("the hottest functions");
    let shares = truth.shares();
    let hottest = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).expect("functions").0;
    assert!(top.contains(&format!("{hottest}  [JIT]")), "{hottest} is not in {top}");
    for name in ["leaf_fp", "leaf_eh", "steps_rows", "called_back"] {
        assert!(report.contains(name), "{name} is not in {report}");
        assert!(svg.contains(&format!(">{name} (")), "{name} is not in the flame graph");
    }
    let left: BTreeSet<String> = std::fs::read_dir(&dir)
        .expect("directory")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("perf.data"))
        .collect();
    assert!(left.iter().all(|name| ["perf.data", "perf.data.objects", "perf.data.old"].contains(&&**name)), "{left:?}");
}

/// The processes of a run of the server, the parent first.
struct Family {
    pids: Vec<u32>,
    _files: Vec<TmpFiles>,
}

impl Family {
    fn of(text: &str) -> Family {
        let pid = |line: &str| line.strip_prefix("pid ").or(line.strip_prefix("worker "))?.parse().ok();
        let pids: Vec<u32> = text.lines().filter_map(pid).collect();
        Family { _files: pids.iter().map(|&pid| TmpFiles(pid)).collect(), pids }
    }

    /// What each process runs in any case.
    fn expected(&self) -> BTreeSet<(u32, String)> {
        let own = |number: usize| match number {
            0 => ["common_0", "common_1", "own_of_the_parent"].map(str::to_owned).to_vec(),
            _ => ["own_0_of_worker", "own_1_of_worker", "reused_by_worker"]
                .iter()
                .map(|name| format!("{name}_{}", number - 1))
                .chain(["common_0".into()])
                .collect(),
        };
        let numbered = self.pids.iter().enumerate();
        numbered.flat_map(|(number, &pid)| own(number).into_iter().map(move |name| (pid, name))).collect()
    }
}

/// Process and name of each sample whose stack is whole, down to `main`; and how many stacks of named code are not.
fn whole_stacks(data: &Path) -> (Vec<(u32, String)>, usize) {
    let mut script = perf::perf("script");
    let text = stdout(&run(script.args(["--no-inline", "-F", "pid,ip,sym", "-i"]).arg(data)));
    let (mut whole, mut cut) = (Vec::new(), 0);
    for block in text.split("\n\n") {
        let mut lines = block.trim_matches('\n').lines();
        let Some(pid) = lines.next().and_then(|line| line.trim().parse::<u32>().ok()) else { continue };
        let names: Vec<&str> = lines.filter_map(|line| line.trim().split_once(' ')).map(|(_, name)| name).collect();
        let Some(name) = names.first() else { continue };
        if ["common", "own", "reused"].iter().any(|start| name.starts_with(start)) {
            if names.contains(&"run") && names.contains(&"main") {
                whole.push((pid, (*name).to_owned()));
            } else {
                cut += 1;
            }
        }
    }
    (whole, cut)
}

/// Records the server with its children until each function has been seen, and returns what was said.
fn record_server(name: &str, options: &[&str]) -> (Family, PathBuf, String) {
    let data = fresh_dir(name).join("perf.data");
    until_enough(1, |pace| {
        let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock"]);
        command.args(options).arg("-o").arg(&data).arg("--").arg(server()).args(["2", "0.4"]);
        let output = perf::whole(&data, || run(command.env(PACE, pace.to_string())));
        let family = Family::of(&stdout(&output));
        let (whole, cut) = whole_stacks(&data);
        let seen: BTreeSet<(u32, String)> = whole.iter().cloned().collect();
        // A sample while the frame is made or removed may be cut off: the copy of the stack begins above a popped register.
        assert!(whole.len() < 50 || cut * 50 <= whole.len(), "{cut} of {} stacks are cut off", whole.len() + cut);
        let missing: Vec<_> = family.expected().difference(&seen).cloned().collect();
        println!("not seen: {missing:?}");
        ((family, data.clone(), said(&output)), usize::from(missing.is_empty()))
    })
}

#[test]
fn with_children_and_jitdumps() {
    let _alone = serial();
    let (family, _, said) = record_server("children", &[]);
    assert_eq!(family.pids.len(), 3);
    for pid in &family.pids {
        assert!(said.contains(&format!("/tmp/jit-{pid}.dump")), "{pid}: {said}");
    }
    assert!(said.contains("JITSYM=on") && said.contains("have samples: put in, with files in"), "{said}");
}

/// With regions there is nothing to work in, and nothing is tried.
#[test]
fn with_children_and_regions() {
    let _alone = serial();
    let (family, data, said) = record_server("regions", &["--adopt"]);
    assert!(said.contains("JITSYM_ADOPT=1") && !said.contains("left out"), "{said}");
    assert!(said.contains(&format!("process {}: 1 file of regions", family.pids[0])), "{said}");
    let script = stdout(&run(perf::perf("script").args(["--no-inline", "-F", "ip,sym,dso", "-i"]).arg(&data)));
    // The code is in objects of its own if a process has a jitdump too, even one without code.
    assert!(!script.contains(".map)"), "{script}");
    assert!(script.contains("(/tmp/jit") || script.contains("/jitcode-"), "{script}");
}

/// A process that runs already, and the children that it has already.
#[test]
fn attached_to_a_process() {
    let _alone = serial();
    let data = fresh_dir("attached").join("perf.data");
    let (_family, said) = until_enough(30, |pace| {
        let mut guest = perf::command(server());
        let mut guest = guest
            .args(["2", "12"])
            .envs([("JITSYM", "on"), ("JITSYM_FORK", "now")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the server");
        let mut output = std::io::BufReader::new(guest.stdout.take().expect("output"));
        let mut text = String::new();
        // The parent forks after a fourth of its time.
        while text.matches("worker ").count() < 2 {
            assert!(std::io::BufRead::read_line(&mut output, &mut text).expect("line") > 0, "{text}");
        }
        let family = Family::of(&text);
        let (pid, seconds) = (guest.id().to_string(), pace.to_string());
        let record = run(jitsym(&["record", "-p", &pid, "--seconds", &seconds, "-F", "999", "-o"]).arg(&data));
        for pid in family.pids.iter().rev() {
            run(Command::new("kill").args(["-9", &pid.to_string()]));
        }
        guest.wait().expect("end");
        let (whole, _) = whole_stacks(&data);
        let of = |pid: &u32| whole.iter().filter(|(other, name)| other == pid && name.starts_with("common")).count();
        let fewest = family.pids.iter().map(of).min().unwrap_or(0);
        ((family, said(&record)), fewest)
    });
    assert!(said.contains("and its 2 children, for"), "{said}");
}
