//! What perf shows of code in adopted memory that children run while their memory is still a mapping of the parent's file, and
//! when it has become a mapping of their own. No step between recording and report, and no file but those of regions.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use super::{check_names, counts, record_program, samples, Truth, ENOUGH};
use crate::perf;
use crate::support::{compile, scratch_dir, serial, until_enough, Link, PACE};

const SECONDS: &str = "0.05";
/// The numbers of workers in `lent.c`.
const ELSEWHERE: usize = 2;
const INSIDE: usize = 3;

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/perf/lent.c"], Link::Shared, &["-O1"], "lent"))
}

/// Everything runs, in each process.
fn all(truth: &Truth) -> Vec<(u32, String)> {
    truth.lives.iter().map(|life| (life.pid, life.name.clone())).collect()
}

fn as_it_is(data: &Path) -> PathBuf {
    data.into()
}

/// The parent replaces code that its children run, and none of them gets the new name.
#[test]
fn code_that_only_the_parent_replaces() {
    for kind in ["rwx", "flips"] {
        let environment = [("JITSYM", "region"), ("JITSYM_DIR", "/tmp")];
        let name = format!("lent-{kind}");
        let (truth, samples) = record_program(&name, &environment, program(), &[SECONDS, kind], as_it_is, all);
        assert_eq!((truth.workers.len(), truth.lives.len()), (4, 4 + 2 * 4 + 2 + 1));
        check_names(&truth, &samples);
    }
}

/// perf looks at a child that has made a call since its parent replaced code: the call has given the child files of its own.
#[test]
fn a_child_of_a_parent_that_has_replaced_code() {
    for (worker, kind) in [(ELSEWHERE, "rwx"), (ELSEWHERE, "flips"), (INSIDE, "flips")] {
        let data = scratch_dir(format!("lent-attach-{worker}-{kind}")).join("perf.data");
        let (truth, samples) = until_enough(ENOUGH, |pace| {
            let (pid, truth) = attach(&data, worker, kind, pace);
            let samples = samples(&data);
            let counts = counts(&truth, &samples);
            let lives = truth.lives.iter().filter(|life| life.pid == pid);
            let fewest = lives.map(|life| counts.get(&(pid, life.name.clone())).copied().unwrap_or(0)).min();
            ((truth, samples), fewest.unwrap_or(0))
        });
        check_names(&truth, &samples);
    }
}

/// Records a worker that has made its last call.
fn attach(data: &Path, worker: usize, kind: &str, pace: u32) -> (u32, Truth) {
    let _alone = serial();
    let mut child = perf::command(program())
        .args([SECONDS, kind, &worker.to_string()])
        .envs([("JITSYM", "region"), ("JITSYM_DIR", "/tmp"), (PACE, &pace.to_string())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("program");
    let mut input = child.stdin.take().expect("input");
    let mut output = BufReader::new(child.stdout.take().expect("output"));
    let mut text = String::new();
    let pid = loop {
        let begin = text.len();
        assert!(output.read_line(&mut text).expect("line") > 0, "{text}");
        if let Some(pid) = text[begin..].trim().strip_prefix("waits ") {
            break pid.parse().expect("pid");
        }
    };
    let record = perf::attach(&["-k", "1"], pid, data);
    input.write_all(b"\n").expect("input");
    output.read_to_string(&mut text).expect("output");
    assert!(child.wait().expect("end").success());
    record.wait();
    (pid, Truth::parse(&text))
}
