//! Where a bundle is written, and what is refused.

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::parts::{event, Parts, DEFERRED};
use crate::support::{fetched, fresh_dir, run, serial, stdout, try_run};
use crate::{jitsym, perf, said};

fn recording(dir: &Path) -> PathBuf {
    let data = dir.join("perf.data");
    let _alone = serial();
    let mut record = perf::perf("record");
    record.args(["-q", "-e", "cpu-clock", "-F", "999", "-g", "-o"]).arg(&data);
    run(record.args(["--", "sh", "-c", "seq 100000 >/dev/null"]));
    data
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("entry").file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = fs::read_dir(dir).expect("directory").map(name).collect();
    names.sort();
    names
}

#[test]
fn whole_private_and_not_through_a_link() {
    let dir = fresh_dir("places");
    let data = recording(&dir);
    let out = dir.join("perf.data.tar.gz");
    let mode = |path: &Path| fs::symlink_metadata(path).expect("file").permissions().mode();
    // The name that is used without -o, and a link there.
    let other = dir.join("other");
    fs::write(&other, "safe").expect("write");
    symlink(&other, &out).expect("link");
    run(jitsym(&["bundle"]).arg(&data));
    assert_eq!((mode(&out), fs::read_to_string(&other).expect("file").as_str()), (0o100_600, "safe"));
    // The same recording has the same bundle.
    let first = fs::read(&out).expect("bundle");
    run(jitsym(&["bundle"]).arg(&data));
    assert!(fs::read(&out).expect("bundle") == first);
    assert_eq!(names(&dir), ["other", "perf.data", "perf.data.tar.gz"]);
    // A link to the recording is replaced, too.
    let whole = fs::read(&data).expect("recording");
    fs::remove_file(&out).expect("bundle");
    symlink(&data, &out).expect("link");
    run(jitsym(&["bundle"]).arg(&data));
    assert!(fs::read(&out).expect("bundle") == first && mode(&out) == 0o100_600);
    assert!(fs::read(&data).expect("recording") == whole);
}

/// A bundle takes neither the place of its recording, whatever name that has, nor that of anything but a file.
#[test]
fn places_that_are_refused() {
    let dir = fresh_dir("refused-places");
    let data = recording(&dir);
    let whole = fs::read(&data).expect("recording");
    let path = |name: &str| dir.join(name);
    fs::hard_link(&data, path("same")).expect("another name");
    symlink(&data, path("link")).expect("link");
    run(Command::new("mkfifo").arg(path("fifo")));
    fs::create_dir(path("dir")).expect("directory");
    let _socket = UnixListener::bind(path("socket")).expect("socket");
    let before = names(&dir);
    let kind = |path: &Path| fs::symlink_metadata(path).expect("file").file_type();
    let no_file = "is the recording, or no plain file";
    for (recording, place, cause) in [
        (&data, data.clone(), no_file),
        (&data, path("dir/../perf.data"), no_file),
        (&data, path("same"), no_file),
        (&path("link"), data.clone(), no_file),
        (&data, path("fifo"), no_file),
        (&data, path("dir"), no_file),
        (&data, path("socket"), no_file),
        (&data, "/dev/null".into(), no_file),
        (&data, path("missing/b.tar.gz"), "No such file or directory"),
    ] {
        let kind_before = fs::symlink_metadata(&place).ok().map(|_| kind(&place));
        let output = try_run(jitsym(&["bundle"]).arg(recording).arg("-o").arg(&place));
        assert_eq!(output.status.code(), Some(2), "{place:?}: {output:?}");
        let text = said(&output);
        assert!(text.contains(cause) && text.lines().count() == 1, "{place:?}: {text}");
        assert_eq!(fs::symlink_metadata(&place).ok().map(|_| kind(&place)), kind_before, "{place:?}");
        assert!(fs::read(&data).expect("recording") == whole, "{place:?}");
        assert_eq!(names(&dir), before, "{place:?}");
    }
}

#[test]
fn refusals() {
    let dir = fresh_dir("refusals");
    let data = recording(&dir);
    let out = dir.join("b.tar.gz");
    run(jitsym(&["bundle"]).arg(&data).arg("-o").arg(&out));
    let piped = dir.join("piped");
    let mut inject = perf::perf("inject");
    fs::write(&piped, run(inject.arg("-i").arg(&data).args(["-o", "-"])).stdout).expect("write");
    let (cut, new) = (dir.join("cut"), dir.join("new.tar.gz"));
    let mut bytes = fs::read(&data).expect("recording");
    // The size of the events, which perf writes last.
    bytes[48..56].fill(0);
    fs::write(&cut, bytes).expect("write");
    // Chains in events of their own are not in the bundle, so its stacks would be cut.
    let (deferred, mut parts) = (dir.join("deferred"), Parts::read(&data));
    parts.events.push(event(DEFERRED, 0, &[1, 1, 0x1000, 1, 1, 1]));
    parts.write(&deferred);
    let newer = fetched("perf");
    let newer = ["--perf", newer.to_str().expect("path")];
    for (path, options, cause) in [
        (&deferred, &newer[..], "has call chains that come after their samples"),
        (&out, &[], "is a bundle already"),
        (&piped, &[], "was written to a pipe"),
        (&cut, &[], "perf record has not finished this file"),
        (&PathBuf::from("/etc/passwd"), &[], "no recording of perf"),
        (&PathBuf::from("/nowhere"), &[], "No such file"),
    ] {
        let output = try_run(jitsym(&["bundle"]).arg(path).args(options).arg("-o").arg(&new));
        assert_eq!(output.status.code(), Some(2), "{path:?}: {output:?}");
        assert!(said(&output).contains(cause) && stdout(&output).is_empty(), "{path:?}: {output:?}");
        assert!(!new.exists(), "{path:?}");
    }
}
