//! Unwind descriptions.

use std::ffi::c_void;

/// How to find the caller's frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_kind {
    /// Unknown: readers guess.
    JITSYM_UNWIND_NONE = 0,
    /// A frame pointer, as in C code compiled with `-fno-omit-frame-pointer`.
    JITSYM_UNWIND_FRAME_POINTER = 1,
    /// The CFA is a fixed number of bytes above the stack pointer.
    ///
    /// The distance is fixed in all of the code, or between prologue and epilogue. Use this kind even for code with a frame
    /// pointer, if the stack pointer does not move.
    JITSYM_UNWIND_FIXED_FRAME = 2,
    /// A table of rows.
    JITSYM_UNWIND_ROWS = 3,
    /// An `.eh_frame` section that the compiler made.
    JITSYM_UNWIND_EH_FRAME = 4,
}

/// Flags of an unwind description. At most one may be set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_flag {
    /// FRAME_POINTER, FIXED_FRAME on aarch64: `paciasp` signs the return address.
    ///
    /// `paciasp` must be directly before the instruction that ends at `fp_pushed` or, in a FIXED_FRAME whose `fp_pushed` is 0,
    /// at `sp_set`. If `sp_set` is 0 too, the return address is signed from the start. A FRAME_POINTER's `fp_pushed` and
    /// `fp_set` default to 8 and 12. At `epilogue_begin`, `autiasp` begins, or an instruction that ends the epilogue, such as
    /// `retaa`. For code that signs in another way, use EH_FRAME
    /// ([docs/special-cases.md](special-cases.md#signed-return-addresses-on-aarch64)).
    JITSYM_UNWIND_PACIASP = 1,
    /// Like `JITSYM_UNWIND_PACIASP`, but with key B: `pacibsp` and `autibsp`.
    JITSYM_UNWIND_PACIBSP = 2,
}

/// Where a register of the caller is saved: at CFA + `offset`.
///
/// The CFA (canonical frame address) is the caller's stack pointer just before the call instruction (x86-64: the address above
/// the return address).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct jitsym_saved_register {
    /// DWARF register number (x86-64: rbx is 3, rbp is 6, rsp is 7, r12 to r15 are 12 to 15).
    ///
    /// aarch64: x0-x30 are 0-30, sp is 31, d8-d15 are 72-79. riscv64: x0-x31 are 0-31, f0-f31 are 32-63.
    /// s390x: r0-r15 are 0-15. i386: ebx is 3, esp is 4, ebp is 5, esi is 6, edi is 7.
    pub reg: u32,
    /// Offset from the CFA in bytes: a multiple of the size of an address, usually negative.
    pub offset: i32,
}

/// One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` up to the next row.
///
/// Before the first row, the state is that of a function's entry: no register is saved, and CFA = SP + 8 on x86-64, SP + 4
/// on i386, SP + 160 on s390x, SP + 0 elsewhere.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind_row {
    /// Offset in the code in bytes, higher than in the row before.
    pub offset: u32,
    /// DWARF number of the register from which the CFA is computed.
    pub cfa_reg: u32,
    /// CFA = register + this many bytes.
    pub cfa_offset: i32,
    /// Number of entries of `saved`.
    pub saved_count: u32,
    /// Registers saved in this state.
    ///
    /// On x86-64 and i386, omit the return address, which always lies directly below the CFA. Elsewhere, list the return
    /// address register if it is saved.
    pub saved: *const jitsym_saved_register,
}

/// An unwind description. The library reads only the fields that belong to `kind`. A field for the end of an instruction is an
/// offset from the start of the code, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind {
    /// `sizeof(jitsym_unwind)`.
    pub struct_size: usize,
    /// One of `JITSYM_UNWIND_*`.
    pub kind: u32,
    /// 0, or one of `JITSYM_UNWIND_PACI*`.
    pub flags: u32,
    /// FRAME_POINTER, FIXED_FRAME: where `push rbp` or `stp x29, x30, [sp, #-n]!` ends.
    ///
    /// For FRAME_POINTER, 0 means 1 on x86-64, 4 on aarch64, 12 on riscv64. For FIXED_FRAME, 0 means no such instruction. The
    /// `n` of `stp` is `cfa_offset`, but 16 in a FIXED_FRAME whose `sp_set` differs from `fp_pushed`. On riscv64, a FIXED_FRAME
    /// needs 0, and can list the frame pointer and the return address in `saved`.
    pub fp_pushed: u32,
    /// FRAME_POINTER: the end of `mov rbp, rsp`, which sets the frame pointer.
    ///
    /// 0 means 4 on x86-64, 8 on aarch64, 16 on riscv64. If an instruction such as `endbr64` precedes the usual prologue, set
    /// `fp_set` and `fp_pushed`.
    pub fp_set: u32,
    /// FRAME_POINTER, FIXED_FRAME: where `pop rbp` or `leave` ends. 0: no epilogue.
    ///
    /// From `epilogue_begin` to `epilogue_end`, the frame is that of the function's entry. Use 0 if control does not leave
    /// through such an epilogue, and ROWS for several epilogues.
    pub epilogue_begin: u32,
    /// FRAME_POINTER, FIXED_FRAME: where the return instruction ends. 0: the code's end.
    ///
    /// After `epilogue_end`, the frame is the same as before the epilogue.
    pub epilogue_end: u32,
    /// FIXED_FRAME: CFA = SP + this. FRAME_POINTER: CFA = FP + this.
    ///
    /// The rule holds from `sp_set` (FIXED_FRAME) or `fp_set` (FRAME_POINTER) on. For FRAME_POINTER, 0 means 16 on x86-64 and
    /// aarch64.
    pub cfa_offset: i32,
    /// FRAME_POINTER, FIXED_FRAME: number of entries of `saved`.
    pub saved_count: u32,
    /// FRAME_POINTER, FIXED_FRAME: the saved registers.
    ///
    /// The list can omit registers that `push rbp` or `stp` stores.
    pub saved: *const jitsym_saved_register,
    /// From this offset in the code on, the registers in `saved` are saved. 0 means `fp_set` or `sp_set`.
    ///
    /// Other values are at least `fp_pushed` (FRAME_POINTER) or `sp_set` (FIXED_FRAME).
    pub saved_from: u32,
    /// ROWS: number of entries of `rows`.
    pub row_count: u32,
    /// ROWS: the table.
    pub rows: *const jitsym_unwind_row,
    /// `sizeof(jitsym_unwind_row)`; 0 stands for the size in version 0.1.
    pub row_size: usize,
    /// EH_FRAME: the section's bytes.
    ///
    /// A terminating zero word is optional. Each CIE must precede its FDEs, and have at most 1024 bytes. FDEs that extend
    /// beyond the code are cut, and FDEs of other code are left out. Only `JITSYM_SINK_UNWINDER` uses personality routines and
    /// LSDAs ([docs/exceptions.md](exceptions.md#code-that-catches-and-cleans-up)).
    pub eh_frame: *const c_void,
    /// EH_FRAME: the section's size in bytes.
    pub eh_frame_size: usize,
    /// EH_FRAME: the section's own address, for its pc-relative pointers. 0 means `eh_frame`.
    pub eh_frame_addr: u64,
    /// FIXED_FRAME: where `sub rsp, n` ends. 0: the frame exists from the start.
    ///
    /// `sub rsp, n` allocates the frame. `sp_set` is at least `fp_pushed`. Before `sp_set`, the frame is that of the function's
    /// entry, plus, from `fp_pushed` on, the values that `push rbp` or `stp` stores.
    pub sp_set: u32,
    /// FIXED_FRAME: end of the `add rsp, n` before `pop rbp`. 0: no such `add`.
    ///
    /// `add rsp, n` (or `mov rsp, rbp`) releases the frame, but not the registers that `push rbp` or `stp` has saved. From
    /// `sp_reset` on, registers in `saved` have the caller's values again. Use 0 if a single instruction, such as `leave`,
    /// removes the whole frame.
    pub sp_reset: u32,
}

// `SavedRegister` has the same layout, so that the library can borrow an array from C as a slice.
const _: () = {
    use crate::api::code::SavedRegister;
    assert!(size_of::<jitsym_saved_register>() == size_of::<SavedRegister>());
    assert!(align_of::<jitsym_saved_register>() == align_of::<SavedRegister>());
    assert!(std::mem::offset_of!(jitsym_saved_register, reg) == std::mem::offset_of!(SavedRegister, reg));
};
