//! What is said of recordings that lack something, after the command itself has run.

use std::path::Path;

use crate::support::{fresh_dir, root, run, scratch_dir, serial, TmpFiles};
use crate::toy::{no_size, toy};
use crate::{jitsym, perf, said};

type Environment = &'static [(&'static str, &'static str)];

/// Records a toy for a moment, or another command for as long as it takes.
fn record(program: &Path, environment: Environment) -> String {
    let data = fresh_dir("said").join("perf.data");
    let mut command = jitsym(&["record", "-e", "cpu-clock", "-o"]);
    command.arg(&data).arg("--").arg(program).arg(root().join("examples/hello.toy")).arg("0.3");
    let text = said(&run(command.envs(environment.iter().copied())));
    if let Some((_, rest)) = text.split_once("/tmp/jit-") {
        let pid = rest.split('.').next().and_then(|pid| pid.parse().ok());
        drop(TmpFiles(pid.expect("the jitdump's process")));
    }
    assert!(text.contains("look at it with"), "{text}");
    text
}

/// Each thing that is missing has a line of its own, and no other case has it.
#[test]
fn what_is_missing() {
    let _alone = serial();
    let idle = scratch_dir("said-idle").join("idle");
    std::fs::write(&idle, "#!/bin/sh\n").expect("script");
    run(perf::command("chmod").arg("+x").arg(&idle));
    const REMOVE: &str = "with JITSYM=on JITSYM_FORK=now JITSYM_REMOVE=0";
    const NO_CODE: &str = ": no code in /tmp/jit-";
    const NOTHING: &str = "there is compiled code, and nothing that names it";
    const OFF: &str = "JITSYM=OFF is in the environment, and turns everything off";
    const MAP: &str = "names are in a perf map, and no jitdump has code";
    const IDLE: &str = "no process had compiled code in memory";
    const INJECTED: &str = "perf inject --jit has put that in";
    let no_size = no_size();
    let cases: [(&Path, Environment, &[&str]); 5] = [
        (toy(), &[("JITSYM_REMOVE", "1")], &[REMOVE, INJECTED]),
        (&no_size, &[], &[NO_CODE, NOTHING]),
        (toy(), &[("JITSYM", "OFF")], &[OFF, NOTHING]),
        (toy(), &[("JITSYM", "map")], &[MAP]),
        (&idle, &[], &[IDLE]),
    ];
    for (program, environment, expected) in cases {
        let text = record(program, environment);
        for line in [REMOVE, NO_CODE, NOTHING, OFF, MAP, IDLE, INJECTED] {
            assert_eq!(text.contains(line), expected.contains(&line), "{environment:?}: `{line}` in {text}");
        }
    }
}
