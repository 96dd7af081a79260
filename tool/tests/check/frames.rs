//! Unwind tables against the code that they describe: functions at random with the right tables, and with one mistake each.
//!
//! `JITSYM_SEED=N` runs the case of a seed that a failure names.

#[path = "frames/aarch64.rs"]
mod aarch64;
#[path = "frames/cases.rs"]
mod cases;
#[path = "frames/x86_64.rs"]
mod x86_64;

use std::collections::BTreeMap;
use std::process::Command;

use jitsym::format::arch::Arch;
use jitsym::{SavedRegister, UnwindRow};
use jitsym_tool::check::{check, Facts, Finding, Frames, Report};

pub use self::cases::cases;
use crate::build::described;
use crate::rng::Random;
use crate::support::run;

/// One row of an unwind table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    offset: u32,
    /// A register, and what is added to it.
    cfa: (u32, i32),
    /// Registers with their distance from the CFA.
    saved: Vec<(u32, i32)>,
}

/// Code with the rows that describe it.
#[derive(Clone, Debug, Default)]
pub struct Function {
    code: Vec<u8>,
    rows: Vec<Row>,
    /// Where its instructions are.
    instructions: Vec<u32>,
}

impl Function {
    fn instruction(&mut self, bytes: &[u8]) {
        self.instructions.push(self.code.len() as u32);
        self.code.extend(bytes);
    }

    /// A row behind the last instruction, if it differs from the one before.
    fn row(&mut self, row: Row) {
        self.rows.pop_if(|last| last.offset == row.offset);
        if self.rows.last().is_none_or(|last| (last.cfa, &last.saved) != (row.cfa, &row.saved)) {
            self.rows.push(row);
        }
    }

    /// The dump of it.
    fn file(&self, arch: Arch) -> Vec<u8> {
        let saved: Vec<Vec<SavedRegister>> = self
            .rows
            .iter()
            .map(|row| row.saved.iter().map(|&(reg, offset)| SavedRegister { reg, offset }).collect())
            .collect();
        let rows: Vec<UnwindRow> = self
            .rows
            .iter()
            .zip(&saved)
            .map(|(row, saved)| {
                let (cfa_register, cfa_offset) = row.cfa;
                UnwindRow { offset: row.offset, cfa_register, cfa_offset, saved }
            })
            .collect();
        described(arch, &self.code, &rows)
    }

    /// What is found of the frames, by rule, and where.
    fn findings(&self, arch: Arch) -> (Tally, Vec<(&'static str, u32)>) {
        let mut tally = Tally::default();
        check(&self.file(arch), &Facts::default(), &mut tally);
        let places = tally.findings.values().flatten().filter_map(|found| {
            let place = found.text.strip_prefix("at +0x")?.split_once(',')?.0;
            Some((found.rule.id, u32::from_str_radix(place, 16).expect("an offset")))
        });
        let places = places.collect();
        (tally, places)
    }
}

/// A wrong CFA is told with how far it holds: as far as it is proved, and no farther.
#[test]
fn how_far_a_wrong_cfa_holds() {
    let told = |code: &[u8], rows: &[(u32, i32)]| {
        let rows =
            rows.iter().map(|&(offset, cfa_offset)| UnwindRow { offset, cfa_register: 7, cfa_offset, saved: &[] });
        let mut tally = Tally::default();
        check(&described(Arch::X86_64, code, &rows.collect::<Vec<_>>()), &Facts::default(), &mut tally);
        let found = tally.findings.values().flatten().find(|found| found.rule.id == "unwind-cfa-wrong");
        found.map(|found| found.text.clone()).unwrap_or_default()
    };
    // sub rsp, 8; nop; nop; add rsp, 8; ret
    let moves = b"\x48\x83\xec\x08\x90\x90\x48\x83\xc4\x08\xc3";
    let text = told(moves, &[(0, 8), (4, 24), (10, 8)]);
    assert!(text.ends_with("8 too high: it is rsp+16; the difference is the same at 2 other instructions"), "{text}");
    let text = told(moves, &[(0, 8), (4, 24), (5, 16), (10, 8)]);
    assert!(text.ends_with("8 too high: it is rsp+16"), "{text}");
    // xor eax, eax; nop; ret: only at the end is it known where the caller's address is.
    let text = told(b"\x31\xc0\x90\xc3", &[(0, 16)]);
    assert!(text.starts_with("at +0x3, ret: ") && text.ends_with("rsp+8; earlier rows may be wrong too"), "{text}");
}

/// A number of seeds, or the one that is asked for.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("JITSYM_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("JITSYM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..600,
    }
}

type Make = fn(&mut Random, bool) -> Function;
const ARCHES: [(Arch, Make); 2] = [(Arch::X86_64, x86_64::function), (Arch::Aarch64, aarch64::function)];

/// Tables that are right are proved, to the last instruction that can be reached.
#[test]
fn right_tables() {
    for seed in seeds() {
        for (arch, make) in ARCHES {
            let mut random = Random::new(seed);
            let frame_pointer = random.one_in(2);
            let function = make(&mut random, frame_pointer);
            let (tally, found) = function.findings(arch);
            assert!(
                found.is_empty() && tally.proved == 1,
                "seed {seed}, {arch:?}: {found:?}, {tally:#?}, {function:x?}"
            );
        }
    }
}

/// What is not known is not reported.
#[test]
fn nothing_is_found() {
    for &(what, code, rows, expected) in cases::NOT_FOUND {
        let row = |&(offset, register, distance)| Row { offset, cfa: (register, distance), saved: Vec::new() };
        let function = Function { code: code.into(), rows: rows.iter().map(row).collect(), instructions: Vec::new() };
        let (tally, found) = function.findings(Arch::X86_64);
        assert!(found.is_empty(), "{what}: {found:?}");
        let came = [
            (Frames::Proved, tally.proved),
            (Frames::Partly, tally.partly),
            (Frames::Wrong, tally.wrong),
            (Frames::NotKnown, tally.unknown),
        ];
        assert!(came.contains(&(expected, 1)), "{what}: {came:?}");
    }
}

/// A mistake with the rules of which one has to be found, and where.
struct Mistake {
    what: &'static str,
    rules: &'static [&'static str],
    at: u32,
    function: Function,
}

/// The mistakes that can be made in the description of a function.
fn mistakes(right: &Function, arch: Arch, frame_pointer: bool, random: &mut Random) -> Vec<Mistake> {
    let mut all = Vec::new();
    let mut add = |what, rules, at, change: &dyn Fn(&mut Function)| {
        let mut function = right.clone();
        change(&mut function);
        all.push(Mistake { what, rules, at, function });
    };
    let last = right.rows.len() - 1;
    if last == 0 {
        // Code without a frame returns from the one that it is said to have.
        let at = *right.instructions.last().expect("the return");
        add("a frame that is none", &["unwind-cfa-wrong"], at, &|wrong| wrong.rows[0].cfa.1 += 8);
    } else {
        let by = [-8, 8, 16, 64][random.below(4)];
        let row = 1 + random.below(last);
        let at = right.rows[row].offset;
        let rules = &["unwind-cfa-wrong", "unwind-epilogue"];
        add("a wrong CFA", rules, at, &|wrong| wrong.rows[row].cfa.1 += by);
        // Before the frame is taken down there are only its own rows.
        let row = &right.rows[1];
        add("a wrong CFA in the prologue", &["unwind-cfa-wrong"], row.offset, &|wrong| wrong.rows[1].cfa.1 += by);
        if right.rows[last].cfa == right.rows[0].cfa {
            let at = right.rows[last].offset;
            add("no row for the end", &["unwind-epilogue"], at, &|wrong| drop(wrong.rows.pop()));
            let before = *right.instructions.iter().rfind(|&&before| before < at).expect("an instruction");
            let early = |wrong: &mut Function| {
                wrong.rows.retain(|row| row.offset < before || row.offset == at);
                wrong.rows.last_mut().expect("a row").offset = before;
            };
            // If that is all of the frame, it is as if there were none.
            let rules: &[&str] = if right.rows[1].offset < before { &["unwind-epilogue"] } else { rules };
            add("the end too early", rules, before, &early);
        }
    }
    let return_address = if arch == Arch::Aarch64 { 30 } else { u32::MAX };
    let with_saved: Vec<usize> = (1..=last).filter(|&row| !right.rows[row].saved.is_empty()).collect();
    if !with_saved.is_empty() {
        let row = with_saved[random.below(with_saved.len())];
        let at = right.rows[row].offset;
        let number = random.below(right.rows[row].saved.len());
        let register = right.rows[row].saved[number].0;
        let rules: &[&str] =
            if register == return_address { &["unwind-return-address"] } else { &["unwind-saved-register"] };
        add("a register where nothing is", rules, at, &|wrong| wrong.rows[row].saved[number].1 = -4096);
        let others = right.rows[row].saved.len();
        if others > 1 {
            let other = (number + 1) % others;
            let swap = |wrong: &mut Function| {
                let saved = &mut wrong.rows[row].saved;
                (saved[number].1, saved[other].1) = (saved[other].1, saved[number].1);
            };
            add("two registers in each other's places", &["unwind-saved-register"], at, &swap);
        }
    }
    if !frame_pointer && arch == Arch::X86_64 && right.code.len() > 4 {
        // The first instruction from which on the rows are those of a frame.
        let at = *right.instructions.iter().find(|&&at| at > 0).expect("a second instruction");
        add("the description of code with a frame pointer", &["unwind-frame-pointer"], at, &|wrong| {
            let row = |offset, cfa| Row { offset, cfa, saved: vec![(6, -16)] };
            wrong.rows = vec![right.rows[0].clone(), row(1, (7, 16)), row(4, (6, 16))];
        });
    }
    all
}

/// One mistake in the tables is found, where it is made.
#[test]
fn one_mistake() {
    let mut made: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in seeds() {
        for (arch, make) in ARCHES {
            let mut random = Random::new(seed);
            let frame_pointer = random.one_in(2);
            let right = make(&mut random, frame_pointer);
            for Mistake { what, rules, at, function } in mistakes(&right, arch, frame_pointer, &mut random) {
                let (_, found) = function.findings(arch);
                let there = found.iter().any(|&(rule, place)| rules.contains(&rule) && place == at);
                let first = found.iter().all(|&(_, place)| place >= at);
                assert!(
                    there && first,
                    "seed {seed}, {arch:?}: {what} is one of {rules:?} at {at:#x}, and {found:x?} is found: {function:x?}"
                );
                *made.entry(what).or_default() += 1;
            }
        }
    }
    println!("{made:#?}");
    assert!(seeds().count() == 1 || made.len() == 8 && made.values().all(|&count| count > 20), "{made:#?}");
}

/// What has come of it for each piece of code with tables.
#[derive(Debug, Default)]
struct Tally {
    proved: usize,
    partly: usize,
    wrong: usize,
    unknown: usize,
    findings: BTreeMap<&'static str, Vec<Finding>>,
}

impl Report for Tally {
    fn finding(&mut self, finding: Finding) {
        self.findings.entry(finding.rule.id).or_default().push(finding);
    }

    fn frames(&mut self, frames: Frames) {
        *match frames {
            Frames::Proved => &mut self.proved,
            Frames::Partly => &mut self.partly,
            Frames::Wrong => &mut self.wrong,
            Frames::NotKnown => &mut self.unknown,
        } += 1;
    }
}

/// How much of the files of a directory is proved: run with `JITSYM_CORPUS=DIR cargo test --test check -- --ignored --nocapture`.
#[test]
#[ignore = "wants a directory of files, in JITSYM_CORPUS"]
fn how_much_is_proved() {
    let dir = std::env::var_os("JITSYM_CORPUS").expect("JITSYM_CORPUS");
    let mut paths: Vec<_> = std::fs::read_dir(dir).expect("corpus").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut count = 0;
    for path in paths {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        if !name.contains(".dump") {
            continue;
        }
        let file = match name.strip_suffix(".gz") {
            Some(_) => run(Command::new("gzip").arg("-dc").arg(&path)).stdout,
            None => std::fs::read(&path).expect("file"),
        };
        let mut tally = Tally::default();
        check(&file, &Facts::default(), &mut tally);
        let Tally { proved, partly, wrong, unknown, findings } = tally;
        let all = proved + partly + wrong + unknown;
        count += all;
        println!("{name}: {proved} of {all} proved, {partly} as far as known, {wrong} wrong, {unknown} not known");
        for found in findings.values().flatten().filter(|found| found.text.starts_with("at +")) {
            println!("    {}: {} [{}]", found.subject, found.text, found.rule.id);
        }
    }
    assert!(count > 0, "no code has tables");
}
