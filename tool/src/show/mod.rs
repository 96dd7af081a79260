//! Prints jitdumps and perf maps as text: `jitsym dump` and `jitsym stat`.

mod block;
mod cfi;
mod disassemble;
mod dump;
mod inlined;
mod picture;
mod region;
mod stat;

pub use disassemble::Disassembler;
pub use dump::{dump, Dump};
pub use picture::Look;
pub use stat::stat;

use std::io;

/// The error for a file that is not a jitdump or a perf map.
fn not_a_dump() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "is not a jitdump")
}

/// The usual name of a machine.
fn machine_name(machine: u32) -> &'static str {
    match machine {
        3 => "i386",
        8 => "MIPS",
        21 => "PowerPC64",
        22 => "s390",
        40 => "ARM",
        62 => "x86-64",
        183 => "aarch64",
        243 => "RISC-V",
        258 => "LoongArch",
        0 => "none",
        _ => "unknown",
    }
}
