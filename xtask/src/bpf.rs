//! bpftrace as a reader: `ustack(perf)` of a process that lives, through its perf map. The symbols of a file it reads once, when it
//! first looks for one, so that it is not asked about regions.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::attach::{Held, Killed};
use crate::matrix::{Outcome, Task};
use crate::perf::{Graph, Mode};
use crate::program::{Leftovers, Program, Scenario, Written};
use crate::run;
use crate::score::{self, Frame, Kind, Sample};
use crate::truth::{Truth, Unwind};

pub const MODES: &[Mode] = &[Mode::new("map", Graph::FramePointers, Written::Map)];

pub fn measure(bpftrace: &Path, program: &Program, task: &Task, mode: &Mode) -> Result<Outcome> {
    let scenario = Scenario {
        name: task.scenario,
        written: mode.written,
        count: task.count,
        // It loses most samples on the way. And a name is in the map 50 ms after its registration at the latest, which is later
        // than bpftrace asks for those of the first samples.
        seconds: 4.0 * task.seconds,
        truth: task.dir.join("truth"),
        wait: true,
        hold: true,
        step: false,
    };
    let mut held = Held::start(&program.by_frame_pointers, &scenario)?;
    let pid = Held::pid(&scenario)?;
    let _leftovers = Leftovers::of(&scenario.truth);
    let (output, log) = (task.dir.join("stacks"), task.dir.join("bpftrace.log"));
    // The second probe is attached behind the first, and so its first word tells that both are.
    let probes = [
        format!("profile:hz:997 /pid == {pid}/ {{"),
        "printf(\"\\n#%d %llu %llx\", tid, nsecs, reg(\"ip\")); printf(\"%s\", ustack(perf, 127)); }".into(),
        "interval:ms:50 { printf(\"\\n@\\n\"); }".into(),
    ];
    let mut command = run::command(bpftrace);
    command.env("BPFTRACE_PERF_RB_PAGES", "1024").args(["-B", "line"]).args(["-e", &probes.join(" ")]);
    command.stdout(File::create(&output)?).stderr(File::create(&log)?);
    let mut tracer = Killed(command.spawn().with_context(|| format!("cannot start {}", bpftrace.display()))?);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(600);
    while !std::fs::read_to_string(&output).unwrap_or_default().contains("@\n") {
        if tracer.0.try_wait()?.is_some() || Instant::now() > deadline {
            bail!("bpftrace does not run: {}", said());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let offset = boot_time_ahead();
    held.go()?;
    held.wait_for("done\n")?;
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(tracer.0.id() as i32, libc::SIGINT) };
    tracer.0.wait()?;
    let truth = scenario.truth()?;
    let text = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
    let samples = parse(&text, &truth, offset).with_context(said)?;
    let whole = matches!(truth.unwind()?, Unwind::Both | Unwind::FramePointers);
    Ok(Outcome::of(score::score(&truth, &samples, whole)))
}

/// `nsecs` is the time since boot, which goes on while the machine is suspended.
fn boot_time_ahead() -> u64 {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid timespec.
        unsafe { libc::clock_gettime(clock, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let monotonic = now(libc::CLOCK_MONOTONIC);
    let ahead = now(libc::CLOCK_BOOTTIME) - monotonic;
    // Between the two calls there was some time.
    if ahead < 1_000_000 {
        0
    } else {
        ahead
    }
}

/// A line `#TID TIME IP` a sample, and below it `ADDRESS NAME+OFFSET (OBJECT)` a frame.
fn parse(text: &str, truth: &Truth, boot_time_ahead: u64) -> Result<Vec<Sample>> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(head) = line.strip_prefix('#') {
            let fields: Vec<&str> = head.split(' ').collect();
            let [tid, time, ip] = fields[..] else { bail!("{line:?}") };
            let time = time.parse::<u64>().with_context(|| format!("{line:?}"))? - boot_time_ahead;
            let ip = u64::from_str_radix(ip, 16).with_context(|| format!("{line:?}"))?;
            samples.push(Sample { tid: tid.parse()?, time, ip, name: None, frames: Vec::new() });
        } else if let (Some(frame), Some(sample)) = (line.strip_prefix('\t'), samples.last_mut()) {
            let frame = parse_frame(frame, truth, sample.time).with_context(|| format!("{line:?}"))?;
            if sample.frames.is_empty() {
                sample.name = frame.name.clone();
            }
            sample.frames.push(frame);
        }
    }
    Ok(samples)
}

fn parse_frame(text: &str, truth: &Truth, time: u64) -> Result<Frame> {
    let (address, rest) = text.split_once(' ').context("no address")?;
    let address = u64::from_str_radix(address, 16)?;
    let (symbol, module) = rest.rsplit_once(" (").context("no object")?;
    let module = module.trim_end_matches(')');
    let name = symbol.rsplit_once('+').map_or(symbol, |(name, _)| name);
    let name = (name != "[unknown]" && !name.starts_with("0x")).then(|| name.to_string());
    let is_map = module.starts_with("/tmp/perf-") && module.ends_with(".map");
    let guest = is_map || (module == "[unknown]" && truth.code_at(address, time).is_some());
    Ok(Frame { name, kind: if guest { Kind::Guest } else { Kind::Native } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_bpftrace_are_read() {
        let text = "Attaching 2 probes...\n\n@\n\n#7 1000005 1004\n\t1004 two words+4 (/tmp/perf-7.map)\n\
            \t5000 main+10 (/bin/vm)\n\n#8 1000006 1008\n\t1008 0x1008 ([unknown])\n";
        let truth = Truth::parse("pid\t7\ncode\t1\t1000\t10\t0\t0\tx\nend\n").unwrap();
        let samples = parse(text, &truth, 1_000_000).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].tid, samples[0].time, samples[0].ip), (7, 5, 0x1004));
        assert_eq!(samples[0].name.as_deref(), Some("two words"));
        let kinds: Vec<Kind> = samples[0].frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [Kind::Guest, Kind::Native]);
        assert_eq!((samples[1].name.clone(), samples[1].frames[0].kind), (None, Kind::Guest));
        assert!(parse("#7 what\n", &truth, 0).is_err());
    }
}
