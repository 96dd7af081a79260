//! The same with perf 7, which finds stacks in another way.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{jitsym, perf, said};
use crate::support::*;

/// The perf of a newer suite of Debian.
fn newer() -> &'static Path {
    static FETCHED: OnceLock<PathBuf> = OnceLock::new();
    FETCHED.get_or_init(|| fetched("perf"))
}

/// What is recorded has names and whole stacks, says doctor with that perf; and it names the causes where something is missing.
#[test]
fn with_a_newer_perf() {
    let _alone = serial();
    let (dir, program) = (fresh_dir("newer"), newer().to_str().expect("path"));
    let data = dir.join("perf.data");
    let mut command = jitsym(&["record", "--perf", program, "-F", "999", "-e", "cpu-clock", "--top", "-o"]);
    command.arg(&data).arg("--").arg(perf::program());
    let output = run(command.args(["scenario=stacks", "layout=packed", "seconds=1", "dir=/tmp"]));
    let (truth, _files) = perf::read_truth(&stdout(&output));
    assert!(
        said(&output).contains("by perf 7.") && said(&output).contains("have samples: put in, with files in"),
        "{output:?}"
    );
    let shares = truth.shares();
    let hottest = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).expect("functions").0;
    let text = stdout(&output);
    let (_, top) = text.split_once("function, and its callers").expect("the hottest functions");
    assert!(top.contains(&format!("{hottest}  [JIT]")), "{hottest} is not in {top}");

    let doctor = |data: &Path| try_run(jitsym(&["doctor", "--perf", program]).arg(data));
    let output = doctor(&data);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in ["ok     perf 7.", "libdw goes through stacks", "jitsym inject has put objects in", "have names ("] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("have whole stacks") && text.contains("\nnothing is wrong in the recording; "), "{text}");

    for (name, options, cause) in
        [("clock", &[][..], "recorded without -k 1"), ("not-injected", &["-k", "1"], "jitsym inject has not been run")]
    {
        let data = dir.join(name);
        let mut record = perf::command(newer());
        record.args(["record", "-e", "cpu-clock", "--call-graph", "dwarf"]).args(options).arg("-o").arg(&data);
        record.arg("--").arg(perf::program()).args(["scenario=stacks", "layout=packed", "seconds=0.2", "dir=/tmp"]);
        let (_, _files) = perf::read_truth(&stdout(&run(&mut record)));
        let output = doctor(&data);
        let text = stdout(&output);
        let found = text.lines().find(|line| line.starts_with("cause: ")).unwrap_or_default();
        assert!(output.status.code() == Some(1) && found.contains(cause), "{name}: {text}");
    }
}
