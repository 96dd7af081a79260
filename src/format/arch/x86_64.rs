//! x86-64 (System V psABI for AMD64, 3.6.2 and figure 3.36).

use super::{Abi, Register, Vendor};

/// The call has pushed the return address and the code pushes the frame pointer below it, so both lie at fixed distances from the
/// CFA wherever the frame pointer points to.
pub static ABI: Abi = Abi {
    elf_machine: 62,
    registers: &[0..=32],
    general: 0..=15,
    sp: 7,
    fp: 6,
    ra: 16,
    entry_ra: Some(-8),
    pushed: 1,
    set: 4,
    fp_to_cfa: 16,
    frame_record: Some(-16),
    record_is_pushed: true,
    // push rbp; mov rbp, rsp
    prologues: &[&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]],
    // What nobody says of rbx, libdw takes for lost: among the registers that the ABI keeps it has rax (0) where it means
    // rbx (3) (elfutils 0.196, perf 7.2). Frames whose CFA counts from rbx then have no callers.
    kept: Some(Register(3)),
    vendor: Vendor::Default,
};
