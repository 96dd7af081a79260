//! What is said of recordings that lack something, after the command itself has run.

use std::path::Path;

use crate::support::{fresh_dir, root, run, scratch_dir, serial, try_run, TmpFiles};
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

/// Each thing that is missing has a line of its own, and no other case has it. What is wrong is in the last three lines.
#[test]
fn what_is_missing() {
    let _alone = serial();
    let idle = scratch_dir("said-idle").join("idle");
    std::fs::write(&idle, "#!/bin/sh\n").expect("script");
    run(perf::command("chmod").arg("+x").arg(&idle));
    const REMOVE: &str = "with JITSYM=on JITSYM_FORK=now JITSYM_REMOVE=0";
    const NO_CODE: &str = ": no code in /tmp/jit-";
    const OFF: &str = "\njitsym: warning: JITSYM=OFF turns everything off";
    // Not a number: where a sample is on the first instruction of a function, perf finds the caller without tables.
    const FEW_STACKS: &str = "jitsym: warning: few whole stacks";
    const WHOLE: &str = "have whole stacks (100 %)";
    const IDLE: &str = "no process had compiled code in memory";
    const INJECTED: &str = "have samples: put in, with files in";
    let no_size = no_size();
    let cases: [(&Path, Environment, &[&str], &str); 5] = [
        (toy(), &[("JITSYM_REMOVE", "1")], &[REMOVE, INJECTED, WHOLE], ""),
        (&no_size, &[], &[NO_CODE, FEW_STACKS], "4 calls were refused, the first one: JITSYM_ERR_STRUCT_SIZE: "),
        (toy(), &[("JITSYM", "OFF")], &[OFF, FEW_STACKS], "JITSYM=OFF turns everything off"),
        (toy(), &[("JITSYM", "map")], &[FEW_STACKS], "only a perf map names the code"),
        (&idle, &[], &[IDLE], ""),
    ];
    for (program, environment, expected, cause) in cases {
        let text = record(program, environment);
        for line in [REMOVE, NO_CODE, OFF, FEW_STACKS, WHOLE, IDLE, INJECTED] {
            let text = format!("\n{text}");
            let has = match line {
                FEW_STACKS => {
                    text.lines().any(|it| it.starts_with("jitsym: warning: ") && it.contains(" have whole stacks "))
                }
                _ => text.contains(line),
            };
            assert_eq!(has, expected.contains(&line), "{environment:?}: `{line}` in {text}");
        }
        let causes: Vec<&str> = text.lines().rev().take(3).filter(|line| line.starts_with("cause: ")).collect();
        match causes[..] {
            [] => assert_eq!(cause, "", "{text}"),
            _ => assert!(!cause.is_empty() && causes[0].starts_with(&format!("cause: {cause}")), "{text}"),
        }
    }
}

/// A directory that is missing is told before the command runs, and what is to be recorded is asked for.
#[test]
fn before_the_run() {
    let dir = fresh_dir("before");
    let mut command = jitsym(&["record", "-e", "cpu-clock", "-o"]);
    command.arg(dir.join("perf.data")).args(["--", "sh", "-c", "echo it runs >&2"]);
    let text = said(&run(command.env("JITSYM_DIR", dir.join("missing"))));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("missing: there is no such directory") < at("it runs"), "{text}");
    let output = try_run(&mut jitsym(&["record"]));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(said(&output).lines().count(), 1, "{output:?}");
    assert!(said(&output).contains("`jitsym record -- COMMAND`"), "{output:?}");
}

/// The same for programs: nothing but the object is on the standard output.
#[test]
fn json() {
    let _alone = serial();
    let dir = fresh_dir("json");
    let mut command = jitsym(&["record", "--json", "-e", "cpu-clock", "-o"]);
    command.arg(dir.join("perf.data")).args(["--", "sh", "-c", "echo it runs; \"$@\"; exit 7", "sh"]);
    command.arg(no_size()).arg(root().join("examples/hello.toy")).arg("0.1").env("JITSYM_DIR", &dir);
    let output = try_run(&mut command);
    assert_eq!(output.status.code(), Some(7));
    assert!(said(&output).contains("it runs\n"), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["recording"], dir.join("perf.data").display().to_string());
    assert_eq!((&json["status"], &json["shares"]["named"]), (&7.into(), &0.into()), "{json}");
    assert!(json["causes"][0].as_str().is_some_and(|text| text.contains("JITSYM_ERR_STRUCT_SIZE")), "{json}");
}
