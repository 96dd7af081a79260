//! What bpftrace shows of the code that a child has inherited: the names that the child's map has when bpftrace prints.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::process::Stdio;

use super::inherited::{program, read_until, SECONDS};
use super::{Truth, ENOUGH};
use crate::perf::{self, Verdict};
use crate::support::{fetched, is_root, scratch_dir, serial, try_run, until_enough, wait_until, PACE};

/// A frame of the child's compiled code: what bpftrace prints, and what is there.
struct Shown {
    count: usize,
    name: String,
    real: String,
}

#[test]
fn what_the_map_has_is_named() {
    if !is_root("load programs into the kernel") {
        return;
    }
    if !try_run(perf::command(fetched("bpftrace")).args(["-e", "BEGIN { exit(); }"])).status.success() {
        println!("skipped: bpftrace cannot load programs into this kernel");
        return;
    }
    for policy in ["late", "now"] {
        let (map, shown) = until_enough(ENOUGH, |pace| {
            let (map, shown) = trace(policy, pace);
            let inherited = shown.iter().filter(|frame| frame.real == "leaf_of_parent").map(|frame| frame.count).sum();
            ((map, shown), inherited)
        });
        let mut names = Verdict::new(policy);
        for Shown { name, real, count } in shown {
            let is_in_map = map.lines().any(|line| line.ends_with(&format!(" {real}")));
            names.check((name == real) == is_in_map, || format!("{count} times {name}, and not {real}:\n{map}"));
            assert!(is_in_map || policy == "late", "{real}: {map}");
        }
        // Each stack is printed once.
        names.decide(5, 0.0);
    }
}

/// bpftrace counts the stacks of a child, and prints them while the child stands still. Returns the child's map of then, too.
fn trace(policy: &str, pace: u32) -> (String, Vec<Shown>) {
    let _alone = serial();
    let mut command = perf::command(program());
    command.args([SECONDS, "forked,last,short"]).env("JITSYM_FORK", policy).env(PACE, pace.to_string());
    let mut guest = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("program");
    let mut input = guest.stdin.take().expect("input");
    let mut output = BufReader::new(guest.stdout.take().expect("output"));
    let mut text = String::new();
    let child = read_until(&mut output, &mut text, "forked ");

    let printed = scratch_dir("bpftrace").join("stacks");
    let probes = format!(
        "profile:hz:997 /pid == {child}/ {{ @[ustack(perf)] = count(); }} interval:ms:50 {{ printf(\"ready\\n\"); }}"
    );
    let mut bpftrace = perf::command(fetched("bpftrace"));
    bpftrace.args(["-B", "line", "-e", &probes]).stdout(File::create(&printed).expect("file"));
    let mut bpftrace = bpftrace.stderr(Stdio::null()).spawn().expect("bpftrace");
    let said = || String::from_utf8_lossy(&std::fs::read(&printed).expect("output")).into_owned();
    wait_until("bpftrace counts", || said().contains("ready\n"));
    input.write_all(b"\n").expect("go on");
    assert_eq!(read_until(&mut output, &mut text, "last "), child);

    // SAFETY: children that have not been waited for; the guest waits for its own.
    let kill = |pid: u32, signal| assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    kill(child, libc::SIGSTOP);
    let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    wait_until("the child stands still", || {
        let tasks = std::fs::read_dir(format!("/proc/{child}/task")).expect("threads").flatten();
        tasks.into_iter().all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(is_stopped))
    });
    let map = std::fs::read_to_string(format!("/tmp/perf-{child}.map")).expect("map");
    kill(bpftrace.id(), libc::SIGINT);
    assert!(bpftrace.wait().expect("bpftrace").success());
    kill(child, libc::SIGCONT);
    input.write_all(b"\n").expect("go on");
    output.read_to_string(&mut text).expect("output");
    assert!(guest.wait().expect("end").success());
    (map, frames(&Truth::parse(&text), child, &said()))
}

/// Of `@[`, a line `ADDRESS NAME+OFFSET (OBJECT)` for each frame, and `]: COUNT`, the frames in the child's compiled code.
fn frames(truth: &Truth, child: u32, text: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    for block in text.split("@[").skip(1) {
        let (stack, rest) = block.split_once("]: ").expect("count");
        let count = rest.lines().next().and_then(|count| count.parse().ok()).expect("count");
        for line in stack.lines() {
            let Some((address, symbol)) = line.trim().split_once(' ') else { continue };
            let address = u64::from_str_radix(address, 16).expect("address");
            let here = |life: &&super::Life| life.pid == child && (life.addr..life.addr + life.size).contains(&address);
            if let Some(life) = truth.lives.iter().rfind(here) {
                let name = symbol.split(['+', ' ']).next().unwrap_or_default().into();
                shown.push(Shown { count, name, real: life.name.clone() });
            }
        }
    }
    shown
}
