//! Makes unwind entries with absolute code addresses, for the unwinders of this process.
//!
//! An entry may be anywhere in memory, so its distance to the code may not fit in 32 bits.

use super::handlers::Handler;
use crate::format::get::u32_at;
use crate::format::put::{word, WORD};
use crate::sys::reserve;

/// The pointer encoding of the CIEs that `format/cfi` makes: distances of 32 bits (DW_EH_PE_pcrel | DW_EH_PE_sdata4).
const RELATIVE: u8 = 0x1b;
/// DW_EH_PE_absptr.
const ABSOLUTE: u8 = 0;

/// Offset of the code's address in an FDE.
const FDE_ADDR: usize = 8;
/// Offset of the code's size in an FDE.
const FDE_SIZE: usize = FDE_ADDR + WORD;
/// Offset of the lower four bytes of the code's size, which has at most 31 bits. If these bytes are zero, the FDE covers no
/// code.
const FDE_SIZE_LOW: usize = FDE_SIZE + if cfg!(target_endian = "little") { 0 } else { WORD - 4 };
/// Offset of the LSDA's address in an FDE. The length of the augmentation data precedes this address.
const FDE_LSDA: usize = FDE_SIZE + WORD + 1;
/// An upper bound for the number of bytes that the conversion adds to a CIE and its FDE: the address and the size of the code
/// with at most 8 bytes each, a handler, padding of the CIE and the FDE, and an end mark.
const MORE: usize = 8 + 8 + 12 + 2 * 8 + END.len();
/// The mark after the last entry of a table.
const END: [u8; 4] = [0; 4];

/// A table that consists of a CIE and one FDE.
#[derive(Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Offset of the FDE in `bytes`.
    pub fde: usize,
    /// Start and end address of the code.
    pub start: u64,
    pub end: u64,
    /// Whether the LSDA lies inside the code, and so moves with the code.
    pub lsda_moves: bool,
}

impl Frame {
    /// Offset of four bytes of the code's size. If these bytes are zero, the FDE covers no code.
    pub fn size_at(&self) -> usize {
        self.fde + FDE_SIZE_LOW
    }

    /// Offset of the code's address in `bytes`. The code's size follows. The code's address and size have the size of an address.
    pub fn addr_at(&self) -> usize {
        self.fde + FDE_ADDR
    }

    /// A copy of this table. `None` if there is no memory.
    pub fn copy(&self) -> Option<Frame> {
        Some(Frame { bytes: reserve::copy_of(&self.bytes).ok()?, ..*self })
    }

    /// Adapts the table to the same code at an address that is `by` bytes higher.
    pub fn shift(&mut self, by: u64) {
        (self.start, self.end) = (self.start.wrapping_add(by), self.end.wrapping_add(by));
        let lsda = self.lsda_moves.then_some(FDE_LSDA);
        for at in [FDE_ADDR].into_iter().chain(lsda) {
            if let Some(field) = self.bytes.get_mut(self.fde + at..).and_then(|rest| rest.first_chunk_mut()) {
                *field = usize::from_ne_bytes(*field).wrapping_add(by as usize).to_ne_bytes();
            }
        }
    }
}

/// An unwind entry for a part of some code.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The whole FDE.
    pub bytes: &'a [u8],
    pub cie: &'a [u8],
    /// Start address and size of the part.
    pub start: u64,
    pub range: u64,
}

impl Entry<'_> {
    /// Returns the handler that is hidden in the first instructions of the FDE (see `handlers`), and the instructions that
    /// follow.
    pub fn program(&self) -> Option<(Option<Handler>, &[u8])> {
        let (handler, instructions) = Handler::find(self.bytes);
        Some((handler, self.bytes.get(instructions..)?))
    }
}

/// Calls `body` for each entry of an `.eh_frame`. `addr` and `size` are the address and the size of the code. The section must
/// have been made for the address `addr` plus `size`, with `size` rounded up to a multiple of 8. Entries for other code are
/// skipped. Returns `None` as soon as an entry is invalid or `body` returns `None`.
pub fn each_entry(
    section: &[u8],
    (addr, size): (u64, u64),
    mut body: impl FnMut(&Entry<'_>) -> Option<()>,
) -> Option<()> {
    let section_addr = addr.checked_add(size.checked_next_multiple_of(8)?)?;
    let end = addr.checked_add(size)?;
    let mut next = 0;
    while let Some(length) = u32_at(section, next).filter(|&length| length != 0) {
        let at = next;
        next = at.checked_add(length as usize)?.checked_add(4)?;
        let entry = section.get(at..next)?;
        let back = u32_at(entry, 4)?;
        if back == 0 {
            continue;
        }
        let cie_at = (at + 4).checked_sub(back as usize)?;
        let cie_len = (u32_at(section, cie_at)? as usize).checked_add(4)?;
        let cie = section.get(cie_at..cie_at.checked_add(cie_len)?).filter(|cie| u32_at(cie, 4) == Some(0))?;
        let distance = i64::from(u32_at(entry, 8)? as i32);
        // `distance` counts from the address of the field in which it is stored.
        let field = section_addr.checked_add(at as u64 + 8)?;
        let Some(start) = field.checked_add_signed(distance) else { continue };
        let range = u64::from(u32_at(entry, 12)?);
        let code = start..start.checked_add(range)?;
        if code.is_empty() || code.start < addr || code.end > end {
            continue;
        }
        body(&Entry { bytes: entry, cie, start, range })?;
    }
    Some(())
}

/// Makes a table for each entry that [`each_entry`] finds. `None` if there is no memory, or if an entry is invalid.
pub fn frames(section: &[u8], place: (u64, u64)) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    each_entry(section, place, |entry| {
        let Entry { cie, start, range, .. } = entry;
        let (handler, instructions) = entry.program()?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(cie.len() + instructions.len() + FDE_LSDA + MORE).ok()?;
        cie_for(cie, handler.as_ref(), &mut bytes)?;
        let fde = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(fde + 4).ok()?.to_ne_bytes());
        bytes.extend_from_slice(&word(*start));
        bytes.extend_from_slice(&word(*range));
        if let Some(handler) = handler {
            bytes.push(WORD as u8);
            let base = if handler.lsda_moves { *start } else { 0 };
            bytes.extend_from_slice(&word(base.wrapping_add(handler.lsda)));
        } else {
            bytes.push(0);
        }
        bytes.extend_from_slice(instructions);
        end_entry(&mut bytes, fde)?;
        bytes.extend_from_slice(&END);
        frames.try_reserve(1).ok()?;
        let lsda_moves = handler.as_ref().is_some_and(|handler| handler.lsda_moves);
        frames.push(Frame { bytes, fde, start: *start, end: start + range, lsda_moves });
        Some(())
    })?;
    Some(frames)
}

/// Appends a copy of a CIE to `out`. The CIE must come from `format/cfi`. The copy is for FDEs that contain absolute addresses.
/// If there is a handler, the copy contains the address of the personality routine.
fn cie_for(cie: &[u8], handler: Option<&Handler>, out: &mut Vec<u8>) -> Option<()> {
    let begin = out.len();
    let [head, letters, numbers, rest] = split_cie(cie)?;
    let instructions = rest.strip_prefix(&[1, RELATIVE])?;
    out.extend_from_slice(head);
    out.push(b'z');
    out.extend(handler.iter().flat_map(|_| Handler::LETTERS));
    out.extend_from_slice(letters.strip_prefix(b"z").filter(|letters| letters.first() == Some(&b'R'))?);
    out.extend_from_slice(numbers);
    let data = handler.map(Handler::augmentation);
    let data = data.as_ref().map_or(&[][..], |data| data);
    out.push(u8::try_from(data.len() + 1).ok()?);
    out.extend_from_slice(data);
    out.push(ABSOLUTE);
    out.extend_from_slice(instructions);
    end_entry(out, begin)
}

/// Splits a CIE into four parts: the bytes before its augmentation string; the string without its NUL; the NUL and three
/// numbers; the augmentation data and the instructions.
pub(super) fn split_cie(cie: &[u8]) -> Option<[&[u8]; 4]> {
    // Offset of the augmentation string, which follows the length, a zero word, and the version.
    const AUGMENTATION: usize = 9;
    let (head, rest) = cie.split_at_checked(AUGMENTATION)?;
    let (letters, rest) = rest.split_at_checked(rest.iter().position(|&byte| byte == 0)?)?;
    // The numbers are code alignment, data alignment, and return address. Each number ends with a byte below 0x80.
    let mut numbers = 1;
    for _ in 0..3 {
        numbers += rest.get(numbers..)?.iter().position(|&byte| byte < 0x80)? + 1;
    }
    let (numbers, rest) = rest.split_at_checked(numbers)?;
    Some([head, letters, numbers, rest])
}

/// Pads an entry to a multiple of 8 bytes, and writes its length.
pub(super) fn end_entry(out: &mut Vec<u8>, begin: usize) -> Option<()> {
    let len = (out.len() - begin).checked_next_multiple_of(8)?;
    out.resize(begin + len, 0);
    *out.get_mut(begin..)?.first_chunk_mut()? = u32::try_from(len - 4).ok()?.to_ne_bytes();
    Some(())
}
