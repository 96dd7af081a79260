//! The ELF file of a code region: a shared object with one page of headers, tables that only grow at the end, and the code.
//! Addresses in the file are file offsets (System V ABI, "Object Files"; LSB 5.0 Core, 10.6, for the search table).
//!
//! The tables of each function are made separately, so the cost of a function does not grow with the number of functions.

pub mod debug;
mod dwarf_function;
pub mod eh_frame_hdr;
pub mod frames;
pub mod header;
pub mod inlines;
pub mod line_program;
pub mod loaded;
mod name_numbers;
pub mod object;
pub mod read;
#[cfg(test)]
mod tests;
pub mod valgrind_object;
use super::put::{Put, WORD};

pub const SYMBOL_SIZE: usize = 8 + 2 * WORD;

/// Index of the section `.text`, for symbols.
const TEXT: u8 = 1;

/// `STB_LOCAL`, `STT_FUNC`. Symbols are local, because only local symbols may share a name. perf accepts local symbols (linux
/// tools/perf/util/symbol-elf.c, `elf_sym__is_function`), and writes local symbols itself when it makes objects from a jitdump.
const LOCAL_FUNCTION: u8 = 2;

/// `STB_LOCAL`, `STT_COMMON`.
const LOCAL_COMMON: u8 = 5;

/// How many bytes at the beginning of code get no line information: 1 for code at address 0, otherwise 0. After each address,
/// perf 6 also asks addr2line about address 0. When addr2line replies that it has no information about address 0, perf knows
/// that the reply for the previous address has ended (linux tools/perf/util/srcline.c). If addr2line found information about
/// address 0, perf would not recognize the end of the reply. addr2line also uses the symbols of the section that contains an
/// address. All symbols refer to the section `TEXT`, so `TEXT` must not contain address 0.
pub fn hidden(addr: u64) -> u64 {
    u64::from(addr == 0)
}

/// A function symbol in `.symtab`. `name` is an offset in `.strtab`.
pub fn symbol(name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    symbol_in(TEXT.into(), name, addr, size)
}

/// A second symbol for code at address 0. The symbol covers all bytes of the code except the first, and is for readers that
/// skip symbols at address 0 but accept any type of symbol (bcc src/cc/bcc_elf.c). The symbol is not a function symbol, because
/// with a second function symbol perf would show two rows for the code.
pub fn symbol_after_0(name: u32, size: u64) -> [u8; SYMBOL_SIZE] {
    put_symbol(LOCAL_COMMON, TEXT.into(), name, 1, size - 1)
}

/// A function symbol in the section with this index.
pub fn symbol_in(section: u16, name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    put_symbol(LOCAL_FUNCTION, section, name, addr, size)
}

fn put_symbol(info: u8, section: u16, name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    let mut out = [0; SYMBOL_SIZE];
    let mut put = Put::new(&mut out);
    put.u32(name);
    // The address and the size are at the end in the 64-bit format, and after the name in the 32-bit format.
    let place = |put: &mut Put<'_>| [addr, size].into_iter().for_each(|word| put.word(word));
    if WORD == 4 {
        place(&mut put);
    }
    put.u8(info);
    put.u8(0);
    put.u16(section);
    if WORD == 8 {
        place(&mut put);
    }
    debug_assert!(put.is_full());
    out
}
