//! The probes `jitsym:load`, `move` and `unload`: each call hits its probe once, with the call's arguments.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::perf;
use crate::support::*;

/// The number of turns of `c-tests/probes/probes.c`.
const TURNS: usize = 25;

fn program(link: Link) -> PathBuf {
    compile("gcc", &["c-tests/probes/probes.c"], link, &["-O1"], &format!("probes-{link:?}"))
}

/// What a tool prints for each hit, and how often.
const HITS: [&str; 6] = [
    "load 100000 64 first",
    "load 200000 32 second",
    "load 300000 16 third",
    "move 400000",
    "unload 0 0",
    "unload 200000 200000",
];

/// In the shared library and in a program with the static library, whose symbols are hidden.
#[test]
fn breakpoints_of_gdb() {
    for link in [Link::Shared, Link::Static] {
        let dir = fresh_dir(format!("probes-{link:?}"));
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-ex", "set language c"]);
        let prints = [
            ("load", r#"printf "\nhit load %lx %ld %s\n", $_probe_arg1, $_probe_arg2, (char *)$_probe_arg3"#),
            ("move", r#"printf "\nhit move %lx\n", $_probe_arg1"#),
            ("unload", r#"printf "\nhit unload %lx %lx\n", $_probe_arg1, $_probe_arg2"#),
        ];
        gdb.args(["-ex", "break main", "-ex", "run", "-ex", "delete"]);
        for (probe, print) in prints {
            // `commands` reads lines, so it must be in a file.
            let script = dir.join(probe);
            std::fs::write(
                &script,
                format!("break -probe-stap jitsym:{probe}\ncommands\nsilent\n{print}\ncontinue\nend\n"),
            )
            .expect("script");
            gdb.arg("-ex").arg(format!("source {}", script.display()));
        }
        gdb.args(["-ex", "continue", "--args"])
            .arg(program(link))
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut gdb = gdb.spawn().expect("gdb");
        gdb.stdin.take().expect("input").write_all(b"\n").expect("write");
        let output = String::from_utf8_lossy(&gdb.wait_with_output().expect("gdb").stdout).into_owned();
        assert!(output.contains("exited normally"), "{output}");
        // gdb's `printf` cannot cut a name.
        check(&output.replace("second, cut", "second"));
    }
}

#[test]
fn bpftrace_counts_calls() {
    if !is_root("load programs into the kernel") {
        return;
    }
    let _alone = serial();
    let dir = fresh_dir("probes-bpftrace");
    let library = artifacts().shared_dir.join("libjitsym.so");
    let mut guest = Command::new(program(Link::Shared));
    let mut guest = guest.arg(&dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("program");
    let mut output = BufReader::new(guest.stdout.take().expect("output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "ready\n");
    let probe = |name: &str, text: &str| format!("usdt:{}:jitsym:{name} {{ {text} }}", library.display());
    let script = [
        probe("load", r#"printf("hit load %lx %d %s\n", arg1, arg2, str(arg3, arg4));"#),
        probe("move", r#"printf("hit move %lx\n", arg1);"#),
        probe("unload", r#"printf("hit unload %lx %lx\n", arg1, arg2);"#),
        r#"BEGIN { printf("attached\n"); }"#.to_owned(),
    ];
    let mut bpftrace = perf::command(fetched("bpftrace"));
    bpftrace.args(["-B", "line", "-p", &guest.id().to_string(), "-e", &script.join(" ")]);
    let mut bpftrace = bpftrace.stdout(Stdio::piped()).spawn().expect("bpftrace");
    let mut lines = BufReader::new(bpftrace.stdout.take().expect("output"));
    let mut text = String::new();
    while !text.contains("attached\n") {
        assert!(lines.read_line(&mut text).expect("read") > 0, "{text}");
    }
    guest.stdin.take().expect("input").write_all(b"\n").expect("write");
    assert!(guest.wait().expect("program").success());
    // bpftrace ends with the program.
    std::io::Read::read_to_string(&mut lines, &mut text).expect("read");
    assert!(bpftrace.wait().expect("bpftrace").success(), "{text}");
    check(&text);
}

/// A program that starts under perf has its probes on from the first call.
#[test]
fn perf_counts_calls() {
    if !is_root("make events of the kernel") {
        return;
    }
    let _alone = serial();
    let dir = fresh_dir("probes-perf");
    let library = artifacts().shared_dir.join("libjitsym.so");
    let perf = |arguments: &[&str]| {
        let mut command = perf::command("perf");
        command.arg("--buildid-dir").arg(dir.join("cache")).args(arguments);
        command
    };
    run(perf(&["buildid-cache", "--add"]).arg(&library));
    let _events = ["load", "move", "unload"].map(|probe| {
        let event = format!("sdt_jitsym:{probe}");
        run(perf(&["probe", "-q", "-x"]).arg(&library).arg(&event));
        Event(event)
    });
    let data = dir.join("perf.data");
    let mut recording = perf(&["record", "-q", "-o"]);
    recording.arg(&data).args(["-e", "sdt_jitsym:*", "--"]).arg(program(Link::Shared)).arg(&dir);
    let mut recording = recording.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("perf");
    recording.stdin.take().expect("input").write_all(b"\n").expect("write");
    assert!(recording.wait().expect("perf").success());
    let printed = stdout(&run(perf(&["script", "-F", "event", "-i"]).arg(&data)));
    for (probe, hits) in [("load", 3 * TURNS), ("move", TURNS), ("unload", 2 * TURNS)] {
        assert_eq!(printed.matches(&format!("sdt_jitsym:{probe}:")).count(), hits, "{probe}: {printed}");
    }
}

/// An event of the kernel, which is removed with this.
struct Event(String);

impl Drop for Event {
    fn drop(&mut self) {
        let _ = Command::new("perf").args(["probe", "-q", "-d", &self.0]).output();
    }
}

/// Checks that each hit was printed once in each turn, and nothing else.
fn check(output: &str) {
    let hits: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("hit ")).collect();
    for expected in HITS {
        assert_eq!(hits.iter().filter(|hit| **hit == expected).count(), TURNS, "{expected}: {output}");
    }
    assert_eq!(hits.len(), HITS.len() * TURNS, "{output}");
}
