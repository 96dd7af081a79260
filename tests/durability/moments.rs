//! Kills at moments that no test hits by chance: when the files are written, and the pass that has written them is not committed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use super::crafted::identity;
use super::kills::recover_and_check;
use super::plan::{rounds, Plan, Random};
use super::recover::{recover, Report};
use super::run::{fresh_dir, Run, SpoolDir};
use crate::perf;
use crate::support::{compile, wait_until, Link};

/// Where the number of the last pass is, and what each of the last two says of the map: see `src/queue/spool/layout.rs`.
const COMMITTED: u64 = 56;
const MAPS: [u64; 2] = [64 + 1696 + 24, 152 + 1696 + 24];

/// Takes the last commit back, if it tells of the map as it is. Returns whether it does.
fn take_commit_back(spool: &Path, map: &Path) -> bool {
    let file = File::options().read(true).write(true).open(spool).expect("spool");
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("header");
        u64::from_ne_bytes(bytes)
    };
    let committed = word(COMMITTED);
    let at = MAPS[(committed & 1) as usize];
    let known = [0, 8, 16, 24].map(|field| word(at + field));
    let [device, inode, born] = identity(map);
    let is_so = known == [device, inode, born, fs::metadata(map).expect("map").len()];
    if is_so {
        file.write_all_at(&(committed - 1).to_ne_bytes(), COMMITTED).expect("header");
    }
    is_so
}

/// Killed between the write of the map and the commit: what a pass has moved is not moved another time, whether the map was appended
/// to or written anew.
#[test]
fn a_move_is_applied_once() {
    let program = compile("gcc", &["c-tests/durability/moves.c"], Link::Shared, &["-std=gnu11"], "moves");
    let mut taken_back = 0;
    for round in 0..rounds(20) {
        let (dir, place) = (fresh_dir("moves"), SpoolDir::new("moves"));
        let log = dir.join("log");
        let mut command = perf::command(&program);
        command.arg(&dir).arg(if round % 2 == 0 { "flush" } else { "append" });
        command.env("JITSYM_SPOOL_DIR", &place.0).stdin(Stdio::null()).stdout(File::create(&log).expect("log"));
        let mut child = command.spawn().expect("start the program");
        let map = dir.join(format!("perf-{}.map", child.id()));
        let has = |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|found| found.contains(text));
        wait_until("the end of the calls", || has(&log, "done") && has(&map, "last"));
        child.kill().expect("kill the program");
        child.wait().expect("wait for the program");
        let [spool] = place.spools().try_into().expect("one spool");
        taken_back += u32::from(take_commit_back(&spool, &map));
        // Also by a recovery that is interrupted before it removes the spool.
        let kept = place.0.with_file_name("kept");
        fs::hard_link(&spool, &kept).expect("a second name");
        for _ in 0..2 {
            let output = recover(&place.0, &[]);
            let [report] = Report::parse(&output).try_into().expect("one report");
            assert!(report.complaints.is_empty(), "{report:?}");
            check(&map, round);
            let _ = fs::hard_link(&kept, &spool);
        }
        fs::remove_dir_all(dir).expect("remove the files");
    }
    println!("{taken_back} commits taken back");
}

fn check(map: &Path, round: usize) {
    let text = fs::read(map).expect("map");
    let lines = perf::parse_map(&text).unwrap_or_else(|error| panic!("round {round}: {error}"));
    let live = [
        (0x10000, "other"),
        (0x20000, "one"),
        (0x30000, "left"),
        (0x40000, "new"),
        (0x50000, "second"),
        (0x80000, "twice"),
        (0x80010, "last"),
    ];
    for (addr, name) in live {
        let found = lines.iter().find(|line| line.start <= addr && addr < line.end).map(|line| &*line.name);
        assert_eq!(found, Some(name), "round {round}: {addr:x} in {}", String::from_utf8_lossy(&text));
    }
    // Where code was that has moved on there is its name or none.
    for (addr, name) in [(0x60000, "one"), (0x70000, "twice")] {
        let found = lines.iter().find(|line| line.start <= addr && addr < line.end);
        let is_right = found.is_none_or(|line| line.name == name);
        assert!(is_right, "round {round}: {addr:x} in {}", String::from_utf8_lossy(&text));
    }
}

/// Killed while a jitdump that is as long as it may be is written anew: what had no room in it is not lost.
#[test]
fn killed_while_the_jitdump_is_written_anew() {
    let mut random = Random::new("killed_while_the_jitdump_is_written_anew");
    for _ in 0..rounds(4) {
        let (seed, dump_max) = (random.number() >> 1, 200_000 + random.below(200_000));
        let (threads, calls, large, max_memory) = (1, 4000, 0, 256 << 20);
        let slow_disk = "hang_new=1".into();
        let plan =
            Plan { threads, calls, large, relay: true, seed, dump_max, max_memory, slow_disk, ..Plan::default() };
        let mut run = Run::start("anew", plan);
        run.wait_until("the end of the calls", |truth| truth.done);
        run.wait_until_the_disk_hangs();
        run.kill();
        recover_and_check(&run);
    }
}
