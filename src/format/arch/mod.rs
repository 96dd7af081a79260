//! The ABI constants of the architectures for which the library can write unwind tables. Each architecture has its own file.
//! The tables have the byte order of this build, and the addresses of the architecture ([`Abi::word`]).

mod aarch64;
mod arm;
mod i386;
mod ppc64le;
mod riscv64;
mod s390x;
mod x86_64;

use std::ops::RangeInclusive;

use gimli::{Register, Vendor};

macro_rules! architectures {
    ($($name:ident $target:literal $order:literal $module:ident;)*) => {
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
            $(() if cfg!(all(target_arch = $target, target_endian = $order)) => Some(Arch::$name),)*
            () => None,
        };
    };
}

architectures! {
    X86_64 "x86_64" "little" x86_64;
    Aarch64 "aarch64" "little" aarch64;
    Riscv64 "riscv64" "little" riscv64;
    S390x "s390x" "big" s390x;
    I386 "x86" "little" i386;
    Arm "arm" "little" arm;
    Ppc64le "powerpc64" "little" ppc64le;
}

/// Whether code begins with a prologue that the defaults of [`FramePointer`](crate::api::code::FramePointer) describe.
pub fn makes_frame_pointer(code: &[u8]) -> bool {
    let frame = NATIVE.and_then(|arch| arch.abi().frame.as_ref());
    frame.is_some_and(|frame| frame.prologues.iter().any(|prologue| code.starts_with(prologue)))
}

/// The `e_machine` value of this machine (elf.h), for ELF headers and the header of a jitdump.
pub const ELF_MACHINE: u32 = match NATIVE {
    Some(arch) => arch.abi().elf_machine,
    None if cfg!(target_arch = "powerpc64") => 21,
    None => 0,
};

/// The definitions of an architecture's psABI. Registers have their DWARF numbers.
pub struct Abi {
    pub elf_machine: u32,
    /// Size of an address and of a stack slot in bytes.
    pub word: u8,
    /// The DWARF numbers of all registers that can be saved.
    pub registers: &'static [RangeInclusive<u32>],
    /// The registers that hold addresses. A CFA can be an offset from any of these registers.
    pub general: RangeInclusive<u32>,
    pub sp: u16,
    /// The DWARF column of the return address.
    pub ra: u16,
    /// Distance from SP to the CFA at entry.
    pub entry_cfa: i32,
    /// Distance from the CFA to the slot of the return address. At entry, SP points to this slot. `None` if the call
    /// instruction does not store the return address on the stack.
    pub entry_ra: Option<i32>,
    /// `None` if code of this architecture has no frame pointer that a [`FramePointer`](crate::api::code::FramePointer) can
    /// describe.
    pub frame: Option<FrameAbi>,
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

/// The usual frame with a frame pointer.
pub struct FrameAbi {
    /// The DWARF number of the frame pointer.
    pub fp: u16,
    /// The fields `pushed`, `set` and `fp_to_cfa` are the defaults of a [`FramePointer`](crate::api::code::FramePointer). A
    /// default applies if the `FramePointer` has 0 in `pushed`, `set` or `cfa_offset`.
    pub pushed: u32,
    pub set: u32,
    pub fp_to_cfa: i32,
    /// In a frame with a frame pointer, the distance from the CFA to the slot of the caller's frame pointer. The return address
    /// is in the slot directly above the caller's frame pointer. `None` if the caller's frame pointer and the return address
    /// are in the two lowest slots of the frame. The frame pointer then points to the lowest slot.
    pub record: Option<i32>,
    /// Whether the caller's frame pointer and the return address are on the stack from the code offset `pushed` on. If not,
    /// they stay in their registers until the frame pointer is set.
    pub record_is_pushed: bool,
    /// The machine code of the default prologue, in each form that [`makes_frame_pointer`] recognizes.
    pub prologues: &'static [&'static [u8]],
}
