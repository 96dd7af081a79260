//! Killed at a random moment: what is in the files then, and after `jitsym recover`.

use std::path::Path;
use std::time::Duration;

use super::check::{check_dump, check_map, cut_by_kernel, is_empty_dump, State};
use super::plan::{rounds, slow_disk, Plan, Random, JITDUMP, MAP, NO_SPOOL, SPOOL_NONE, SPOOL_SHARED};
use super::recover::recover;
use super::run::{kill, Run, Truth};
use crate::perf;
use crate::support::{run, spaceless, stdout, tool, try_run, wait_until};

/// What a program does that is killed, with all that can be different from one to the next.
fn random_plan(random: &mut Random, round: usize) -> Plan {
    let rate = [0, 100_000, 1000, 0][round % 4];
    let mut plan = Plan {
        threads: random.pick(&[1, 2, 3, 8]),
        rate,
        calls: if round % 8 == 3 { 1 } else { 150_000 },
        seed: random.number() >> 1,
        large: random.pick(&[0, 3000, 300]),
        sinks: if random.chance(5) { random.pick(&[MAP, JITDUMP]) } else { MAP | JITDUMP },
        max_memory: random.pick(&[0, 0, 8 << 20]),
        ..Plan::default()
    };
    match random.below(6) {
        0 | 1 => plan.ops = true,
        2 => plan.relay = true,
        3 => plan.stable = true,
        _ => {}
    }
    // A disk that stops, so that there is much to recover, or within a write.
    let at = 40 + random.below(if rate == 1000 { 100_000 } else { 10_000_000 });
    match random.below(6) {
        0 => plan.slow_disk = format!("block_at={at}"),
        1 => plan.slow_disk = format!("tear_at={at}"),
        2 => plan.slow_disk = "rate=50000000 pause_ms=100".into(),
        _ => {}
    }
    plan
}

/// Starts a program and kills it: sometimes at once, mostly some time after it has opened its session.
fn start_and_kill(name: &str, plan: Plan, random: &mut Random) -> Run {
    let busy = plan.rate == 0 && plan.calls > 1;
    let mut run = Run::start(name, plan);
    if random.chance(8) {
        std::thread::sleep(Duration::from_micros(random.below(6000)));
    } else {
        run.wait_until("opening the session", |truth| truth.opened);
        std::thread::sleep(Duration::from_micros(random.below(if busy { 60_000 } else { 300_000 })));
    }
    run.kill();
    run
}

/// Checks the files of a killed process, and says how many records are missing in the dump and in the map.
pub fn check_files(run: &Run, state: State) -> (u64, u64) {
    let truth = run.truth();
    let plan = &run.plan;
    let files = run.files();
    let mut missing = [0; 2];
    for (index, bytes) in files.iter().enumerate() {
        let sink = [JITDUMP, MAP][index];
        let Some(bytes) = bytes else {
            assert!(!truth.opened || plan.sinks & sink == 0, "{run}: file {index} is not there");
            continue;
        };
        assert!(plan.sinks & sink != 0, "{run}: file {index} was not asked for");
        if !truth.opened && (is_empty_dump(bytes)) {
            continue;
        }
        let result = match sink {
            JITDUMP => check_dump(plan, &truth, bytes, state),
            _ => check_map(plan, &truth, bytes, state),
        };
        let torn = cut_by_kernel(bytes) || plan.slow_disk.starts_with("tear");
        match result {
            Ok(count) => missing[index] = count,
            // Cut off within a write, which a process cannot help when it is killed; the recovery can.
            Err(error) if state == State::Left && torn => println!("  file {index} is cut off: {error}"),
            Err(error) => panic!("{run}: file {index}: {error}"),
        }
    }
    (missing[0], missing[1])
}

/// Recovers what a killed process left; then it must be complete, and nothing be left to do.
pub fn recover_and_check(run: &Run) {
    let truth = run.truth();
    let (dump, map) = check_files(run, State::Left);
    let records = run.recover();
    if truth.opened {
        assert_eq!(truth.spool, SPOOL_SHARED, "{run}: no spool");
        assert!(records.is_some(), "{run}: no word of this process");
    }
    println!("  {records:?} completed");
    check_files(run, State::Complete);
    let files = run.files();
    assert_eq!(run.recover(), None, "{run}: recovered twice");
    assert!(files == run.files(), "{run}: a second recovery has written to the files");
    let (accepted, _) = truth.totals();
    println!(
        "  {accepted} accepted, {dump} not in the dump and {map} not in the map when killed, {records:?} completed"
    );
}

#[test]
fn killed_at_random() {
    let mut random = Random::new("killed_at_random");
    for round in 0..rounds(20) {
        let plan = random_plan(&mut random, round);
        println!("round {round}: {plan:?}");
        recover_and_check(&start_and_kill("killed", plan, &mut random));
    }
}

/// Only the call that had not returned may be missing, also if the spool was never grown and the writer never came to
/// write.
#[test]
fn killed_before_anything_is_written() {
    for (calls, large) in [(1, 1), (1, 0), (2000, 0), (30, 1)] {
        let slow_disk = "block_at=41".into();
        let mut run = Run::start("first", Plan { calls, large, slow_disk, ..Plan::default() });
        run.wait_until("the end of the calls", |truth| truth.done);
        run.kill();
        recover_and_check(&run);
    }
}

/// The map has lines that claim an address twice for up to 50 ms, until it is written anew; a process that is killed
/// within that time may have left nothing else to do.
#[test]
fn killed_with_a_map_that_is_to_be_written_anew() {
    let mut random = Random::new("killed_with_a_map_that_is_to_be_written_anew");
    for round in 0..rounds(6) {
        let sinks = if round % 2 == 0 { MAP } else { MAP | JITDUMP };
        let seed = random.number() >> 1;
        let plan = Plan { threads: 1, calls: 2000, rate: 20_000, relay: true, sinks, seed, ..Plan::default() };
        let mut run = Run::start("stale", plan);
        run.wait_until("the end of the calls", |truth| truth.done);
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        run.kill();
        recover_and_check(&run);
    }
}

/// Without a spool the files are whole, and some of the last records are lost.
#[test]
fn killed_without_a_spool() {
    let mut random = Random::new("killed_without_a_spool");
    for round in 0..rounds(8) {
        let mut plan = random_plan(&mut random, round);
        plan.flags = NO_SPOOL;
        println!("round {round}: {plan:?}");
        let run = start_and_kill("unspooled", plan, &mut random);
        let truth = run.truth();
        assert!(!truth.opened || truth.spool == SPOOL_NONE, "{run}: spool is {}", truth.spool);
        let (dump, map) = check_files(&run, State::Left);
        println!("  {} accepted, {dump} not in the dump, {map} not in the map", truth.totals().0);
        assert_eq!(run.recover(), None, "{run}: nothing to recover");
    }
}

/// A child that was forked and lives on has the parent's descriptors, and must not pass for the parent; neither must one that has
/// gone on with its session.
#[test]
fn killed_with_a_child_that_lives_on() {
    let mut random = Random::new("killed_with_a_child_that_lives_on");
    for round in 0..rounds(4) {
        let seed = random.number() >> 1;
        let fork = 1 + round as u32 % 2;
        let plan = Plan { fork, calls: 15_000, seed, slow_disk: "block_at=500000".into(), ..Plan::default() };
        let mut run = Run::start("forked", plan);
        run.wait_until("the end of the calls", |truth| truth.done);
        run.kill();
        let child = run.truth().child;
        assert!(Path::new(&format!("/proc/{child}")).exists(), "{run}: the child has ended");
        let of_child = run.dump().with_file_name(format!("jit-{child}.dump"));
        while fork == 2 && !of_child.exists() {
            std::thread::yield_now();
        }
        assert_eq!(of_child.exists(), fork == 2, "{run}: the child's jitdump");
        recover_and_check(&run);
        assert!(Path::new(&format!("/proc/{child}")).exists(), "{run}: the child has ended");
    }
}

/// perf takes the completed dump of a recorded process that was killed: it makes an object of every piece of code, to
/// the last one.
#[test]
fn killed_under_perf() {
    let mut random = Random::new("killed_under_perf");
    for round in 0..rounds(4) {
        let slow_disk = if round == 0 { "block_at=20000".into() } else { String::new() };
        let seed = random.number() >> 1;
        let plan = Plan { rate: 2000, calls: 200, large: 100, ops: round % 2 == 1, seed, slow_disk, ..Plan::default() };
        let data = super::run::fresh_dir("recording").join("perf.data");
        let data_path = data.to_str().expect("path");
        let record = ["perf", "record", "-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "-g", "-o", data_path, "--"];
        let mut process = Run::start_with("recorded", plan, &record, &[]);
        process.wait_until("opening the session", |truth| truth.opened);
        std::thread::sleep(Duration::from_micros(random.below(200_000)));
        kill(process.pid());
        process.wait();
        recover_and_check(&process);

        let injected = data.with_file_name("injected.data");
        run(perf::perf("inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&injected));
        let dump = std::fs::read(process.dump()).expect("dump");
        let printed = stdout(&run(perf::command(tool()).arg("dump").arg(process.dump())));
        let loads = printed.lines().filter(|line| line.contains(" index ")).count();
        let objects = std::fs::read_dir(&process.dir).expect("directory");
        let objects =
            objects.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("jitted-")).count();
        assert_eq!(objects, loads, "{process}: objects that perf has made of a dump of {} bytes", dump.len());
        println!("  {objects} objects");
        std::fs::remove_dir_all(data.parent().expect("directory")).expect("remove the recording");
    }
}

/// The command on its own: nothing to do, a directory that does not exist, a process that lives, and one of two.
#[test]
fn which_processes() {
    let mut random = Random::new("which_processes");
    let slow_disk: String = "block_at=41".into();
    let plan = |seed| Plan { calls: 100, seed, slow_disk: slow_disk.clone(), ..Plan::default() };
    let [mut living, mut first, mut second] = [0; 3].map(|_| Run::start("which", plan(random.number() >> 1)));
    for run in [&mut living, &mut first, &mut second] {
        run.wait_until("the end of the calls", |truth| truth.done);
    }
    first.kill();
    second.kill();
    // All spools in one place.
    for run in [&first, &second] {
        for spool in run.spool.spools() {
            std::fs::copy(&spool, living.spool.0.join(spool.file_name().expect("name"))).expect("copy the spool");
        }
    }
    assert_eq!(living.spool.spools().len(), 3);
    let dir = living.spool.0.clone();
    let report = |pids: &[u32]| {
        let output = recover(&dir, pids);
        assert!(output.status.success(), "{output:?}");
        let mut pids: Vec<u32> = super::recover::Report::parse(&output).iter().map(|report| report.pid).collect();
        pids.sort_unstable();
        pids
    };
    assert_eq!(report(&[second.pid()]), [second.pid()]);
    check_files(&second, State::Complete);
    assert_eq!(living.spool.spools().len(), 2);
    assert_eq!(report(&[]), [first.pid()]);
    check_files(&first, State::Complete);
    assert_eq!(report(&[]), [0_u32; 0]);
    assert_eq!(living.spool.spools().len(), 1, "the spool of a living process");

    living.kill();
    assert_eq!(report(&[]), [living.pid()]);
    check_files(&living, State::Complete);

    let mut help = super::recover::recover_command(&dir.join("nothing"), &[]);
    let output = try_run(&mut help);
    assert!(output.stdout.is_empty() && output.status.code().is_some(), "{output:?}");
}

/// The place where spools are by default is looked into by default, and a clean end leaves nothing there.
#[test]
fn default_place() {
    let mut random = Random::new("default_place");
    for (close, left) in [(1, 0), (2, 0), (0, 1)] {
        let dir = super::run::fresh_dir("default");
        let plan = Plan { calls: 100, close, seed: random.number() >> 1, ..Plan::default() };
        let truth = dir.join("truth");
        let words = plan.words(&dir, &truth);
        let mut command = perf::command(&words[0]);
        command.args(&words[1..]).stdout(std::process::Stdio::null());
        if close == 0 {
            // A spool in which nothing is left to be written may be removed by any next process.
            command.env("LD_PRELOAD", spaceless(slow_disk())).env("SLOW_DISK", "block_at=41");
        }
        let mut program = command.spawn().expect("start the program");
        let pid = program.id();
        let of_process = || {
            let entries = std::fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.starts_with(&format!("jitsym-{pid}-")) && name.ends_with(".spool")).count()
        };
        if close == 0 {
            wait_until("the end of the calls", || Truth::read(&truth, false).done);
            assert_eq!(of_process(), 1, "spools of {pid}");
            kill(pid);
        }
        program.wait().expect("wait for the program");
        assert_eq!(of_process(), left, "spools of {pid}");
        let mut recover = perf::command(tool());
        let output = try_run(recover.arg("recover").arg(pid.to_string()));
        // Nothing is there of a process that has ended well, as far as anybody knows.
        assert_eq!(output.status.code(), Some(if left > 0 { 0 } else { 2 }), "{output:?}");
        assert_eq!(super::recover::Report::parse(&output).len(), left, "{output:?}");
        assert_eq!(of_process(), 0, "spools of {pid}");
        std::fs::remove_dir_all(&dir).expect("remove the files");
    }
}
