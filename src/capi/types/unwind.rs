//! Unwind descriptions.

use std::ffi::c_void;

/// How to find the caller's frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_kind {
    /// Unknown: readers guess.
    JITSYM_UNWIND_NONE = 0,
    /// A frame pointer, as in C that is compiled with `-fno-omit-frame-pointer`.
    JITSYM_UNWIND_FRAME_POINTER = 1,
    /// The CFA is a fixed number of bytes above the stack pointer.
    ///
    /// The canonical frame address (CFA) has this distance from the stack pointer in all of the code, or between a
    /// prologue and an epilogue. Use this kind even for code with a frame pointer, if the stack pointer does not move.
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
    /// `paciasp` is directly before the frame's first instruction, whose place is `fp_pushed` or, if a FIXED_FRAME has
    /// 0 there, `sp_set`. If `fp_pushed` and `sp_set` are 0, the return address is signed from the start. With this
    /// flag, the defaults of a FRAME_POINTER for `fp_pushed` and `fp_set` are 8 and 12. The instruction after
    /// `epilogue_begin` is `autiasp`, or the epilogue's last instruction, such as `retaa`. Describe code that signs its
    /// return address in another way by EH_FRAME
    /// ([docs/special-cases.md](special-cases.md#signed-return-addresses-on-aarch64)).
    JITSYM_UNWIND_PACIASP = 1,
    /// The same with key B: `pacibsp`, `autibsp`.
    JITSYM_UNWIND_PACIBSP = 2,
}

/// Where a register of the caller is saved: at CFA + `offset`.
///
/// The CFA is the stack pointer of the caller just before the call instruction (x86-64: the address above the return
/// address).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct jitsym_saved_register {
    /// DWARF register number (x86-64: rbx is 3, rbp is 6, rsp is 7, r12 to r15 are 12 to 15).
    ///
    /// On aarch64, x0 to x30 are 0 to 30, sp is 31, d8 to d15 are 72 to 79. On riscv64, x0 to x31 are 0 to 31, f0 to f31
    /// are 32 to 63.
    pub reg: u32,
    /// Bytes from the CFA, a multiple of 8, mostly negative.
    pub offset: i32,
}

/// One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` up to the next row.
///
/// Before the first row, the state is as at a function's entry: CFA = SP + 8 on x86-64 and SP + 0 elsewhere, and no
/// register is saved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind_row {
    /// Bytes from the start of the code, in strictly rising order.
    pub offset: u32,
    /// DWARF number of the register from which the CFA is computed.
    pub cfa_reg: u32,
    /// CFA = register + this many bytes.
    pub cfa_offset: i32,
    /// Number of entries of `saved`.
    pub saved_count: u32,
    /// Registers saved in this state.
    ///
    /// On x86-64, do not list the return address, because it always lies at CFA - 8. On other architectures, list the
    /// return address register where it is saved.
    pub saved: *const jitsym_saved_register,
}

/// An unwind description. Only the fields of its kind are used. A place is the number of bytes from the start of the
/// code to the end of an instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind {
    /// `sizeof(jitsym_unwind)`.
    pub struct_size: usize,
    /// One of `JITSYM_UNWIND_*`.
    pub kind: u32,
    /// 0, or one of `JITSYM_UNWIND_PACI*`.
    pub flags: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of `push rbp` or `stp x29, x30, [sp, #-n]!`.
    ///
    /// For FRAME_POINTER, 0 means 1 on x86-64, 4 on aarch64, 12 on riscv64. For FIXED_FRAME, 0 means that there is no
    /// such instruction. On aarch64, `n` is `cfa_offset`, except that `n` is 16 for a FIXED_FRAME whose `sp_set`
    /// differs from `fp_pushed`. On riscv64, a FIXED_FRAME must have 0 here; `saved` can list the frame pointer and the
    /// return address instead.
    pub fp_pushed: u32,
    /// FRAME_POINTER: the place of `mov rbp, rsp`.
    ///
    /// This instruction sets the frame pointer. 0 means 4 on x86-64, 8 on aarch64, 16 on riscv64. If an instruction
    /// such as `endbr64` precedes the usual prologue, set both `fp_set` and `fp_pushed`.
    pub fp_set: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of `pop rbp` or `leave`. 0: none.
    ///
    /// From this place to `epilogue_end`, the frame is as at the function's entry. Set 0 if control leaves the code in
    /// another way. Use ROWS for code with several epilogues.
    pub epilogue_begin: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of the return. 0: the end of the code.
    ///
    /// From this place to the end of the code the frame exists again.
    pub epilogue_end: u32,
    /// FIXED_FRAME: CFA = SP + this. FRAME_POINTER: CFA = FP + this.
    ///
    /// FIXED_FRAME: the equation holds from `sp_set` on, and 0 has no special meaning. FRAME_POINTER: the equation
    /// holds from `fp_set` on, and 0 means 16 on x86-64 and aarch64, 0 on riscv64.
    pub cfa_offset: i32,
    /// FRAME_POINTER, FIXED_FRAME: number of entries of `saved`.
    ///
    /// These registers are saved from `saved_from` on. The list need not contain the registers that the instruction at
    /// `fp_pushed` stores.
    pub saved_count: u32,
    /// See `saved_count`.
    pub saved: *const jitsym_saved_register,
    /// Where the last register of `saved` is stored. 0: `fp_set` or `sp_set`.
    ///
    /// For FRAME_POINTER, this place is at least `fp_pushed`, and 0 means `fp_set`. For FIXED_FRAME, it is at least
    /// `sp_set`, and 0 means `sp_set`.
    pub saved_from: u32,
    /// ROWS: number of entries of `rows`.
    pub row_count: u32,
    /// ROWS: the table.
    pub rows: *const jitsym_unwind_row,
    /// `sizeof(jitsym_unwind_row)`; 0 stands for the size in version 0.1.
    pub row_size: usize,
    /// EH_FRAME: the section's bytes.
    ///
    /// A terminating zero word is optional. Each CIE must precede its FDEs, and have at most 1024 bytes. FDEs for other
    /// code are left out, and an FDE that extends beyond the code is cut to the code. Only `JITSYM_SINK_UNWINDER` uses
    /// personality routines and LSDAs ([docs/exceptions.md](exceptions.md#code-that-catches-and-cleans-up)).
    pub eh_frame: *const c_void,
    /// EH_FRAME: the size of the section in bytes.
    pub eh_frame_size: usize,
    /// EH_FRAME: the section's own address. 0 means `eh_frame`.
    ///
    /// Pc-relative pointers in the section are relative to this address.
    pub eh_frame_addr: u64,
    /// FIXED_FRAME: the place of `sub rsp, n`. 0: the frame exists from the start.
    ///
    /// This instruction allocates the frame. Its place is at least `fp_pushed`. Before this place, the frame is as at
    /// the function's entry, except that the instruction at `fp_pushed` has stored its values.
    pub sp_set: u32,
    /// FIXED_FRAME: the place of `add rsp, n`, with `pop rbp` after it. 0: none.
    ///
    /// This instruction (or `mov rsp, rbp`) releases the frame, except for the values that the instruction at
    /// `fp_pushed` has stored. From this place on, the registers in `saved` have the caller's values again. Set 0 if a
    /// single instruction at `epilogue_begin` removes the whole frame, as `leave` does.
    pub sp_reset: u32,
}

// `SavedRegister` has the same layout, so that the library can borrow an array from C as a slice.
const _: () = {
    use crate::api::code::SavedRegister;
    assert!(size_of::<jitsym_saved_register>() == size_of::<SavedRegister>());
    assert!(align_of::<jitsym_saved_register>() == align_of::<SavedRegister>());
    assert!(std::mem::offset_of!(jitsym_saved_register, reg) == std::mem::offset_of!(SavedRegister, reg));
};
