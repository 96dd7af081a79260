//! `jitsym export PID`: which files are those of the process, and jitdumps that do not fit together.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::build::{dump, record, words, Load, TIME};
use crate::support::{fresh_dir, stdout, try_run, TmpFiles};

fn export(pid: u32, out: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
    command.args(["export", &pid.to_string(), "-o"]).arg(out).env_remove("JITSYM_DIR");
    command
}

/// A file with the number of a living process that is older than the process is of an earlier process.
#[test]
fn an_earlier_process_with_the_same_pid() {
    let dir = fresh_dir("earlier");
    let mut process = Command::new("sleep").arg("1000").spawn().expect("start");
    let (pid, path) = (process.id(), format!("/tmp/jit-{}.dump", process.id()));
    let _files = TmpFiles(pid);
    fs::write(&path, dump(&[Load::default().bytes()])).expect("jitdump");
    let set = |time| File::options().write(true).open(&path).expect("jitdump").set_modified(time).expect("time");
    let now = try_run(&mut export(pid, &dir.join("new")));
    set(SystemTime::now() - Duration::from_secs(3600));
    let earlier = try_run(&mut export(pid, &dir.join("old")));
    process.kill().expect("kill");
    process.wait().expect("end");
    assert!(now.status.success(), "the control: {now:?}");
    let said = String::from_utf8_lossy(&earlier.stderr);
    assert!(earlier.status.code() == Some(2) && said.contains("are older than the process"), "{earlier:?}");
    assert!(!dir.join("old").exists());
    // The files of a dead process are those of the last one with this pid.
    assert!(try_run(&mut export(pid, &dir.join("dead"))).status.success());
}

/// Times of two clocks do not tell which code is newer.
#[test]
fn jitdumps_with_two_clocks() {
    let dir = fresh_dir("clocks");
    let mut process = Command::new("true").spawn().expect("start");
    process.wait().expect("end");
    let pid = process.id();
    let _files = TmpFiles(pid);
    let other = dir.join("other");
    fs::create_dir(&other).expect("directory");
    let name = format!("jit-{pid}.dump");
    let load = |addr| Load { addr, index: addr, ..Load::default() }.bytes();
    fs::write(format!("/tmp/{name}"), dump(&[load(0x7000_1000)])).expect("jitdump");
    for (flag, count, clock) in [(0u64, 2, false), (1, 1, true)] {
        let mut second = dump(&[load(0x7000_2000)]);
        second[32..40].copy_from_slice(&flag.to_ne_bytes());
        fs::write(other.join(&name), second).expect("jitdump");
        let out = dir.join(format!("out-{flag}"));
        let output = try_run(export(pid, &out).env("JITSYM_DIR", &other));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && stdout(&output).contains(&format!("{count} function")),
            "{flag}: {output:?}"
        );
        assert_eq!(said.contains("has times of another clock"), clock, "{said}");
    }
}

/// A record that moves less than the whole code moves its first part, and a record cannot move more than there is.
#[test]
fn moves_of_a_part() {
    let dir = fresh_dir("moves");
    for (size, expected) in [(16u64, 16), (8, 8), (4096, 16), (0, 0)] {
        let load = Load { code: vec![0x90; 16], ..Load::default() };
        let moved = record(1, TIME, &words(&[0, 0, 0, 0x7000_0000, size, load.index]));
        let path = dir.join("jit-1.dump");
        fs::write(&path, dump(&[load.bytes(), moved])).expect("jitdump");
        let out = dir.join(format!("out-{size}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
        let output = try_run(command.args(["export", "--map", "-o"]).arg(&out).arg(&path));
        let maps = fs::read_dir(&out).expect("directory").map(|entry| fs::read_to_string(entry.expect("entry").path()));
        let map: String = maps.map(|map| map.expect("map")).collect();
        let line = map.lines().find_map(|line| line.strip_prefix("70000000 ")).and_then(|line| line.split(' ').next());
        let found = line.map_or(0, |size| u64::from_str_radix(size, 16).expect("a size"));
        assert_eq!(found, expected, "{map} {output:?}");
    }
}
