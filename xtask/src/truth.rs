//! What the ground-truth program says of itself: which code lay where and when, and which stacks its threads ran.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use anyhow::{bail, Context, Result};

use crate::script::{self, Mapping};

/// Code at an address for a time, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug)]
pub struct Code {
    pub addr: u64,
    pub size: u64,
    pub from: u64,
    /// `u64::MAX` for never.
    pub to: u64,
    pub name: String,
    /// Other names under which readers may show it.
    pub aliases: Vec<String>,
    /// Offset, line, file.
    pub lines: Vec<(u64, u32, String)>,
    /// Offsets between which a register that is described as saved was taken off the stack. Readers that have a copy of the stack
    /// do not know it there.
    pub popped: Vec<Range<u64>>,
}

impl Code {
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// A part of a stack that was run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Code of the guest, by its index in `Truth::codes`.
    Code(usize),
    /// A C function of that name.
    Native(String),
    /// A C function, whose name nobody knows.
    OneNative,
    /// Any number of C functions.
    AnyNative,
}

/// A moment at which a thread that was stepped stood at an instruction.
#[derive(Clone, Debug)]
pub struct Moment {
    pub tid: u32,
    pub time: u64,
    pub ip: u64,
    /// Addresses within the calls that can be seen.
    pub callers: Vec<u64>,
    /// What a reader that does all that it can do has to show, innermost first; `None`: nobody knows.
    pub stack: Option<Vec<Part>>,
}

/// A thread ran this stack in all of [from, to]. Innermost first; `None`: samples there are not to be counted.
#[derive(Clone, Debug)]
pub struct Run {
    pub from: u64,
    pub to: u64,
    pub stack: Option<Vec<Part>>,
}

/// Which call graphs of a scenario can be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    FramePointers,
    Dwarf,
    Both,
    Neither,
}

/// All that the program says.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub pid: u32,
    pub paths: BTreeMap<String, PathBuf>,
    pub options: HashMap<String, String>,
    pub codes: Vec<Code>,
    /// Indices of `codes`, and the line where most of the time goes.
    #[allow(dead_code, reason = "tests/matrix_truth.rs reads it")]
    pub hot_lines: Vec<(usize, u32)>,
    /// By thread, in the order of time.
    pub runs: HashMap<u32, Vec<Run>>,
    pub unnamed: HashMap<u32, Vec<Run>>,
    /// Each sample of the recording, if the program was stepped.
    pub moments: Option<Vec<Moment>>,
    /// Indices of `codes`, by page.
    pages: HashMap<u64, Vec<usize>>,
}

const PAGE: u64 = 4096;

impl Truth {
    pub fn parse(text: &str) -> Result<Self> {
        let mut truth = Truth::default();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut stacks: Vec<(u32, u64, u64, &str)> = Vec::new();
        let mut ended = false;
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            truth.line(&fields, &mut ids, &mut stacks, &mut ended).with_context(|| format!("truth line {line:?}"))?;
        }
        if !ended {
            bail!("the truth is cut off after {} lines", text.lines().count());
        }
        // What the library puts behind names of one or two bytes, where readers drop those.
        if let Some(suffix) = truth.options.get("short-names").cloned() {
            for code in truth.codes.iter_mut().filter(|code| code.name.len() < 3) {
                code.aliases.push(format!("{}{suffix}", code.name));
            }
        }
        for (tid, from, to, stack) in stacks {
            let parts = stack.split(',').map(|part| parse_part(part, &ids)).collect::<Result<Vec<Part>>>();
            let stack = Some(parts.with_context(|| format!("stack {stack:?}"))?);
            add(&mut truth.runs, tid, Run { from, to, stack })?;
        }
        for (index, code) in truth.codes.iter().enumerate() {
            for page in code.addr / PAGE..=(code.addr + code.size.max(1) - 1) / PAGE {
                truth.pages.entry(page).or_default().push(index);
            }
        }
        Ok(truth)
    }

    fn line<'t>(
        &mut self,
        fields: &[&'t str],
        ids: &mut HashMap<&'t str, usize>,
        stacks: &mut Vec<(u32, u64, u64, &'t str)>,
        ended: &mut bool,
    ) -> Result<()> {
        let field = |index: usize| fields.get(index).copied().context("too short");
        let number = |index: usize| field(index)?.parse::<u64>().context("number");
        let hex = |index: usize| u64::from_str_radix(field(index)?, 16).context("hexadecimal number");
        let known = |ids: &HashMap<&str, usize>| ids.get(field(1)?).copied().context("unknown code");
        if *ended {
            bail!("behind the end");
        }
        match field(0)? {
            "pid" => self.pid = number(1)? as u32,
            "path" => drop(self.paths.insert(field(1)?.into(), field(2)?.into())),
            "option" => drop(self.options.insert(field(1)?.into(), field(2)?.into())),
            "code" => {
                if ids.insert(field(1)?, self.codes.len()).is_some() {
                    bail!("the same code twice");
                }
                self.codes.push(Code {
                    addr: hex(2)?,
                    size: hex(3)?,
                    from: number(4)?,
                    to: if number(5)? == 0 { u64::MAX } else { number(5)? },
                    name: field(6)?.into(),
                    aliases: Vec::new(),
                    lines: Vec::new(),
                    popped: Vec::new(),
                });
            }
            "alias" => self.codes[known(ids)?].aliases.push(field(2)?.into()),
            "line" => self.codes[known(ids)?].lines.push((hex(2)?, number(3)? as u32, field(4)?.into())),
            "popped" => self.codes[known(ids)?].popped.push(hex(2)?..hex(3)?),
            "hotline" => self.hot_lines.push((known(ids)?, number(2)? as u32)),
            // The codes may come later.
            "run" => stacks.push((number(1)? as u32, number(2)?, number(3)?, field(4)?)),
            "unnamed" => {
                let run = Run { from: number(2)?, to: number(3)?, stack: None };
                add(&mut self.unnamed, number(1)? as u32, run)?;
            }
            "end" => *ended = true,
            other => bail!("unknown kind {other:?}"),
        }
        Ok(())
    }

    /// The code that lay at an address at a time. Where the program says two, the newest.
    pub fn code_at(&self, ip: u64, time: u64) -> Option<usize> {
        let there = |&&index: &&usize| {
            let code = &self.codes[index];
            (code.addr..code.addr + code.size).contains(&ip) && (code.from..code.to).contains(&time)
        };
        self.pages.get(&(ip / PAGE))?.iter().filter(there).max_by_key(|&&index| self.codes[index].from).copied()
    }

    /// The code of that name that lay at an address at some time.
    pub fn code_called(&self, ip: u64, name: &str) -> Option<usize> {
        let there = |&&index: &&usize| {
            let code = &self.codes[index];
            (code.addr..code.addr + code.size).contains(&ip) && code.is_named(name)
        };
        self.pages.get(&(ip / PAGE))?.iter().find(there).copied()
    }

    /// Whether samples of that thread are not to be counted then.
    pub fn is_unnamed(&self, tid: u32, time: u64) -> bool {
        find(&self.unnamed, tid, time).is_some()
    }

    /// The stack that the thread ran then.
    pub fn stack_at(&self, tid: u32, time: u64) -> Option<&[Part]> {
        find(&self.runs, tid, time)?.stack.as_deref()
    }

    /// What the thread ran at some time in [from, to].
    pub fn runs_between(&self, tid: u32, from: u64, to: u64) -> impl Iterator<Item = &Run> {
        self.runs.get(&tid).into_iter().flatten().filter(move |run| run.from <= to && from <= run.to)
    }

    /// Whether a C function has to be in some stack.
    pub fn has_native_parts(&self) -> bool {
        let parts = self.runs.values().flatten().filter_map(|run| run.stack.as_ref()).flatten();
        parts.into_iter().any(|part| matches!(part, Part::Native(_)))
    }

    /// The program was stepped, and this was found on the way.
    pub fn set_moments(&mut self, found: &[jitsym_step::Moment], symbols: &jitsym_step::Symbols) {
        self.moments = Some(found.iter().map(|moment| self.seen(moment, symbols)).collect());
    }

    fn seen(&self, moment: &jitsym_step::Moment, symbols: &jitsym_step::Symbols) -> Moment {
        let jitsym_step::Moment { pid, tid, time, ip, ref callers } = *moment;
        let part = |addr: u64| match (self.code_at(addr, time), symbols.name(addr)) {
            (Some(index), _) => Part::Code(index),
            (None, Some(name)) => Part::Native(name.into()),
            (None, None) => Part::OneNative,
        };
        let stack = callers.as_ref().map(|callers| {
            let mut stack: Vec<Part> = [ip].iter().chain(callers).map(|&addr| part(addr)).collect();
            stack.push(Part::AnyNative);
            if pid == tid {
                stack.extend([Part::Native("main".into()), Part::AnyNative]);
            }
            stack
        });
        Moment { tid, time, ip, callers: callers.clone().unwrap_or_default(), stack }
    }

    /// Moments in whose stack is an address that other code has had before, by thread and time. libunwind remembers for an address how
    /// it has unwound there, and perf lets it. Of an expression, libunwind remembers only where it lies in the tables, so that it is
    /// another one if the tables have changed, as they do when code comes.
    ///
    /// Moments in `ranges` belong to them, too, and libunwind remembers nothing right of these: see `between_mappings`.
    pub fn stale(&self, ranges: &[RangeInclusive<u64>]) -> HashSet<(u32, u64)> {
        let mut came: Vec<u64> = self.codes.iter().map(|code| code.from).collect();
        came.sort_unstable();
        let mut first: HashMap<u64, (Option<usize>, u64)> = HashMap::new();
        let mut stale = HashSet::new();
        for moment in self.moments.iter().flatten() {
            let is_between = ranges.iter().any(|range| range.contains(&moment.time));
            if is_between {
                stale.insert((moment.tid, moment.time));
            }
            // perf shows callers within their call, libunwind looks behind it.
            for addr in [moment.ip].into_iter().chain(moment.callers.iter().map(|addr| addr + 1)) {
                let code = self.code_at(addr, moment.time).filter(|_| !is_between);
                let (before, since) = *first.entry(addr).or_insert((code, moment.time));
                let is_expression = code.is_some_and(|code| self.codes[code].name.starts_with("expression_"));
                let next = came.partition_point(|from| *from <= since);
                let is_changed = is_expression && came.get(next).is_some_and(|from| *from <= moment.time);
                if before != code || is_changed {
                    stale.insert((moment.tid, moment.time));
                }
            }
        }
        stale
    }

    /// The times from the mapping of a region's header page in an epoch to the mapping of the region's code. libunwind computes the
    /// addresses of tables from the lowest mapping of a file's name. Between the two mappings, this is the old name's mapping of
    /// the code, so that libunwind finds no tables. If the host itself maps the code, by its own `mprotect`, the time may be
    /// long, and is not in the result.
    pub fn between_mappings(&self, mappings: &[Mapping<'_>]) -> Vec<RangeInclusive<u64>> {
        let has_code = |mapping: &Mapping| self.codes.iter().any(|code| mapping.range.contains(&code.addr));
        let is_renamed_by_library = |mapping: &Mapping| matches!(mapping.protection, "r-xs" | "rwxp");
        let mut found = Vec::new();
        for (at, header) in mappings.iter().enumerate().filter(|(_, mapping)| script::is_region(mapping.path)) {
            let is_of_name = |mapping: &&Mapping| mapping.path == header.path && has_code(mapping);
            let code = mappings[at..].iter().find(is_of_name).filter(|code| is_renamed_by_library(code));
            if header.offset == 0 && !has_code(header) && !mappings[..at].iter().any(|earlier| is_of_name(&earlier)) {
                found.extend(code.map(|code| header.time..=code.time));
            }
        }
        found
    }

    /// The same for a reader that has no names for C functions, as far as the program was stepped.
    pub fn without_native_names(&self) -> Truth {
        let mut truth = self.clone();
        for stack in truth.moments.iter_mut().flatten().filter_map(|moment| moment.stack.as_mut()) {
            let end = stack.iter().position(|part| *part == Part::AnyNative).map_or(stack.len(), |any| any + 1);
            stack.truncate(end);
            let natives = stack.iter_mut().filter(|part| matches!(part, Part::Native(_)));
            natives.for_each(|part| *part = Part::OneNative);
        }
        truth
    }

    /// Which call graphs can be whole; both, if the program does not say.
    pub fn unwind(&self) -> Result<Unwind> {
        Ok(match self.options.get("unwind").map(String::as_str) {
            Some("fp") => Unwind::FramePointers,
            Some("dwarf") => Unwind::Dwarf,
            Some("both") | None => Unwind::Both,
            Some("none") => Unwind::Neither,
            Some(other) => bail!("unknown unwind {other:?}"),
        })
    }
}

fn add(runs: &mut HashMap<u32, Vec<Run>>, tid: u32, run: Run) -> Result<()> {
    let runs = runs.entry(tid).or_default();
    if runs.last().is_some_and(|last| last.from >= run.from) {
        bail!("thread {tid} runs a stack before an earlier one");
    }
    runs.push(run);
    Ok(())
}

fn parse_part(part: &str, ids: &HashMap<&str, usize>) -> Result<Part> {
    Ok(match part {
        "?" => Part::AnyNative,
        _ => match part.strip_prefix('*') {
            Some(name) => Part::Native(name.into()),
            None => Part::Code(*ids.get(part).with_context(|| format!("unknown code {part:?}"))?),
        },
    })
}

/// Runs of one thread do not overlap, so that the last one that began before is the only one that can be.
fn find(runs: &HashMap<u32, Vec<Run>>, tid: u32, time: u64) -> Option<&Run> {
    let runs = runs.get(&tid)?;
    let behind = runs.partition_point(|run| run.from <= time);
    runs[..behind].last().filter(|run| time <= run.to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pid\t42\npath\tmap\t/tmp/perf-42.map\noption\tunwind\tdwarf\n\
        code\t1\t1000\t20\t100\t200\told one\ncode\t2\t1000\t10\t200\t0\tnew\ncode\t3\t1ff0\t20\t0\t0\tacross\n\
        alias\t2\tnew()\npopped\t2\t9\ta\nline\t2\t4\t7\t/a b.toy\nhotline\t2\t7\n\
        run\t43\t110\t140\t3,1,?\nrun\t43\t150\t160\t1,*qsort,?\nunnamed\t43\t300\t310\nend\n";

    #[test]
    fn what_lay_where_and_when() {
        let truth = Truth::parse(TEXT).unwrap();
        let name = |ip, time| truth.code_at(ip, time).map(|index| truth.codes[index].name.as_str());
        assert_eq!(truth.pid, 42);
        assert_eq!(truth.unwind().unwrap(), Unwind::Dwarf);
        assert_eq!(name(0x1000, 99), None);
        assert_eq!(name(0x1000, 100), Some("old one"));
        assert_eq!(name(0x101f, 199), Some("old one"));
        assert_eq!(name(0x1000, 200), Some("new"));
        assert_eq!(name(0x1010, 200), None, "behind the end of the new one");
        assert_eq!(name(0x2005, 1 << 60), Some("across"), "on its second page");
        assert!(truth.codes[1].is_named("new()") && truth.codes[1].is_named("new") && !truth.codes[1].is_named("old"));
        assert!(truth.codes[1].popped.iter().eq([&(9..10)]));
        assert_eq!((&*truth.codes[1].lines, &*truth.hot_lines), (&[(4, 7, "/a b.toy".to_string())][..], &[(1, 7)][..]));
    }

    #[test]
    fn between_two_mappings() {
        let event = |time: u64, place: &str, file: &str| {
            format!(" 42/42 1.{time:09}: PERF_RECORD_MMAP2 42/43: [0x{place} 00:01 2 3]: {file}\n")
        };
        let text = [
            " 42/42 1.000000001: \n".into(),
            event(5, "0(0x1000) @ 0", "r-xs /tmp/jit-42-0.so"),
            event(7, "1000(0x1000) @ 0x1000", "r-xs /tmp/jit-42-0.so"),
            event(8, "0(0x1000) @ 0", "r-xs /tmp/jit-42-0.so"),
            event(9, "1000(0x1000) @ 0x1000", "r-xs /tmp/jit-42-0.so"),
            // The process itself maps the code.
            event(11, "0(0x1000) @ 0", "r-xp /tmp/jit-42-0.1.so"),
            event(12, "1000(0x1000) @ 0x1000", "r-xp /tmp/jit-42-0.1.so"),
            event(15, "0(0x1000) @ 0", "r-xp /tmp/jitted-42-r0.2.so"),
            event(18, "1000(0x1000) @ 0x1000", "rwxp /tmp/jitted-42-r0.2.so"),
        ];
        let truth = Truth::parse(TEXT).unwrap();
        let second = 1_000_000_000;
        let expected = [second + 5..=second + 7, second + 15..=second + 18];
        assert_eq!(truth.between_mappings(&script::mappings(&text.concat()).unwrap()), expected);
    }

    #[test]
    fn short_names_may_be_longer() {
        let code = "code\t1\t1000\t20\t100\t200\té\ncode\t2\t2000\t20\t100\t200\tabc\nend\n";
        let truth = Truth::parse(&format!("option\tshort-names\t()\n{code}")).unwrap();
        assert!(truth.codes[0].is_named("é()") && truth.codes[0].is_named("é") && !truth.codes[1].is_named("abc()"));
        assert!(!Truth::parse(code).unwrap().codes[0].is_named("é()"), "not unless the program says so");
    }

    #[test]
    fn what_ran_when() {
        let truth = Truth::parse(TEXT).unwrap();
        let expected = [Part::Code(0), Part::Native("qsort".into()), Part::AnyNative];
        assert_eq!(truth.stack_at(43, 150), Some(&expected[..]));
        assert_eq!(truth.stack_at(43, 160), Some(&expected[..]));
        assert_eq!(truth.stack_at(43, 145), None, "between two runs");
        assert_eq!(truth.stack_at(42, 150), None, "another thread");
        let between = |from, to| truth.runs_between(43, from, to).map(|run| run.from).collect::<Vec<_>>();
        assert_eq!((between(141, 149), between(140, 150), between(155, 155)), (vec![], vec![110, 150], vec![150]));
        assert!(truth.is_unnamed(43, 305) && !truth.is_unnamed(43, 311) && !truth.is_unnamed(42, 305));
    }

    #[test]
    fn a_truth_that_is_not_whole_is_refused() {
        let refused = |text: &str| Truth::parse(text).is_err();
        assert!(refused("pid\t1\n"), "no end");
        assert!(refused("run\t1\t1\t2\t9,?\nend\n"), "unknown code in a stack");
        assert!(refused("code\t1\t1000\t20\t100\t200\n end\n"), "no name");
        assert!(refused("what\t1\nend\n"), "unknown kind of line");
        assert!(refused("code\t1\txyz\t20\t100\t200\tname\nend\n"), "bad number");
        assert!(refused("end\npid\t1\n"), "something behind the end");
        assert!(refused("unnamed\t1\t5\t6\nunnamed\t1\t3\t4\nend\n"), "not in the order of time");
    }
}
