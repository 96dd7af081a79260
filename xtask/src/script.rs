//! What `perf script` prints, as samples.

use std::ops::Range;

use anyhow::{bail, Context, Result};

use crate::score::{Frame, Kind, Sample, Share};
use crate::truth::Truth;

/// The fields that are asked for. The command's name is not among them: it may hold anything.
pub const FIELDS: &str = "pid,tid,time,ip,sym,dso";

/// A line or a block of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    pub pid: u32,
    pub tid: u32,
    pub time: u64,
    pub frames: Vec<PrintedFrame>,
    /// With `-F srcline`: file and line of the last frame.
    pub line: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintedFrame {
    /// With a call graph and in an object file: its address there, not that in memory.
    pub ip: u64,
    pub sym: Option<String>,
    pub dso: String,
}

/// The options of `perf script` for `mappings`, beside `--ns`.
pub const MAPPINGS: &[&str] = &["-G", "-F", "pid,tid,time", "--show-mmap-events"];

/// An executable mapping, as `perf script` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    pub time: u64,
    pub range: Range<u64>,
    /// Of the file.
    pub offset: u64,
    /// As in `/proc/PID/maps`.
    pub protection: &'a str,
    pub path: &'a str,
}

/// The mappings in the output, which has other lines too.
pub fn mappings(text: &str) -> Result<Vec<Mapping<'_>>> {
    let is_event = |line: &&str| line.contains(" PERF_RECORD_MMAP2 ");
    text.lines().filter(is_event).map(|line| parse_mapping(line).with_context(|| format!("{line:?}"))).collect()
}

/// `PID/TID SECONDS.NANOSECONDS: PERF_RECORD_MMAP2 PID/TID: [0xSTART(0xSIZE) @ OFFSET ...]: PROTECTION PATH`
fn parse_mapping(line: &str) -> Result<Mapping<'_>> {
    let (header, event) = line.split_once(" PERF_RECORD_MMAP2 ").context("event")?;
    let (place, file) = event.split_once("]: ").context("file")?;
    let (protection, path) = file.split_once(' ').context("path")?;
    let (start, rest) = place.split_once(": [").and_then(|(_, place)| place.split_once('(')).context("start")?;
    let (size, rest) = rest.split_once(") @ ").context("size")?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let (start, offset) = (number(start)?, number(rest.split(' ').next().unwrap_or_default())?);
    Ok(Mapping {
        time: parse_header(header)?.time,
        range: start..start + number(size)?,
        offset,
        protection,
        path: path.trim_end(),
    })
}

/// Parses the output, with call graphs (a block a sample, of a line a frame) or without (`-G`, a line a sample).
pub fn parse(text: &str) -> Result<Vec<Printed>> {
    let mut samples: Vec<Printed> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with('\t') {
            let sample = samples.last_mut().with_context(|| format!("a frame without a sample: {line:?}"))?;
            sample.frames.push(parse_frame(line)?);
        } else if let (true, Some(sample)) = (line.starts_with("  ") && !is_header(line), samples.last_mut()) {
            sample.line = Some(line.trim().to_string());
        } else {
            samples.push(parse_header(line).with_context(|| format!("{line:?}"))?);
        }
    }
    Ok(samples)
}

/// Whether it begins with `PID/TID`. Source lines do not.
fn is_header(line: &str) -> bool {
    let ids = line.trim_start().split(' ').next().unwrap_or_default();
    ids.split_once('/').is_some_and(|(pid, tid)| pid.parse::<i64>().is_ok() && tid.parse::<i64>().is_ok())
}

/// `PID/TID SECONDS.NANOSECONDS: [FRAME]`
fn parse_header(line: &str) -> Result<Printed> {
    let (ids, rest) = line.trim_start().split_once(' ').context("no time")?;
    let (pid, tid) = ids.split_once('/').context("no process and thread")?;
    let (time, rest) = rest.split_once(':').context("no time")?;
    let (seconds, nanoseconds) = time.trim().split_once('.').context("time")?;
    if nanoseconds.len() != 9 {
        bail!("not a time in nanoseconds: {time:?}");
    }
    let frames = if rest.trim().is_empty() { Vec::new() } else { vec![parse_frame(rest)?] };
    let time = seconds.parse::<u64>()? * 1_000_000_000 + nanoseconds.parse::<u64>()?;
    // Processes that the recording does not know are -1.
    let id = |text: &str| text.parse::<i64>().map(|id| id as u32);
    Ok(Printed { pid: id(pid)?, tid: id(tid)?, time, frames, line: None })
}

/// `IP SYMBOL (OBJECT)`, where both may hold blanks and parentheses: a symbol that has any is followed by the last ` (`.
fn parse_frame(text: &str) -> Result<PrintedFrame> {
    let text = text.trim_start();
    let (ip, rest) = text.split_once(' ').with_context(|| format!("frame in {text:?}"))?;
    let rest = rest.strip_suffix(')').with_context(|| format!("object in {text:?}"))?;
    // An object that was deleted has ` (deleted)` in its name.
    let from = rest.strip_suffix(" (deleted)").unwrap_or(rest).rfind(" (").or(rest.starts_with('(').then_some(0));
    let from = from.with_context(|| format!("object in {text:?}"))?;
    let sym = rest[..from].to_string();
    Ok(PrintedFrame {
        ip: u64::from_str_radix(ip, 16).with_context(|| format!("address in {text:?}"))?,
        sym: (sym != "[unknown]" && !sym.is_empty()).then_some(sym),
        dso: rest[from..].trim_start().trim_start_matches('(').to_string(),
    })
}

impl PrintedFrame {
    /// Whose code perf takes it for. Of memory without a file only the truth knows whether it held code.
    fn kind(&self, truth: &Truth, time: u64) -> Kind {
        let file = self.dso.rsplit('/').next().unwrap_or_default();
        let injected = ["jitted-", "jitcode-"].iter().any(|prefix| file.starts_with(prefix)) && file.contains(".so")
            || is_region(file);
        let mapped = (file.starts_with("perf-") && file.ends_with(".map")) || self.dso.starts_with("[JIT]");
        let none = ["//anon", "/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"];
        let real = self.dso.starts_with('/') && !none.iter().any(|prefix| self.dso.starts_with(prefix));
        if injected || mapped || (!real && truth.code_at(self.ip, time).is_some()) {
            Kind::Guest
        } else {
            Kind::Native
        }
    }
}

/// Whether a file of that name, or path, is one that the library writes for a region.
pub fn is_region(path: &str) -> bool {
    // `jit-PID-NUMBER.so`, or in /tmp `jitted-PID-rNUMBER.so`, both with a generation perhaps.
    let file = path.rsplit('/').next().unwrap_or_default();
    let injected = file.strip_prefix("jitted-").and_then(|rest| rest.split_once('-'));
    (file.starts_with("jit-") || injected.is_some_and(|(_, rest)| rest.starts_with('r'))) && file.ends_with(".so")
}

/// Puts two outputs for one recording together: without call graphs, for the address in memory, and with them.
pub fn samples(truth: &Truth, flat: &[Printed], stacks: &[Printed]) -> Result<Vec<Sample>> {
    if flat.len() != stacks.len() {
        bail!("perf script prints {} samples without call graphs and {} with them", flat.len(), stacks.len());
    }
    let mut samples = Vec::new();
    for (flat, stack) in flat.iter().zip(stacks) {
        if (flat.tid, flat.time) != (stack.tid, stack.time) {
            bail!("perf script prints samples in two orders: {flat:?}, {stack:?}");
        }
        let Some(innermost) = flat.frames.first() else { continue };
        let frame = |frame: &PrintedFrame| Frame { name: frame.sym.clone(), kind: frame.kind(truth, flat.time) };
        samples.push(Sample {
            tid: flat.tid,
            time: flat.time,
            ip: innermost.ip,
            name: innermost.sym.clone(),
            frames: stack.frames.iter().map(frame).collect(),
        });
    }
    Ok(samples)
}

/// How many samples in code with a line table have the line that it says. perf prints the file's name without directories.
pub fn lines(truth: &Truth, flat: &[Printed]) -> Share {
    let mut share = Share::default();
    for sample in flat {
        let Some(ip) = sample.frames.first().map(|frame| frame.ip) else { continue };
        let Some(code) = truth.code_at(ip, sample.time).map(|index| &truth.codes[index]) else { continue };
        let row = code.lines.iter().rev().find(|(offset, ..)| *offset <= ip - code.addr);
        let Some((_, line, file)) = row else { continue };
        let file = file.rsplit('/').next().unwrap_or_default();
        share.add(sample.line.as_deref() == Some(&format!("{file}:{line}")));
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAT: &str = " 100/101  4471.000000042:      7f0000001004 operator()(int) const (/tmp/jitted-100-7.so)\n\
        100/100  4471.123456789:  7f0000001010 [unknown] (//anon)\n";
    const STACKS: &str = " 100/101  4471.000000042: \n\
        \t              84 operator()(int) const (/tmp/jitted-100-7.so)\n\
        \t    7f0000002000 two  blanks + 0x4 (/tmp/perf-100.map)\n\
        \t           1b2c4 main (/home/me (old)/vm)\n\n\
        100/100  4471.123456789: \n\n";

    fn truth() -> Truth {
        Truth::parse("pid\t100\ncode\t1\t7f0000001000\t100\t0\t0\tx\nend\n").unwrap()
    }

    #[test]
    fn names_with_blanks_and_parentheses() {
        let flat = parse(FLAT).unwrap();
        assert_eq!(flat.len(), 2);
        assert_eq!((flat[0].pid, flat[0].tid, flat[0].time), (100, 101, 4_471_000_000_042));
        assert_eq!(flat[0].frames[0].sym.as_deref(), Some("operator()(int) const"));
        assert_eq!(flat[0].frames[0].dso, "/tmp/jitted-100-7.so");
        assert_eq!(flat[1].frames[0].sym, None);
        let stacks = parse(STACKS).unwrap();
        assert_eq!(stacks[0].frames[1].sym.as_deref(), Some("two  blanks + 0x4"));
        let deleted = parse_frame("\t 10 [unknown] (/memfd:code (deleted))").unwrap();
        assert_eq!((deleted.sym, deleted.dso.as_str()), (None, "/memfd:code (deleted)"));
    }

    #[test]
    fn both_outputs_make_samples() {
        let samples = samples(&truth(), &parse(FLAT).unwrap(), &parse(STACKS).unwrap()).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].tid, samples[0].ip), (101, 0x7f00_0000_1004));
        let kinds: Vec<Kind> = samples[0].frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [Kind::Guest, Kind::Guest, Kind::Native]);
        assert!(samples[1].frames.is_empty() && samples[1].name.is_none());
    }

    #[test]
    fn memory_without_a_name_is_of_the_guest_where_it_has_code() {
        let kind = |text: &str| parse_frame(text).unwrap().kind(&truth(), 1);
        assert_eq!(kind("7f0000001010 [unknown] (//anon)"), Kind::Guest);
        assert_eq!(kind("7f0000001010 [unknown] ([unknown])"), Kind::Guest);
        assert_eq!(kind("7f0000001010 [unknown] (/memfd:code (deleted))"), Kind::Guest);
        assert_eq!(kind("7f0000009010 [unknown] ([unknown])"), Kind::Native);
        assert_eq!(kind("7f0000001010 f (/lib/libc.so.6)"), Kind::Native, "an address in a file");
        assert_eq!(kind("7f0000009010 f ([JIT] tid 100)"), Kind::Guest);
        assert_eq!(kind("9010 f (/tmp/jit-100-1.so)"), Kind::Guest);
        assert_eq!(kind("9010 f (/tmp/jitted-100-r1.3.so)"), Kind::Guest);
        assert_eq!(kind("9010 f (/tmp/o.data.objects/jitcode-100-07cc.so)"), Kind::Guest);
        assert!(is_region("/tmp/jitted-100-r1.3.so") && !is_region("/tmp/jitted-100-1.so") && !is_region("x.so"));
    }

    #[test]
    fn lines_are_those_of_the_table() {
        let text = "pid\t100\ncode\t1\t1000\t100\t0\t0\tx\nline\t1\t0\t7\t/a/b.toy\nline\t1\t8\t9\t/a/b.toy\nend\n";
        let truth = Truth::parse(text).unwrap();
        let shown = |offset: u64, line: &str| {
            let text = format!(" 100/100 1.000000000: {:x} x (/tmp/jitted-100-7.so)\n  {line}\n", 0x1000 + offset);
            let flat = parse(&text).unwrap();
            lines(&truth, &flat).percent()
        };
        assert_eq!((shown(0, "b.toy:7"), shown(7, "b.toy:7"), shown(0xff, "b.toy:9")), (100.0, 100.0, 100.0));
        assert_eq!((shown(8, "b.toy:7"), shown(8, "c.toy:9"), shown(8, "")), (0.0, 0.0, 0.0));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(parse("\t 84 f (/tmp/x)\n").is_err(), "a frame without a sample");
        assert!(parse("100/101 44.123456: 84 f (/tmp/x)\n").is_err(), "microseconds");
        assert!(parse("100/101 44.123456789: 84 f\n").is_err(), "no object");
        assert!(parse("vm 101 44.123456789: 84 f (/tmp/x)\n").is_err(), "other fields");
        let flat = parse(FLAT).unwrap();
        assert!(samples(&truth(), &flat, &flat[..1]).is_err(), "one sample is missing");
    }
}
