//! The constants of the AArch64 ABI for unwind tables (DWARF for the Arm 64-bit Architecture (AADWARF64), 4.1).

use super::{Abi, FrameAbi, Vendor};

/// `stp x29, x30, [sp, #-n]!` allocates the whole frame of n bytes and stores the two registers at the frame's lowest
/// addresses. `mov x29, sp` follows, so CFA - FP is n.
pub static ABI: Abi = Abi {
    elf_machine: 183,
    word: 8,
    registers: &[0..=31, 64..=95],
    general: 0..=31,
    sp: 31,
    ra: 30,
    entry_cfa: 0,
    entry_ra: None,
    frame: Some(FrameAbi {
        fp: 29,
        pushed: 4,
        set: 8,
        fp_to_cfa: 16,
        record: None,
        record_is_pushed: true,
        // stp x29, x30, [sp, #-16]!; mov x29, sp
        prologues: &[&[0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91]],
    }),
    // The size of paciasp and autiasp (key A), and of pacibsp and autibsp (key B).
    sign: Some(4),
    kept: None,
    vendor: Vendor::AArch64,
    // brk #0
    breakpoints: 0xd420_0000_u32.to_le_bytes(),
};
