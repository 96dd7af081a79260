//! The constants of the x86-64 ABI for unwind tables (System V psABI for AMD64, 3.6.2 and figure 3.36).

use super::{Abi, FrameAbi, Register, Vendor};

/// The call pushes the return address, and then the code pushes the frame pointer. So the return address and the caller's frame
/// pointer are at fixed distances from the CFA, wherever the new frame pointer points.
pub static ABI: Abi = Abi {
    elf_machine: 62,
    word: 8,
    registers: &[0..=32],
    general: 0..=15,
    sp: 7,
    ra: 16,
    entry_cfa: 8,
    entry_ra: Some(-8),
    frame: Some(FrameAbi {
        fp: 6,
        pushed: 1,
        set: 4,
        fp_to_cfa: 16,
        record: Some(-16),
        record_is_pushed: true,
        // push rbp; mov rbp, rsp
        prologues: &[&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]],
    }),
    sign: None,
    // libdw has a list of the registers that the ABI preserves. libdw's list wrongly contains rax (0) instead of rbx (3)
    // (elfutils 0.196, perf 7.2). So libdw assumes that the value of rbx is lost, unless a rule names rbx. Without such a rule,
    // unwinding stops at a frame whose CFA is an offset from rbx.
    kept: Some(Register(3)),
    vendor: Vendor::Default,
    // int3
    breakpoints: [0xcc; 4],
};
