//! Examines a recording: its clock, its jitdumps and whether they were injected, and the names and whole stacks of compiled
//! code.

use std::path::Path;

use super::dumps::Dumps;
use super::inherited::Inherited;
use super::injected;
use super::log::Log;
use super::shares::{Shares, ENOUGH, FEW};
use super::stacks::Quality;
use super::strays::Strays;
use super::{machine, producers, Rank, Report, LOOK, PROVE, RECORD};
use crate::record::contents::{self, Contents};
use crate::record::perf::{Perf, Unwinder};
use crate::record::script::Injector;
use crate::record::stacks::percent;
use crate::record::watch::Seen;
use crate::record::{command_line, quoted, script, unfinished, PROC};
use crate::text::{count, printable, Shown};

/// Facts about the recorded run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run<'a> {
    pub variables: machine::Variables,
    /// The output of the command with `JITSYM_DEBUG`, if `jitsym` has run the command for this report.
    pub log: Option<&'a Log>,
    /// The results of comparing the command's memory with its jitdumps.
    pub seen: Option<&'a Seen>,
    /// Whether the command was run for this report, even if its output was not kept.
    pub is_own: bool,
    /// Whether the recording is deleted after the report.
    pub is_passing: bool,
}

/// The way in which call stacks were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Graph {
    Dwarf,
    FramePointers,
    None,
}

/// A recording and the results of its examination.
struct Look<'a> {
    perf: &'a Perf,
    data: &'a Path,
    run: Run<'a>,
    graph: Graph,
    contents: Contents,
    dumps: Dumps,
    quality: Quality,
    shares: Shares,
    /// The files of regions.
    regions: usize,
    /// Whether the recording has the clock of the jitdumps.
    monotonic: bool,
    intel_pt: bool,
}

/// Examines a recording, and passes each sample on.
pub fn look(
    perf: &Perf,
    data: &Path,
    run: Run<'_>,
    each: &mut dyn FnMut(&script::Sample),
    report: &mut Report,
) -> Result<(), String> {
    look_inside(perf, data, run, each, report)?;
    run.log.inspect(|log| log.explain(report));
    Ok(())
}

fn look_inside(
    perf: &Perf,
    data: &Path,
    run: Run<'_>,
    each: &mut dyn FnMut(&script::Sample),
    report: &mut Report,
) -> Result<(), String> {
    let shown = quoted(data);
    if report.command.is_none() {
        report.command = command_line::command(data);
    }
    report.part(format!("recording {}", data.shown()));
    report.usual = Some(format!("perf report -i {shown} --no-children"));
    if let Some(writer) = unfinished(data) {
        injected::not_finished(data, writer, report);
        return Ok(());
    }
    if let Some(log) = run.log {
        log.tell(report);
    }
    let output = perf.output(perf.command("evlist").arg("-v").arg("-i").arg(data))?;
    let events = String::from_utf8_lossy(&output.stdout).into_owned();
    let contents = Contents::read(perf, data)?;
    let monotonic = events.lines().filter(|line| line.contains("type: ")).all(|line| {
        line.contains("use_clockid: 1") && line.split("clockid: ").last().is_some_and(|id| id.starts_with('1'))
    });
    let intel_pt = events.contains("intel_pt");
    let graph = match (events.contains("STACK_USER"), events.contains("CALLCHAIN")) {
        (true, _) => Graph::Dwarf,
        (false, true) => Graph::FramePointers,
        (false, false) => Graph::None,
    };
    report.good(count(contents.samples, "sample"));
    let dumps = Dumps::read(&contents, run.variables, report);
    let regions: usize = contents.processes.values().map(|process| process.regions.len()).sum();
    let timed = monotonic && dumps.counter.is_none();
    let (mut quality, mut strays, mut inherited) = (Quality::default(), Strays::default(), Inherited::default());
    let mut command = perf.command("script");
    command.arg("-i").arg(data).args(["--no-inline", "--ns", "-F", script::FIELDS]);
    contents::with_output(perf, &mut command, |output| {
        script::samples(output, &mut |sample| {
            let is_late = strays.add(&dumps, sample, timed);
            quality.add(sample, is_late);
            inherited.add(sample);
            each(sample);
        })
    })?;
    let wrong_names = dumps.broken.has_wrong_size();
    let shares = Shares { wrong_names, ..Shares::of(&quality, graph != Graph::None) };
    report.shares = Some(shares);
    let look = Look { perf, data, run, graph, contents, dumps, quality, shares, regions, monotonic, intel_pt };
    look.tell(&strays, &inherited, report)
}

impl Look<'_> {
    fn tell(&self, strays: &Strays, inherited: &Inherited, report: &mut Report) -> Result<(), String> {
        let Look { dumps, shares, contents, .. } = self;
        // A jitdump that perf does not need does no harm.
        let is_good = shares.are_good();
        self.regions(is_good, report);
        let injected = contents.injector();
        // `jitsym inject` makes no objects of code that is in no sample.
        let may_be_raw = strays.in_dumps > 0 || dumps.are_too_large || strays.blank > 0 && self.run.seen.is_none();
        let is_raw = injected.is_none() && dumps.codes > 0 && may_be_raw;
        self.clock(is_good, injected.is_some(), report);
        if let Some(by) = injected {
            report.good(format!("{} has put objects in for compiled code", by.program()));
            injected::objects(self.perf, self.data, contents, dumps, is_good, report)?;
        } else if !is_good && dumps.counter.is_none() {
            injected::not_injected(self.data, is_raw && self.monotonic, dumps, report);
        }
        for (&pid, _) in contents.with_jit() {
            producers::dialect(pid, Path::new(PROC), report);
        }
        if self.quality.jit == 0 {
            report.note("no sample is in compiled code");
            // A program that compiles nothing needs no session.
            return Ok(());
        }
        dumps.broken.tell(!self.run.is_passing, report);
        if self.run.seen.is_none() {
            let limit = "it does not show whether bytes and addresses are right";
            report.nothing = Some(format!("nothing is wrong in the recording; {limit}: `{PROVE}`"));
        }
        if shares.compiled >= ENOUGH {
            strays.tell(shares, &self.run, report);
            inherited.tell(shares, report);
        }
        self.names(injected.is_some(), report);
        if shares.compiled < ENOUGH {
            let samples = count(shares.compiled, "sample");
            let Quality { named, whole, .. } = self.quality;
            report.cause(
                format!("{samples} in compiled code, {named} with names, {whole} with whole stacks"),
                Rank::Quality,
                format!("too few samples to tell ({samples} in compiled code): record for longer"),
                format!("jitsym record -F 4999 -- {}", super::COMMAND),
            );
            return Ok(());
        }
        // Without objects or without names, stacks cannot be whole.
        if !is_good && (is_raw || percent(shares.named, shares.compiled) < FEW) {
            // The clock is the cause. The next line reports the data that can be used until the clock is corrected.
            if injected.is_none() && !self.monotonic {
                self.meanwhile(report);
            }
            return Ok(());
        }
        match shares.stacks() {
            None => report.note("no call stacks were recorded"),
            Some(line) => {
                if Shares::tell(line, report) {
                    self.stacks(report);
                }
            }
        }
        Ok(())
    }

    fn regions(&self, is_good: bool, report: &mut Report) {
        if self.regions == 0 {
            return;
        }
        let gone = self.contents.regions_gone();
        match gone.first() {
            Some(path) if !is_good => report.cause(
                format!("{} of {} of regions gone", gone.len(), count(self.regions, "file")),
                Rank::Recording,
                format!(
                    "files of regions were removed before perf has read them, such as {path} (JITSYM_REMOVE=1, or by somebody): \
                     reports need them"
                ),
                RECORD,
            ),
            _ => report.good(format!("{} of regions, which perf reads as they are", count(self.regions, "file"))),
        }
    }

    fn clock(&self, is_good: bool, injected: bool, report: &mut Report) {
        let dumps = &self.dumps;
        if let Some(path) = dumps.counter.as_ref().filter(|_| !self.intel_pt) {
            report.cause(
                format!("the times in {path} are counter values"),
                Rank::Recording,
                format!("{path} has counter values for times (JITDUMP_USE_ARCH_TIMESTAMP=1): perf compares those with Intel PT alone"),
                format!("unset JITDUMP_USE_ARCH_TIMESTAMP; {RECORD}"),
            );
        } else if self.monotonic {
            report.good("the clock is that of the jitdump (-k 1)");
        } else if injected || is_good {
            report.note("the clock is not that of the jitdump, and nothing needs it here");
        } else if dumps.codes > 0 || !dumps.gone.is_empty() {
            report.cause(
                "the clock is not that of the jitdump",
                Rank::Recording,
                "it was recorded without -k 1: `jitsym inject` refuses it, because its times are not those of the jitdump. Record \
                 again, with -k 1 in your `perf record`, or by the command below",
                RECORD,
            );
        } else {
            report.note("the clock is not that of the jitdump, and no jitdump is in it");
        }
    }

    fn names(&self, injected: bool, report: &mut Report) {
        let Look { dumps, shares, contents, run, .. } = self;
        let nothing = dumps.codes == 0 && dumps.gone.is_empty() && dumps.unreadable.is_empty() && !injected;
        // A few samples cannot be judged, except if nothing names the code.
        if shares.compiled < ENOUGH && !(nothing && shares.named == 0) {
            return;
        }
        let (mark, line) = shares.names();
        if !Shares::tell((mark, line.clone()), report) {
            return;
        }
        let next = if run.is_own { "JITSYM_DEBUG=1 COMMAND" } else { LOOK };
        let has_library = contents.processes.values().any(|process| process.library);
        let mut processes = contents.with_jit().map(|(_, process)| process);
        if nothing && machine::room(Path::new("/tmp")).is_some_and(|room| room.noexec) {
            // The report about the machine already contains this.
        } else if let Some(why) = run.log.and_then(Log::map_elsewhere).filter(|_| nothing) {
            report.because(Rank::Nothing, why, RECORD);
        } else if let Some(why) = run.log.and_then(Log::why_nothing).filter(|_| nothing && has_library) {
            report.because(Rank::Nothing, why, next);
        } else if nothing && processes.any(|process| process.hidden.tell(report)) {
            // The hidden memory is the reason, and was just reported.
        } else if nothing && self.regions > 0 {
            let text = "some compiled code is in no region, and no jitdump has it";
            report.because(Rank::Nothing, text, RECORD);
        } else if nothing && has_library {
            report.because(Rank::Nothing, "the program has libjitsym, and has named no code", next);
        } else if nothing {
            report.because(
                Rank::Nothing,
                "nothing names the compiled code: no process of the recording has libjitsym, or a jitdump or perf map with code",
                next,
            );
        } else if !report.has(Rank::Quality) {
            let text = "some compiled code has no name: it is in no jitdump, because it was not registered or the call was refused";
            report.because(Rank::Quality, text, next);
        }
    }

    /// Reports the data that can be used without the jitdump. A perf map has the names at the end of the run, whatever the
    /// time of a sample is.
    fn meanwhile(&self, report: &mut Report) {
        let mut said = Vec::new();
        if let Some((mark, line)) = self.shares.stacks() {
            said.push(line.clone());
            Shares::tell((mark, line), report);
        }
        if self.quality.map {
            let text = "names may be those of replaced code (a perf map has no times)";
            said.push(text.into());
            report.note(text);
        }
        if !said.is_empty() {
            report.aside(said.join(", "));
        }
    }

    /// Reports why stacks are not whole.
    fn stacks(&self, report: &mut Report) {
        let Look { dumps, quality, shares, graph, run, .. } = self;
        let worst = quality.worst(5);
        for &(name, count) in &worst {
            let name = printable(name.as_bytes());
            report.note(match count {
                1 => format!("1 stack ends at {name}"),
                _ => format!("{count} stacks end at {name}"),
            });
        }
        // The error in the tables explains the stacks.
        if dumps.broken.has_wrong_stacks() {
            return;
        }
        if quality.late > 0 {
            let stacks = count(quality.late, "stack");
            report.note(format!("{stacks} of code that was registered later: it had no unwind tables yet"));
            // The few other stacks are cut off while a frame is made or removed.
            let timely = shares.compiled - quality.late;
            if timely < ENOUGH || percent(shares.whole.unwrap_or(0), timely) >= FEW {
                return;
            }
        }
        let first = worst.first().map_or("compiled code".into(), |(name, _)| printable(name.as_bytes()).to_string());
        let without_tables = dumps.codes > 0 && dumps.with_tables == 0;
        let again = injected::again(self.data, dumps);
        let only_a_map = quality.map && dumps.codes == 0 && self.regions == 0;
        let (text, next) = match graph {
            Graph::FramePointers if without_tables => (
                format!(
                    "the program describes no frames (jitsym_code.unwind), and some code keeps no frame pointers either. Change \
                     the program, then look again: stacks end at {first}"
                ),
                LOOK,
            ),
            Graph::FramePointers => (
                format!(
                    "stacks were recorded by frame pointers, and some code has none. Record with --call-graph dwarf in place of \
                     -g, or by the command below: they end at {first}"
                ),
                RECORD,
            ),
            _ if only_a_map => (
                "only a perf map names the code, and a map has no unwind tables: a jitdump has them (JITSYM=on)".to_owned(),
                "JITSYM=on jitsym record -- COMMAND",
            ),
            _ if without_tables => (
                format!(
                    "the program describes no frames (jitsym_code.unwind). Until it does, stacks by frame pointers may be whole, \
                     if all of its code keeps them: they end at {first}"
                ),
                "jitsym record -g fp -- COMMAND",
            ),
            // `jitsym inject` puts the tables where this perf finds them.
            _ if dumps.codes > 0 && self.is_packed() => (
                format!(
                    "perf with libunwind finds no unwind tables of code without a gap after it in the objects of `perf inject`, \
                     but finds them in those of `jitsym inject`: stacks end at {first}"
                ),
                again.as_deref().unwrap_or(RECORD),
            ),
            _ if run.is_own && cfg!(target_arch = "x86_64") => (
                format!("stacks end at {first}: its frames are described wrongly, or stacks are deeper than was copied (-g dwarf,32768)"),
                "jitsym verify -- COMMAND",
            ),
            _ => (
                format!("stacks are deeper than was copied, or frames are described wrongly: they end at {first}"),
                "jitsym record -g dwarf,32768 -- COMMAND",
            ),
        };
        report.because(Rank::Quality, text, next);
    }

    /// Whether some code has tables that this perf does not find in the objects of `perf inject`.
    fn is_packed(&self) -> bool {
        self.contents.injector() == Some(Injector::Perf)
            && self.perf.unwinder() == Ok(Unwinder::Libunwind)
            && self.dumps.broken.has(crate::check::rules::UNWIND_NOT_MAPPED.id)
    }
}
