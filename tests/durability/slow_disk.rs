//! A disk that does not keep up, and one that is full: what is accepted is written, what is refused is counted, the
//! bound on memory holds, and a file that cannot grow ends with a whole record.

use super::check::{check_dump, check_map, State};
use super::kills::check_files;
use super::plan::{rounds, Plan, Random, DROP_WHEN_FULL, JITDUMP, MAP};
use super::recover::in_namespace;
use super::run::{fresh_dir, said, Run, Truth};

const BOUND: u64 = 64 << 20;

/// Two threads that register code of 4 KiB on average, as fast as they can, and close.
fn offer(calls: u64, large: u64, slow_disk: &str, random: &mut Random) -> Plan {
    let seed = random.number() >> 1;
    Plan { calls, large, size: 8192, seed, close: 1, slow_disk: slow_disk.into(), ..Plan::default() }
}

/// Runs a plan to its end, checks what holds whatever the policy is, and returns how many records were dropped and how
/// many had to wait.
fn run(name: &str, plan: Plan) -> (u64, u64) {
    let bound = if plan.max_memory == 0 { BOUND } else { plan.max_memory };
    let mut run = Run::start(name, plan);
    run.wait_ok();
    let truth = run.truth();
    let (accepted, refused) = truth.totals();
    assert_eq!(accepted + refused, run.plan.threads * run.plan.calls);
    assert_eq!((run.said("registered"), run.said("dropped")), (accepted, refused), "{run}: {}", run.log());
    assert_eq!(run.said("jitdump_records"), accepted, "{run}: {}", run.log());
    assert_eq!((run.said("sinks_failed"), run.said("write_errors")), (0, 0), "{run}: {}", run.log());
    assert!(run.said("most_held") <= bound, "{run}: {}", run.log());
    let dump = std::fs::metadata(run.dump()).expect("dump").len();
    assert_eq!(dump, 40 + run.said("jitdump_bytes"), "{run}: {}", run.log());
    check_files(&run, State::Complete);
    let (dropped, waited) = (refused, run.said("waited"));
    let (held, p99) = (run.said("most_held") >> 20, run.said("p99_ns"));
    println!("{name}: {accepted} accepted, {dropped} dropped, {waited} waited, {held} MiB held, p99 {p99} ns");
    (dropped, waited)
}

/// What fits into the memory allowed is neither dropped nor has to wait, however slow the disk is.
#[test]
fn below_the_bound() {
    let mut random = Random::new("below_the_bound");
    for slow_disk in ["rate=50000000", "rate=50000000 pause_ms=300"] {
        // 33 MB.
        let plan = Plan { flags: DROP_WHEN_FULL, ..offer(4000, 0, slow_disk, &mut random) };
        assert_eq!(run("below", plan), (0, 0));
    }
}

/// What does not fit is dropped at once if that is asked for: whole records, and each of them counted.
#[test]
fn dropped_when_full() {
    let mut random = Random::new("dropped_when_full");
    for (large, max_memory) in [(0, 0), (50, 0), (50, 8 << 20)] {
        // 200 MB of small pieces.
        let calls = if max_memory == 0 { 24_000 } else { 6000 };
        let plan = Plan { flags: DROP_WHEN_FULL, max_memory, ..offer(calls, large, "rate=20000000", &mut random) };
        let (dropped, waited) = run("dropped", plan);
        assert!(dropped > 0 && waited == 0, "{dropped} dropped, {waited} waited");
    }
}

/// Whoever waits long enough loses nothing.
#[test]
fn waiting_for_a_slow_disk() {
    let mut random = Random::new("waiting_for_a_slow_disk");
    for (calls, large, max_memory) in [(12_000, 0, 32 << 20), (2000, 30, 8 << 20)] {
        let plan = Plan { max_memory, ..offer(calls, large, "rate=30000000 pause_ms=300", &mut random) };
        let (dropped, waited) = run("waiting", plan);
        assert!(dropped == 0 && waited > 0, "{dropped} dropped, {waited} waited");
    }
}

/// A file system that gets full under one sink: its file ends with a whole record, the failure is told, and the other
/// sink has everything.
#[test]
fn full_disk() {
    let mut random = Random::new("full_disk");
    for round in 0..rounds(6) {
        let sink = if round % 2 == 0 { JITDUMP } else { MAP };
        let kilobytes = if sink == MAP { random.below(400) } else { random.below(8000) } + 8;
        let (dir, full) = (fresh_dir("full"), fresh_dir("small"));
        let seed = random.number() >> 1;
        // What waits for room all fits in memory: else what has died would go first, and what is left has gaps.
        let max_memory = 256 << 20;
        let ops = random.chance(2);
        let plan = Plan { calls: 12_000, large: 300, ops, seed, close: 1, max_memory, ..Plan::default() };
        let script =
            "mount -t tmpfs -o size=$1k none \"$2\"; out=$3; small=$2; shift 3; \"$@\"; cp \"$small\"/* \"$out\"/";
        let mut words = vec![kilobytes.to_string(), full.display().to_string(), dir.display().to_string()];
        words.extend(plan.words(&dir, &dir.join("truth")));
        words.push(format!("{}={}", if sink == MAP { "map_dir" } else { "dump_dir" }, full.display()));
        let off = [("JITSYM_SPOOL", "off".to_string())];
        let Some(output) = in_namespace(script, &words, &off) else { return };
        let log = String::from_utf8_lossy(&output.stdout);
        println!("{kilobytes} KiB for {}: {}", if sink == MAP { "the map" } else { "the dump" }, said(&log, "error"));

        let truth = Truth::read(&dir.join("truth"), true);
        let (dump, map) = (dir.join(format!("jit-{}.dump", truth.pid)), dir.join(format!("perf-{}.map", truth.pid)));
        let state = |of: u32| if of == sink { State::Left } else { State::Complete };
        let [dump_bytes, map_bytes] = [&dump, &map].map(|path| std::fs::read(path).expect("file"));
        let checked = check_dump(&plan, &truth, &dump_bytes, state(JITDUMP));
        let in_dump = checked.unwrap_or_else(|error| panic!("{plan:?}, {kilobytes} KiB: dump: {error}"));
        let checked = check_map(&plan, &truth, &map_bytes, state(MAP));
        let in_map = checked.unwrap_or_else(|error| panic!("{plan:?}, {kilobytes} KiB: map: {error}"));
        assert!((if sink == MAP { in_map } else { in_dump }) > 0, "{log}: the file system was never full");

        let file = if sink == MAP { &map } else { &dump };
        let error = said(&log, "error");
        let named = error.contains(file.file_name().and_then(|name| name.to_str()).expect("name"));
        assert!(named && error.contains("No space left"), "{error}");
        assert_eq!(said(&log, "sinks_failed"), sink.to_string(), "{log}");
        assert_eq!(said(&log, "sinks_running"), (sink ^ (MAP | JITDUMP)).to_string(), "{log}");
        assert_eq!(said(&log, "flushed"), "JITSYM_ERR_SINK_FAILED", "{log}");
        assert_eq!(said(&log, "dropped"), "0", "{log}");
        for dir in [dir, full] {
            std::fs::remove_dir_all(dir).expect("remove the files");
        }
    }
}
