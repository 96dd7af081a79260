//! What is refused, skipped and reported, and that nothing is written through links.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use super::{inject, perf, said};
use crate::support::*;

/// A recording, and a directory with its jitdump: a directory of this user alone.
pub fn recording(name: &str, options: &[&str]) -> (PathBuf, PathBuf, PathBuf) {
    let _alone = serial();
    let dir = fresh_dir(name);
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record
        .args(["-q", "-e", "cpu-clock", "-F", "999"])
        .args(options)
        .arg("-o")
        .arg(&data)
        .arg("--")
        .arg(perf::program());
    record.args(["scenario=stacks", "sinks=jitdump", "seconds=0.1"]).arg(format!("dir={}", dir.display()));
    let (truth, _files) = perf::read_truth(&stdout(&run(record.env("JITSYM_DIR", &dir))));
    let dump = dir.join(format!("jit-{}.dump", truth.pid));
    assert!(dump.is_file(), "{}", dump.display());
    (dir, data, dump)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("directory")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn another_clock() {
    let (dir, data, _) = recording("clock", &[]);
    let before = names(&dir);
    let output = try_run(&mut inject(&data, &dir.join("jit.data")));
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("record with `perf record -k 1`"), "{output:?}");
    assert_eq!(names(&dir), before, "nothing is written");
}

/// A dump that is gone, cut, of another user, a link, or no dump is reported, and the recording is copied.
#[test]
fn dumps_that_cannot_be_used() {
    let (dir, data, dump) = recording("dumps", &["-k", "1"]);
    let (new, whole) = (dir.join("jit.data"), fs::read(&dump).expect("dump"));
    let says = |why: &str| {
        let output = try_run(&mut inject(&data, &new));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stdout(&output).contains(why), "{why}: {output:?}");
        let is_copy = fs::read(&new).expect("output") == fs::read(&data).expect("input");
        fs::remove_file(&new).expect("output");
        let _ = fs::remove_dir_all(dir.join("jit.data.objects"));
        is_copy
    };
    let other = dir.join("other");
    fs::rename(&dump, &other).expect("rename");
    assert!(says("is gone"));
    symlink(&other, &dump).expect("link");
    assert!(says("is a symbolic link"));
    fs::remove_file(&dump).expect("link");
    fs::write(&dump, "no dump, and longer than the header of one would be").expect("write");
    assert!(says("is no jitdump"));
    fs::write(&dump, &whole[..30]).expect("write");
    assert!(says("no whole header"));
    fs::write(&dump, &whole[..whole.len() - 1]).expect("write");
    assert!(!says("is cut: the code in whole records is used"));
    fs::write(&dump, &whole).expect("write");
    if is_root("give a file to another user") {
        chown(&dump, Some(12345), None).expect("chown");
        assert!(says("belongs to another user (uid 12345)"));
        let output = run(inject(&data, &new).arg("--dump").arg(&dump));
        assert!(stdout(&output).contains("of 1 process"), "{output:?}");
        fs::remove_file(&dump).expect("dump");
    }
    // The control: what is wrong with the path is no matter if the user says where the dump is.
    let found = dir.join("found");
    fs::create_dir(&found).expect("directory");
    fs::write(found.join(dump.file_name().expect("name")), &whole).expect("write");
    let output = run(inject(&data, &new).arg("--search").arg(&found));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
}

#[test]
fn what_was_injected_before() {
    let (dir, data, _) = recording("before", &["-k", "1", "-g"]);
    let (own, theirs) = (dir.join("jit.data"), dir.join("theirs.data"));
    run(&mut inject(&data, &own));
    run(perf::perf("inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&theirs));
    for (made, by) in [(own, "`jitsym inject`"), (theirs, "`perf inject`")] {
        let output = try_run(&mut inject(&made, &dir.join("twice.data")));
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(&format!("has objects of {by} already")), "{output:?}");
        assert!(!dir.join("twice.data").exists() && !dir.join("twice.data.objects").exists());
    }
}

/// Links at the places of the output lead nowhere, and files of others stay as they are.
#[test]
fn links_at_the_output() {
    let (dir, data, _) = recording("links", &["-k", "1", "-g"]);
    let (safe, new) = (dir.join("safe"), dir.join("jit.data"));
    fs::write(&safe, "safe").expect("write");
    symlink(&safe, &new).expect("link");
    let refused = |why: &str| {
        let output = try_run(&mut inject(&data, &new));
        assert!(output.status.code() == Some(2) && said(&output).contains(why), "{output:?}");
    };
    refused("is a symbolic link");
    fs::remove_file(&new).expect("link");
    let elsewhere = dir.join("elsewhere");
    fs::create_dir(&elsewhere).expect("directory");
    symlink(&elsewhere, dir.join("jit.data.objects")).expect("link");
    refused("is not a directory");
    fs::remove_file(dir.join("jit.data.objects")).expect("link");
    assert!(names(&elsewhere).is_empty());
    let output = try_run(&mut inject(&data, &data));
    assert!(said(&output).contains("is the recording that is read"), "{output:?}");
    // The control, with the names by default.
    let before = fs::read(&data).expect("recording");
    let mut command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    run(command.current_dir(&dir).arg("inject"));
    assert!(new.is_file() && dir.join("jit.data.objects").is_dir() && fs::read(&data).expect("recording") == before);
    assert_eq!(fs::read_to_string(&safe).expect("file"), "safe");
}
