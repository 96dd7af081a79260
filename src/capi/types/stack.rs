//! Functions and frames that a program looks up in itself.

use std::ffi::c_char;

use crate::sys::registers;

/// A function that `jitsym_lookup` has found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_function {
    /// `sizeof(jitsym_function)`, set by the caller.
    pub struct_size: usize,
    /// Address of the registered code that contains the function.
    pub addr: u64,
    /// Size of this code in bytes.
    pub size: u64,
    /// Line at the address; 0 if unknown. If an inlined function is at the address: the line of its call.
    pub line: u32,
    /// Column in this line; 0 if unknown.
    pub column: u32,
    /// 1 if the function is inlined into the function with the next number, otherwise 0.
    pub is_inlined: u32,
    /// 0.
    pub reserved: u32,
    /// Receives the name, with a NUL. A longer name is cut. May be NULL.
    pub name: *mut c_char,
    /// Bytes at `name`.
    pub name_size: usize,
    /// Length of the whole name, without a NUL.
    pub name_length: usize,
    /// Receives the file of `line`, which is empty if unknown, like `name`. May be NULL.
    pub file: *mut c_char,
    /// Bytes at `file`.
    pub file_size: usize,
    /// Length of the whole file name, without a NUL.
    pub file_length: usize,
}

/// The registers of a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_registers {
    /// `sizeof(jitsym_registers)`, set by the caller.
    pub struct_size: usize,
    /// The instruction of the frame.
    pub pc: u64,
    /// 1 if `pc` is the address after a call: look up `pc - 1`. 0 if a signal interrupted the frame at `pc`.
    pub is_return: u32,
    /// Bit `n` is set if `values[n]` is known.
    pub known: u32,
    /// Indexed by the DWARF numbers of the registers.
    ///
    /// Of a caller's registers, only those are right that functions must preserve.
    pub values: [u64; 32],
}

const _: () = assert!(registers::REGISTERS == 32);
