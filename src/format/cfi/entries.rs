//! Unwind entries before they are encoded, and how the entries refer to the code.

use gimli::constants::{DW_EH_PE_pcrel, DW_EH_PE_sdata4, DwEhPe};
use gimli::write::{Address, CallFrameInstruction, CommonInformationEntry, FrameDescriptionEntry, FrameTable};
use gimli::{Encoding, Format};

use super::handlers::Handler;
use crate::api::error::{Error, Result};
use crate::format::arch::Arch;
use crate::sys::reserve;

/// How the unwind tables refer to the addresses of the code.
pub(super) struct Placement {
    pub arch: Arch,
    /// Address of the code when `.eh_frame` has address 0, modulo 2^64.
    pub code: u64,
    /// The encoding (`DW_EH_PE_*`) of the addresses in FDEs.
    pub pointers: DwEhPe,
}

impl Placement {
    /// Places `.eh_frame` at the first multiple of 8 after the code.
    pub fn behind(arch: Arch, code_size: u64) -> Self {
        Placement { arch, code: align8(code_size).wrapping_neg(), pointers: DW_EH_PE_pcrel | DW_EH_PE_sdata4 }
    }

    /// A CIE for FDEs with this pointer encoding. The code alignment factor is 1, so that an FDE can start at any byte. A
    /// larger factor would not make the tables smaller, because the state changes at offsets that are close together.
    pub fn cie(&self, data_alignment: i8, return_address: gimli::Register) -> CommonInformationEntry {
        // CIEs in `.eh_frame` have version 1, whatever the version of DWARF is.
        let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: self.arch.abi().word };
        let mut cie = CommonInformationEntry::new(encoding, 1, data_alignment, return_address);
        cie.fde_address_encoding = self.pointers;
        if let Some(register) = self.arch.abi().kept {
            cie.add_instruction(CallFrameInstruction::SameValue(register));
        }
        cie
    }

    /// An FDE for `len` bytes that begin `start` bytes after the start of the code.
    pub fn fde(&self, start: u64, len: u32) -> FrameDescriptionEntry {
        FrameDescriptionEntry::new(Address::Constant(self.code.wrapping_add(start)), len)
    }
}

/// Unwind entries that are not encoded yet.
pub(super) struct Entries {
    pub table: FrameTable,
    /// For each FDE, in the order of the table: the offset of its code from the start of the whole code, and its handler.
    pub fdes: Vec<(u64, Option<Handler>)>,
    /// Whether the CIEs need the augmentation letter `B` (return addresses are signed with key B). gimli cannot write `B`. So
    /// gimli writes `S`, and this module then replaces `S` by `B`.
    pub b_key: bool,
}

/// Checks that there is enough memory to convert entries. `entries` is the size of the entries in bytes if they are encoded,
/// and the number of their instructions otherwise. The check is necessary because a failed allocation in gimli ends the
/// process.
pub(super) fn check_memory(entries: usize) -> Result<()> {
    /// The maximum memory for an instruction that is encoded in one byte. The list of instructions doubles its capacity when it
    /// is full.
    const FOR_EACH_BYTE: usize = 2 * size_of::<(u32, CallFrameInstruction)>();
    match reserve::may_take(entries.saturating_mul(FOR_EACH_BYTE)) {
        true => Ok(()),
        false => Err(Error::NoMemory),
    }
}

/// Rounds `size` up to a multiple of 8, modulo 2^64.
pub(super) fn align8(size: u64) -> u64 {
    size.wrapping_add(7) & !7
}
