//! Sinks that are started and stopped while perf watches: what the guest registered before it was to be seen has its name, its
//! share of the time, its stacks and its source lines from then on.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use jitsym::format::jitdump::raw::RawRecords;
use jitsym::format::jitdump::HEADER_SIZE;

use crate::perf::{self, Recording, Truth};
use crate::support::{run, scratch_dir, serial, until_enough, TmpFiles, PACE};

const ARGUMENTS: [&str; 3] = ["scenario=late", "layout=gap", "seconds=4"];

/// perf has watched since the start.
#[test]
fn started_under_perf() {
    let recording = Recording::with_stacks("started", perf::program(), &ARGUMENTS);
    let injected = recording.inject();
    check(&recording.truth, &injected);
}

/// perf comes when the sinks have been started, and before they are stopped and started again.
#[test]
fn attached_later() {
    let data = scratch_dir("attached").join("perf.data");
    let (truth, _files) = until_enough((3.0 * perf::ENOUGH) as usize, |pace| {
        let (truth, files) = perf::whole(&data, || attach(&data, pace));
        let count = perf::count_in_guest(&truth, &data);
        ((truth, files), count)
    });
    let injected = data.with_file_name("injected.data");
    run(perf::perf("inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&injected));
    check(&truth, &injected);
}

fn attach(data: &Path, pace: u32) -> (Truth, TmpFiles) {
    let _alone = serial();
    let mut guest = perf::command(perf::program())
        .arg(format!("dir={}", data.parent().expect("directory").display()))
        .env(PACE, pace.to_string())
        .args(ARGUMENTS)
        .arg("wait=1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("guest");
    let mut output = BufReader::new(guest.stdout.take().expect("output"));
    let mut input = guest.stdin.take().expect("input");
    let mut text = String::new();
    while !text.contains("jitdump") {
        assert!(output.read_line(&mut text).expect("line") > 0, "{text}");
    }
    let record = perf::attach(perf::WITH_STACKS, guest.id(), data);
    input.write_all(b"\n").expect("go on");
    drop(input);
    output.read_to_string(&mut text).expect("output");
    assert!(guest.wait().expect("end").success());
    record.wait();
    perf::read_truth(&text)
}

fn check(truth: &Truth, injected: &Path) {
    assert_eq!(truth.phases, ["off", "on", "off", "on"]);
    let seen = perf::samples_of(truth, injected, true, &[truth.phase_times[1], truth.phase_times[3]]);
    let mut truth = truth.clone();
    truth.stacks.retain(|stack| stack.phase == "on");
    let found = perf::guest_samples(&truth, &seen);
    perf::check_names(&found, 500);
    let names: Vec<&str> = found.iter().map(|(sample, _)| &*sample.sym).collect();
    perf::check_shares(&truth, &names);
    perf::check_stacks(&truth, &perf::not_unwound_before(&found));
    perf::check_lines(&truth, &seen, 500);
    // What lived all the time is in the file once, what moved meanwhile twice.
    let file = std::fs::read(&truth.paths["jitdump"]).expect("dump");
    let loads = RawRecords::from(&file, HEADER_SIZE).filter_map(|record| record.load());
    let names: Vec<_> = loads.map(|load| String::from_utf8_lossy(load.name().expect("name")).into_owned()).collect();
    let count = |name: &str| names.iter().filter(|other| *other == name).count();
    assert_eq!((count("leaf_fp"), count("leaf_eh"), count("wide"), names.len()), (1, 2, 1, 11), "{names:?}");
}
