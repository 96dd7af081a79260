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
    /// CFA means canonical frame address. The distance is fixed in all of the code, or between a prologue and an epilogue. Use
    /// this kind even for code with a frame pointer, if the stack pointer does not move.
    JITSYM_UNWIND_FIXED_FRAME = 2,
    /// A table of rows.
    JITSYM_UNWIND_ROWS = 3,
    /// An `.eh_frame` section that the compiler made.
    JITSYM_UNWIND_EH_FRAME = 4,
}

/// Flags of an unwind description. At most one of these flags may be set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_flag {
    /// FRAME_POINTER, FIXED_FRAME on aarch64: `paciasp` signs the return address.
    ///
    /// `paciasp` must be directly before the instruction that ends at `fp_pushed`. If `fp_pushed` of a FIXED_FRAME is 0,
    /// `paciasp` must be directly before the instruction that ends at `sp_set`. If `fp_pushed` and `sp_set` of a FIXED_FRAME
    /// are 0, the return address is signed from the start. With this flag, the defaults of a FRAME_POINTER for `fp_pushed` and
    /// `fp_set` are 8 and 12. The instruction that begins at `epilogue_begin` is `autiasp`, or an instruction that ends the
    /// epilogue, such as `retaa`. If code signs its return address in another way, use EH_FRAME
    /// ([docs/special-cases.md](special-cases.md#signed-return-addresses-on-aarch64)).
    JITSYM_UNWIND_PACIASP = 1,
    /// Like `JITSYM_UNWIND_PACIASP`, but with key B: `pacibsp` and `autibsp`.
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
    /// Offset from the CFA in bytes: a multiple of 8, usually negative.
    pub offset: i32,
}

/// One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` up to the next row.
///
/// Before the first row, the state is the same as at a function's entry: CFA = SP + 8 on x86-64 and SP + 0 elsewhere, and no
/// register is saved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind_row {
    /// Offset in the code in bytes. Each row has a higher offset than the row before.
    pub offset: u32,
    /// DWARF number of the register from which the CFA is computed.
    pub cfa_reg: u32,
    /// CFA = register + this many bytes.
    pub cfa_offset: i32,
    /// Number of entries of `saved`.
    pub saved_count: u32,
    /// Registers saved in this state.
    ///
    /// On x86-64, do not list the return address, because it always lies at CFA - 8. On other architectures, list the return
    /// address register if that register is saved in this state.
    pub saved: *const jitsym_saved_register,
}

/// An unwind description. The library reads only the fields that belong to `kind`. A field that says where an instruction ends
/// is an offset from the start of the code, in bytes.
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
    /// For FRAME_POINTER, 0 selects the default offset: 1 on x86-64, 4 on aarch64, 12 on riscv64. For FIXED_FRAME, 0 means that
    /// the code has no `push rbp` or `stp`. On aarch64, the `n` of `stp` is `cfa_offset`. However, if `sp_set` of a FIXED_FRAME
    /// differs from `fp_pushed`, the `n` of `stp` is 16. On riscv64, `fp_pushed` of a FIXED_FRAME must be 0; `saved` can list
    /// the frame pointer and the return address.
    pub fp_pushed: u32,
    /// FRAME_POINTER: the end of `mov rbp, rsp`, which sets the frame pointer.
    ///
    /// 0 selects the default offset: 4 on x86-64, 8 on aarch64, 16 on riscv64. If an instruction such as `endbr64` precedes the
    /// usual prologue, set both `fp_set` and `fp_pushed`.
    pub fp_set: u32,
    /// FRAME_POINTER, FIXED_FRAME: where `pop rbp` or `leave` ends. 0: no epilogue.
    ///
    /// From `epilogue_begin` to `epilogue_end`, the frame is the same as at the function's entry. Set `epilogue_begin` to 0 if
    /// control does not leave the code through such an epilogue. Use ROWS for code with several epilogues.
    pub epilogue_begin: u32,
    /// FRAME_POINTER, FIXED_FRAME: where the return instruction ends. 0 means the end of the code.
    ///
    /// From `epilogue_end` to the end of the code, the frame is the same as before the epilogue.
    pub epilogue_end: u32,
    /// FIXED_FRAME: CFA = SP + this. FRAME_POINTER: CFA = FP + this.
    ///
    /// For FIXED_FRAME, CFA = SP + `cfa_offset` holds from `sp_set` on. For FRAME_POINTER, CFA = FP + `cfa_offset` holds from
    /// `fp_set` on, and a `cfa_offset` of 0 means 16 on x86-64 and aarch64.
    pub cfa_offset: i32,
    /// FRAME_POINTER, FIXED_FRAME: number of entries of `saved`.
    ///
    /// From the offset `saved_from` on, these registers are saved. `saved` need not contain the registers that `push rbp` or
    /// `stp` stores.
    pub saved_count: u32,
    /// See `saved_count`.
    pub saved: *const jitsym_saved_register,
    /// From this offset in the code on, the registers in `saved` are saved. 0 means `fp_set` or `sp_set`.
    ///
    /// For FRAME_POINTER, 0 means `fp_set`, and any other value is at least `fp_pushed`. For FIXED_FRAME, 0 means `sp_set`, and
    /// any other value is at least `sp_set`.
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
    /// FIXED_FRAME: where `sub rsp, n` ends. 0: the frame exists from the start.
    ///
    /// `sub rsp, n` allocates the frame. `sp_set` is at least `fp_pushed`. Before `sp_set`, the frame is the same as at the
    /// function's entry. From `fp_pushed` on, the values that `push rbp` or `stp` stores are also on the stack.
    pub sp_set: u32,
    /// FIXED_FRAME: end of the `add rsp, n` before `pop rbp`. 0: no such `add`.
    ///
    /// `add rsp, n` (or `mov rsp, rbp`) releases the frame. Only the values from `push rbp` or `stp` stay on the stack. From
    /// `sp_reset` on, the registers in `saved` have the caller's values again. Set `sp_reset` to 0 if a single instruction,
    /// such as `leave`, removes the whole frame.
    pub sp_reset: u32,
}

// `SavedRegister` has the same layout, so that the library can borrow an array from C as a slice.
const _: () = {
    use crate::api::code::SavedRegister;
    assert!(size_of::<jitsym_saved_register>() == size_of::<SavedRegister>());
    assert!(align_of::<jitsym_saved_register>() == align_of::<SavedRegister>());
    assert!(std::mem::offset_of!(jitsym_saved_register, reg) == std::mem::offset_of!(SavedRegister, reg));
};
