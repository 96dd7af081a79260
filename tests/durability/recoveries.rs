//! Recovery itself in trouble: by another process on the way, killed in the middle, twice at a time, and of files that
//! are no longer the process's own.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::check::{check_dump, check_map, State};
use super::kills::{check_files, recover_and_check};
use super::plan::{rounds, slow_disk, Plan, Random, RECOVER};
use super::recover::{recover, recover_command, Report};
use super::run::Run;
use crate::support::spaceless;

/// A process that was killed with much on its way: the disk has stopped.
fn killed(name: &str, calls: u64, random: &mut Random) -> Run {
    let slow_disk = format!("{}={}", random.pick(&["block_at", "tear_at"]), 41 + random.below(2_000_000));
    let (seed, ops) = (random.number() >> 1, random.chance(2));
    // Room for all of it.
    let max_memory = 256 << 20;
    let plan = Plan { calls, large: 1000, ops, seed, slow_disk, max_memory, ..Plan::default() };
    let mut run = Run::start(name, plan);
    run.wait_until("the end of the calls", |truth| truth.done);
    run.kill();
    run
}

/// The next process recovers, if its options or the environment say so, and goes on as always.
#[test]
fn by_the_next_process() {
    let mut random = Random::new("by_the_next_process");
    for (flags, variable) in [(RECOVER, "JITSYM_TEST"), (0, "JITSYM_RECOVER"), (0, "JITSYM_TEST")] {
        let first = killed("first", 10_000, &mut random);
        let spool = first.spool.0.display().to_string();
        let plan = Plan { calls: 1000, flags, seed: random.number() >> 1, close: 1, ..Plan::default() };
        let mut next = Run::start_with("next", plan, &[], &[("JITSYM_SPOOL_DIR", &spool), (variable, "1")]);
        next.wait_ok();
        check_files(&next, State::Complete);
        let recovered = next.said("recovered");
        if flags == 0 && variable != "JITSYM_RECOVER" {
            assert_eq!(recovered, 0, "nobody has asked for it");
            assert_eq!(first.spool.spools().len(), 1);
        } else {
            assert!(recovered > 0, "{}", next.log());
            assert!(first.spool.spools().is_empty(), "{:?}", first.spool.spools());
            check_files(&first, State::Complete);
            assert_eq!(first.recover(), None);
        }
    }
}

/// A recovery that is killed, also within a write, is taken up by the next one: everything is there, and once.
#[test]
fn killed_in_the_middle() {
    let mut random = Random::new("killed_in_the_middle");
    for round in 0..rounds(4) {
        let run = killed("interrupted", 20_000, &mut random);
        for _ in 0..1 + random.below(4) {
            let mut command = recover_command(&run.spool.0, &[]);
            let settings = ["rate=20000000".into(), format!("tear_at={}", 2_000_000 + random.below(20_000_000))];
            command.env("LD_PRELOAD", spaceless(slow_disk())).env("SLOW_DISK", random.pick(&settings));
            let mut recovery = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("recover");
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
            recovery.kill().expect("kill the recovery");
            recovery.wait().expect("wait for the recovery");
        }
        let records = run.recover();
        check_files(&run, State::Complete);
        println!("round {round}: {records:?} records completed by the last recovery");
        recover_and_check_nothing(&run);
    }
}

fn recover_and_check_nothing(run: &Run) {
    let files = run.files();
    assert_eq!(run.recover(), None, "{run}");
    assert!(files == run.files(), "{run}: a second recovery has written to the files");
}

/// A jitdump that was written anew at some time, because somebody had removed it, has grown since. All of that stays.
#[test]
fn of_a_jitdump_that_was_written_anew() {
    let mut random = Random::new("of_a_jitdump_that_was_written_anew");
    for _ in 0..rounds(3) {
        // The disk stops long after that.
        let (lose, slow_disk) = (1 + random.below(200), format!("block_at={}", 1_500_000 + random.below(1_000_000)));
        let (seed, threads, calls, large) = (random.number() >> 1, 1, 10_000, 0);
        let max_memory = 256 << 20;
        let plan = Plan { threads, calls, large, seed, lose, slow_disk, max_memory, ..Plan::default() };
        let mut run = Run::start("anew", plan);
        run.wait_until("the end of the calls", |truth| truth.done);
        run.kill();
        assert!(run.recover().is_some(), "{run}");
        check_files(&run, State::Complete);
    }
}

/// Several recoveries at a time do not get into each other's way. A recovery waits ten seconds for another one, and then says that
/// the other one is at work.
#[test]
fn several_at_a_time() {
    let mut random = Random::new("several_at_a_time");
    for _ in 0..rounds(3) {
        let run = killed("contended", 10_000, &mut random);
        let start = |index: u64| {
            let mut command = recover_command(&run.spool.0, &[]);
            if index == 0 {
                command.env("LD_PRELOAD", spaceless(slow_disk())).env("SLOW_DISK", "rate=50000000");
            }
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("recover")
        };
        let recoveries: Vec<_> = (0..3).map(start).collect();
        let mut reports = Vec::new();
        for recovery in recoveries {
            let output = recovery.wait_with_output().expect("wait for the recovery");
            let said = Report::parse(&output);
            let has_waited_in_vain = said.iter().any(|report| report.complaints == ["somebody else recovers it"]);
            assert!(output.status.success() != has_waited_in_vain, "{output:?}");
            reports.extend(said.into_iter().filter(|_| !has_waited_in_vain));
        }
        let complaints = reports.iter().any(|report| report.pid != run.pid() || !report.complaints.is_empty());
        assert!(!complaints && !reports.is_empty(), "{run}: {reports:?}");
        assert!(run.spool.spools().is_empty(), "{run}: {:?}", run.spool.spools());
        check_files(&run, State::Complete);
        recover_and_check_nothing(&run);
    }
}

/// What somebody has done to a file of a process that was killed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Removed,
    Replaced,
    Linked,
}

/// Files that are gone, or that are somebody else's now, are left alone, and the reason is told; the other file is
/// completed.
#[test]
fn files_that_were_replaced() {
    let mut random = Random::new("files_that_were_replaced");
    for change in [Change::Removed, Change::Replaced, Change::Linked] {
        for of_dump in [true, false] {
            let run = killed("replaced", 3000, &mut random);
            let (path, other) = if of_dump { (run.dump(), run.map()) } else { (run.map(), run.dump()) };
            let bystander = run.dir.join("bystander");
            std::fs::write(&bystander, "somebody's text\n").expect("write");
            std::fs::remove_file(&path).expect("remove");
            match change {
                Change::Removed => {}
                Change::Replaced => std::fs::write(&path, "somebody's text\n").expect("write"),
                Change::Linked => symlink(&bystander, &path).expect("link"),
            }
            let output = recover(&run.spool.0, &[]);
            let reports = Report::parse(&output);
            assert_eq!(reports.len(), 1, "{change:?}: {output:?}");
            let name = path.file_name().and_then(|name| name.to_str()).expect("name");
            let told = reports[0].complaints.len() == 1 && reports[0].complaints[0].contains(name);
            assert!(told, "{change:?} {path:?}: {output:?}");
            assert_eq!(std::fs::read(&bystander).expect("bystander"), b"somebody's text\n");
            match change {
                Change::Removed => assert!(!path.exists(), "{change:?}: made anew"),
                _ => assert_eq!(std::fs::read(&path).expect("file"), b"somebody's text\n", "{change:?}"),
            }
            check_other(&run, &other, of_dump);
        }
    }
}

fn check_other(run: &Run, path: &Path, is_map: bool) {
    let bytes = std::fs::read(path).expect("file");
    let checked = match is_map {
        // Lines that waited until older ones were taken back are known to the jitdump alone.
        true => check_map(&run.plan, &run.truth(), &bytes, State::Partial),
        false => check_dump(&run.plan, &run.truth(), &bytes, State::Complete),
    };
    checked.unwrap_or_else(|error| panic!("{run}: the other file: {error}"));
}

/// A process that has become another program with `exec` has left a spool without having died, and other files of the
/// same names since, which may even have the same inode numbers. What is in the old spool is not for these.
#[test]
fn of_a_program_before_the_last() {
    let mut random = Random::new("of_a_program_before_the_last");
    for round in 0..rounds(4) {
        let slow_disk = if round % 2 == 0 { format!("block_at={}", 41 + random.below(500_000)) } else { String::new() };
        let seed = random.number() >> 1;
        let plan = Plan { calls: 2000, seed, slow_disk, again: true, ..Plan::default() };
        let mut run = Run::start("again", plan);
        run.plan.seed += 1;
        run.wait_until("the end of the calls", |truth| truth.done);
        run.kill();
        let output = recover(&run.spool.0, &[]);
        let reports = Report::parse(&output);
        println!("round {round}: {reports:?}");
        assert!(reports.iter().all(|report| report.pid == run.pid()), "{run}: {reports:?}");
        check_files(&run, State::Complete);
        recover_and_check_nothing(&run);
    }
}

/// Recovered files are not held by anything: the next process with the same directories and another recovery find
/// peace.
#[test]
fn after_a_recovery() {
    let mut random = Random::new("after_a_recovery");
    let run = killed("peace", 1000, &mut random);
    recover_and_check(&run);
    for path in [run.dump(), run.map()] {
        std::fs::remove_file(path).expect("remove");
    }
    assert_eq!(run.recover(), None);
}
