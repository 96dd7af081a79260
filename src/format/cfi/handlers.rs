//! Hides personality routines and LSDAs in unwind entries, so that only this library finds them.
//!
//! The addresses of personality routines and LSDAs are valid only in this process, and only its own unwinder uses them. But the
//! unwind entries are also written to files, which other processes read. If an augmentation string contains `P` or `L`,
//! which announce the addresses, perf with libunwind dereferences the addresses as pointers, and unwinds nothing. If the string
//! lacks these letters, some readers do not skip the addresses in the augmentation data. gdb 13 does not skip addresses in a
//! CIE, and llvm-dwarfdump does not skip addresses in an FDE.
//!
//! So an FDE with a handler begins with `DW_CFA_GNU_args_size` instructions. The operands of these instructions contain the
//! addresses of the personality routine and the LSDA. All readers accept these instructions, which change no register.

use gimli::constants::{DW_CFA_GNU_args_size, DW_EH_PE_indirect};
use gimli::write::{CallFrameInstruction, Expression};

use crate::format::put::{word, WORD};

/// The personality routine and the LSDA of an FDE. An address of 0 means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    pub personality: u64,
    /// Whether `personality` is the address of a pointer to the routine.
    pub personality_is_indirect: bool,
    /// The address of the LSDA. If `lsda_moves` is set, this field is instead the distance of the LSDA from the start of the
    /// FDE's code.
    pub lsda: u64,
    pub lsda_is_indirect: bool,
    /// Whether the LSDA lies inside the code, and so moves with the code.
    pub lsda_moves: bool,
}

const ARGS_SIZE: u8 = DW_CFA_GNU_args_size.0;
/// A LEB128 number of 64 bits, always with the maximum length.
type Number = [u8; 10];
/// A LEB128 number that is one byte longer than necessary. gimli never writes a number in this form, so this form marks the
/// instructions that hide a handler.
type Mark = [u8; 2];
/// Size of the four instructions that hide a handler. The operand of the first instruction is the mark, which contains the
/// three flags of the handler. The operands of the next two instructions are the two addresses. The last operand is 0.
const LEN: usize = 1 + size_of::<Mark>() + 2 * (1 + size_of::<Number>()) + 2;

/// Offset of the instructions in an FDE that has pointers of 32 bits and no augmentation data.
const INSTRUCTIONS: usize = 17;

fn number(value: u64) -> Number {
    std::array::from_fn(|at| (value >> (7 * at)) as u8 & 0x7f | if at + 1 < size_of::<Number>() { 0x80 } else { 0 })
}

fn value(number: &Number) -> u64 {
    number.iter().enumerate().fold(0, |value, (at, &byte)| value | u64::from(byte & 0x7f) << (7 * at))
}

impl Handler {
    /// Returns a placeholder instruction, which `hide` later overwrites with instructions of the same total length. The
    /// placeholder must be the first instruction that is added to the FDE.
    pub fn room() -> CallFrameInstruction {
        // Instruction, register, and length of the expression take one byte each.
        CallFrameInstruction::ValExpression(gimli::Register(0), Expression::raw(vec![0; LEN - 3]))
    }

    /// Overwrites the placeholder of an FDE with the instructions that hide this handler.
    pub fn hide(&self, fde: &mut [u8]) {
        let bits = [self.personality_is_indirect, self.lsda_is_indirect, self.lsda_moves];
        let bits = bits.iter().fold(0, |bits, &bit| bits << 1 | u8::from(bit));
        let numbers = [&[bits | 0x80, 0][..], &number(self.personality), &number(self.lsda), &[0]];
        let Some(room) = fde.get_mut(INSTRUCTIONS..INSTRUCTIONS + LEN) else { return };
        let bytes = numbers.iter().flat_map(|number| [ARGS_SIZE].into_iter().chain(number.iter().copied()));
        room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }

    /// The handler that is hidden in the first instructions of an FDE, and the offset of the instructions that follow.
    pub fn find(fde: &[u8]) -> (Option<Handler>, usize) {
        let found = fde.get(INSTRUCTIONS..).and_then(|instructions| {
            let (&[ARGS_SIZE, bits @ 0x80..=0x87, 0, ARGS_SIZE], rest) = instructions.split_first_chunk()? else {
                return None;
            };
            let (personality, rest) = rest.split_first_chunk()?;
            let (lsda, rest) = rest.strip_prefix(&[ARGS_SIZE])?.split_first_chunk()?;
            rest.strip_prefix(&[ARGS_SIZE, 0])?;
            Some(Handler {
                personality: value(personality),
                personality_is_indirect: bits & 4 != 0,
                lsda: value(lsda),
                lsda_is_indirect: bits & 2 != 0,
                lsda_moves: bits & 1 != 0,
            })
        });
        (found, INSTRUCTIONS + if found.is_some() { LEN } else { 0 })
    }

    /// The letters for a handler in a CIE's augmentation string, before the letter `R`.
    pub const LETTERS: &[u8; 2] = b"PL";

    /// The augmentation data of a CIE for `LETTERS`.
    pub fn augmentation(&self) -> [u8; 2 + WORD] {
        let encoding = |is_indirect| if is_indirect { DW_EH_PE_indirect.0 } else { 0 };
        let mut data = [0; 2 + WORD];
        data[0] = encoding(self.personality_is_indirect);
        data[1..=WORD].copy_from_slice(&word(self.personality));
        data[1 + WORD] = encoding(self.lsda_is_indirect);
        data
    }
}
