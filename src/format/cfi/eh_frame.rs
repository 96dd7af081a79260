//! Reads a compiler's `.eh_frame` section, cuts its entries to one piece of code, and rewrites the entries.
//!
//! Each CIE keeps its alignment factor for data, its return address column, its initial instructions, and its mark for signal
//! trampolines or for key B. Personality routines and LSDAs are kept for the unwinder of the process ([`super::handlers`]).
//!
//! gimli converts only whole tables, and always assumes that the section is at address 0. If the bytes are hostile, gimli's
//! arithmetic may overflow. So this module reads the entries with `gimli::read` and passes them to `gimli::write` one
//! instruction at a time.

use std::ops::Range;

use gimli::constants::{DW_EH_PE_funcrel, DW_EH_PE_pcrel, DwEhPe};
use gimli::read::{self, BaseAddresses, CieOrFde, EhFrame, EndianSlice, Pointer, UnwindSection};
use gimli::write::{self, CallFrameInstruction, Expression, FrameTable};
use gimli::NativeEndian;

use super::b_key::{readable, Marks};
use super::entries::{check_memory, Entries, Placement};
use super::handlers::Handler;
use crate::api::error::{Error, Result};

type Reader<'a> = EndianSlice<'a, NativeEndian>;

/// The maximum length of a CIE in bytes. The length is limited, because a CIE may be copied for each of its FDEs. The CIEs of
/// compilers are much shorter.
pub const CIE_MAX: usize = 1024;

/// A CIE of the section, and its converted form. The converted form is made for the first FDE that uses the CIE.
struct Cie<'a> {
    from: read::CommonInformationEntry<Reader<'a>>,
    is_kept: bool,
    to: Option<(write::CieId, CfaState)>,
}

/// An FDE that overlaps the code.
struct Kept<'a> {
    fde: read::FrameDescriptionEntry<Reader<'a>>,
    /// Index of the FDE's CIE.
    cie: usize,
    /// The part of the FDE's range that lies in the code.
    range: Range<u64>,
}

/// Reads the section `bytes`, and converts each entry that overlaps the range `code`. `addr` is the address of the section,
/// which determines the values of pc-relative pointers.
///
/// If an entry starts before the code or ends after the code, the entry is cut to the code. So no table claims addresses of
/// other code. The entry's instructions for addresses before the code determine the unwind state at the start of the code.
pub(super) fn entries(bytes: &[u8], addr: u64, code: Range<u64>, placement: &Placement) -> Result<Entries> {
    let readable = readable(bytes, placement.arch)?;
    let mut section = EhFrame::new(&readable, NativeEndian);
    section.set_address_size(placement.arch.abi().word);
    section.set_vendor(placement.arch.abi().vendor);
    let bases = BaseAddresses::default().set_eh_frame(addr);

    let mut cies: Vec<Cie<'_>> = Vec::new();
    let mut kept: Vec<Kept<'_>> = Vec::new();
    let mut kept_bytes = 0;
    let mut all = section.entries(&bases);
    while let Some(entry) = all.next().map_err(read_error)? {
        let partial = match entry {
            CieOrFde::Cie(cie) => {
                cies.try_reserve(1).map_err(|_| Error::NoMemory)?;
                cies.push(Cie { from: cie, is_kept: false, to: None });
                continue;
            }
            CieOrFde::Fde(partial) => partial,
        };
        // The FDE's CIE must be one of the CIEs that this loop has already read. Otherwise the CIEs of a hostile section could
        // overlap other entries, and even a small section could have a long CIE for each FDE.
        let number = cies.binary_search_by_key(&partial.cie_offset().0, |cie| cie.from.offset());
        let number = number.map_err(|_| Error::UnwindFormat)?;
        let fde = partial.parse(|_, _, _| Ok(cies[number].from.clone())).map_err(read_error)?;
        let whole = fde.initial_address()..fde.initial_address().saturating_add(fde.len());
        let range = whole.start.max(code.start)..whole.end.min(code.end);
        if range.is_empty() {
            continue;
        }
        if fde.cie().entry_len() > CIE_MAX {
            let text = "a CIE has {} bytes, at most {} are allowed";
            return Err(Error::UnwindFormat.because(text, [fde.cie().entry_len() as u64, CIE_MAX as u64]));
        }
        kept_bytes += fde.entry_len();
        if !std::mem::replace(&mut cies[number].is_kept, true) {
            kept_bytes += fde.cie().entry_len();
        }
        kept.try_reserve(1).map_err(|_| Error::NoMemory)?;
        kept.push(Kept { fde, cie: number, range });
    }
    check_memory(kept_bytes)?;

    let mut out = Entries { table: FrameTable::default(), fdes: Vec::new(), b_key: false };
    let mut has_trampolines = false;
    for Kept { fde, cie: number, range: kept } in kept {
        let whole = fde.initial_address()..fde.initial_address().saturating_add(fde.len());
        let len = u32::try_from(kept.end - kept.start).unwrap_or(u32::MAX).min(i32::MAX as u32);
        let start = kept.start - code.start;
        let from_cie = fde.cie();
        let (to_cie, mut state) = match cies[number].to {
            Some(converted) => converted,
            None => {
                let (cie, state) = cie(from_cie, &section, &bases, placement)?;
                if cie.signal_trampoline {
                    let marks = Marks::of(bytes, from_cie.offset());
                    out.b_key |= marks.b_key.is_some();
                    has_trampolines |= marks.b_key.is_none() || marks.signal_trampoline;
                }
                *cies[number].to.insert((out.table.add_cie(cie), state))
            }
        };
        let mut to = placement.fde(start, len);
        // Offsets in an LSDA count from the start of the entry's code. If the start of the entry's code was cut off, the
        // handler is left out.
        let handler = handler(&fde, addr, &code).filter(|_| kept.start == whole.start);
        if handler.is_some() {
            to.add_instruction(0, Handler::room());
        }
        let mut location = whole.start;
        let mut instructions = fde.instructions(&section, &bases);
        while let Some(instruction) = instructions.next().map_err(read_error)? {
            match step(&instruction, from_cie, location)? {
                Some(next) => location = next,
                None => {
                    // Instructions for offsets after the kept range are not needed. Instructions for offsets before the kept
                    // range take effect at the start of the kept range.
                    let offset = location.saturating_sub(kept.start);
                    match u32::try_from(offset) {
                        Ok(offset) if offset < len => {
                            state.follow(&instruction)?;
                            if let Some(instruction) = convert(instruction, from_cie, &section)? {
                                to.add_instruction(offset, instruction);
                            }
                        }
                        _ => break,
                    }
                }
            }
        }
        out.table.add_fde(to_cie, to);
        out.fdes.push((start, handler));
    }
    if out.b_key && has_trampolines {
        let text = "signal trampolines and return addresses signed with key B are in one piece of code";
        return Err(Error::UnwindFormat.because(text, []));
    }
    if out.fdes.is_empty() {
        return Err(Error::UnwindFormat);
    }
    Ok(out)
}

/// The personality routine and the LSDA of an entry, or `None` if both are missing.
///
/// An LSDA inside the code moves with the code. An LSDA outside of the code keeps its address when the code moves.
fn handler(fde: &read::FrameDescriptionEntry<Reader>, section: u64, code: &Range<u64>) -> Option<Handler> {
    // A pointer with the stored value 0 is missing from the entry, even if the pointer's encoding is relative.
    let given = |pointer, encoding: DwEhPe, offset: usize, len: usize| {
        let (addr, is_indirect) = match pointer {
            Pointer::Direct(addr) => (addr, false),
            Pointer::Indirect(addr) => (addr, true),
        };
        let is_zero = if encoding.application() == DW_EH_PE_pcrel {
            addr.wrapping_sub(section.wrapping_add(offset as u64)) <= len as u64
        } else {
            addr == if encoding.application() == DW_EH_PE_funcrel { fde.initial_address() } else { 0 }
        };
        (!is_zero).then_some((addr, is_indirect))
    };
    let cie = fde.cie();
    let personality = cie.personality_with_encoding();
    let personality = personality.and_then(|(encoding, at)| given(at, encoding, cie.offset(), cie.entry_len()));
    let lsda = fde.lsda().zip(cie.lsda_encoding());
    let lsda = lsda.and_then(|(at, encoding)| given(at, encoding, fde.offset(), fde.entry_len()));
    personality.or(lsda)?;
    let (personality, personality_is_indirect) = personality.unwrap_or_default();
    let (mut lsda, lsda_is_indirect) = lsda.unwrap_or_default();
    let lsda_moves = code.contains(&lsda);
    if lsda_moves {
        lsda = lsda.wrapping_sub(fde.initial_address());
    }
    Some(Handler { personality, personality_is_indirect, lsda, lsda_is_indirect, lsda_moves })
}

/// Returns the converted CIE, and the unwinder's state after the CIE's instructions.
fn cie(
    from: &read::CommonInformationEntry<Reader>,
    section: &EhFrame<Reader>,
    bases: &BaseAddresses,
    placement: &Placement,
) -> Result<(write::CommonInformationEntry, CfaState)> {
    // gimli divides by the data alignment factor, so 0 is refused.
    let factor = i8::try_from(from.data_alignment_factor()).ok().filter(|&factor| factor != 0);
    // In a CIE of version 1, the return address register is a byte, but gimli writes a LEB128 number. For numbers up to 127,
    // the byte and the LEB128 number are equal.
    let return_address = Some(from.return_address_register()).filter(|register| register.0 < 0x80);
    let mut to = placement.cie(factor.ok_or(Error::UnwindFormat)?, return_address.ok_or(Error::UnwindRegister)?);
    to.signal_trampoline = from.is_signal_trampoline();
    let mut state = CfaState::default();
    let mut instructions = from.instructions(section, bases);
    while let Some(instruction) = instructions.next().map_err(read_error)? {
        // A CIE describes a single state, so it must not advance the location.
        if step(&instruction, from, 0)?.is_some() {
            return Err(Error::UnwindFormat);
        }
        // A CIE must not contain `Restore`, which restores the initial rules that the CIE itself defines.
        if matches!(instruction, read::CallFrameInstruction::Restore { .. }) {
            return Err(Error::UnwindFormat);
        }
        state.follow(&instruction)?;
        if let Some(instruction) = convert(instruction, from, section)? {
            to.add_instruction(instruction);
        }
    }
    Ok((to, state))
}

/// The part of an unwinder's state that decides which instructions are valid. Unwinders reject a table if an instruction is
/// invalid in the current state.
#[derive(Clone, Copy, Default)]
struct CfaState {
    /// One bit for each state. The lowest bit is for the current state, and the other bits are for the remembered states. A bit
    /// is 1 if the CFA is an expression, so that instructions that change only the register or only the offset of the CFA are
    /// invalid.
    expressions: u64,
    /// The number of remembered states.
    remembered: u32,
}

impl CfaState {
    fn follow(&mut self, instruction: &read::CallFrameInstruction<usize>) -> Result<()> {
        use read::CallFrameInstruction as From;
        match instruction {
            From::DefCfa { .. } | From::DefCfaSf { .. } => self.expressions &= !1,
            From::DefCfaExpression { .. } => self.expressions |= 1,
            From::DefCfaRegister { .. } | From::DefCfaOffset { .. } | From::DefCfaOffsetSf { .. }
                if self.expressions & 1 != 0 =>
            {
                return Err(Error::UnwindFormat);
            }
            From::RememberState => {
                self.remembered += 1;
                if self.remembered == u64::BITS {
                    return Err(Error::UnwindFormat);
                }
                self.expressions = self.expressions << 1 | self.expressions & 1;
            }
            From::RestoreState => {
                self.remembered = self.remembered.checked_sub(1).ok_or(Error::UnwindFormat)?;
                self.expressions >>= 1;
            }
            _ => {}
        }
        Ok(())
    }
}

/// The next location if the instruction advances the location, otherwise `None`.
fn step(
    instruction: &read::CallFrameInstruction<usize>,
    cie: &read::CommonInformationEntry<Reader>,
    location: u64,
) -> Result<Option<u64>> {
    let next = match *instruction {
        read::CallFrameInstruction::AdvanceLoc { delta } => {
            u64::from(delta).checked_mul(cie.code_alignment_factor()).and_then(|delta| location.checked_add(delta))
        }
        // Locations never decrease (DWARF 5, 6.4.2.1).
        read::CallFrameInstruction::SetLoc { address } => Some(address).filter(|&address| address >= location),
        _ => return Ok(None),
    };
    next.map(Some).ok_or(Error::UnwindFormat)
}

/// The converted instruction; `None` for padding.
fn convert(
    instruction: read::CallFrameInstruction<usize>,
    cie: &read::CommonInformationEntry<Reader>,
    section: &EhFrame<Reader>,
) -> Result<Option<CallFrameInstruction>> {
    use read::CallFrameInstruction as From;
    use CallFrameInstruction as To;

    // gimli writes an offset as an `i32`, and divides the offset by the data alignment factor. If the offset is the lowest
    // `i32`, the division can overflow, so this offset is refused.
    let narrow = |value: i64| i32::try_from(value).ok().filter(|&value| value != i32::MIN).ok_or(Error::UnwindFormat);
    let plain = |value: u64| i64::try_from(value).map_err(|_| Error::UnwindFormat).and_then(narrow);
    let signed = |factored: i64| factored.checked_mul(cie.data_alignment_factor()).ok_or(Error::UnwindFormat);
    let scaled = |factored: i64| signed(factored).and_then(narrow);
    let unsigned = |factored: u64| i64::try_from(factored).map_err(|_| Error::UnwindFormat).and_then(scaled);
    let expression = |at: read::UnwindExpression<usize>| {
        at.get(section).map(|expression| Expression::raw(expression.0.slice().to_vec())).map_err(read_error)
    };

    Ok(Some(match instruction {
        From::DefCfa { register, offset } => To::Cfa(register, plain(offset)?),
        From::DefCfaSf { register, factored_offset } => To::Cfa(register, scaled(factored_offset)?),
        From::DefCfaRegister { register } => To::CfaRegister(register),
        From::DefCfaOffset { offset } => To::CfaOffset(plain(offset)?),
        From::DefCfaOffsetSf { factored_offset } => To::CfaOffset(scaled(factored_offset)?),
        From::DefCfaExpression { expression: at } => To::CfaExpression(expression(at)?),
        From::Undefined { register } => To::Undefined(register),
        From::SameValue { register } => To::SameValue(register),
        From::Offset { register, factored_offset } => To::Offset(register, unsigned(factored_offset)?),
        From::OffsetExtendedSf { register, factored_offset } => To::Offset(register, scaled(factored_offset)?),
        From::ValOffset { register, factored_offset } => To::ValOffset(register, unsigned(factored_offset)?),
        From::ValOffsetSf { register, factored_offset } => To::ValOffset(register, scaled(factored_offset)?),
        From::Register { dest_register, src_register } => To::Register(dest_register, src_register),
        From::Expression { register, expression: at } => To::Expression(register, expression(at)?),
        From::ValExpression { register, expression: at } => To::ValExpression(register, expression(at)?),
        From::Restore { register } => To::Restore(register),
        From::RememberState => To::RememberState,
        From::RestoreState => To::RestoreState,
        // If the size does not fit in 32 bits, the instruction is dropped, because no function pushes so many bytes. The
        // instruction may hide the address of a handler (see `handlers`).
        From::ArgsSize { size } => return Ok(u32::try_from(size).ok().map(To::ArgsSize)),
        From::NegateRaState => To::NegateRaState,
        From::Nop => return Ok(None),
        // The caller passes these instructions to `step`, and never to `convert`.
        From::AdvanceLoc { .. } | From::SetLoc { .. } => return Err(Error::Internal),
    }))
}

/// All read errors of gimli mean that the bytes are not a valid table.
fn read_error(_: read::Error) -> Error {
    Error::UnwindFormat
}
