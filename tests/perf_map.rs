//! What perf makes of a perf map, with no further step: names, read after the process has ended.
//!
//! The map knows no time. What it can say truly is which code lived last at an address, and that is what is expected of it:
//! also for code that is gone, as long as nothing else took its place.

use crate::perf::{self, Recording, Sample, Truth};
use crate::support::{run, stdout, TmpFiles};
use jitsym_step::Graph;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps through the program with nothing but the map, and checks all that holds for any scenario. Each instruction is a sample.
fn record(name: &str, arguments: &[&str]) -> (Recording, Vec<Sample>) {
    let arguments = [&["sinks=map"], arguments].concat();
    let (recording, moments) = Recording::stepped(name, perf::program(), Graph::FramePointers, &arguments);
    let samples = check(&recording);
    let in_arena = samples.iter().filter(|sample| recording.truth.in_arena(sample.ip)).count();
    assert_eq!(in_arena, moments.count(|ip| recording.truth.in_arena(ip)));
    (recording, samples)
}

fn check(recording: &Recording) -> Vec<Sample> {
    let truth = &recording.truth;
    assert!(!truth.paths.contains_key("jitdump"));
    assert_eq!(truth.paths["map"].to_str(), Some(&*format!("/tmp/perf-{}.map", truth.pid)));
    perf::check_map(truth, &std::fs::read(&truth.paths["map"]).expect("perf map"));

    let samples = perf::samples(truth, &recording.data, false);
    let mut names = perf::Verdict::new("names");
    for sample in samples.iter().filter(|sample| truth.in_arena(sample.ip)) {
        let newest = truth.newest_at(sample.ip).map(|place| &*place.name);
        names.check(newest == Some(&*sample.sym), || format!("{sample:?}, expected {newest:?}"));
    }
    names.decide(50, 0.0);
    samples
}

/// Numbers of samples taken in code of the guest, by the name that perf gives.
fn count<'a>(truth: &Truth, samples: &'a [Sample]) -> std::collections::HashMap<&'a str, usize> {
    let mut counts = std::collections::HashMap::new();
    for sample in samples.iter().filter(|sample| truth.in_arena(sample.ip)) {
        *counts.entry(&*sample.sym).or_default() += 1;
    }
    counts
}

/// Code that lives to the end, without a free byte between the pieces: names and shares, by `perf script` and `perf report`. It is
/// sampled, because shares are of time.
#[test]
fn live_code() {
    let arguments = ["sinks=map", "scenario=stacks", "layout=packed", "seconds=1.3"];
    let recording = Recording::new("live", perf::program(), &[], &arguments);
    let samples = check(&recording);
    let truth = &recording.truth;
    let guest = samples.iter().filter(|sample| truth.in_arena(sample.ip));
    let names: Vec<&str> = guest.map(|sample| &*sample.sym).collect();
    perf::check_shares(truth, &names);

    let mut report = perf::perf("report");
    report.arg("--stdio").arg("-i").arg(&recording.data).args(["-F", "sample,sym,dso", "-t", "|"]);
    let report = stdout(&run(&mut report));
    let mut reported = std::collections::HashMap::new();
    for line in report.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let (samples, symbol) = (fields[0].parse::<usize>(), fields[1].strip_prefix("[.] "));
        if fields[2].starts_with("[JIT] ") {
            let symbol = symbol.unwrap_or_else(|| panic!("symbol in {line:?}"));
            *reported.entry(symbol).or_default() += samples.unwrap_or_else(|_| panic!("samples in {line:?}"));
        }
    }
    assert_eq!(reported, count(truth, &samples), "{report}");
}

/// Code that was freed before the end, its memory even unmapped, is still named.
#[test]
fn freed_code() {
    let (recording, samples) = record("free", &["scenario=free", "layout=packed"]);
    let counts = count(&recording.truth, &samples);
    for place in recording.truth.places.iter().filter(|place| place.to != u64::MAX && !place.name.starts_with("mid")) {
        assert!(counts.contains_key(&*place.name), "{}: {counts:?}", place.name);
    }
}

/// Moved code is named at the new place, and at the old place unless that was used again.
#[test]
fn moved_code() {
    let (recording, samples) = record("move", &["scenario=move", "layout=packed"]);
    let truth = &recording.truth;
    let run = |place: &&perf::Place| samples.iter().any(|sample| place.contains(sample.ip));
    let moved = truth.places.iter().filter(|place| place.moved).filter(run).count();
    let left = truth.places.iter().filter(|place| place.to != u64::MAX && !place.moved).filter(run).count();
    assert!(moved >= 4 && left >= 4, "{moved} places moved to, {left} moved from");
}

/// Where code was put over code, the newest is named; and what the newest left over of the older still has its name.
#[test]
fn reused_addresses() {
    let (recording, samples) = record("reuse", &["scenario=reuse", "layout=packed"]);
    let counts = count(&recording.truth, &samples);
    // `wide` is left at its tail only, and `second` behind the first bytes.
    let names = ["wide", "second", "third", "fourth", "fifth"];
    assert!(names.iter().all(|name| counts.contains_key(name)), "{counts:?}");
}

/// Whoever reads the map while it grows, and while entries are replaced, sees whole lines that claim no address twice; a
/// file that somebody has open never loses what was in it; and after a flush all is there, while the process still runs.
///
/// With a jitdump beside it: without one, lines that replace others are appended at once, lest they be lost with the process.
#[test]
fn growing_map() {
    // Whoever watches has to come to it, which a busy machine may not let him.
    let states = |pace| ((), grow_and_watch(pace));
    crate::support::until_enough(10, states);
}

/// Returns how many states of the map were seen.
fn grow_and_watch(pace: u32) -> usize {
    let mut program = perf::command(perf::program());
    program.env(crate::support::PACE, pace.to_string());
    program.args(["scenario=many", "sinks=both", "count=12000", "seconds=2", "wait=1"]);
    program.arg(format!("dir={}", crate::support::scratch_dir("growing").display()));
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().expect("truth program");
    let _files = TmpFiles(child.id());
    let path = format!("/tmp/perf-{}.map", child.id());
    let mut output = BufReader::new(child.stdout.take().expect("standard output"));
    let mut text = String::new();
    while !text.contains("\npath\t") {
        assert_ne!(output.read_line(&mut text).expect("standard output"), 0, "the program ended: {text}");
    }

    let done = AtomicBool::new(false);
    let (states, files) = std::thread::scope(|scope| {
        let truth = scope.spawn(|| {
            while !text.ends_with("\nend\n") {
                if output.read_line(&mut text).expect("standard output") == 0 {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let seen = watch(&path, &done);
        truth.join().expect("reader of the truth");
        seen
    });

    let truth = Truth::parse(&text);
    assert_eq!(truth.pid, child.id());
    perf::check_map(&truth, &std::fs::read(&path).expect("perf map"));
    assert!(truth.places.len() > 12000 && truth.stats["map_rewrites"] > 0, "{:?}", truth.stats);
    drop(child.stdin.take());
    assert!(child.wait().expect("truth program").success());
    perf::check_map(&truth, &std::fs::read(&path).expect("perf map"));
    // The map was replaced twice while it was watched.
    states.min(10 * (files / 3))
}

/// Reads the map over and over, as fast as it can: what is new of it through a descriptor that is kept open, as those see it
/// that map the file into memory; and whole, by name, whenever another file has taken its place. Returns how many states, of how many
/// files, were seen.
fn watch(path: &str, done: &AtomicBool) -> (usize, usize) {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (mut states, mut files) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        let mut file = std::fs::File::open(path).expect("perf map");
        let this = identity(file.metadata().expect("perf map"));
        let (mut content, mut pending) = (Vec::new(), Vec::new());
        files += 1;
        while !done.load(Ordering::Relaxed) && identity(std::fs::metadata(path).expect("perf map")) == this {
            let mut news = Vec::new();
            file.read_to_end(&mut news).expect("perf map");
            if !news.is_empty() {
                states += 1;
                pending.append(&mut news);
                // The kernel lets a file grow by one page after the other within a write. That much of half a line is in
                // nobody's hands; `every_write_is_of_whole_lines` sees that it is all.
                let in_a_write = (content.len() + pending.len()) % 4096 == 0;
                if pending.ends_with(b"\n") || !in_a_write {
                    perf::parse_map(&pending).unwrap_or_else(|error| panic!("{error}"));
                    content.append(&mut pending);
                }
            }
        }
        content.append(&mut pending);
        file.read_to_end(&mut content).expect("perf map that was replaced");
        perf::parse_map(&content).unwrap_or_else(|error| panic!("{error}"));
        let mut again = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut again)).expect("perf map that was replaced");
        assert!(again == content, "a file that somebody has open was changed");
    }
    println!("{states} states of {files} files seen");
    (states, files)
}

/// Each system call that writes to the map, or to the file that is to take its place, writes whole lines.
#[test]
fn every_write_is_of_whole_lines() {
    let dir = crate::support::scratch_dir("writes");
    let log = dir.join("strace");
    let mut strace = perf::command("strace");
    strace.args(["-f", "-y", "-e", "trace=write,writev,pwrite64,pwritev,pwritev2", "-s", "10000000", "-o"]).arg(&log);
    strace.arg(perf::program()).args(["scenario=many", "sinks=map", "count=20000", "seconds=0.5"]);
    strace.arg(format!("dir={}", dir.display()));
    let (truth, _files) = perf::read_truth(&stdout(&run(&mut strace)));
    let log = std::fs::read_to_string(log).expect("output of strace");
    let (mut writes, mut bytes) = (perf::Verdict::new("writes to the map"), 0);
    // PID write(FD<PATH>, "TEXT", SIZE) = WRITTEN
    // PID writev(FD<PATH>, [{iov_base="TEXT", iov_len=SIZE}, ...], COUNT) = WRITTEN
    for line in log.lines() {
        let file = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(file, _)| file);
        if file.contains(&format!("perf-{}.map", truth.pid)) {
            let (text, rest) = line.rsplit_once("\", ").unwrap_or_else(|| panic!("write in {line:?}"));
            let sizes = line.split("\", ").skip(1).filter_map(|size| {
                let digits = size.strip_prefix("iov_len=").unwrap_or(size);
                digits.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
            });
            let size: u64 = sizes.sum();
            // Without a result the line was interrupted by one of another thread.
            let written = rest.rsplit_once(") = ").map_or(Ok(size), |(_, written)| written.parse());
            bytes += size;
            writes.check(text.ends_with("\\n") && written == Ok(size), || {
                format!("{written:?} of {size} bytes: {}", &text[text.len().saturating_sub(200)..])
            });
        }
    }
    writes.decide(1, 0.0);
    assert_eq!(bytes, truth.stats["map_bytes"], "every write was seen");
}
