//! The constants of the 64-bit Power ABI for unwind tables (OpenPOWER ELF V2 ABI, "DWARF Definition" and "The Stack Frame").

use super::{Abi, Vendor};

/// Each frame begins with the address of the caller's frame. Functions save the return address in the caller's frame, and so
/// have no frame pointer that a preset could describe.
pub static ABI: Abi = Abi {
    elf_machine: 21,
    word: 8,
    // The general registers, the floating-point registers, and the link register.
    registers: &[0..=63, 65..=65],
    general: 0..=31,
    sp: 1,
    ra: 65,
    entry_cfa: 0,
    entry_ra: None,
    frame: None,
    sign: None,
    kept: None,
    vendor: Vendor::Default,
    // trap
    breakpoints: 0x7fe0_0008_u32.to_le_bytes(),
};
