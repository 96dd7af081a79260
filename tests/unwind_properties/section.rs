//! Random `.eh_frame` sections as compilers make them, written byte by byte, with what they say worked out on the way.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use ::jitsym::format::arch::Arch;

use super::model::States;
use crate::cfi::{Cfa, Rule, State};

/// How the addresses in FDEs are written: `DW_EH_PE_*`.
#[derive(Clone, Copy, Debug)]
pub enum Pointers {
    Relative4 = 0x1b,
    Relative8 = 0x1c,
    Absolute = 0,
}

/// Call frame instructions. Distances are factored where DWARF says so.
#[derive(Clone, Debug)]
enum Op {
    Cfa(u16, u64),
    CfaFactored(u16, i64),
    CfaRegister(u16),
    CfaOffset(u64),
    CfaOffsetFactored(i64),
    CfaExpression(Vec<u8>),
    At(u16, u64),
    AtExtended(u16, i64),
    Is(u16, i64),
    In(u16, u16),
    Undefined(u16),
    Same(u16),
    Restore(u16),
    AtExpression(u16, Vec<u8>),
    IsExpression(u16, Vec<u8>),
    Remember,
    RestoreState,
    ArgsSize(u64),
    Nop,
}

/// An entry; its start is counted from that of the code, its steps are in units of the code alignment factor.
#[derive(Clone, Debug)]
struct Entry {
    gap: u16,
    len: u16,
    steps: Vec<(u32, Op)>,
}

#[derive(Clone, Debug)]
pub struct Section {
    pointers: Pointers,
    factors: (u64, i64),
    version: u8,
    personality: bool,
    signal: bool,
    terminator: bool,
    initial: Vec<Op>,
    /// Of the first entry from the code, mostly before it.
    first: i64,
    entries: Vec<Entry>,
    /// The section's own address from that of the code.
    pub distance: i64,
    /// Whether the last entry stands first.
    swapped: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let reg = || prop_oneof![0u16..17, 0u16..64, 0u16..96];
    let expression = || vec(any::<u8>(), 0..6);
    prop_oneof![
        3 => (0u16..17, 0u64..5000).prop_map(|(reg, at)| Op::Cfa(reg, at)),
        2 => (0u16..17, -300i64..300).prop_map(|(reg, at)| Op::CfaFactored(reg, at)),
        3 => (0u16..17).prop_map(Op::CfaRegister),
        5 => (0u64..5000).prop_map(Op::CfaOffset),
        2 => (-300i64..300).prop_map(Op::CfaOffsetFactored),
        1 => expression().prop_map(Op::CfaExpression),
        6 => (reg(), 0u64..300).prop_map(|(reg, at)| Op::At(reg, at)),
        2 => (reg(), -300i64..300).prop_map(|(reg, at)| Op::AtExtended(reg, at)),
        1 => (reg(), -300i64..300).prop_map(|(reg, at)| Op::Is(reg, at)),
        1 => (reg(), reg()).prop_map(|(reg, other)| Op::In(reg, other)),
        1 => reg().prop_map(Op::Undefined),
        1 => reg().prop_map(Op::Same),
        3 => reg().prop_map(Op::Restore),
        1 => (reg(), expression()).prop_map(|(reg, at)| Op::AtExpression(reg, at)),
        1 => (reg(), expression()).prop_map(|(reg, at)| Op::IsExpression(reg, at)),
        2 => Just(Op::Remember),
        2 => Just(Op::RestoreState),
        1 => (0u64..1000).prop_map(Op::ArgsSize),
        1 => Just(Op::Nop),
    ]
}

pub fn section() -> impl Strategy<Value = Section> {
    let step = prop_oneof![6 => 0u32..6, 3 => 0u32..70, 1 => 0u32..400, 1 => Just(70_000)];
    let entry = (prop_oneof![2 => Just(0u16), 1 => 0u16..50], 0u16..300, vec((step, op()), 0..12));
    let entries = vec(entry.prop_map(|(gap, len, steps)| Entry { gap, len, steps }), 0..4);
    let form = (
        select(&[Pointers::Relative4, Pointers::Relative8, Pointers::Absolute][..]),
        (select(&[1u64, 2, 4][..]), select(&[-8i64, -4, -1, 8][..])),
        select(&[1u8, 3][..]),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let place = (-400i64..200, prop_oneof![-5000i64..5000, -0x7000_0000i64..0x7000_0000], any::<bool>());
    (form, vec(op(), 0..4), entries, place).prop_map(|(form, initial, entries, (first, distance, swapped))| {
        let (pointers, factors, version, personality, signal, terminator) = form;
        Section {
            pointers,
            factors,
            version,
            personality,
            signal,
            terminator,
            initial,
            first,
            entries,
            distance,
            swapped,
        }
    })
}

fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(out: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
}

/// The state that instructions lead to. Those that make no sense where they stand are left out.
struct Machine {
    now: State,
    initial: Option<State>,
    remembered: Vec<State>,
    factor: i64,
}

impl Machine {
    /// Does one instruction, and writes it; nothing if it makes no sense here.
    fn run(&mut self, op: &Op, out: &mut Vec<u8>) {
        let factor = self.factor;
        let based = match self.now.cfa {
            Cfa::From(register, offset) => Some((register, offset)),
            Cfa::Expression(_) => None,
        };
        let coded = |out: &mut Vec<u8>, code: u8, numbers: &[u64]| {
            out.push(code);
            numbers.iter().for_each(|&number| unsigned(out, number));
        };
        let mut rule = |register: u16, rule: Rule| drop(self.now.rules.insert(register, rule));
        match *op {
            Op::Cfa(register, offset) => {
                coded(out, 0x0c, &[register.into(), offset]);
                self.now.cfa = Cfa::From(register, offset as i64);
            }
            Op::CfaFactored(register, factored) => {
                coded(out, 0x12, &[register.into()]);
                signed(out, factored);
                self.now.cfa = Cfa::From(register, factored * factor);
            }
            Op::CfaRegister(register) => {
                if let Some((_, offset)) = based {
                    coded(out, 0x0d, &[register.into()]);
                    self.now.cfa = Cfa::From(register, offset);
                }
            }
            Op::CfaOffset(offset) => {
                if let Some((register, _)) = based {
                    coded(out, 0x0e, &[offset]);
                    self.now.cfa = Cfa::From(register, offset as i64);
                }
            }
            Op::CfaOffsetFactored(factored) => {
                if let Some((register, _)) = based {
                    out.push(0x13);
                    signed(out, factored);
                    self.now.cfa = Cfa::From(register, factored * factor);
                }
            }
            Op::CfaExpression(ref bytes) => {
                coded(out, 0x0f, &[bytes.len() as u64]);
                out.extend_from_slice(bytes);
                self.now.cfa = Cfa::Expression(bytes.clone());
            }
            Op::At(register, factored) => {
                match register {
                    0..64 => coded(out, 0x80 | register as u8, &[factored]),
                    _ => coded(out, 0x05, &[register.into(), factored]),
                }
                rule(register, Rule::At(factored as i64 * factor));
            }
            Op::AtExtended(register, factored) => {
                coded(out, 0x11, &[register.into()]);
                signed(out, factored);
                rule(register, Rule::At(factored * factor));
            }
            Op::Is(register, factored) => {
                if factored < 0 {
                    coded(out, 0x15, &[register.into()]);
                    signed(out, factored);
                } else {
                    coded(out, 0x14, &[register.into(), factored as u64]);
                }
                rule(register, Rule::Is(factored * factor));
            }
            Op::In(register, other) => {
                coded(out, 0x09, &[register.into(), other.into()]);
                rule(register, Rule::In(other));
            }
            Op::Undefined(register) => {
                coded(out, 0x07, &[register.into()]);
                rule(register, Rule::Undefined);
            }
            Op::Same(register) => {
                coded(out, 0x08, &[register.into()]);
                rule(register, Rule::Same);
            }
            Op::Restore(register) => {
                if let Some(initial) = &self.initial {
                    match register {
                        0..64 => out.push(0xc0 | register as u8),
                        _ => coded(out, 0x06, &[register.into()]),
                    }
                    match initial.rules.get(&register) {
                        Some(before) => rule(register, before.clone()),
                        None => drop(self.now.rules.remove(&register)),
                    }
                }
            }
            Op::AtExpression(register, ref bytes) => {
                coded(out, 0x10, &[register.into(), bytes.len() as u64]);
                out.extend_from_slice(bytes);
                rule(register, Rule::AtExpression(bytes.clone()));
            }
            Op::IsExpression(register, ref bytes) => {
                coded(out, 0x16, &[register.into(), bytes.len() as u64]);
                out.extend_from_slice(bytes);
                rule(register, Rule::IsExpression(bytes.clone()));
            }
            // gimli remembers no more than four states, of which the initial one may be one.
            Op::Remember => {
                if self.initial.is_some() && self.remembered.len() < 2 {
                    out.push(0x0a);
                    self.remembered.push(self.now.clone());
                }
            }
            Op::RestoreState => {
                if let Some(state) = self.remembered.pop() {
                    out.push(0x0b);
                    self.now = state;
                }
            }
            Op::ArgsSize(size) => coded(out, 0x2e, &[size]),
            Op::Nop => out.push(0),
        }
    }
}

/// Fills an entry up, and puts its length in front of it.
fn entry(out: &mut Vec<u8>, mut body: Vec<u8>) {
    while !(body.len() + 4).is_multiple_of(8) {
        body.push(0);
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.append(&mut body);
}

impl Section {
    /// The initial instructions, and the machine that has done them, and that had these rules before.
    fn initial(&self, rules: BTreeMap<u16, Rule>) -> (Machine, Vec<u8>) {
        let now = State { cfa: Cfa::From(7, 0), rules };
        let mut machine = Machine { now, initial: None, remembered: Vec::new(), factor: self.factors.1 };
        let mut out = Vec::new();
        machine.run(&Op::Cfa(7, 8), &mut out);
        machine.run(&Op::At(16, 1), &mut out);
        self.initial.iter().for_each(|op| machine.run(op, &mut out));
        machine.initial = Some(machine.now.clone());
        (machine, out)
    }

    /// Start and entry of each function, from the start of the code.
    fn functions(&self) -> impl Iterator<Item = (i64, &Entry)> {
        let mut next = self.first;
        self.entries.iter().map(move |entry| {
            let start = next + i64::from(entry.gap);
            next = start + i64::from(entry.len);
            (start, entry)
        })
    }

    /// The section for code at `code`, when it lies at `at` itself.
    pub fn bytes(&self, at: u64, code: u64) -> Vec<u8> {
        let (_, initial) = self.initial(BTreeMap::new());
        let mut out = Vec::new();
        let mut cie = vec![0, 0, 0, 0, self.version];
        let letters = [(self.personality, 'P'), (self.personality, 'L'), (true, 'R'), (self.signal, 'S')];
        cie.push(b'z');
        cie.extend(letters.iter().filter(|letter| letter.0).map(|letter| letter.1 as u8));
        cie.push(0);
        unsigned(&mut cie, self.factors.0);
        signed(&mut cie, self.factors.1);
        cie.push(16);
        if self.personality {
            cie.extend([11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, self.pointers as u8]);
        } else {
            cie.extend([1, self.pointers as u8]);
        }
        cie.extend(initial);
        entry(&mut out, cie);

        let mut functions: Vec<_> = self.functions().collect();
        if self.swapped && !functions.is_empty() {
            functions.rotate_right(1);
        }
        for (start, function) in functions {
            let here = out.len();
            let mut fde = (here as u32 + 4).to_le_bytes().to_vec();
            let address = code.wrapping_add(start as u64);
            let relative = address.wrapping_sub(at + here as u64 + 8);
            match self.pointers {
                Pointers::Relative4 => {
                    fde.extend((relative as u32).to_le_bytes());
                    fde.extend(u32::from(function.len).to_le_bytes());
                }
                Pointers::Relative8 | Pointers::Absolute => {
                    let written = if matches!(self.pointers, Pointers::Absolute) { address } else { relative };
                    fde.extend(written.to_le_bytes());
                    fde.extend(u64::from(function.len).to_le_bytes());
                }
            }
            fde.push(if self.personality { 8 } else { 0 });
            fde.extend(self.personality.then_some([9; 8]).into_iter().flatten());
            let (mut machine, _) = self.initial(BTreeMap::new());
            for (step, op) in &function.steps {
                match *step {
                    0 => {}
                    step @ 1..64 => fde.push(0x40 | step as u8),
                    step @ 64..256 => fde.extend([2, step as u8]),
                    step @ 256..0x1_0000 => fde.extend([3, step as u8, (step >> 8) as u8]),
                    step => {
                        fde.push(4);
                        fde.extend(step.to_le_bytes());
                    }
                }
                machine.run(op, &mut fde);
            }
            entry(&mut out, fde);
        }
        if self.terminator {
            out.extend([0; 4]);
        }
        out
    }

    /// What the section says of code of this size.
    pub fn expected(&self, arch: Arch, code_size: u64) -> States {
        // For x86-64 the library says before all else that rbx keeps its value.
        let said_before: BTreeMap<u16, Rule> = (arch == Arch::X86_64).then_some((3, Rule::Same)).into_iter().collect();
        // By where it begins to be so; counted from the code, and what is before it counts at its start.
        let mut states = BTreeMap::from([(0, None)]);
        for (start, entry) in self.functions() {
            let end = start + i64::from(entry.len);
            if start == end || end <= 0 || start >= code_size as i64 {
                continue;
            }
            let (mut machine, _) = self.initial(said_before.clone());
            let mut at = start;
            states.insert(at.max(0), Some(machine.now.clone()));
            for (step, op) in &entry.steps {
                at += i64::from(*step) * self.factors.0 as i64;
                if at >= end {
                    break;
                }
                machine.run(op, &mut Vec::new());
                states.insert(at.max(0), Some(machine.now.clone()));
            }
            states.insert(end, None);
        }
        states.into_iter().map(|(at, state)| (at as u64, state)).collect()
    }
}
