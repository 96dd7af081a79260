//! RISC-V with 64-bit registers (RISC-V ELF psABI, "DWARF Register Numbers" and "Frame Pointer Convention").

use super::{Abi, Vendor};

/// No one instruction makes the frame; the usual prologue is `addi sp,-16; sd ra,8(sp); sd s0,0(sp); addi s0,sp,16`.
///
/// The places given do not tell where SP changes, nor by how much if the frame is larger, and the frame pointer is what makes that
/// irrelevant. Until it is set, ra and s0 have the caller's values, so they are read from the registers: the caller's pc and frame
/// pointer are right at every instruction. CFA = SP + 16 from `pushed` to `set` is right for the prologue above. Code that wants
/// every instruction right describes itself in rows.
pub static ABI: Abi = Abi {
    elf_machine: 243,
    registers: &[0..=63],
    general: 0..=31,
    sp: 2,
    fp: 8,
    ra: 1,
    entry_ra: None,
    pushed: 12,
    set: 16,
    fp_to_cfa: 0,
    frame_record: Some(-16),
    record_is_pushed: false,
    // Compilers for it make frame pointers in several ways, none of which is the one above.
    prologues: &[],
    kept: None,
    vendor: Vendor::Default,
};
