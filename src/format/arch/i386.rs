//! The constants of the i386 ABI for unwind tables (System V psABI for Intel386, "DWARF Register Number Mapping").

use super::{Abi, FrameAbi, Vendor};

/// As on x86-64, with slots of four bytes. In `.eh_frame`, esp has the number 4 and ebp the number 5.
pub static ABI: Abi = Abi {
    elf_machine: 3,
    word: 4,
    registers: &[0..=8],
    general: 0..=7,
    sp: 4,
    ra: 8,
    entry_cfa: 4,
    entry_ra: Some(-4),
    frame: Some(FrameAbi {
        fp: 5,
        pushed: 1,
        set: 3,
        fp_to_cfa: 8,
        record: Some(-8),
        record_is_pushed: true,
        // push ebp; mov ebp, esp
        prologues: &[&[0x55, 0x89, 0xe5], &[0x55, 0x8b, 0xec]],
    }),
    sign: None,
    kept: None,
    vendor: Vendor::Default,
    // int3
    breakpoints: [0xcc; 4],
};
