//! Where the spool is: places where there can be none, or too small a one, cost its protection and nothing else.

use super::check::{check_dump, check_map, State};
use super::kills::{check_files, recover_and_check};
use super::plan::{rounds, Plan, Random, NO_SPOOL, SPOOL_NONE, SPOOL_SHARED};
use super::recover::in_namespace;
use super::run::{fresh_dir, said, Run, Truth};
use crate::support::{spaceless, tool};

/// A clean end leaves no spool, whether the session was closed or not.
#[test]
fn clean_end() {
    let mut random = Random::new("clean_end");
    for close in [1, 2] {
        let plan = Plan { calls: 2000, seed: random.number() >> 1, close, ..Plan::default() };
        let mut run = Run::start("clean", plan);
        run.wait_ok();
        assert_eq!(run.truth().spool, SPOOL_SHARED);
        assert!(run.spool.spools().is_empty(), "left behind: {:?}", run.spool.spools());
        check_files(&run, State::Complete);
        assert_eq!(run.recover(), None);
    }
}

/// The spool is for its owner alone, and has the name that the documentation gives it.
#[test]
fn name_and_mode() {
    use std::os::unix::fs::PermissionsExt;
    let mut run = Run::start("named", Plan { calls: 100, ..Plan::default() });
    run.wait_until("the end of the calls", |truth| truth.done);
    let [spool] = run.spool.spools().try_into().expect("one spool");
    let mode = std::fs::metadata(&spool).expect("spool").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let name = spool.file_name().expect("name").to_string_lossy().into_owned();
    let middle = name.strip_prefix(&format!("jitsym-{}-", run.pid())).and_then(|rest| rest.strip_suffix(".spool"));
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(middle.is_some_and(|middle| middle.split('-').all(hex)), "{name}");
    run.kill();
    recover_and_check(&run);
}

/// Where no spool can be made, or none is wanted, the session works without.
#[test]
fn no_place_for_a_spool() {
    let mut random = Random::new("no_place_for_a_spool");
    let dir = fresh_dir("no-place");
    std::fs::write(dir.join("file"), "not a directory").expect("write");
    let path = |name: &str| dir.join(name).display().to_string();
    let (missing, file) = (path("missing"), path("file"));
    let places = [("JITSYM_SPOOL_DIR", &*missing), ("JITSYM_SPOOL_DIR", &file), ("JITSYM_SPOOL_DIR", "/proc")];
    let settings = [("JITSYM_SPOOL", "off"), ("JITSYM_TEST", "only the flag")];
    for (index, setting) in places.into_iter().chain(settings).enumerate() {
        let flags = if index == 4 { NO_SPOOL } else { 0 };
        let plan = Plan { calls: 2000, flags, seed: random.number() >> 1, close: 1, ..Plan::default() };
        let mut run = Run::start_with("unspooled", plan, &[], &[setting]);
        run.wait_ok();
        assert_eq!((run.truth().spool, run.said("spool")), (SPOOL_NONE, SPOOL_NONE), "{setting:?}");
        assert_eq!(run.said("sinks_failed"), 0, "{setting:?}: {}", run.log());
        assert!(run.spool.spools().is_empty());
        check_files(&run, State::Complete);
    }
    assert_eq!(std::fs::read(dir.join("file")).expect("file"), b"not a directory");
    std::fs::remove_dir_all(dir).expect("remove the directory");
}

/// A file system that has too little memory for the spool, or may not be written at all. Memory that the kernel has
/// promised and cannot give would end the process with SIGBUS.
#[test]
fn small_place_for_a_spool() {
    let mut random = Random::new("small_place_for_a_spool");
    for options in ["ro", "size=16k", "size=1m", "size=3m", "size=4200k", "size=5m", "size=12m"] {
        let seed = random.number() >> 1;
        let plan = Plan { calls: 4000, size: 8192, large: 300, seed, close: 1, ..Plan::default() };
        let Some((log, dir)) = in_small_place(options, &plan, "rate=50000000", "") else { return };
        let truth = Truth::read(&dir.join("truth"), true);
        let (before, after) = (truth.spool, said(&log, "spool").parse::<u64>().expect("number"));
        println!("{options}: spool {before}, {after} at the end");
        let large_enough = matches!(options, "size=5m" | "size=12m");
        assert!(!large_enough || before == SPOOL_SHARED, "{options}: spool {before}");
        assert_eq!(after, SPOOL_NONE, "{options}: some records had no room in the spool");
        assert_eq!((&*said(&log, "dropped"), &*said(&log, "sinks_failed")), ("0", "0"), "{options}: {log}");
        check(&plan, &truth, &dir, State::Complete);
        std::fs::remove_dir_all(dir).expect("remove the files");
    }
}

/// Killed with part of the records in private memory: those are lost, and the others are as they should be.
#[test]
fn killed_with_a_small_spool() {
    let mut random = Random::new("killed_with_a_small_spool");
    for _ in 0..rounds(3) {
        let (seed, die_us) = (random.number() >> 1, 1000 + random.below(200_000));
        let plan = Plan { size: 8192, large: 300, seed, die_us, ..Plan::default() };
        let recover = format!("du -k \"$spool\" | cut -f 1; '{}' recover --dir \"$spool\"", tool().display());
        let slow_disk = random.pick(&["rate=50000000", "block_at=1000000"]);
        let Some((log, dir)) = in_small_place("size=12m", &plan, slow_disk, &recover) else { return };
        println!("{}", log.trim_end());
        let (used, log) = log.split_once('\n').expect("lines");
        assert!(used.parse::<u32>().expect("KiB") <= 12 << 9, "half of the file system is for others: {used} KiB");
        let truth = Truth::read(&dir.join("truth"), true);
        assert!(log.starts_with(&format!("{}: ", truth.pid)), "{log}");
        check(&plan, &truth, &dir, State::Partial);
        std::fs::remove_dir_all(dir).expect("remove the files");
    }
}

/// Runs the program with its spool in a file system with these options, and then a command. What both printed, and
/// where the files are.
fn in_small_place(options: &str, plan: &Plan, slow_disk: &str, then: &str) -> Option<(String, std::path::PathBuf)> {
    let (dir, place) = (fresh_dir("small-spool"), fresh_dir("place"));
    // Whether the program was killed is for the caller to know.
    let end = if plan.die_us == 0 { "" } else { " || test $? = 137" };
    let script = format!(
        "mount -t tmpfs -o $1 none \"$2\"; spool=$2; shift 2; JITSYM_SPOOL_DIR=$spool LD_PRELOAD={} \"$@\"{end}; {then}",
        spaceless(super::plan::slow_disk()).display()
    );
    let mut words = vec![options.to_string(), place.display().to_string()];
    words.extend(plan.words(&dir, &dir.join("truth")));
    let output = in_namespace(&script, &words, &[("SLOW_DISK", slow_disk.into())])?;
    std::fs::remove_dir_all(place).expect("remove the directory");
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), dir))
}

fn check(plan: &Plan, truth: &Truth, dir: &std::path::Path, state: State) {
    let read = |name: String| std::fs::read(dir.join(name)).expect("file");
    let checked = check_dump(plan, truth, &read(format!("jit-{}.dump", truth.pid)), state);
    checked.unwrap_or_else(|error| panic!("{plan:?}: dump: {error}"));
    let checked = check_map(plan, truth, &read(format!("perf-{}.map", truth.pid)), state);
    checked.unwrap_or_else(|error| panic!("{plan:?}: map: {error}"));
}
