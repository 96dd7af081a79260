//! Where a bundle is written, and what is refused.

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::{fresh_dir, run, serial, stdout, try_run};
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
    for (bad, place) in [("no directory", dir.join("missing/b.tar.gz")), ("a directory", dir.clone())] {
        let output = try_run(jitsym(&["bundle"]).arg(&data).arg("-o").arg(&place));
        assert_eq!(output.status.code(), Some(2), "{bad}: {output:?}");
        assert_eq!(said(&output).lines().count(), 1, "{bad}: {output:?}");
    }
    assert_eq!(names(&dir), ["other", "perf.data", "perf.data.tar.gz"]);
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
    for (path, cause) in [
        (&out, "is a bundle already"),
        (&piped, "was written to a pipe"),
        (&cut, "perf record has not finished this file"),
        (&PathBuf::from("/etc/passwd"), "no recording of perf"),
        (&PathBuf::from("/nowhere"), "No such file"),
    ] {
        let output = try_run(jitsym(&["bundle"]).arg(path).arg("-o").arg(&new));
        assert_eq!(output.status.code(), Some(2), "{path:?}: {output:?}");
        assert!(said(&output).contains(cause) && stdout(&output).is_empty(), "{path:?}: {output:?}");
        assert!(!new.exists(), "{path:?}");
    }
}
