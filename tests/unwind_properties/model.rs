//! What descriptions mean: the text of `jitsym_unwind` in the C header in another form, without a thought of DWARF.

use std::collections::BTreeMap;
use std::ops::Range;

use jitsym::format::arch::Arch;
use jitsym::{Error, FixedFrame, FramePointer, SavedRegister, SigningKey, Unwind, UnwindRow};

use crate::cfi::{Cfa, Rule, State};

/// Where registers are saved: number, and distance from the CFA.
pub type Saved = Vec<SavedRegister>;

/// A row as `jitsym::UnwindRow`.
#[derive(Clone, Debug)]
pub struct Row {
    pub offset: u32,
    pub cfa_register: u32,
    pub cfa_offset: i32,
    pub saved: Saved,
}

/// Places as in `jitsym::FramePointer`.
#[derive(Clone, Debug)]
pub struct Places {
    pub pushed: u32,
    pub set: u32,
    pub saved_from: u32,
    pub epilogue_begin: u32,
    pub epilogue_end: u32,
    pub signed: Option<SigningKey>,
}

impl Places {
    /// All of them, to change one.
    pub fn all(&mut self) -> Vec<&mut u32> {
        let Places { pushed, set, saved_from, epilogue_begin, epilogue_end, signed: _ } = self;
        vec![pushed, set, saved_from, epilogue_begin, epilogue_end]
    }
}

/// Places as in `jitsym::FixedFrame`.
#[derive(Clone, Debug, Default)]
pub struct FixedPlaces {
    pub pushed: u32,
    pub sp_set: u32,
    pub saved_from: u32,
    pub sp_reset: u32,
    pub epilogue_begin: u32,
    pub epilogue_end: u32,
    pub signed: Option<SigningKey>,
}

impl FixedPlaces {
    /// All of them, to change one.
    pub fn all(&mut self) -> Vec<&mut u32> {
        let FixedPlaces { pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end, signed: _ } = self;
        vec![pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end]
    }
}

/// A description that owns what it points to.
#[derive(Clone, Debug)]
pub enum Description {
    FramePointer(Places, i32, Saved),
    FixedFrame(FixedPlaces, i32, Saved),
    Rows(Vec<Row>),
}

impl Description {
    /// The key with which the code signs its return address.
    pub fn signed(&self) -> Option<SigningKey> {
        match self {
            Description::FramePointer(places, ..) => places.signed,
            Description::FixedFrame(places, ..) => places.signed,
            Description::Rows(_) => None,
        }
    }

    /// Calls `f` with the description as the library takes it.
    pub fn with<T>(&self, f: impl FnOnce(&Unwind) -> T) -> T {
        match self {
            Description::FramePointer(places, cfa_offset, saved) => {
                let Places { pushed, set, saved_from, epilogue_begin, epilogue_end, signed } = *places;
                let cfa_offset = *cfa_offset;
                let fp =
                    FramePointer { pushed, set, epilogue_begin, epilogue_end, cfa_offset, saved, saved_from, signed };
                f(&Unwind::FramePointer(fp))
            }
            Description::FixedFrame(places, cfa_offset, saved) => {
                let FixedPlaces { pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end, signed } =
                    *places;
                let cfa_offset = *cfa_offset;
                f(&Unwind::FixedFrame(FixedFrame {
                    cfa_offset,
                    saved,
                    pushed,
                    sp_set,
                    saved_from,
                    sp_reset,
                    epilogue_begin,
                    epilogue_end,
                    signed,
                }))
            }
            Description::Rows(rows) => {
                let row = |row: &Row| (row.offset, row.cfa_register, row.cfa_offset);
                let rows: Vec<UnwindRow> = rows
                    .iter()
                    .map(|it| (row(it), &*it.saved))
                    .map(|((offset, cfa_register, cfa_offset), saved)| UnwindRow {
                        offset,
                        cfa_register,
                        cfa_offset,
                        saved,
                    })
                    .collect();
                f(&Unwind::Rows(&rows))
            }
        }
    }
}

/// What an architecture fixes.
pub struct Machine {
    pub sp: u16,
    pub fp: u16,
    pub ra: u16,
    /// Registers that can be saved, and those that a CFA can be counted from.
    pub registers: &'static [u32],
    pub general: u32,
    /// `fp_pushed`, `fp_set` and `cfa_offset` when they are 0.
    usual: (u32, u32, i64),
}

/// 0 to 95.
const NUMBERS: [u32; 96] = {
    let mut numbers = [0; 96];
    let mut at = 0;
    while at < 96 {
        numbers[at] = at as u32;
        at += 1;
    }
    numbers
};

const AARCH64: [u32; 64] = {
    let mut numbers = [0; 64];
    let mut at = 0;
    while at < 64 {
        // x0 to x30 and sp; v0 to v31.
        numbers[at] = if at < 32 { at as u32 } else { at as u32 + 32 };
        at += 1;
    }
    numbers
};

pub fn machine(arch: Arch) -> Machine {
    match arch {
        Arch::X86_64 => {
            let registers = NUMBERS.split_at(33).0;
            Machine { sp: 7, fp: 6, ra: 16, registers, general: 16, usual: (1, 4, 16) }
        }
        Arch::Aarch64 => Machine { sp: 31, fp: 29, ra: 30, registers: &AARCH64, general: 32, usual: (4, 8, 16) },
        _ => {
            let registers = NUMBERS.split_at(64).0;
            Machine { sp: 2, fp: 8, ra: 1, registers, general: 32, usual: (12, 16, 0) }
        }
    }
}

/// States with the offsets that they begin at; one that begins at the end of the code is of no byte.
pub type States = Vec<(u64, Option<State>)>;

/// A state in the making, and all that is wrong with the description: which of several faults is told is left open.
struct Model {
    arch: Arch,
    machine: Machine,
    faults: Vec<Error>,
}

/// What a description says of each byte of the code, or what can be held against it.
pub fn expected(arch: Arch, description: &Description, code_size: u64) -> Result<States, Vec<Error>> {
    let mut model = Model { arch, machine: machine(arch), faults: Vec::new() };
    let sign = model.sign(description.signed());
    let states = match description {
        Description::FramePointer(places, cfa_offset, saved) => {
            model.frame_pointer(places, *cfa_offset, saved, sign, code_size)
        }
        Description::FixedFrame(places, cfa_offset, saved) => model.fixed_frame(places, *cfa_offset, saved, code_size),
        Description::Rows(rows) => {
            let mut states = vec![(0, model.entry())];
            for (index, row) in rows.iter().enumerate() {
                if u64::from(row.offset) >= code_size || index > 0 && rows[index - 1].offset >= row.offset {
                    model.faults.push(Error::UnwindOrder);
                }
                let state = model.state(row.cfa_register, row.cfa_offset, &row.saved);
                states.push((row.offset.into(), state));
            }
            states
        }
    };
    let mut states: States = states.into_iter().map(|(from, state)| (from, Some(state))).collect();
    let (first, begin, end) = match description {
        Description::FramePointer(places, ..) => {
            let pushed = if places.pushed == 0 { 4 + sign } else { places.pushed.into() };
            (Some(pushed), places.epilogue_begin, places.epilogue_end)
        }
        Description::FixedFrame(places, ..) => {
            let first = [places.pushed, places.sp_set].into_iter().find(|&place| place != 0).map(u64::from);
            (first, places.epilogue_begin, places.epilogue_end)
        }
        Description::Rows(_) => (None, 0, 0),
    };
    let end = if begin == 0 {
        0
    } else if end == 0 {
        code_size
    } else {
        end.into()
    };
    model.add_signed(&mut states, sign, first, begin.into()..end);
    if model.faults.is_empty() {
        Ok(states)
    } else {
        Err(model.faults)
    }
}

const RBX: u16 = 3;
/// The column that says whether the return address is signed.
const RA_SIGN_STATE: u16 = 34;

impl Model {
    /// Only x86-64 calls store the return address; and there it is said that rbx keeps its value, which libdw does not know.
    fn entry(&self) -> State {
        let Machine { sp, ra, .. } = self.machine;
        match self.arch {
            Arch::X86_64 => {
                State { cfa: Cfa::From(sp, 8), rules: BTreeMap::from([(RBX, Rule::Same), (ra, Rule::At(-8))]) }
            }
            _ => State { cfa: Cfa::From(sp, 0), rules: BTreeMap::new() },
        }
    }

    fn save(&mut self, state: &mut State, saved: &[SavedRegister]) {
        for register in saved {
            if !self.machine.registers.contains(&register.reg) {
                self.faults.push(Error::UnwindRegister);
            }
            if register.offset % 8 != 0 {
                self.faults.push(Error::UnwindFormat);
            }
            self.slot(state, register.reg as u16, register.offset.into());
        }
    }

    fn slot(&mut self, state: &mut State, register: u16, offset: i64) {
        let there = state.rules.insert(register, Rule::At(offset));
        if there.is_some_and(|there| there != Rule::At(offset) && there != Rule::Same) || i32::try_from(offset).is_err()
        {
            self.faults.push(Error::UnwindFormat);
        }
    }

    fn state(&mut self, cfa_register: u32, cfa_offset: i32, saved: &[SavedRegister]) -> State {
        if cfa_register >= self.machine.general {
            self.faults.push(Error::UnwindRegister);
        }
        if cfa_offset % 8 != 0 {
            self.faults.push(Error::UnwindFormat);
        }
        let mut state = State { cfa: Cfa::From(cfa_register as u16, cfa_offset.into()), ..self.entry() };
        self.save(&mut state, saved);
        state
    }

    /// Size of the instruction that signs the return address.
    fn sign(&mut self, signed: Option<SigningKey>) -> u64 {
        match (signed, self.arch) {
            (None, _) => 0,
            (Some(_), Arch::Aarch64) => 4,
            (Some(_), _) => {
                self.faults.push(Error::UnwindFormat);
                0
            }
        }
    }

    /// Adds to the states where the return address is signed: from the instruction before `first` on, and in the epilogue up to
    /// the end of its first instruction.
    fn add_signed(&mut self, states: &mut States, sign: u64, first: Option<u64>, epilogue: Range<u64>) {
        if sign == 0 {
            return;
        }
        if first.is_some_and(|first| first < 2 * sign) || !epilogue.is_empty() && epilogue.start + sign > epilogue.end {
            self.faults.push(Error::UnwindOrder);
        }
        let from = first.map_or(0, |first| first.saturating_sub(sign));
        for change in [from, epilogue.start + sign] {
            let before = states.iter().rfind(|row| row.0 <= change).expect("a state from 0 on");
            let (Err(at), state) = (states.binary_search_by_key(&change, |row| row.0), before.1.clone()) else {
                continue;
            };
            states.insert(at, (change, state));
        }
        for (at, state) in states {
            let is_signed = if epilogue.contains(at) { *at < epilogue.start + sign } else { *at >= from };
            if let Some(state) = state.as_mut().filter(|_| is_signed) {
                state.rules.insert(RA_SIGN_STATE, Rule::Signed);
            }
        }
    }

    fn fixed_frame(
        &mut self,
        places: &FixedPlaces,
        cfa_offset: i32,
        saved: &[SavedRegister],
        size: u64,
    ) -> Vec<(u64, State)> {
        let FixedPlaces { pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end, signed: _ } = *places;
        let [pushed, sp_set, reset, begin] = [pushed, sp_set, sp_reset, epilogue_begin].map(u64::from);
        let saved_from = if saved.is_empty() || saved_from == 0 { sp_set } else { saved_from.into() };
        let end = if epilogue_end == 0 { size } else { epilogue_end.into() };
        let mut in_order = pushed <= sp_set && sp_set <= saved_from && saved_from <= size;
        if begin == 0 {
            in_order &= epilogue_end == 0 && reset == 0;
        } else {
            in_order &= saved_from <= begin && begin <= end && end <= size;
            in_order &= reset == 0 || pushed != 0 && saved_from <= reset && reset <= begin;
        }
        if !in_order {
            self.faults.push(Error::UnwindOrder);
        }
        let machine_fp = (self.machine.sp, self.machine.fp, self.machine.ra);
        let (sp, fp, ra) = machine_fp;
        let mut stored = self.entry();
        if pushed != 0 {
            match self.arch {
                Arch::X86_64 => {
                    stored.cfa = Cfa::From(sp, 16);
                    self.slot(&mut stored, fp, -16);
                }
                Arch::Aarch64 => {
                    let taken = if pushed == sp_set { cfa_offset.into() } else { 16 };
                    stored.cfa = Cfa::From(sp, taken);
                    self.slot(&mut stored, fp, -taken);
                    self.slot(&mut stored, ra, 8 - taken);
                }
                _ => self.faults.push(Error::UnwindFormat),
            }
        }
        if cfa_offset % 8 != 0 {
            self.faults.push(Error::UnwindFormat);
        }
        let mut standing = State { cfa: Cfa::From(sp, cfa_offset.into()), ..stored.clone() };
        let without = standing.clone();
        self.save(&mut standing, saved);
        let mut changes = vec![0, pushed, sp_set, saved_from];
        if begin != 0 {
            changes.extend([begin, end]);
            changes.extend((reset != 0).then_some(reset));
        }
        changes.sort_unstable();
        changes.dedup();
        let state_at = |offset: u64| {
            if begin != 0 && (begin..end).contains(&offset) {
                self.entry()
            } else if begin != 0 && begin < end && reset != 0 && (reset..begin).contains(&offset) {
                stored.clone()
            } else if offset >= saved_from {
                standing.clone()
            } else if offset >= sp_set {
                without.clone()
            } else if offset >= pushed && pushed != 0 {
                stored.clone()
            } else {
                self.entry()
            }
        };
        changes.into_iter().map(|offset| (offset, state_at(offset))).collect()
    }

    fn frame_pointer(
        &mut self,
        places: &Places,
        cfa_offset: i32,
        saved: &[SavedRegister],
        sign: u64,
        size: u64,
    ) -> Vec<(u64, State)> {
        let Machine { sp, fp, ra, usual, .. } = self.machine;
        let or = |value: u32, usual: u32| u64::from(if value == 0 { usual } else { value });
        let (pushed, set) = (or(places.pushed, usual.0 + sign as u32), or(places.set, usual.1 + sign as u32));
        // Without registers there is no place where they are saved.
        let saved_from = if saved.is_empty() { set } else { or(places.saved_from, set as u32) };
        let (begin, mut end) = (u64::from(places.epilogue_begin), u64::from(places.epilogue_end));
        let cfa_offset = if cfa_offset == 0 { usual.2 } else { cfa_offset.into() };

        let mut in_order = pushed <= set && pushed <= saved_from && set.max(saved_from) <= size;
        if begin == 0 {
            in_order &= end == 0;
        } else {
            end = if end == 0 { size } else { end };
            in_order &= set.max(saved_from) <= begin && begin <= end && end <= size;
        }
        if !in_order {
            self.faults.push(Error::UnwindOrder);
        }
        if cfa_offset % 8 != 0 {
            self.faults.push(Error::UnwindFormat);
        }

        // What is stored when; and what the CFA is counted from.
        let mut stored = self.entry();
        let mut standing = self.entry();
        standing.cfa = Cfa::From(fp, cfa_offset);
        match self.arch {
            Arch::X86_64 => {
                stored.cfa = Cfa::From(sp, 16);
                self.slot(&mut stored, fp, -16);
                standing.rules = stored.rules.clone();
            }
            Arch::Aarch64 => {
                stored.cfa = Cfa::From(sp, cfa_offset);
                self.slot(&mut stored, fp, -cfa_offset);
                self.slot(&mut stored, ra, 8 - cfa_offset);
                standing.rules = stored.rules.clone();
            }
            _ => {
                // Until the frame pointer is set, both registers still have the caller's values.
                stored.cfa = Cfa::From(sp, 16);
                self.slot(&mut standing, fp, -16);
                self.slot(&mut standing, ra, -8);
            }
        }
        let mut whole = standing.clone();
        self.save(&mut whole, saved);

        // From here on it is the caller's own words, byte by byte where something happens.
        let mut changes = vec![0, pushed, set, saved_from];
        if begin != 0 {
            changes.extend([begin, end]);
        }
        changes.sort_unstable();
        changes.dedup();
        let state_at = |offset: u64| {
            if offset < pushed || begin != 0 && (begin..end).contains(&offset) {
                self.entry()
            } else if offset >= set && offset >= saved_from {
                whole.clone()
            } else if offset >= set {
                standing.clone()
            } else {
                let mut state = stored.clone();
                if offset >= saved_from {
                    state.rules.extend(saved.iter().map(|it| (it.reg as u16, Rule::At(it.offset.into()))));
                }
                state
            }
        };
        changes.into_iter().map(|offset| (offset, state_at(offset))).collect()
    }
}
