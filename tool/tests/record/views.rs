//! `jitsym top FILE` and `jitsym flamegraph FILE`: the same as what `jitsym record` shows of its own recording.

use std::fs;
use std::path::Path;

use crate::support::{fresh_dir, root, run, run_to_its_end, serial, stdout, try_run, until_enough, TmpFiles, PACE};
use crate::toy::toy;
use crate::{jitsym, perf, said};

/// Shows a recording in both ways, and returns the hottest functions and the picture.
fn shown(data: &Path) -> (String, String) {
    let (temporary, svg) = (fresh_dir("view-temporary"), data.with_extension("svg"));
    let top = run(jitsym(&["top"]).arg(data).env("TMPDIR", &temporary));
    let drawn = run(jitsym(&["flamegraph"]).arg(data).arg("-o").arg(&svg).env("TMPDIR", &temporary));
    assert_eq!(fs::read_dir(&temporary).expect("directory").count(), 0, "nothing is left of a copy");
    assert!(said(&drawn).contains("(compiled code is green)"), "{}", said(&drawn));
    assert!(!said(&top).contains("warning") && !said(&drawn).contains("warning"), "{} {}", said(&top), said(&drawn));
    (stdout(&top), fs::read_to_string(svg).expect("flame graph"))
}

/// An injected recording.
#[test]
fn of_an_own_recording() {
    let _alone = serial();
    let dir = fresh_dir("own-view");
    let (data, svg) = (dir.join("perf.data"), dir.join("at-once.svg"));
    let mut command = jitsym(&["record", "-e", "cpu-clock", "--top", "-o"]);
    command.arg(&data).arg("--flamegraph").arg(&svg).arg("--").arg(perf::program());
    let output = perf::whole(&data, || {
        run(command.args(["scenario=stacks", "layout=packed", "seconds=0.5", &format!("dir={}", dir.display())]))
    });
    let (_, _files) = perf::read_truth(&stdout(&output));
    let (top, drawn) = shown(&data);
    assert!(stdout(&output).contains(&top) && top.contains("[JIT]"), "{top} is not in {}", stdout(&output));
    assert!(drawn == fs::read_to_string(svg).expect("flame graph"), "the pictures differ");
    // The name of the picture is that of the recording, unless one is given.
    run(jitsym(&["flamegraph"]).arg(&data));
    assert!(fs::read_to_string(dir.join("perf.data.svg")).expect("flame graph") == drawn);
}

/// A recording of perf alone, whose code only a jitdump names. The jitdump is injected into a copy, of which nothing is left.
#[test]
fn of_a_recording_that_is_not_injected() {
    let _alone = serial();
    let data = fresh_dir("raw-view").join("perf.data");
    let _files = until_enough(30, |pace| {
        let mut record = perf::perf("record");
        record.args(["-k", "1", "-F", "499", "-e", "cpu-clock", "--call-graph", "dwarf", "-o"]).arg(&data);
        record.arg("--").arg(toy()).arg(root().join("examples/hello.toy")).arg(pace.to_string());
        let output = perf::whole(&data, || run(record.env("JITSYM", "jitdump").env(PACE, pace.to_string())));
        let maps = stdout(&run(perf::perf("script").args(["--show-mmap-events", "-F", "pid", "-i"]).arg(&data)));
        let (_, dump) = maps.split_once("/jit-").unwrap_or_else(|| panic!("no jitdump: {maps} {output:?}"));
        let pid: u32 = dump.split('.').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        let before = fs::read(&data).expect("recording");
        let (top, drawn) = shown(&data);
        for name in ["pixel", "row"] {
            assert!(top.contains(&format!("{name}  [JIT]")), "{name}: {top}");
            assert!(drawn.contains(&format!(">{name} (")), "{name} is not in the flame graph");
        }
        assert!(fs::read(&data).expect("recording") == before, "the recording is as it was");
        let script = stdout(&run(perf::perf("script").args(["-G", "-F", "ip", "-i"]).arg(&data)));
        (TmpFiles(pid), script.lines().count())
    });
}

/// A jitdump that is gone, and what is no recording.
#[test]
fn refusals() {
    let _alone = serial();
    let dir = fresh_dir("no-view");
    let (data, cut, empty) = (dir.join("perf.data"), dir.join("cut"), dir.join("empty"));
    run_to_its_end(perf::perf("record").args(["-e", "cpu-clock", "-o"]).arg(&data).args(["--", "true"]));
    let mut bytes = fs::read(&data).expect("recording");
    // The size of the events, which perf writes last.
    bytes[48..56].fill(0);
    fs::write(&cut, bytes).expect("write");
    // This event has no samples.
    run_to_its_end(perf::perf("record").args(["-e", "dummy", "-o"]).arg(&empty).args(["--", "true"]));
    let svg = dir.join("x.svg");
    for (path, cause) in [
        (Path::new("/etc/passwd"), "no recording of perf; if it is a jitdump"),
        (Path::new("/nowhere"), "No such file"),
        (&dir, "is not a file"),
        (&cut, "perf record has not finished this file"),
        (&empty, "no sample"),
    ] {
        let mut flamegraph = jitsym(&["flamegraph", "-o"]);
        flamegraph.arg(&svg);
        for command in [&mut jitsym(&["top"]), &mut flamegraph] {
            let output = try_run(command.arg(path));
            assert_eq!(output.status.code(), Some(2), "{path:?}: {output:?}");
            assert!(said(&output).contains(cause) && stdout(&output).is_empty(), "{path:?}: {output:?}");
        }
        assert!(!svg.exists(), "{path:?}");
    }
    let output = try_run(jitsym(&["top", "--seconds", "1"]).arg(&data));
    assert!(output.status.code() == Some(2) && said(&output).contains("--seconds is for a process"), "{output:?}");
}
