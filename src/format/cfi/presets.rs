//! Converts an unwind description into one CIE and one FDE. The description is a [`FramePointer`], a [`FixedFrame`] or a list
//! of rows.

use gimli::write::{CallFrameInstruction, FrameTable};
use gimli::Register;

use super::entries::{check_memory, Entries, Placement};
use crate::api::code::{FixedFrame, FramePointer, SavedRegister, SigningKey, Unwind};
use crate::api::error::{Error, Result};
use crate::format::arch::{Abi, Arch, FrameAbi};

/// The number of registers: one more than the highest register number of any architecture.
const REGISTERS: usize = 96;

/// Fills in the defaults of a frame with a frame pointer. Returns `UnwindOrder` if the offsets are not in order or are beyond
/// the code. If two pieces of code have equal resolved frames, their tables differ only in the words that depend on the size of
/// the code.
pub fn resolve_frame_pointer<'a>(arch: Arch, fp: &FramePointer<'a>, code_size: u64) -> Result<FramePointer<'a>> {
    let (abi, usual) = (arch.abi(), frame_abi(arch.abi())?);
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let sign = sign_size(abi, fp.signed)?;
    let pushed = or(fp.pushed, sign + usual.pushed);
    let set = or(fp.set, sign + usual.set);
    let saved_from = if fp.saved.is_empty() { set } else { or(fp.saved_from, set) };
    let standing = set.max(saved_from);
    if pushed > set || pushed > saved_from || u64::from(standing) > code_size {
        let text = "the frame stands from byte {} on (fp_pushed is {}), the code has {} bytes";
        return Err(Error::UnwindOrder.because(text, [standing.into(), pushed.into(), code_size]));
    }
    check_signed(pushed, sign)?;
    let (epilogue_begin, epilogue_end) =
        resolve_epilogue(fp.epilogue_begin, fp.epilogue_end, standing, sign, code_size)?;
    let cfa_offset = if fp.cfa_offset == 0 { usual.fp_to_cfa } else { fp.cfa_offset };
    Ok(FramePointer { pushed, set, saved_from, epilogue_begin, epilogue_end, cfa_offset, ..*fp })
}

/// The usual frame with a frame pointer. Returns `Arch` if the architecture has no such frame.
fn frame_abi(abi: &Abi) -> Result<&FrameAbi> {
    abi.frame.as_ref().ok_or_else(|| {
        Error::Arch.because("code of this architecture has no frame pointer that points to the caller's frame", [])
    })
}

/// Size of the instruction that signs the return address; 0 if the code does not sign the return address.
fn sign_size(abi: &Abi, signed: Option<SigningKey>) -> Result<u32> {
    match signed {
        None => Ok(0),
        Some(_) => abi
            .sign
            .ok_or_else(|| Error::UnwindFormat.because("code of this architecture does not sign return addresses", [])),
    }
}

/// Checks that the instruction that signs the return address fits before the first instruction of the frame. `first` is the
/// offset at which the first instruction of the frame ends.
fn check_signed(first: u32, sign: u32) -> Result<()> {
    if first < 2 * sign {
        let text = "the frame begins at byte {}, and the instruction that signs the return address precedes it";
        return Err(Error::UnwindOrder.because(text, [first.into()]));
    }
    Ok(())
}

/// Fills in the defaults of an epilogue. The epilogue must not begin before `standing`, the offset at which the frame is
/// complete. An epilogue that is not empty must have room for an instruction of `sign` bytes.
fn resolve_epilogue(mut begin: u32, mut end: u32, standing: u32, sign: u32, code_size: u64) -> Result<(u32, u32)> {
    if begin == 0 {
        if end != 0 {
            return Err(Error::UnwindOrder.because("epilogue_end is {}, and epilogue_begin 0", [end.into()]));
        }
    } else {
        let until = if end == 0 { code_size } else { u64::from(end) };
        let room = if u64::from(begin) == until { 0 } else { sign };
        if begin < standing || u64::from(begin) + u64::from(room) > until || until > code_size {
            let text = "the epilogue is [{}, {}): before the frame stands, or beyond the code of {} bytes";
            return Err(Error::UnwindOrder.because(text, [begin.into(), until, code_size]));
        }
        if until == code_size {
            end = 0;
        }
        if u64::from(begin) == until {
            (begin, end) = (0, 0);
        }
    }
    Ok((begin, end))
}

/// Fills in the defaults of a fixed frame. Returns `UnwindOrder` if the offsets are not in order or are beyond the code.
pub fn resolve_fixed<'a>(arch: Arch, fixed: &FixedFrame<'a>, code_size: u64) -> Result<FixedFrame<'a>> {
    let FixedFrame { pushed, sp_set, sp_reset, epilogue_begin, epilogue_end, .. } = *fixed;
    if pushed != 0 && !frame_abi(arch.abi())?.record_is_pushed {
        return Err(Error::UnwindFormat
            .because("no one instruction stores the frame pointer here: fp_pushed is {}", [pushed.into()]));
    }
    let saved_from = if fixed.saved.is_empty() || fixed.saved_from == 0 { sp_set } else { fixed.saved_from };
    if pushed > sp_set || sp_set > saved_from || u64::from(saved_from) > code_size {
        let text = "fp_pushed is {}, sp_set {}, saved_from {}, and the code has more bytes: not in this order";
        return Err(Error::UnwindOrder.because(text, [pushed.into(), sp_set.into(), saved_from.into()]));
    }
    if sp_reset != 0 && (pushed == 0 || sp_reset < saved_from || sp_reset > epilogue_begin) {
        let text = "sp_reset is {}: before the frame stands, after epilogue_begin ({}), or without fp_pushed";
        return Err(Error::UnwindOrder.because(text, [sp_reset.into(), epilogue_begin.into()]));
    }
    let standing = saved_from.max(sp_reset);
    let sign = sign_size(arch.abi(), fixed.signed)?;
    if let Some(first) = first_place(fixed) {
        check_signed(first, sign)?;
    }
    let (epilogue_begin, epilogue_end) = resolve_epilogue(epilogue_begin, epilogue_end, standing, sign, code_size)?;
    Ok(FixedFrame { saved_from, epilogue_begin, epilogue_end, ..*fixed })
}

/// The offset at which the first instruction of a fixed frame ends; `None` if the frame exists from the start.
fn first_place(fixed: &FixedFrame) -> Option<u32> {
    [fixed.pushed, fixed.sp_set].into_iter().find(|&place| place != 0)
}

/// Makes the CIE and the FDE for code of `code_size` bytes from the description `unwind`.
pub(super) fn entries(unwind: &Unwind, code_size: u64, placement: &Placement) -> Result<Entries> {
    let mut program = Program::new(placement.arch.abi());
    let key = match unwind {
        Unwind::FramePointer(fp) => fp.signed,
        Unwind::FixedFrame(fixed) => fixed.signed,
        _ => None,
    };
    match unwind {
        Unwind::FramePointer(fp) => program.frame_pointer(&resolve_frame_pointer(placement.arch, fp, code_size)?)?,
        Unwind::FixedFrame(fixed) => program.fixed_frame(&resolve_fixed(placement.arch, fixed, code_size)?)?,
        Unwind::Rows(rows) => {
            let mut least = 0;
            for row in *rows {
                if u64::from(row.offset) < least || u64::from(row.offset) >= code_size {
                    let text = "a row has offset {}: at least {} and less than {} are allowed";
                    return Err(Error::UnwindOrder.because(text, [row.offset.into(), least, code_size]));
                }
                least = u64::from(row.offset) + 1;
                let state = program.state(row.cfa_register, row.cfa_offset, row.saved)?;
                program.instructions.try_reserve(REGISTERS + 1).map_err(|_| Error::NoMemory)?;
                program.to(row.offset, state);
            }
            check_memory(program.instructions.len())?;
        }
        // The caller handles `Unwind::None` and `Unwind::EhFrame`.
        Unwind::None | Unwind::EhFrame { .. } => return Err(Error::Internal),
    }

    let Abi { sp, ra, entry_ra, word, .. } = *program.abi;
    let mut cie = placement.cie(-(word as i8), Register(ra));
    // See `Entries::b_key`.
    let b_key = key == Some(SigningKey::B);
    cie.signal_trampoline = b_key;
    cie.add_instruction(CallFrameInstruction::Cfa(Register(sp), entry(program.abi).cfa_offset));
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
    Ok(Entries { table, fdes: vec![(0, None)], b_key })
}

/// The places of the CFA and of the caller's registers at a code offset.
#[derive(Clone)]
struct FrameState {
    cfa_register: u16,
    cfa_offset: i32,
    /// For each register, the distance of its slot from the CFA; `None` if the register still has the caller's value.
    slots: [Option<i32>; REGISTERS],
    /// Whether the return address is signed.
    signed: bool,
}

impl FrameState {
    /// Notes that the caller's frame pointer is saved in the slot `record`, and the return address in the slot above.
    fn save_record(&mut self, abi: &Abi, frame: &FrameAbi, record: i32) -> Result<()> {
        self.save(abi, frame.fp.into(), record)?;
        self.save(abi, abi.ra.into(), record.checked_add(abi.word.into()).ok_or(Error::UnwindFormat)?)
    }

    /// Notes that a register is saved in a slot. Returns an error if the register already has another slot.
    fn save(&mut self, abi: &Abi, reg: u32, offset: i32) -> Result<()> {
        if !abi.registers.iter().any(|range| range.contains(&reg)) {
            return Err(
                Error::UnwindRegister.because("{} is no DWARF number of a register that can be saved", [reg.into()])
            );
        }
        if offset % i32::from(abi.word) != 0 {
            let text = "register {} is saved at an offset that is no multiple of {}";
            return Err(Error::UnwindFormat.because(text, [reg.into(), abi.word.into()]));
        }
        let slot = self.slots.get_mut(reg as usize).ok_or(Error::UnwindRegister)?;
        match slot.replace(offset) {
            Some(other) if other != offset => {
                Err(Error::UnwindFormat.because("register {} is saved twice", [reg.into()]))
            }
            _ => Ok(()),
        }
    }
}

/// The instructions of an FDE while they are being made.
struct Program {
    abi: &'static Abi,
    /// Size of the instruction that signs the return address; 0 if the code does not sign the return address.
    sign: u32,
    now: FrameState,
    instructions: Vec<(u32, CallFrameInstruction)>,
}

impl Program {
    fn new(abi: &'static Abi) -> Self {
        Program { abi, sign: 0, now: entry(abi), instructions: Vec::new() }
    }

    /// The state at entry. If the code signs the return address, the return address is signed in this state.
    fn called(&self) -> FrameState {
        FrameState { signed: self.sign != 0, ..entry(self.abi) }
    }

    /// Emits the state after the instruction that signs the return address. `first` is the offset at which the first
    /// instruction of the frame ends; `None` if the return address is signed at the start.
    fn sign(&mut self, signed: Option<SigningKey>, first: Option<u32>) -> Result<()> {
        self.sign = sign_size(self.abi, signed)?;
        self.to(first.map_or(0, |first| first.saturating_sub(self.sign)), self.called());
        Ok(())
    }

    /// Returns the state that `called` returns, but with this CFA, and with the registers of `saved` in their slots.
    fn state(&self, cfa_register: u32, cfa_offset: i32, saved: &[SavedRegister]) -> Result<FrameState> {
        if !self.abi.general.contains(&cfa_register) {
            return Err(Error::UnwindRegister.because("the CFA cannot count from register {}", [cfa_register.into()]));
        }
        if cfa_offset % i32::from(self.abi.word) != 0 {
            return Err(Error::UnwindFormat.because("cfa_offset is no multiple of {}", [self.abi.word.into()]));
        }
        let cfa_register = u16::try_from(cfa_register).map_err(|_| Error::UnwindRegister)?;
        let mut state = FrameState { cfa_register, cfa_offset, ..self.called() };
        for register in saved {
            state.save(self.abi, register.reg, register.offset)?;
        }
        Ok(state)
    }

    /// Emits the instructions that change the current state to `state` at `offset`.
    fn to(&mut self, offset: u32, state: FrameState) {
        use CallFrameInstruction::{Cfa, CfaOffset, CfaRegister, NegateRaState, Offset, Restore};
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
        if state.signed != self.now.signed {
            self.instructions.push((offset, NegateRaState));
        }
        self.now = state;
    }

    /// Emits the instructions for a frame that `resolve_frame_pointer` has returned.
    fn frame_pointer(&mut self, frame: &FramePointer) -> Result<()> {
        let (abi, usual) = (self.abi, frame_abi(self.abi)?);
        self.sign(frame.signed, Some(frame.pushed))?;
        let record = usual.record.or_else(|| frame.cfa_offset.checked_neg()).ok_or(Error::UnwindFormat)?;
        let mut standing = self.state(usual.fp.into(), frame.cfa_offset, &[])?;
        standing.save_record(abi, usual, record)?;
        let mut pushed = FrameState { cfa_offset: -record, ..self.called() };
        if usual.record_is_pushed {
            pushed.slots = standing.slots;
        }
        let mut saved = standing.clone();
        for register in frame.saved {
            saved.save(abi, register.reg, register.offset)?;
        }
        self.to(frame.pushed, pushed.clone());
        if frame.saved_from < frame.set {
            // The listed registers are already in their slots, but the frame pointer is not set yet.
            for register in frame.saved {
                pushed.save(abi, register.reg, register.offset)?;
            }
            self.to(frame.saved_from, pushed);
        } else {
            self.to(frame.set, standing);
        }
        self.to(frame.saved_from.max(frame.set), saved.clone());

        if frame.epilogue_begin != 0 {
            self.epilogue(None, frame.epilogue_begin, frame.epilogue_end);
        }
        Ok(())
    }

    /// Emits the instructions for a frame that `resolve_fixed` has returned.
    fn fixed_frame(&mut self, frame: &FixedFrame) -> Result<()> {
        let abi = self.abi;
        self.sign(frame.signed, first_place(frame))?;
        let mut pushed = self.called();
        if frame.pushed != 0 {
            // If `usual.record` is `None`, the instruction that stores the frame pointer also allocates stack memory. This
            // instruction allocates the whole frame if `pushed` equals `sp_set`, and otherwise `fp_to_cfa` bytes, as in most
            // code.
            let usual = frame_abi(abi)?;
            let whole = frame.pushed == frame.sp_set;
            let taken = if whole { frame.cfa_offset.checked_neg() } else { usual.fp_to_cfa.checked_neg() };
            let record = usual.record.or(taken).ok_or(Error::UnwindFormat)?;
            pushed.cfa_offset = record.checked_neg().ok_or(Error::UnwindFormat)?;
            pushed.save_record(abi, usual, record)?;
        }
        let mut standing = self.state(abi.sp.into(), frame.cfa_offset, &[])?;
        standing.slots = pushed.slots;
        let mut saved = standing.clone();
        for register in frame.saved {
            saved.save(abi, register.reg, register.offset)?;
        }
        if frame.pushed != frame.sp_set {
            self.to(frame.pushed, pushed.clone());
        }
        if frame.sp_set != frame.saved_from {
            self.to(frame.sp_set, standing);
        }
        self.to(frame.saved_from, saved);
        if frame.epilogue_begin != 0 {
            let reset = Some((frame.sp_reset, pushed)).filter(|reset| reset.0 != 0);
            self.epilogue(reset, frame.epilogue_begin, frame.epilogue_end);
        }
        Ok(())
    }

    /// Emits the states of an epilogue. If `reset` is given, the epilogue begins with the state in `reset`. At `down`, the
    /// frame is removed. The next instruction then checks a signed return address and removes the signature. At `end`, the
    /// state before the epilogue applies again. `end` is 0 if the code ends with the epilogue.
    fn epilogue(&mut self, reset: Option<(u32, FrameState)>, down: u32, end: u32) {
        let before = (self.now.cfa_register, self.now.cfa_offset);
        if end != 0 {
            let begin = reset.as_ref().map_or(down, |reset| reset.0);
            self.instructions.push((begin, CallFrameInstruction::RememberState));
        }
        if let Some((offset, state)) = reset {
            self.to(offset, state);
        }
        self.to(down, self.called());
        // The last instruction of the epilogue may be `retaa`, which checks the signature of the return address and returns. A
        // new row begins after `retaa`. If the code ends with `retaa`, this row covers no code. The row is emitted anyway,
        // because the tables would otherwise depend on the size of the code.
        let checked = down.saturating_add(self.sign);
        if end == 0 || checked < end {
            self.to(checked, entry(self.abi));
        }
        if end != 0 {
            // `RestoreState` restores the rules for registers (DWARF 5, 6.4.2.4). Some readers (llvm-dwarfdump 14) do not
            // restore the CFA, so the CFA is set again.
            let cfa = CallFrameInstruction::Cfa(Register(before.0), before.1);
            self.instructions.push((end, CallFrameInstruction::RestoreState));
            self.instructions.push((end, cfa));
        }
    }
}

/// The state at the first instruction of a function, as the CIE defines it. The return address is not signed.
fn entry(abi: &Abi) -> FrameState {
    let mut slots = [None; REGISTERS];
    if let Some(slot) = slots.get_mut(usize::from(abi.ra)) {
        *slot = abi.entry_ra;
    }
    FrameState { cfa_register: abi.sp, cfa_offset: abi.entry_cfa, slots, signed: false }
}
