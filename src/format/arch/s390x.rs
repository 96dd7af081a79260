//! The constants of the s390x ABI for unwind tables (ELF Application Binary Interface for s390x, "DWARF Definition" and "The Stack
//! Frame").

use super::{Abi, Vendor};

/// The caller reserves 160 bytes above its stack pointer, in which the callee saves registers. The CFA lies above these bytes.
///
/// Code without `-mbackchain` has no chain of frames, and compilers use no frame pointer that points to the caller's.
pub static ABI: Abi = Abi {
    elf_machine: 22,
    word: 8,
    registers: &[0..=31],
    general: 0..=15,
    sp: 15,
    ra: 14,
    entry_cfa: 160,
    entry_ra: None,
    frame: None,
    sign: None,
    kept: None,
    vendor: Vendor::Default,
    // Two bytes of an illegal instruction, which Linux uses for breakpoints, twice.
    breakpoints: [0x00, 0x01, 0x00, 0x01],
};
