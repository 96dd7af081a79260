//! The kinds of description that are not CFI yet, as one CIE and one FDE.

use std::ops::RangeInclusive;

use gimli::write::{CallFrameInstruction, FrameTable};
use gimli::Register;

use super::{Entries, Placement};
use crate::api::code::{FramePointer, SavedRegister, Unwind};
use crate::api::error::{Error, Result};
use crate::sys::arch::Arch;

/// Bytes of a stack slot; the CIE's data alignment factor is the negative of it.
const SLOT: i32 = 8;

/// One more than the highest register number of any architecture.
const REGISTERS: usize = 96;

/// What an architecture's psABI fixes about frames. Registers have their DWARF numbers.
struct Abi {
    /// All registers that can be saved.
    registers: &'static [RangeInclusive<u32>],
    /// Those that hold addresses, so that a CFA can be counted from them.
    general: RangeInclusive<u32>,
    /// Stack pointer.
    sp: u16,
    /// Frame pointer.
    fp: u16,
    /// Return address column.
    ra: u16,
    /// CFA - SP at a call's target.
    entry_cfa: i32,
    /// Where the call instruction has stored the return address, from the CFA.
    entry_ra: Option<i32>,
    /// The values that 0 stands for in a [`FramePointer`].
    pushed: u32,
    set: u32,
    fp_to_cfa: i32,
}

/// The ABI of an architecture.
///
/// Sources: System V psABI for AMD64, 3.6.2 and figure 3.36; DWARF for the Arm 64-bit Architecture (AADWARF64), 4.1;
/// RISC-V ELF psABI, "DWARF Register Numbers" and "Frame Pointer Convention".
fn abi(arch: Arch) -> &'static Abi {
    match arch {
        Arch::X86_64 => &Abi {
            registers: &[0..=32],
            general: 0..=15,
            sp: 7,
            fp: 6,
            ra: 16,
            entry_cfa: 8,
            entry_ra: Some(-8),
            pushed: 1,
            set: 4,
            fp_to_cfa: 16,
        },
        Arch::Aarch64 => &Abi {
            registers: &[0..=31, 64..=95],
            general: 0..=31,
            sp: 31,
            fp: 29,
            ra: 30,
            entry_cfa: 0,
            entry_ra: None,
            pushed: 4,
            set: 8,
            fp_to_cfa: 16,
        },
        Arch::Riscv64 => &Abi {
            registers: &[0..=63],
            general: 0..=31,
            sp: 2,
            fp: 8,
            ra: 1,
            entry_cfa: 0,
            entry_ra: None,
            pushed: 12,
            set: 16,
            fp_to_cfa: 0,
        },
    }
}

/// A [`FramePointer`] that has been checked against a code size, with the defaults filled in: equal frames have equal
/// tables, up to the size of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From here the caller's frame pointer is in its slot.
    pub pushed: u32,
    /// From here the CFA is counted from the frame pointer.
    pub set: u32,
    /// From here `saved` are in their slots; not before `pushed`.
    pub saved_from: u32,
    /// From here the state is that at entry; 0 if there is no such place.
    pub epilogue_begin: u32,
    /// From here the frame is standing again; 0 if that is nowhere.
    pub epilogue_end: u32,
    /// CFA = FP + this.
    pub cfa_offset: i32,
    /// Registers saved beyond the frame pointer and the return address.
    pub saved: &'a [SavedRegister],
}

impl<'a> Frame<'a> {
    /// Fills in the defaults; `UnwindOrder` if the places are not in order or lie beyond the code.
    pub fn resolve(arch: Arch, fp: &FramePointer<'a>, code_size: u64) -> Result<Self> {
        let abi = abi(arch);
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let pushed = or(fp.pushed, abi.pushed);
        let set = or(fp.set, abi.set);
        let saved_from = if fp.saved.is_empty() { set } else { or(fp.saved_from, set) };
        let standing = set.max(saved_from);
        if pushed > set || pushed > saved_from || u64::from(standing) > code_size {
            return Err(Error::UnwindOrder);
        }
        let (mut begin, mut end) = (fp.epilogue_begin, fp.epilogue_end);
        if begin == 0 {
            if end != 0 {
                return Err(Error::UnwindOrder);
            }
        } else {
            let until = if end == 0 { code_size } else { u64::from(end) };
            if begin < standing || u64::from(begin) > until || until > code_size {
                return Err(Error::UnwindOrder);
            }
            if until == code_size {
                end = 0;
            }
            if u64::from(begin) == until {
                (begin, end) = (0, 0);
            }
        }
        Ok(Frame {
            pushed,
            set,
            saved_from,
            epilogue_begin: begin,
            epilogue_end: end,
            cfa_offset: if fp.cfa_offset == 0 { abi.fp_to_cfa } else { fp.cfa_offset },
            saved: fp.saved,
        })
    }
}

/// The CIE and the FDE of a description. Places are checked against `limit`, and `code_size` is written.
pub(super) fn entries(unwind: &Unwind, limit: u64, code_size: u64, placement: &Placement) -> Result<Entries> {
    let arch = placement.arch;
    let mut program = Program::new(arch);
    match unwind {
        Unwind::FramePointer(fp) => program.frame_pointer(arch, &Frame::resolve(arch, fp, limit)?)?,
        Unwind::FixedFrame { cfa_offset, saved } => {
            let sp = u32::from(program.abi.sp);
            let state = program.state(sp, *cfa_offset, saved)?;
            program.to(0, state);
        }
        Unwind::Rows(rows) => {
            let mut least = 0;
            for row in *rows {
                if u64::from(row.offset) < least || u64::from(row.offset) >= limit {
                    return Err(Error::UnwindOrder);
                }
                least = u64::from(row.offset) + 1;
                let state = program.state(row.cfa_register, row.cfa_offset, row.saved)?;
                program.to(row.offset, state);
            }
        }
        // These are no programs; the caller sees to them.
        Unwind::None | Unwind::EhFrame { .. } => return Err(Error::Internal),
    }

    let Abi { sp, ra, entry_cfa, entry_ra, .. } = *program.abi;
    let mut cie = placement.cie(-(SLOT as i8), Register(ra));
    cie.add_instruction(CallFrameInstruction::Cfa(Register(sp), entry_cfa));
    if let Some(slot) = entry_ra {
        cie.add_instruction(CallFrameInstruction::Offset(Register(ra), slot));
    }
    let mut fde = placement.fde(0, u32::try_from(code_size).map_err(|_| Error::TooLarge)?);
    for (offset, instruction) in program.instructions {
        fde.add_instruction(offset, instruction);
    }
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie);
    table.add_fde(cie, fde);
    Ok(Entries { table, starts: vec![0] })
}

/// Where the CFA and the caller's registers are.
#[derive(Clone)]
struct State {
    cfa_register: u16,
    cfa_offset: i32,
    /// For each register, the distance of its slot from the CFA; `None` if it still has the caller's value.
    slots: [Option<i32>; REGISTERS],
}

impl State {
    /// Puts a register into a slot. A second slot for the same register contradicts the first.
    fn save(&mut self, abi: &Abi, reg: u32, offset: i32) -> Result<()> {
        if !abi.registers.iter().any(|range| range.contains(&reg)) {
            return Err(Error::UnwindRegister);
        }
        if offset % SLOT != 0 {
            return Err(Error::UnwindFormat);
        }
        let slot = self.slots.get_mut(reg as usize).ok_or(Error::UnwindRegister)?;
        match slot.replace(offset) {
            Some(other) if other != offset => Err(Error::UnwindFormat),
            _ => Ok(()),
        }
    }
}

/// The instructions of an FDE in the making.
struct Program {
    abi: &'static Abi,
    now: State,
    instructions: Vec<(u32, CallFrameInstruction)>,
}

impl Program {
    fn new(arch: Arch) -> Self {
        let abi = abi(arch);
        Program { abi, now: entry(abi), instructions: Vec::new() }
    }

    /// A whole state, which does not depend on the one before.
    fn state(&self, cfa_register: u32, cfa_offset: i32, saved: &[SavedRegister]) -> Result<State> {
        if !self.abi.general.contains(&cfa_register) {
            return Err(Error::UnwindRegister);
        }
        if cfa_offset % SLOT != 0 {
            return Err(Error::UnwindFormat);
        }
        let cfa_register = u16::try_from(cfa_register).map_err(|_| Error::UnwindRegister)?;
        let mut state = State { cfa_register, cfa_offset, ..entry(self.abi) };
        for register in saved {
            state.save(self.abi, register.reg, register.offset)?;
        }
        Ok(state)
    }

    /// From `offset` on the state is this one: emits what differs.
    fn to(&mut self, offset: u32, state: State) {
        use CallFrameInstruction::{Cfa, CfaOffset, CfaRegister, Offset, Restore};
        let register = Register(state.cfa_register);
        match (state.cfa_register == self.now.cfa_register, state.cfa_offset == self.now.cfa_offset) {
            (true, true) => {}
            (true, false) => self.instructions.push((offset, CfaOffset(state.cfa_offset))),
            (false, true) => self.instructions.push((offset, CfaRegister(register))),
            (false, false) => self.instructions.push((offset, Cfa(register, state.cfa_offset))),
        }
        for (number, (new, old)) in (0..).zip(state.slots.iter().zip(&self.now.slots)) {
            match new {
                _ if new == old => {}
                Some(slot) => self.instructions.push((offset, Offset(Register(number), *slot))),
                None => self.instructions.push((offset, Restore(Register(number)))),
            }
        }
        self.now = state;
    }

    /// A frame with a frame pointer.
    ///
    /// On x86-64 the call has pushed the return address and the code pushes the frame pointer below it, so both lie at fixed
    /// distances from the CFA wherever the frame pointer points to. On aarch64 `stp x29, x30, [sp, #-n]!` takes the whole
    /// frame, so that the pair lies at its bottom, and `mov x29, sp` follows: CFA - FP is n too.
    ///
    /// On riscv64 no one instruction does it; the usual prologue is `addi sp,-16; sd ra,8(sp); sd s0,0(sp); addi s0,sp,16`.
    /// The places given do not tell where SP changes, nor by how much if the frame is larger, and the frame pointer is what
    /// makes that irrelevant. Until it is set, ra and s0 have the caller's values, so they are read from the registers:
    /// the caller's pc and frame pointer are right at every instruction. CFA = SP + 16 from `pushed` to `set` is right for
    /// the prologue above. Code that wants every instruction right describes itself in rows.
    fn frame_pointer(&mut self, arch: Arch, frame: &Frame) -> Result<()> {
        let abi = self.abi;
        let (fp, ra) = (u32::from(abi.fp), u32::from(abi.ra));
        let mut pushed = entry(abi);
        let mut standing = self.state(fp, frame.cfa_offset, &[])?;
        match arch {
            Arch::X86_64 => {
                standing.save(abi, fp, -2 * SLOT)?;
                pushed.slots = standing.slots;
                pushed.cfa_offset = 2 * SLOT;
            }
            Arch::Aarch64 => {
                let pair = frame.cfa_offset.checked_neg().ok_or(Error::UnwindFormat)?;
                standing.save(abi, fp, pair)?;
                standing.save(abi, ra, pair.checked_add(SLOT).ok_or(Error::UnwindFormat)?)?;
                pushed.slots = standing.slots;
                pushed.cfa_offset = frame.cfa_offset;
            }
            Arch::Riscv64 => {
                standing.save(abi, fp, -2 * SLOT)?;
                standing.save(abi, ra, -SLOT)?;
                pushed.cfa_offset = 2 * SLOT;
            }
        }
        let mut saved = standing.clone();
        for register in frame.saved {
            saved.save(abi, register.reg, register.offset)?;
        }
        self.to(frame.pushed, pushed.clone());
        if frame.saved_from < frame.set {
            // The registers listed are in their slots, and what the frame pointer brings is not there yet.
            for register in frame.saved {
                pushed.save(abi, register.reg, register.offset)?;
            }
            self.to(frame.saved_from, pushed);
        } else {
            self.to(frame.set, standing);
        }
        self.to(frame.saved_from.max(frame.set), saved.clone());

        if frame.epilogue_begin != 0 {
            let comes_back = frame.epilogue_end != 0;
            if comes_back {
                self.instructions.push((frame.epilogue_begin, CallFrameInstruction::RememberState));
            }
            self.to(frame.epilogue_begin, entry(abi));
            if comes_back {
                // DWARF 5, 6.4.2.4 says that the rules for registers come back, and there are readers (llvm-dwarfdump 14)
                // that leave the CFA as it is.
                let cfa = CallFrameInstruction::Cfa(Register(saved.cfa_register), saved.cfa_offset);
                self.instructions.push((frame.epilogue_end, CallFrameInstruction::RestoreState));
                self.instructions.push((frame.epilogue_end, cfa));
            }
        }
        Ok(())
    }
}

/// The state at a call's target, which is what the CIE says.
fn entry(abi: &Abi) -> State {
    let mut slots = [None; REGISTERS];
    if let Some(slot) = slots.get_mut(usize::from(abi.ra)) {
        *slot = abi.entry_ra;
    }
    State { cfa_register: abi.sp, cfa_offset: abi.entry_cfa, slots }
}
