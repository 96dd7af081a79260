//! The architectures whose unwind tables can be written, one file each. All are 64-bit and little-endian.

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

        /// The architecture of this build; `None` if only names can be written.
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

/// Whether code begins by making a frame pointer, with the frame that is at 0 in a
/// [`FramePointer`](crate::api::code::FramePointer).
pub fn makes_frame_pointer(code: &[u8]) -> bool {
    NATIVE.is_some_and(|arch| arch.abi().prologues.iter().any(|prologue| code.starts_with(prologue)))
}

/// `e_machine` of the ELF header, which the header of a jitdump carries (elf.h).
pub const ELF_MACHINE: u32 = match NATIVE {
    Some(arch) => arch.abi().elf_machine,
    None if cfg!(target_arch = "s390x") => 22,
    None if cfg!(target_arch = "powerpc64") => 21,
    None => 0,
};

/// What an architecture's psABI fixes. Registers have their DWARF numbers.
pub struct Abi {
    pub elf_machine: u32,
    /// All registers that can be saved.
    pub registers: &'static [RangeInclusive<u32>],
    /// Those that hold addresses, so that a CFA can be counted from them.
    pub general: RangeInclusive<u32>,
    /// Stack pointer.
    pub sp: u16,
    /// Frame pointer.
    pub fp: u16,
    /// Return address column.
    pub ra: u16,
    /// Where the call instruction has stored the return address, from the CFA, with SP pointing to it.
    pub entry_ra: Option<i32>,
    /// The values that 0 stands for in a [`FramePointer`](crate::api::code::FramePointer).
    pub pushed: u32,
    pub set: u32,
    pub fp_to_cfa: i32,
    /// Where a frame with a frame pointer has the caller's, from the CFA, with the return address above it; `None` for the
    /// lowest slots, where the frame pointer points.
    pub frame_record: Option<i32>,
    /// Whether both are there from `pushed` on. Otherwise they are read from the registers until the frame pointer is set.
    pub record_is_pushed: bool,
    /// The instructions of that prologue, in each of their forms that is looked for.
    pub prologues: &'static [&'static [u8]],
    /// A register that keeps its value, as each CIE says.
    pub kept: Option<Register>,
    /// The vendor that has defined further instructions of `.eh_frame`.
    pub vendor: Vendor,
}
