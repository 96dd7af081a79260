//! The ABI constants of the architectures for which the library can write unwind tables. Each architecture has its own file.
//! All supported architectures are 64-bit and little-endian.

mod aarch64;
mod riscv64;
mod x86_64;

use std::ops::RangeInclusive;

use gimli::{Register, Vendor};

macro_rules! architectures {
    ($($name:ident $target:literal $module:ident;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Arch {
            $($name,)*
        }

        impl Arch {
            pub const ALL: &[Arch] = &[$(Arch::$name),*];

            pub const fn abi(self) -> &'static Abi {
                match self {
                    $(Arch::$name => &$module::ABI,)*
                }
            }
        }

        /// The architecture of this build; `None` if the library can write names but no unwind tables for this architecture.
        pub const NATIVE: Option<Arch> = match () {
            $(() if cfg!(target_arch = $target) => Some(Arch::$name),)*
            () => None,
        };
    };
}

architectures! {
    X86_64 "x86_64" x86_64;
    Aarch64 "aarch64" aarch64;
    Riscv64 "riscv64" riscv64;
}

/// Whether code begins with a prologue that the defaults of [`FramePointer`](crate::api::code::FramePointer) describe.
pub fn makes_frame_pointer(code: &[u8]) -> bool {
    NATIVE.is_some_and(|arch| arch.abi().prologues.iter().any(|prologue| code.starts_with(prologue)))
}

/// The `e_machine` value of this machine (elf.h), for ELF headers and the header of a jitdump.
pub const ELF_MACHINE: u32 = match NATIVE {
    Some(arch) => arch.abi().elf_machine,
    None if cfg!(target_arch = "s390x") => 22,
    None if cfg!(target_arch = "powerpc64") => 21,
    None => 0,
};

/// The definitions of an architecture's psABI. Registers have their DWARF numbers.
pub struct Abi {
    pub elf_machine: u32,
    /// The DWARF numbers of all registers that can be saved.
    pub registers: &'static [RangeInclusive<u32>],
    /// The registers that hold addresses. A CFA can be an offset from any of these registers.
    pub general: RangeInclusive<u32>,
    pub sp: u16,
    pub fp: u16,
    /// The DWARF column of the return address.
    pub ra: u16,
    /// Distance from the CFA to the slot of the return address. At entry, SP points to this slot. `None` if the call
    /// instruction does not store the return address on the stack.
    pub entry_ra: Option<i32>,
    /// The fields `pushed`, `set` and `fp_to_cfa` are the defaults of a [`FramePointer`](crate::api::code::FramePointer). A
    /// default applies if the `FramePointer` has 0 in `pushed`, `set` or `cfa_offset`.
    pub pushed: u32,
    pub set: u32,
    pub fp_to_cfa: i32,
    /// In a frame with a frame pointer, the distance from the CFA to the slot of the caller's frame pointer. The return address
    /// is in the slot directly above the caller's frame pointer. `None` if the caller's frame pointer and the return address
    /// are in the two lowest slots of the frame. The frame pointer then points to the lowest slot.
    pub frame_record: Option<i32>,
    /// Whether the caller's frame pointer and the return address are on the stack from the code offset `pushed` on. If not,
    /// they stay in their registers until the frame pointer is set.
    pub record_is_pushed: bool,
    /// The machine code of the default prologue, in each form that [`makes_frame_pointer`] recognizes.
    pub prologues: &'static [&'static [u8]],
    /// Size of the instruction that signs the return address. The instruction that checks and removes the signature has the
    /// same size. `None` if the architecture has no such instructions.
    pub sign: Option<u32>,
    /// A register that each CIE describes as unchanged.
    pub kept: Option<Register>,
    /// The vendor whose extensions of the `.eh_frame` instructions apply.
    pub vendor: Vendor,
    /// Breakpoint instructions, four bytes in total.
    pub breakpoints: [u8; 4],
}
