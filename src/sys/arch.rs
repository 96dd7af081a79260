//! The architecture that the library runs on.

/// Architectures whose unwind tables can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
    /// RISC-V with 64-bit registers.
    Riscv64,
}

/// The architecture of this build; `None` if only names can be written.
pub const NATIVE: Option<Arch> = if cfg!(target_arch = "x86_64") {
    Some(Arch::X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(Arch::Aarch64)
} else if cfg!(target_arch = "riscv64") {
    Some(Arch::Riscv64)
} else {
    None
};

/// `e_machine` of the ELF header, which the header of a jitdump carries (elf.h).
pub const ELF_MACHINE: u32 = match NATIVE {
    Some(Arch::X86_64) => 62,
    Some(Arch::Aarch64) => 183,
    Some(Arch::Riscv64) => 243,
    None if cfg!(target_arch = "s390x") => 22,
    None if cfg!(target_arch = "powerpc64") => 21,
    None => 0,
};
