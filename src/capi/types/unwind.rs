//! Unwind descriptions.

use std::ffi::c_void;

/// How to find the caller's frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_unwind_kind {
    /// Not known: readers guess.
    JITSYM_UNWIND_NONE = 0,
    /// A frame pointer, as in C that is compiled with `-fno-omit-frame-pointer`.
    JITSYM_UNWIND_FRAME_POINTER = 1,
    /// The CFA is a fixed number of bytes above the stack pointer.
    ///
    /// The canonical frame address (CFA) is there in all of the code, or between a prologue and an epilogue. This kind is
    /// also for code with a frame pointer whose stack pointer stays where it is: readers then find the frame by the stack
    /// pointer, whatever the frame pointer has.
    JITSYM_UNWIND_FIXED_FRAME = 2,
    /// A table of rows.
    JITSYM_UNWIND_ROWS = 3,
    /// An `.eh_frame` section that the compiler made.
    JITSYM_UNWIND_EH_FRAME = 4,
}

/// Where a register of the caller was saved: at the CFA + `offset`.
///
/// The CFA is the value that the stack pointer had in the caller, just before the call instruction (x86-64: the address
/// above the return address).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct jitsym_saved_register {
    /// DWARF register number (x86-64: rbx 3, rbp 6, rsp 7, r12 to r15 12 to 15).
    ///
    /// On aarch64: x0 to x30 0 to 30, sp 31, d8 to d15 72 to 79. On riscv64: x0 to x31 0 to 31, f0 to f31 32 to 63.
    pub reg: u32,
    /// Bytes from the CFA, a multiple of 8, mostly negative.
    pub offset: i32,
}

/// One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` on, up to the next row.
///
/// Before the first row the state is that at a call's target: CFA = SP + 8 on x86-64 and SP + 0 elsewhere, nothing saved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind_row {
    /// Bytes from the start of the code, strictly rising.
    pub offset: u32,
    /// DWARF number of the register that the CFA is counted from.
    pub cfa_reg: u32,
    /// CFA = register + this many bytes.
    pub cfa_offset: i32,
    /// Number of entries of `saved`.
    pub saved_count: u32,
    /// The registers that are saved here.
    ///
    /// On x86-64 without the return address, which always lies at CFA - 8. On other architectures the return address
    /// register is listed where it has been saved.
    pub saved: *const jitsym_saved_register,
}

/// An unwind description. Only the fields of its kind are looked at; a place is a number of bytes from the start of the
/// code to the end of an instruction.
///
/// It is copied before the call returns, as all input is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_unwind {
    /// `sizeof(jitsym_unwind)`.
    pub struct_size: usize,
    /// One of `JITSYM_UNWIND_*`.
    pub kind: u32,
    /// Must be 0.
    pub flags: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of x86-64 `push rbp`, aarch64 `stp x29, x30, [sp, #-n]!`.
    ///
    /// The instruction stores the caller's frame pointer. FRAME_POINTER: 0 stands for 1 on x86-64, 4 on aarch64, 12 on
    /// riscv64. FIXED_FRAME: 0 stands for no such instruction. `n` is `cfa_offset` if this is equal to `sp_set`, and else
    /// 16. With FIXED_FRAME it must be 0 on riscv64, where `saved` can have both registers.
    pub fp_pushed: u32,
    /// FRAME_POINTER: the place of x86-64 `mov rbp, rsp`.
    ///
    /// The instruction sets the frame pointer. 0: 4 on x86-64, 8 on aarch64, 16 on riscv64. If something stands before
    /// the usual prologue (`endbr64`), give both this and `fp_pushed`.
    pub fp_set: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of `pop rbp` or `leave`. 0: none.
    ///
    /// The instruction takes the frame down. From there to `epilogue_end` the frame is as at entry. 0 is for code that
    /// leaves by other ways. Code with several epilogues is described by ROWS.
    pub epilogue_begin: u32,
    /// FRAME_POINTER, FIXED_FRAME: the place of the return. 0: the end of the code.
    ///
    /// From there to the end of the code the frame is set up again.
    pub epilogue_end: u32,
    /// FIXED_FRAME: CFA = SP + this. FRAME_POINTER: CFA = FP + this.
    ///
    /// FIXED_FRAME: from `sp_set` on, taken as it is. FRAME_POINTER: once the frame pointer is set; 0: 16 on x86-64 and
    /// aarch64, 0 on riscv64.
    pub cfa_offset: i32,
    /// FRAME_POINTER, FIXED_FRAME: number of entries of `saved`.
    ///
    /// These are saved from `saved_from` on, beyond the frame pointer and the return address that the instruction at
    /// `fp_pushed` stores.
    pub saved_count: u32,
    /// See `saved_count`.
    pub saved: *const jitsym_saved_register,
    /// The place where the last of `saved` is stored. 0: `fp_set` or `sp_set`.
    ///
    /// FRAME_POINTER: not before `fp_pushed`; 0: `fp_set`. FIXED_FRAME: not before `sp_set`; 0: `sp_set`.
    pub saved_from: u32,
    /// ROWS: number of entries of `rows`.
    pub row_count: u32,
    /// ROWS: the table.
    pub rows: *const jitsym_unwind_row,
    /// `sizeof(jitsym_unwind_row)`; 0 stands for that of version 0.1.
    pub row_size: usize,
    /// EH_FRAME: the section's bytes.
    ///
    /// A terminating zero word may be there or not. Entries for other code are left out; an entry that extends beyond the
    /// code is cut to it. A CIE is an entry of the section, before its FDEs, and has at most 1024 bytes. Personality
    /// routines and LSDAs are for `JITSYM_SINK_UNWINDER` alone (see docs/exceptions.md).
    pub eh_frame: *const c_void,
    /// EH_FRAME: their number.
    pub eh_frame_size: usize,
    /// EH_FRAME: the section's own address. 0: where it is now.
    ///
    /// Pc-relative pointers in it are counted from there.
    pub eh_frame_addr: u64,
    /// FIXED_FRAME: the place of `sub rsp, n`. 0: the frame is there from the start.
    ///
    /// The instruction takes the frame; it is not before `fp_pushed`. Until there the frame is as at entry, but for what
    /// the instruction at `fp_pushed` stores.
    pub sp_set: u32,
    /// FIXED_FRAME: the place of `add rsp, n`, with `pop rbp` after it. 0: none.
    ///
    /// The instruction (or `mov rsp, rbp`) gives the frame back and leaves only what was stored at `fp_pushed`. The
    /// registers of `saved` have their values again. 0 is for code that takes all down at `epilogue_begin`, as by
    /// `leave`.
    pub sp_reset: u32,
}

// The Rust struct has the same layout, so that a slice of it can be borrowed.
const _: () = {
    use crate::api::code::SavedRegister;
    assert!(size_of::<jitsym_saved_register>() == size_of::<SavedRegister>());
    assert!(align_of::<jitsym_saved_register>() == align_of::<SavedRegister>());
    assert!(std::mem::offset_of!(jitsym_saved_register, reg) == std::mem::offset_of!(SavedRegister, reg));
};
