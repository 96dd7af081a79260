//! The constants of the 64-bit RISC-V ABI for unwind tables (RISC-V ELF psABI, "DWARF Register Numbers" and "Frame Pointer
//! Convention").

use super::{Abi, FrameAbi, Vendor};

/// Several instructions make the frame. The usual prologue is `addi sp,-16; sd ra,8(sp); sd s0,0(sp); addi s0,sp,16`.
///
/// A description of a frame with a frame pointer contains neither the code offset at which SP changes, nor the size of a frame
/// larger than 16 bytes. Once the frame pointer is set, unwinders do not need SP. Before the frame pointer is set, ra and s0
/// still have the caller's values, and unwinders read these values from the registers. So unwinders find the caller's pc and
/// frame pointer at every instruction. The rule CFA = SP + 16, which applies from `pushed` to `set`, is right for the prologue
/// above. Runtimes that need the right CFA at every instruction must describe their code in rows.
pub static ABI: Abi = Abi {
    elf_machine: 243,
    word: 8,
    registers: &[0..=63],
    general: 0..=31,
    sp: 2,
    ra: 1,
    entry_cfa: 0,
    entry_ra: None,
    frame: Some(FrameAbi {
        fp: 8,
        pushed: 12,
        set: 16,
        fp_to_cfa: 0,
        record: Some(-16),
        record_is_pushed: false,
        // Compilers for RISC-V set up frame pointers in several ways, but none uses the prologue above.
        prologues: &[],
    }),
    sign: None,
    kept: None,
    vendor: Vendor::Default,
    // c.ebreak, twice
    breakpoints: 0x9002_9002_u32.to_le_bytes(),
};
