//! The constants of the 32-bit Arm ABI for unwind tables (DWARF for the Arm Architecture (AADWARF32), 4.1).

use super::{Abi, Vendor};

/// Compilers use r11 or r7 as the frame pointer, and do not agree where the frame pointer points. So there is no preset for frame
/// pointers. Rows can save the core registers only.
pub static ABI: Abi = Abi {
    elf_machine: 40,
    word: 4,
    registers: &[0..=15],
    general: 0..=15,
    sp: 13,
    ra: 14,
    entry_cfa: 0,
    entry_ra: None,
    frame: None,
    sign: None,
    kept: None,
    vendor: Vendor::Default,
    // udf #16, by which Linux knows breakpoints
    breakpoints: 0xe7f0_01f0_u32.to_le_bytes(),
};
