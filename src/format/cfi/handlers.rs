//! Personality routines and LSDAs, in entries whose readers are to know of none.
//!
//! Both are addresses of this process, for its own unwinder. Files have the entries too, and their readers are other processes: perf
//! with libunwind would look for an indirect pointer there, and unwind nothing. So no augmentation string names them. Data that it
//! does not name is no place for them either, because not every reader skips that (gdb 13 in a CIE, llvm-dwarfdump in an FDE). So an
//! FDE begins with instructions `DW_CFA_GNU_args_size`, which all readers know and which say nothing of any register.

use gimli::constants::{DW_CFA_GNU_args_size, DW_EH_PE_indirect};
use gimli::write::{CallFrameInstruction, Expression};

/// What an FDE has beside its rows. An address of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    pub personality: u64,
    /// The address has the pointer.
    pub personality_is_indirect: bool,
    /// The address, or how far after the FDE's code it is.
    pub lsda: u64,
    pub lsda_is_indirect: bool,
    /// The LSDA lies in the code, and moves with it.
    pub lsda_moves: bool,
}

const ARGS_SIZE: u8 = DW_CFA_GNU_args_size.0;
/// A number of 64 bits in LEB128 that is as long as any.
type Number = [u8; 10];
/// The number whose length says that these instructions are no others: gimli writes no number with a byte too many.
type Mark = [u8; 2];
/// The mark with three bits in it, both addresses, and 0.
const LEN: usize = 1 + size_of::<Mark>() + 2 * (1 + size_of::<Number>()) + 2;

/// Where in an FDE its instructions begin, if pointers have 32 bits and there is no augmentation data.
const INSTRUCTIONS: usize = 17;

fn number(value: u64) -> Number {
    std::array::from_fn(|at| (value >> (7 * at)) as u8 & 0x7f | if at + 1 < size_of::<Number>() { 0x80 } else { 0 })
}

fn value(number: &Number) -> u64 {
    number.iter().enumerate().fold(0, |value, (at, &byte)| value | u64::from(byte & 0x7f) << (7 * at))
}

impl Handler {
    /// Where the instructions will be: the first one that is added to an FDE, and has their length.
    pub fn room() -> CallFrameInstruction {
        // Instruction, register, and length of the expression.
        CallFrameInstruction::ValExpression(gimli::Register(0), Expression::raw(vec![0; LEN - 3]))
    }

    /// Writes the instructions to an FDE in which there is that room.
    pub fn hide(&self, fde: &mut [u8]) {
        let bits = [self.personality_is_indirect, self.lsda_is_indirect, self.lsda_moves];
        let bits = bits.iter().fold(0, |bits, &bit| bits << 1 | u8::from(bit));
        let numbers = [&[bits | 0x80, 0][..], &number(self.personality), &number(self.lsda), &[0]];
        let Some(room) = fde.get_mut(INSTRUCTIONS..INSTRUCTIONS + LEN) else { return };
        let bytes = numbers.iter().flat_map(|number| [ARGS_SIZE].into_iter().chain(number.iter().copied()));
        room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }

    /// What is hidden in an FDE, and where its other instructions begin.
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

    /// A CIE's letters for it, before `R`.
    pub const LETTERS: &[u8; 2] = b"PL";

    /// What these letters stand for in a CIE.
    pub fn augmentation(&self) -> [u8; 10] {
        let encoding = |is_indirect| if is_indirect { DW_EH_PE_indirect.0 } else { 0 };
        let mut data = [0; 10];
        data[0] = encoding(self.personality_is_indirect);
        data[1..9].copy_from_slice(&self.personality.to_ne_bytes());
        data[9] = encoding(self.lsda_is_indirect);
        data
    }
}
