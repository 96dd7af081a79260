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

/// A dump that is gone, a link, or no dump is reported, and the recording is copied. A part of a dump is used.
#[test]
fn dumps_that_cannot_be_used() {
    let (dir, data, dump) = recording("dumps", &["-k", "1"]);
    let (new, whole) = (dir.join("jit.data"), fs::read(&dump).expect("dump"));
    let says = |why: &str| {
        let output = try_run(&mut inject(&data, &new));
        assert!(stdout(&output).contains(why), "{why}: {output:?}");
        let is_copy = fs::read(&new).expect("output") == fs::read(&data).expect("input");
        assert_eq!(output.status.code(), Some(i32::from(is_copy)), "{output:?}");
        fs::remove_file(&new).expect("output");
        let _ = fs::remove_dir_all(dir.join("jit.data.objects"));
        is_copy
    };
    let other = dir.join("other");
    fs::rename(&dump, &other).expect("rename");
    assert!(says("is gone"));
    symlink(&other, &dump).expect("link");
    assert!(says("is a symbolic link"));
    // The same file as before, with other contents.
    fs::rename(&other, &dump).expect("rename");
    fs::write(&dump, "no dump, and longer than the header of one would be").expect("write");
    assert!(says("is no jitdump"));
    fs::write(&dump, &whole[..30]).expect("write");
    assert!(says("no whole header"));
    fs::write(&dump, &whole[..whole.len() - 1]).expect("write");
    assert!(!says("is cut: the code in whole records is used"));
    let mut of_32_bits = whole.clone();
    of_32_bits[MACHINE].copy_from_slice(&3u32.to_ne_bytes());
    fs::write(&dump, of_32_bits).expect("write");
    assert!(says("is of a 32-bit machine"));
    // While the file is there, no other file can have its inode.
    fs::write(&other, &whole).expect("write");
    fs::rename(&other, &dump).expect("rename");
    assert!(says("is another file than the process had"));
    let output = run(inject(&data, &new).arg("--dump").arg(&dump));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
    fs::remove_file(&dump).expect("dump");
    // The control: what is wrong with the path is no matter if the user says where the dump is.
    let found = dir.join("found");
    fs::create_dir(&found).expect("directory");
    fs::write(found.join(dump.file_name().expect("name")), &whole).expect("write");
    let output = run(inject(&data, &new).arg("--search").arg(&found));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
}

/// The place of `e_machine` in a jitdump.
const MACHINE: std::ops::Range<usize> = 12..16;
/// In an MMAP2 event: the bit of `misc` that tells of a build-id in the place of device and inode, and the place of the name.
const HAS_BUILD_ID: u8 = 1 << 6;
const NAME: usize = 72;

/// The file that the process had mapped is used, whoever owns it. If the recording does not tell which file that was, the owner
/// must be one of the users who are trusted.
#[test]
fn a_dump_of_another_user() {
    if !is_root("give a file to another user") {
        return;
    }
    let (dir, data, dump) = recording("owner", &["-k", "1"]);
    let new = dir.join("jit.data");
    chown(&dump, Some(12345), None).expect("chown");
    let output = run(&mut inject(&data, &new));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
    let mut bytes = fs::read(&data).expect("recording");
    let name = dump.to_str().expect("path").as_bytes();
    let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(name)).collect();
    let mappings: Vec<usize> =
        places.iter().map(|at| at - NAME).filter(|&at| bytes[at..at + 4] == [10, 0, 0, 0]).collect();
    assert!(!mappings.is_empty());
    mappings.iter().for_each(|at| bytes[at + 5] |= HAS_BUILD_ID);
    fs::write(&data, bytes).expect("recording");
    let output = try_run(&mut inject(&data, &new));
    assert!(output.status.code() == Some(1) && stdout(&output).contains("another user (uid 12345)"), "{output:?}");
    let output = run(inject(&data, &new).arg("--dump").arg(&dump));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
    // The owner of the recording is trusted.
    chown(&data, Some(12345), None).expect("chown");
    let output = run(&mut inject(&data, &new));
    assert!(stdout(&output).contains("of 1 process"), "{output:?}");
}

/// A signal in the middle of the work ends it, and nothing stays of it.
#[test]
fn signals() {
    let (dir, data, _) = recording("signals", &["-k", "1", "--call-graph", "dwarf,16384", "-m", "4M"]);
    // Much work: the events many times.
    let mut bytes = fs::read(&data).expect("recording");
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (start, len) = (word(40) as usize, word(48) as usize);
    let times = (1 << 30) / len;
    let events = bytes[start..start + len].repeat(times);
    bytes[48..56].copy_from_slice(&(events.len() as u64).to_ne_bytes());
    // Without the features behind the events.
    bytes[72..104].fill(0);
    fs::write(&data, [&bytes[..start], &events].concat()).expect("recording");
    let before = names(&dir);
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        let mut child =
            inject(&data, &dir.join("jit.data")).stderr(std::process::Stdio::piped()).spawn().expect("start");
        // The private directory is there once the work has begun.
        while names(&dir) == before {
            assert!(child.try_wait().expect("wait").is_none(), "it has ended too early");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        run(perf::command("kill").arg(format!("-{signal}")).arg(child.id().to_string()));
        let output = child.wait_with_output().expect("wait");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains(&format!("stopped by signal {number}")), "{output:?}");
        assert_eq!(names(&dir), before, "nothing stays");
    }
    fs::remove_file(&data).expect("recording");
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
