//! Explains samples in compiled code that had no name at that time: the code was registered later, at another address, or
//! never.

use std::collections::HashMap;
use std::time::Duration;

use super::dumps::{Dumps, Piece};
use super::recording::Run;
use super::shares::{Shares, FEW, SOME};
use super::{Rank, Report, FIND_OUT, LOOK, PROVE};
use crate::record::plan;
use crate::record::script::{Kind, Sample};
use crate::record::stacks::percent;
use crate::record::watch::{How, Odd, Seen, Watched};
use crate::text::count;

/// The time between two comparisons with the memory.
const BETWEEN: Duration = Duration::from_millis(30);
/// The maximum distance from registered code. Code farther away is treated as other code.
const NEAR: u64 = 1 << 16;

/// Counts samples in code that was registered later or elsewhere, and samples with names.
#[derive(Default)]
pub struct Strays {
    /// For each function, the number of samples in code that was registered later, and the longest time between a sample and
    /// the registration.
    late: HashMap<String, (u64, u64)>,
    /// For each function, the number of samples near its code, and the distance of the first of these samples from the start
    /// of the code.
    beside: HashMap<String, (u64, i64)>,
    /// The number of samples in each function.
    hit: HashMap<String, u64>,
    /// The number of samples in code of a jitdump for which there is no object.
    pub in_dumps: u64,
    /// The number of samples without any frame. perf 7 shows no frame if it finds no unwind tables for the innermost frame.
    pub blank: u64,
}

impl Strays {
    /// Adds a sample. `timed` is true if the recording has the clock of the jitdumps. Returns whether the code of the sample
    /// was registered later.
    pub fn add(&mut self, dumps: &Dumps, sample: &Sample, timed: bool) -> bool {
        self.blank += u64::from(sample.frames.is_empty());
        let Some(frame) = sample.compiled() else { return false };
        if let Some(name) = &frame.symbol {
            *self.hit.entry(name.clone()).or_default() += 1;
        }
        // A perf map has no times, so it also names code that was not registered yet.
        if !matches!(frame.kind(), Kind::Map | Kind::Memory | Kind::Nowhere) {
            return false;
        }
        let all: Vec<&Piece> = dumps.at(sample.pid, frame.address).collect();
        if let Some(first) = all.iter().min_by_key(|piece| piece.time).filter(|_| timed && sample.time > 0) {
            if let Some(before) = first.time.checked_sub(sample.time).filter(|&before| before > 0) {
                let (samples, most) = self.late.entry(first.name.clone()).or_default();
                (*samples, *most) = (*samples + 1, before.max(*most));
                return true;
            }
        } else if all.is_empty() && frame.symbol.is_none() {
            let near = dumps.nearest(sample.pid, frame.address).filter(|(_, from)| from.unsigned_abs() <= NEAR);
            if let Some((piece, from)) = near {
                self.beside.entry(piece.name.clone()).or_insert((0, from)).0 += 1;
            }
        }
        self.in_dumps += u64::from(!all.is_empty());
        false
    }

    /// Reports the samples, and the differences between registered code and memory during the run.
    pub fn tell(&self, shares: &Shares, run: &Run<'_>, report: &mut Report) {
        let beside: u64 = self.beside.values().map(|(samples, _)| samples).sum();
        self.late(shares, run, report);
        // Memory nearby may contain other code of the program, which does no harm.
        let does_harm = |odd: &&Odd| match &odd.how {
            How::Elsewhere(_) => beside > 0,
            How::Other { .. } => self.hit.contains_key(&odd.name),
        };
        match run.seen.and_then(|seen| Some((seen, seen.odd.iter().find(does_harm)?))) {
            Some((seen, odd)) => odd.tell(odd.line(), seen, report),
            None if percent(shares.named, shares.compiled) < FEW => {
                let most = self.beside.iter().max_by_key(|(_, (samples, _))| *samples);
                let Some((name, (_, from))) = most else { return };
                let samples = count(beside, "sample");
                let text = format!(
                    "code runs that no registration covers ({samples}, the nearest is {name}): it was not registered, or with \
                     another address or size"
                );
                let line =
                    format!("{samples} beside registered code, such as {} than the start of {name}", distance(*from));
                report.cause(line, Rank::Quality, text, FIND_OUT);
            }
            None => {}
        }
    }

    fn late(&self, shares: &Shares, run: &Run<'_>, report: &mut Report) {
        let late: u64 = self.late.values().map(|(samples, _)| samples).sum();
        let Some((name, (_, before))) = self.late.iter().max_by_key(|(_, (samples, _))| *samples) else { return };
        let samples = count(late, "sample");
        let line = format!("{samples} of {} are in code that was registered later", shares.compiled);
        let milliseconds = before.div_ceil(1_000_000);
        if percent(late, shares.compiled) < SOME {
            report.note(line);
            return;
        }
        // If JITSYM=on was in the command's environment, the library has written from the start.
        let was_on = run.is_own && plan::environment(false, &|name| std::env::var_os(name)).contains(&("JITSYM", "on"));
        let or = if was_on { "" } else { ", or before writing was turned on" };
        let text = format!(
            "code ran before it was registered{or}: {name} up to {milliseconds} ms before ({samples}). Register it before it runs"
        );
        report.cause(line, Rank::Quality, text, LOOK);
        report.is_to_change();
    }
}

/// Compares the registered code of a process with its memory, twice.
pub fn in_memory(pid: u32, report: &mut Report) {
    let mut watched = Watched::default();
    for _ in 0..2 {
        watched.look(&[pid].into());
        // Code that is just being patched will be the same as the registered code at the next comparison.
        std::thread::sleep(BETWEEN);
    }
    let Seen { compared, odd, .. } = &watched.seen;
    let Some(first) = odd.first() else { return };
    let line = format!("{} of {compared} pieces of code not in memory as they were registered", odd.len());
    // Unused code does no harm if its memory has another use.
    if matches!(first.how, How::Other { .. }) && odd.len() * 2 < *compared {
        report.note(format!("{line}, such as {}", first.name));
    } else {
        first.tell(line, &watched.seen, report);
    }
}

impl Odd {
    fn line(&self) -> String {
        match self.how {
            How::Elsewhere(_) => format!("{} is not where it is registered", self.name),
            How::Other { .. } => format!("the bytes of {} are others in memory", self.name),
        }
    }

    /// Adds this difference as a cause, with the share of the compared functions that also have it.
    fn tell(&self, line: String, seen: &Seen, report: &mut Report) {
        let name = &self.name;
        let text = match &self.how {
            How::Elsewhere(from) => {
                let same = seen.odd.iter().filter(|other| other.how == self.how).count();
                let far = distance(*from);
                match seen.compared {
                    1 => format!("{name} lies {far} than it is registered (jitsym_code.addr): its bytes are there"),
                    all => format!(
                        "{same} of {all} functions lie {far} than registered (jitsym_code.addr), such as {name}: the bytes are there"
                    ),
                }
            }
            How::Other { registered, there } => {
                let others = seen.odd.iter().filter(|other| matches!(other.how, How::Other { .. })).count();
                let whose = match seen.compared {
                    1 => name.to_owned(),
                    all => format!("{others} of {all} functions, such as {name},"),
                };
                format!(
                    "the bytes of {whose} are not those in memory (jitsym_code.bytes): registered {}, in memory {}. Or other code has \
                     taken its place, and was not registered",
                    hex(registered),
                    hex(there)
                )
            }
        };
        report.cause(line, Rank::Quality, text, PROVE);
        if PROVE == LOOK {
            report.is_to_change();
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// The text for a distance, such as `64 bytes lower`.
pub fn distance(from: i64) -> String {
    format!("{} bytes {}", from.unsigned_abs(), if from < 0 { "lower" } else { "higher" })
}
